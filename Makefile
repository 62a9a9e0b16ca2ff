# Everything goes through the project's own .venv; run `make help`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
HOST ?= http://127.0.0.1:8000

.DEFAULT_GOAL := help
.PHONY: help install demo up test check bench-steps bench-texts bench-streams serve clean \
  bench-queue-delay load-test bench bench-quick bench-frameworks perf-analyzer \
  train-demo-voice train-demo-voice-smoke voice-report

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED)  ## make .venv with every extra, pinned by constraints.txt

$(INSTALLED): pyproject.toml client/pyproject.toml constraints.txt scripts/install.sh
	scripts/install.sh "$(PYTHON)" "$(VENV)"
	touch $@

demo: install  ## checkpoint, export, tritonserver, one gRPC infer call: demo.wav
	$(BIN)/chattts-triton demo

up: install  ## Triton and the gateway together, on 127.0.0.1; Ctrl-C stops both
	$(BIN)/chattts-triton up

serve: install  ## serve ./model_repository on the default ports
	$(BIN)/chattts-triton serve

check: install  ## linters: ruff, mypy, layer rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check  ## the linters and every test, as CI runs them
	scripts/install_redis.sh
	scripts/install_prometheus.sh
	$(BIN)/python -m pytest

bench: install  ## this server beside upstream: throughput, latency, first audio, memory (20 minutes)
	$(BIN)/python benchmarks/side_by_side.py

bench-quick: install  ## the short form of it, in 5 minutes: benchmarks/results/quick.json
	$(BIN)/python benchmarks/quick.py

bench-frameworks: install  ## one decode loop in PyTorch, ONNX Runtime and through Triton
	$(BIN)/python benchmarks/frameworks.py

perf-analyzer: install  ## NVIDIA's perf_analyzer, which it brings, on chattts at 1 to 8 clients
	scripts/install_perf_analyzer.sh $(BIN)/python build/perf_analyzer
	$(BIN)/python benchmarks/perf_analyzer.py --program build/perf_analyzer/perf_analyzer

bench-steps: install  ## engine against upstream's loop, step against session, memory (full weights)
	$(BIN)/python benchmarks/steps.py

bench-texts: install  ## a long text against its segments, reading of texts, cost of the dither
	$(BIN)/python benchmarks/long_text.py
	$(BIN)/python benchmarks/text.py
	$(BIN)/python benchmarks/dither.py

bench-streams: install  ## streams: first audio, slack, cancelling, recovery; distance from the whole
	$(BIN)/python benchmarks/streams.py
	$(BIN)/python benchmarks/stream_quality.py

bench-queue-delay: install  ## streams with max_queue_delay_us at 0, 10 and 100 ms
	$(BIN)/python benchmarks/queue_delay.py

load-test: install  ## 50, 100 and 200 users against HOST (Triton's HTTP or a gateway): build/locust.html
	mkdir -p build
	$(BIN)/locust -f benchmarks/locustfile.py --headless --only-summary --host $(HOST) \
	  --html build/locust.html

train-demo-voice: install  ## train the voice of assets/demo_voice anew, English and Mandarin (2.7 hours on 2 cores)
	scripts/install_teacher.sh
	$(BIN)/python -m training
	$(BIN)/python -m training.mandarin

train-demo-voice-smoke: install  ## a few steps of every stage of the training
	scripts/install_teacher.sh
	$(BIN)/python -m training --smoke --work build/training-smoke --out build/training-smoke/voice

voice-report: install  ## the demonstration voice against its teacher: docs/demo_voice.md
	scripts/install_teacher.sh
	$(BIN)/python benchmarks/voice_report.py
	$(BIN)/python benchmarks/voice_mandarin.py

clean:  ## remove exports, checkpoints, wavs and caches; keep .venv
	git clean -fdqX model_repository
	rm -rf checkpoints build *.wav
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

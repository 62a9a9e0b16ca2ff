# Everything goes through the project's own .venv; run `make help`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test check bench-steps bench-texts bench-streams serve clean \
  train-demo-voice train-demo-voice-smoke voice-report

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED)  ## make .venv with every extra, pinned by constraints.txt

$(INSTALLED): pyproject.toml client/pyproject.toml constraints.txt scripts/install.sh
	scripts/install.sh "$(PYTHON)" "$(VENV)"
	touch $@

demo: install  ## checkpoint, export, tritonserver, one gRPC infer call: demo.wav
	$(BIN)/chattts-triton demo

serve: install  ## serve ./model_repository on the default ports
	$(BIN)/chattts-triton serve

check: install  ## linters: ruff, mypy, layer rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check  ## the linters and every test, as CI runs them
	$(BIN)/python -m pytest

bench-steps: install  ## engine against upstream's loop, step against session, memory (full weights)
	$(BIN)/python benchmarks/steps.py

bench-texts: install  ## a long text against its segments, reading of texts, cost of the dither
	$(BIN)/python benchmarks/long_text.py
	$(BIN)/python benchmarks/text.py
	$(BIN)/python benchmarks/dither.py

bench-streams: install  ## streams: first audio, slack, cancelling, recovery; distance from the whole
	$(BIN)/python benchmarks/streams.py
	$(BIN)/python benchmarks/stream_quality.py

train-demo-voice: install  ## train the voice of assets/demo_voice anew from flite (2 hours on 2 cores)
	scripts/install_teacher.sh
	$(BIN)/python -m training

train-demo-voice-smoke: install  ## a few steps of every stage of the training
	scripts/install_teacher.sh
	$(BIN)/python -m training --smoke --work build/training-smoke --out build/training-smoke/voice

voice-report: install  ## the demonstration voice against its teacher: docs/demo_voice.md
	scripts/install_teacher.sh
	$(BIN)/python benchmarks/voice_report.py

clean:  ## remove exports, checkpoints, wavs and caches; keep .venv
	git clean -fdqX model_repository
	rm -rf checkpoints build *.wav
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

#!/usr/bin/env bash
# All that a CUDA machine can show, in one command: installs, exports fp16, compares it with fp32,
# runs the parity and CUDA tests, times steps and makes one call. Writes benchmarks/results/gpu*.json.
# Exits with 2 where there is no CUDA device.
# Usage: benchmarks/gpu_check.sh [CHECKPOINT]
set -euo pipefail
cd "$(dirname "$0")/.."
checkpoint="${1:-assets/demo_voice}"

if ! nvidia-smi >/dev/null 2>&1; then
  echo "gpu_check: no CUDA device: nvidia-smi is missing or does not answer; nothing was measured" >&2
  exit 2
fi
nvidia-smi
make install
if ! .venv/bin/python -c '
import sys
from chattts_triton.ort import Device, choose_device
sys.exit(choose_device(wants_cuda=True) is not Device.CUDA)'; then
  echo "gpu_check: this onnxruntime cannot use the CUDA device; remove .venv and run again" >&2
  exit 2
fi

.venv/bin/chattts-triton export --checkpoint "$checkpoint" --repository build/gpu-check \
  --precision fp16 --verify
.venv/bin/chattts-triton compare-precision --checkpoint "$checkpoint" \
  --json benchmarks/results/gpu_precisions.json
.venv/bin/python -m pytest tests/parity tests/export/test_fp16.py tests/unit/test_devices.py
.venv/bin/python benchmarks/gpu.py
echo "gpu_check: done; see benchmarks/results/gpu.json and gpu_precisions.json"

#!/usr/bin/env bash
# Prints the package of ONNX Runtime for this machine: the one with CUDA where a driver answers.
set -euo pipefail
if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
  echo "onnxruntime-gpu[cuda,cudnn]"
else
  echo "onnxruntime"
fi

"""Triton's entry into the `gpt` member; see chattts_triton/serving/gpt.py."""

import triton_python_backend_utils as pb_utils

from chattts_triton.serving.edge import ModelArgs, TritonEdge
from chattts_triton.serving.gpt import GptModel
from chattts_triton.tensors import GPT


class TritonPythonModel:
    """Non-decoupled, yet `execute` returns at once: responses follow through their senders."""

    def initialize(self, args):
        self._model = GptModel(TritonEdge(pb_utils, GPT), ModelArgs(args))

    def execute(self, requests):
        for request in requests:
            self._model.accept(request)

    def finalize(self):
        self._model.close()

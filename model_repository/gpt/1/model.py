"""Triton's entry into the `gpt` member; see chattts_triton/serving/gpt.py."""

import triton_python_backend_utils as pb_utils

from chattts_triton.serving.edge import ModelArgs, TritonEdge
from chattts_triton.serving.gpt import GptModel
from chattts_triton.serving.request_log import set_up_logging
from chattts_triton.serving.series import Metrics
from chattts_triton.tensors import GPT


class TritonPythonModel:
    """Non-decoupled, yet `execute` returns at once: responses follow through their senders."""

    def initialize(self, args):
        set_up_logging()
        model_args = ModelArgs(args)
        metrics = Metrics(pb_utils, model_args.ensemble)
        edge = TritonEdge(pb_utils, GPT)
        self._model = GptModel(edge, model_args, metrics)

    def execute(self, requests):
        for request in requests:
            self._model.accept(request)

    def finalize(self):
        self._model.close()

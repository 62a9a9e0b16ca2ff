"""Triton's entry into the model `chattts_stream`; see chattts_triton/serving/stream.py."""

import triton_python_backend_utils as pb_utils

from chattts_triton.serving.edge import ModelArgs, TritonEdge
from chattts_triton.serving.request_log import set_up_logging
from chattts_triton.serving.series import Metrics
from chattts_triton.serving.stream import StreamModel
from chattts_triton.tensors import CHATTTS_STREAM


class TritonPythonModel:
    """Decoupled: `execute` returns at once, and each request is served by a thread of its own."""

    def initialize(self, args):
        set_up_logging()
        model_args = ModelArgs(args)
        metrics = Metrics(pb_utils, model_args.ensemble)
        edge = TritonEdge(pb_utils, CHATTTS_STREAM)
        self._model = StreamModel(pb_utils, edge, model_args, metrics)

    def execute(self, requests):
        for request in requests:
            self._model.accept(request)

    def finalize(self):
        self._model.close()

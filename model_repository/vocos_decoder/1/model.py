"""Triton's entry into the `vocos_decoder` member; see chattts_triton/serving/vocos_decoder.py."""

import triton_python_backend_utils as pb_utils

from chattts_triton.serving.edge import ModelArgs, TritonEdge
from chattts_triton.serving.request_log import set_up_logging
from chattts_triton.serving.series import Metrics
from chattts_triton.serving.vocos_decoder import VocosDecoderMember
from chattts_triton.tensors import VOCOS_DECODER


class TritonPythonModel:
    """Non-decoupled, yet `execute` returns at once: responses follow through their senders."""

    def initialize(self, args):
        set_up_logging()
        model_args = ModelArgs(args)
        self._member = VocosDecoderMember(
            TritonEdge(pb_utils, VOCOS_DECODER), model_args, Metrics(pb_utils, model_args.ensemble)
        )

    def execute(self, requests):
        for request in requests:
            self._member.accept(request)

    def finalize(self):
        self._member.close()

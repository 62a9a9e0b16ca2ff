"""Triton's entry into the `vocos_decoder` member; see chattts_triton/serving/vocos_decoder.py."""

import triton_python_backend_utils as pb_utils

from chattts_triton.serving.edge import ModelArgs, TritonEdge
from chattts_triton.serving.request_log import set_up_logging
from chattts_triton.serving.series import Metrics
from chattts_triton.serving.vocos_decoder import VocosDecoderMember
from chattts_triton.tensors import VOCOS_DECODER


class TritonPythonModel:
    """One response for each request, in order."""

    def initialize(self, args):
        set_up_logging()
        model_args = ModelArgs(args)
        self._member = VocosDecoderMember(
            TritonEdge(pb_utils, VOCOS_DECODER), model_args, Metrics(pb_utils, model_args.ensemble)
        )

    def execute(self, requests):
        return [self._member.answer(request) for request in requests]

    def finalize(self):
        self._member.close()

"""Triton's entry into the `vocos_decoder` member; see chattts_triton/serving/vocos_decoder.py."""

import triton_python_backend_utils as pb_utils

from chattts_triton.serving.edge import ModelArgs, TritonEdge
from chattts_triton.serving.vocos_decoder import VocosDecoderModel
from chattts_triton.tensors import VOCOS_DECODER


class TritonPythonModel:
    """One response for each request, in order."""

    def initialize(self, args):
        self._edge = TritonEdge(pb_utils, VOCOS_DECODER)
        self._model = VocosDecoderModel(ModelArgs(args))

    def execute(self, requests):
        return [self._edge.answer(request, self._model.run) for request in requests]

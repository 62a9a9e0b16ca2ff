"""Triton's entry into the `preprocess` member; see chattts_triton/serving/preprocess.py."""

import triton_python_backend_utils as pb_utils

from chattts_triton.serving.edge import ModelArgs, TritonEdge
from chattts_triton.serving.preprocess import PreprocessMember
from chattts_triton.serving.request_log import set_up_logging
from chattts_triton.serving.series import Metrics
from chattts_triton.tensors import PREPROCESS


class TritonPythonModel:
    """One response for each request, in order."""

    def initialize(self, args):
        set_up_logging()
        model_args = ModelArgs(args)
        edge = TritonEdge(
            pb_utils, PREPROCESS, num_warm_up_requests=model_args.num_warm_up_requests
        )
        self._member = PreprocessMember(edge, model_args, Metrics(pb_utils, model_args.ensemble))

    def execute(self, requests):
        return [self._member.answer(request) for request in requests]

    def finalize(self):
        self._member.close()

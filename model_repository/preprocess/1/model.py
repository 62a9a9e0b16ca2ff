"""Triton's entry into the `preprocess` member; see chattts_triton/serving/preprocess.py."""

import triton_python_backend_utils as pb_utils

from chattts_triton.serving.edge import ModelArgs, TritonEdge
from chattts_triton.serving.preprocess import PreprocessModel
from chattts_triton.tensors import PREPROCESS


class TritonPythonModel:
    """One response for each request, in order."""

    def initialize(self, args):
        model_args = ModelArgs(args)
        self._edge = TritonEdge(
            pb_utils, PREPROCESS, num_warm_up_requests=model_args.num_warm_up_requests
        )
        manifest, directory = model_args.load_manifest()
        self._model = PreprocessModel(
            directory, manifest.special_ids, model_args.directory, model_args.parameters
        )

    def execute(self, requests):
        return [self._edge.answer(request, self._model.run) for request in requests]

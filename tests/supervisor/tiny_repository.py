"""A servable repository: the committed configs over Python models of a few lines."""

from __future__ import annotations

import shutil
from pathlib import Path

from chattts_triton.export.repository import template_directory
from chattts_triton.manifest import PYTHON_MODELS, Dims, Manifest, manifest_path

# Switches are files in the repository, which is the working directory of the models:
# `fail` makes the load of gpt fail, `wait` holds it up; gpt makes `hanging` when it hangs.
# Text ids are code points, and what gpt has to say comes out as FINISH_REASON.
MODEL = """
import json
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        self.outputs = json.loads(args["model_config"])["output"]
        if self.name == "gpt":
            if os.path.exists("fail"):
                raise RuntimeError("the weights are gone\\nsecond line")
            while os.path.exists("wait"):
                time.sleep(0.02)

    def execute(self, requests):
        if self.name == "chattts_stream":
            for request in requests:
                request.get_response_sender().send(self.answer(request), flags=FINAL)
            return None
        return [self.answer(request) for request in requests]

    def answer(self, request):
        made = getattr(self, "run_" + self.name, lambda request: {})(request)
        tensors = [pb_utils.Tensor(o["name"], made.get(o["name"], empty(o))) for o in self.outputs]
        return pb_utils.InferenceResponse(tensors)

    def run_preprocess(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[0, 0].decode("utf-8")
        return {"TEXT_IDS": np.array([[ord(char) for char in text]], dtype=np.int32)}

    def run_gpt(self, request):
        ids = pb_utils.get_input_tensor_by_name(request, "TEXT_IDS").as_numpy()[0]
        text = "".join(chr(i) for i in ids)
        if text == "hang":
            open("hanging", "w").close()
            time.sleep(600)
        if text.startswith("CHATTTS_"):
            text = os.environ.get(text, "unset")
        if text == "pid":
            text = str(os.getpid())
        return {"FINISH_REASON": np.array([[text.encode("utf-8")]], dtype=object)}


def empty(output):
    dtype = pb_utils.triton_string_to_numpy(output["data_type"])
    shape = [1] + [max(int(dim), 1) for dim in output["dims"]]
    return np.full(shape, b"" if dtype == np.object_ else 0, dtype=dtype)
"""


def write_tiny_repository(repository: Path) -> Path:
    for name in PYTHON_MODELS:
        _write(repository / name / "1" / "model.py", MODEL)
        _copy_config(repository, name)
    _write(manifest_path(repository), _manifest().to_json())
    _copy_config(repository, "chattts_ensemble")
    (repository / "chattts").symlink_to("chattts_ensemble")
    return repository


def _copy_config(repository: Path, model: str) -> None:
    shutil.copyfile(
        template_directory() / model / "config.pbtxt", repository / model / "config.pbtxt"
    )


def break_import(repository: Path, model: str) -> None:
    path = repository / model / "1" / "model.py"
    path.write_text(f"import no_such_module\n{path.read_text()}")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _manifest() -> Manifest:
    dims = Dims(
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_vq=4,
        num_audio_tokens=626,
        num_text_tokens=100,
        max_position_embeddings=16,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
    )
    return Manifest(
        export_id="tiny",
        precision="fp32",
        dims=dims,
        special_ids={},
        files={},
        checkpoint={},
        versions={},
        opset=20,
    )

"""A servable repository of two Python models of a few lines and the ensemble that joins them."""

from __future__ import annotations

import shutil
from pathlib import Path

from chattts_triton.manifest import Dims, Manifest, manifest_path

# Switches are files in the repository, which is the working directory of the models:
# `fail` makes the load of gpt fail, `wait` holds it up; gpt makes `hanging` when it hangs.
MODEL = """
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        if self.name == "gpt":
            if os.path.exists("fail"):
                raise RuntimeError("the weights are gone\\nsecond line")
            while os.path.exists("wait"):
                time.sleep(0.02)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        if self.name == "gpt" and text[0, 0] == b"hang":
            open("hanging", "w").close()
            time.sleep(600)
        if self.name == "gpt" and text[0, 0].startswith(b"CHATTTS_"):
            value = os.environ.get(text[0, 0].decode(), "unset")
            text = np.array([[value.encode()]], dtype=object)
        if self.name == "gpt" and text[0, 0] == b"pid":
            text = np.array([[str(os.getpid()).encode()]], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)])
"""

TENSORS = """
max_batch_size: 8
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""

STEP = """
    {{
      model_name: "{model}"
      model_version: -1
      input_map {{ key: "TEXT" value: "{source}" }}
      output_map {{ key: "OUT" value: "{target}" }}
    }}"""


def write_tiny_repository(repository: Path) -> Path:
    for name in ("preprocess", "gpt"):
        _write(repository / name / "1" / "model.py", MODEL)
        config = f'backend: "python"\n{TENSORS}instance_group [ {{ kind: KIND_CPU }} ]\n'
        _write(repository / name / "config.pbtxt", config)
    first = STEP.format(model="preprocess", source="TEXT", target="MIDDLE")
    second = STEP.format(model="gpt", source="MIDDLE", target="OUT")
    config = f'platform: "ensemble"\n{TENSORS}ensemble_scheduling {{ step [{first},{second} ] }}\n'
    _write(repository / "chattts_ensemble" / "config.pbtxt", config)
    _write(manifest_path(repository), _manifest().to_json())
    (repository / "chattts").symlink_to("chattts_ensemble")
    return repository


def break_import(repository: Path, model: str) -> None:
    path = repository / model / "1" / "model.py"
    path.write_text(f"import no_such_module\n{path.read_text()}")


def add_stream_model(repository: Path) -> None:
    shutil.copytree(repository / "preprocess", repository / "chattts_stream")


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

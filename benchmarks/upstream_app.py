"""Upstream behind a small web application, as its own example serves it: one request at a time.

Usage: python benchmarks/upstream_app.py --checkpoint DIR --port P
"""

from __future__ import annotations

import argparse
import logging
import threading
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel

from chattts_triton.config import num_threads
from chattts_triton.export.upstream import load_upstream_chat


class Speech(BaseModel):
    """What a client asks for."""

    text: str
    seed: int
    max_new_tokens: int


def make_app(chat: Any) -> FastAPI:
    """POST /speak answers with raw float32 samples at 24 kHz."""
    app = FastAPI()
    speaker = chat.sample_random_speaker()
    one_at_a_time = threading.Lock()

    @app.post("/speak")
    def speak(speech: Speech) -> Response:
        params = chat.InferCodeParams(
            spk_emb=speaker, max_new_token=speech.max_new_tokens, show_tqdm=False
        )
        with one_at_a_time:
            torch.manual_seed(speech.seed)
            (samples,) = chat.infer(
                [speech.text],
                skip_refine_text=True,
                do_text_normalization=False,
                do_homophone_replacement=False,
                params_infer_code=params,
            )
        return Response(samples.astype("float32").tobytes(), media_type="application/octet-stream")

    @app.get("/ready")
    def ready() -> str:
        return "yes"

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    logging.getLogger("ChatTTS").setLevel(logging.ERROR)
    torch.set_num_threads(num_threads(0))
    app = make_app(load_upstream_chat(args.checkpoint))
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning")


if __name__ == "__main__":
    main()

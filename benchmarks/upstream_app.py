"""Upstream's ChatTTS behind a small HTTP service, one request at a time, for comparison.

One `Chat` serves all, as in upstream's own example, so requests take turns. Refinement is skipped
and the text is not normalised; a request says how many steps it takes.
Usage: python benchmarks/upstream_app.py --checkpoint DIR [--port P]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from chattts_triton.config import num_threads
from chattts_triton.export.upstream import load_upstream_chat
from chattts_triton.sampling_params import MAX_SEED

READY = "ready http="
DROPPED = 503

Speak = Callable[[str, int, int], npt.NDArray[np.float32]]


class Order(BaseModel):
    """What is to be said, and in how many steps."""

    text: Annotated[str, Field(min_length=1)]
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    num_codes: Annotated[int, Field(ge=1, le=2048)]


class UpstreamSpeaker:
    """Speaks a text by `Chat.infer`, in exactly as many steps as are asked for."""

    def __init__(self, chat: Any) -> None:
        self._chat = chat
        self._speaker = chat.sample_random_speaker()

    def __call__(self, text: str, seed: int, num_codes: int) -> npt.NDArray[np.float32]:
        """The audio, without the samples next to zero that upstream drops."""
        torch.manual_seed(seed)
        params = self._chat.InferCodeParams(
            spk_emb=self._speaker,
            min_new_token=num_codes,
            max_new_token=num_codes,
            show_tqdm=False,
        )
        (samples,) = self._chat.infer(
            text,
            skip_refine_text=True,
            do_text_normalization=False,
            do_homophone_replacement=False,
            params_infer_code=params,
        )
        return np.asarray(samples, dtype=np.float32)


class Server(uvicorn.Server):
    """Ends at once when it is told to: uvicorn would first let it finish what it speaks."""

    def capture_signals(self) -> AbstractContextManager[None]:
        """Leave the signals to the system."""
        return nullcontext()


def create_app(speak: Speak) -> FastAPI:
    """The service around what speaks; `speak` is never called by two requests at a time."""
    app = FastAPI()
    turn = asyncio.Lock()  # first come, first served
    rounds = [0]

    @app.post("/speech")
    async def speech(order: Order) -> Response:
        """The audio as float32 samples."""
        arrived_in = rounds[0]
        async with turn:
            if rounds[0] != arrived_in:
                raise HTTPException(DROPPED, "dropped before its turn")
            samples = await run_in_threadpool(speak, order.text, order.seed, order.num_codes)
        return Response(samples.tobytes(), media_type="application/octet-stream")

    @app.post("/drop-waiting")
    async def drop_waiting() -> None:
        """Requests that wait now are not spoken any more; the one whose turn it is goes on."""
        rounds[0] += 1

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    args = parser.parse_args()
    logging.getLogger("ChatTTS").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    torch.set_num_threads(num_threads(0))
    speak = UpstreamSpeaker(load_upstream_chat(args.checkpoint))
    with socket.create_server(("127.0.0.1", args.port)) as listener:
        host, port = listener.getsockname()
        sys.stdout.write(f"{READY}{host}:{port}\n")
        sys.stdout.flush()
        config = uvicorn.Config(create_app(speak), log_level="warning")
        Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()

"""Speech while it is made, as raw samples: stream_pcm.py [HOST:PORT] [FILE].

To hear it: stream_pcm.py 127.0.0.1:8001 | aplay -t raw -f S16_LE -r 24000 -c 1
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

from chattts_client import ChatTTSClient, ChatTTSClientError


def main(url: str = "127.0.0.1:8001", path: str = "-") -> None:
    """Stream one text into one file, or to standard output."""
    output = os.fdopen(sys.stdout.fileno(), "wb", closefd=False) if path == "-" else None
    with (
        output or Path(path).open("wb") as file,
        ChatTTSClient(url) as client,
        closing(client.stream("你好，世界。", seed=42, mode="low_latency")) as chunks,
    ):
        try:
            for chunk in chunks:
                file.write(chunk.pcm16_bytes())
                file.flush()
                end = f", {chunk.finish_reason}" if chunk.is_last else ""
                print(f"chunk {chunk.index}: {chunk.duration_s:.2f} s{end}", file=sys.stderr)
        except ChatTTSClientError as error:
            sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""One text with chattts_client: synthesize.py [HOST:PORT] [FILE.wav]."""

from __future__ import annotations

import sys

from chattts_client import ChatTTSClient, ChatTTSClientError


def main(url: str = "127.0.0.1:8001", path: str = "hello.wav") -> None:
    """Synthesize one text into one file."""
    with ChatTTSClient(url) as client:
        try:
            audio = client.synthesize("你好，世界。", seed=42, speed=5)
        except ChatTTSClientError as error:
            sys.exit(f"{type(error).__name__}: {error}")
    audio.write(path)
    if audio.finish_reason == "length":
        print("the audio was cut at the limit of steps", file=sys.stderr)
    print(f"{path}: {audio.duration_s:.2f} s, seed {audio.seed}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Many texts at once with asyncio: asyncio_batch.py [HOST:PORT] [DIRECTORY].

Calls side by side each end as soon as their own audio is done; texts in one call end together.
Either way the server works on all of them at the same time.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from chattts_client import AsyncChatTTSClient

TEXTS = ["早上好。", "今天天气很好，我们去公园走走吧。", "Good night."]


async def main(url: str = "127.0.0.1:8001", directory: str = ".") -> None:
    """Synthesize the texts in both ways, one file each."""
    async with AsyncChatTTSClient(url) as client:
        side_by_side = await asyncio.gather(*(client.synthesize(text, seed=42) for text in TEXTS))
        in_one_call = await client.synthesize_batch(TEXTS, seed=[42, 43, 44])
    for kind, audios in (("gather", side_by_side), ("batch", in_one_call)):
        for number, audio in enumerate(audios):
            path = Path(directory) / f"{kind}_{number}.wav"
            audio.write(path)
            print(f"{path}: {audio.duration_s:.2f} s, seed {audio.seed}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

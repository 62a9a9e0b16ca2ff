"""The pieces of one text's audio as a stream brings them, and the whole that they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chattts_client._audio import Audio, FinishReason, to_pcm16

StreamMode = Literal["quality", "low_latency", "auto"]
StreamModeUsed = Literal["quality", "low_latency"]


@dataclass(frozen=True, eq=False)
class AudioChunk:
    """One piece of a text's audio; the next one follows it without a gap.

    Attributes:
        samples: (S,) float32 in [-1, 1].
        pcm16: (S,) int16, the server's own dithered conversion, where the server gave one.
        index: 0 for the first chunk of a stream.
        sample_rate: In Hz.
        seed: What the speaker and the codes were drawn from; send it to get this audio again.
        mode: What the server took, where it was left to the server as well.
        finish_reason: None until the last chunk; then "stop" where the model ended by itself,
            "length" where the limit of steps cut the audio off.
        refined_text: As in `Audio`; empty until the last chunk.
        warnings: As in `Audio`; empty until the last chunk.
    """

    samples: NDArray[np.float32] = field(repr=False)
    pcm16: NDArray[np.int16] | None = field(repr=False)
    index: int
    sample_rate: int
    seed: int
    mode: StreamModeUsed
    finish_reason: FinishReason | None
    refined_text: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def is_last(self) -> bool:
        """Whether the audio ends with this chunk."""
        return self.finish_reason is not None

    @property
    def duration_s(self) -> float:
        """How long the chunk plays."""
        return len(self.samples) / self.sample_rate

    def pcm16_bytes(self) -> bytes:
        """The chunk as raw 16-bit samples, little-endian, from `pcm16` where it came."""
        pcm16 = to_pcm16(self.samples) if self.pcm16 is None else self.pcm16
        return pcm16.astype("<i2", copy=False).tobytes()


def join_chunks(chunks: Iterable[AudioChunk]) -> Audio:
    """The audio of a whole stream, as `synthesize` gives it.

    Args:
        chunks: All chunks of one stream, in order; a stream itself will do.

    Raises:
        ValueError: They are not all there, or not in order.
    """
    whole = list(chunks)
    indices = [chunk.index for chunk in whole]
    if indices != list(range(len(whole))):
        raise ValueError(f"chunks: got the indices {indices}, wanted all of a stream in order")
    if not whole or (finish_reason := whole[-1].finish_reason) is None:
        raise ValueError(f"chunks: got {len(whole)}, without the last one of a stream")
    last = whole[-1]
    pcm16 = [chunk.pcm16 for chunk in whole if chunk.pcm16 is not None]
    return Audio(
        samples=np.concatenate([chunk.samples for chunk in whole]),
        sample_rate=last.sample_rate,
        seed=last.seed,
        finish_reason=finish_reason,
        pcm16=np.concatenate(pcm16) if len(pcm16) == len(whole) else None,
        refined_text=last.refined_text,
        warnings=last.warnings,
    )

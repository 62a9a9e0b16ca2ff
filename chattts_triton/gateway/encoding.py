"""Samples into a format of audio, piece by piece: what went in can be sent at once.

All encoders take 16-bit samples at 24 kHz, mono. Joined, their bytes are one file with one header.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol

import av
import numpy as np
from numpy.typing import NDArray

from chattts_triton.constants import SAMPLE_RATE_HZ

ResponseFormat = Literal["mp3", "opus", "flac", "wav", "pcm"]

UNKNOWN_BYTES = 0xFFFF_FFFF  # the size in the header of a WAV file that is still being made
_SAMPLE_BYTES = 2


class Encoder(Protocol):
    """One file in the making."""

    def encode(self, pcm16: NDArray[np.int16]) -> bytes:
        """The next bytes of the file, perhaps none.

        Args:
            pcm16: (S,) int16.
        """
        ...

    def finish(self) -> bytes:
        """The last bytes; nothing may be encoded afterwards."""
        ...


class PcmEncoder:
    """Samples as they are, little-endian, without a header."""

    def encode(self, pcm16: NDArray[np.int16]) -> bytes:
        """As `Encoder`."""
        return pcm16.astype("<i2", copy=False).tobytes()

    def finish(self) -> bytes:
        """As `Encoder`."""
        return b""


class WavEncoder(PcmEncoder):
    """A header that leaves the length open, and samples."""

    def __init__(self) -> None:
        self._header = wav_header(UNKNOWN_BYTES)

    def encode(self, pcm16: NDArray[np.int16]) -> bytes:
        """As `Encoder`."""
        header, self._header = self._header, b""
        return header + super().encode(pcm16)

    def finish(self) -> bytes:
        """As `Encoder`."""
        return self._header


class WholeWavEncoder(PcmEncoder):
    """Gives the whole file at the end, with its length in the header."""

    def __init__(self) -> None:
        self._samples: list[bytes] = []

    def encode(self, pcm16: NDArray[np.int16]) -> bytes:
        """As `Encoder`."""
        self._samples.append(super().encode(pcm16))
        return b""

    def finish(self) -> bytes:
        """As `Encoder`."""
        num_bytes = sum(map(len, self._samples))
        return b"".join([wav_header(num_bytes), *self._samples])


class AvEncoder:
    """A codec and a container of FFmpeg's.

    Args:
        container: FFmpeg's name of the container.
        codec: FFmpeg's name of the codec.
        bit_rate: In bits a second; None for a codec without loss.
        options: Of the container.
    """

    def __init__(
        self, container: str, codec: str, bit_rate: int | None, options: dict[str, str]
    ) -> None:
        self._sink = _Sink()
        self._container = av.open(
            self._sink, mode="w", format=container, options={"flush_packets": "1", **options}
        )
        stream: Any = self._container.add_stream(codec, rate=SAMPLE_RATE_HZ, layout="mono")
        if bit_rate is not None:
            stream.bit_rate = bit_rate
        self._stream = stream
        self._num_samples = 0

    def encode(self, pcm16: NDArray[np.int16]) -> bytes:
        """As `Encoder`."""
        if len(pcm16) == 0:
            return b""
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(pcm16).reshape(1, -1), format="s16", layout="mono"
        )
        frame.sample_rate = SAMPLE_RATE_HZ
        frame.pts = self._num_samples
        self._num_samples += len(pcm16)
        self._container.mux(self._stream.encode(frame))
        return self._sink.take()

    def finish(self) -> bytes:
        """As `Encoder`."""
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.take()


@dataclass(frozen=True)
class Codec:
    """How FFmpeg is asked for a format."""

    container: str
    name: str
    bit_rate: int | None = None
    options: dict[str, str] = field(default_factory=dict)


MEDIA_TYPES = MappingProxyType(
    {
        "mp3": "audio/mpeg",
        "opus": "audio/ogg",
        "flac": "audio/flac",
        "wav": "audio/wav",
        "pcm": f"audio/pcm;rate={SAMPLE_RATE_HZ};channels=1",
    }
)
_CODECS = {
    # Without the frame that tells the length: it could only be filled in by going back.
    "mp3": Codec("mp3", "libmp3lame", 64_000, {"write_xing": "0", "id3v2_version": "0"}),
    # A page of Ogg is sent when it is full, so it must not hold a second, FFmpeg's own choice.
    "opus": Codec("ogg", "libopus", 48_000, {"page_duration": "100000"}),
    "flac": Codec("flac", "flac"),
}


def encoder_of(response_format: ResponseFormat, *, is_streamed: bool) -> Encoder:
    """A new encoder.

    Args:
        response_format: The format of the file.
        is_streamed: Whether bytes are sent before the last sample is there.
    """
    if response_format == "pcm":
        return PcmEncoder()
    if response_format == "wav":
        return WavEncoder() if is_streamed else WholeWavEncoder()
    codec = _CODECS[response_format]
    return AvEncoder(codec.container, codec.name, codec.bit_rate, codec.options)


def wav_header(num_bytes: int) -> bytes:
    """The 44 bytes before 16-bit mono samples of so many bytes."""
    riff_bytes = min(num_bytes + 36, UNKNOWN_BYTES)
    byte_rate = SAMPLE_RATE_HZ * _SAMPLE_BYTES
    format_chunk = struct.pack(
        "<4sIHHIIHH", b"fmt ", 16, 1, 1, SAMPLE_RATE_HZ, byte_rate, _SAMPLE_BYTES, 16
    )
    head = struct.pack("<4sI4s", b"RIFF", riff_bytes, b"WAVE")
    return head + format_chunk + struct.pack("<4sI", b"data", num_bytes)


class _Sink(io.RawIOBase):
    """What FFmpeg writes to; it cannot go back, as a socket cannot."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def take(self) -> bytes:
        """What was written since the last time."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

"""Where the audio of a stream goes while it is made: a WAV file, or raw samples for a player."""

from __future__ import annotations

import os
import sys
import wave
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from chattts_triton.constants import SAMPLE_RATE_HZ

STANDARD_STREAM = "-"
_SAMPLE_BYTES = 2


class LiveOutput:
    """Takes 16-bit mono samples as they come, and passes them on at once.

    A file whose name ends in .wav is a whole WAV file after each write; a pipe, standard output
    and a file of any other name get the samples alone. What is no pipe is opened by the first
    samples, so that a call which fails at once leaves what was there.

    Args:
        out: A file's path, or - for standard output.

    Raises:
        OSError: By every method: it cannot be opened or written.
    """

    def __init__(self, out: str) -> None:
        self._path = None if out == STANDARD_STREAM else Path(out)
        self._is_file = self._path is not None and (self._path.is_file() or not self._path.exists())
        self.is_wav = self._is_file and out.lower().endswith(".wav")
        self.num_samples = 0
        self._resources = ExitStack()
        self._file: BinaryIO | None = None
        self._wav: wave.Wave_write | None = None

    def write(self, pcm16: bytes) -> None:
        """Write little-endian samples."""
        file = self._opened()
        if self._wav is not None:
            self._wav.writeframes(pcm16)
        else:
            file.write(pcm16)
        file.flush()
        self.num_samples += len(pcm16) // _SAMPLE_BYTES

    def __enter__(self) -> Self:
        if not self._is_file:
            self._opened()  # waits for the reader of a named pipe, before anything is spoken
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = self._resources.enter_context(
                # Not the stream of Python's own, which would flush again at exit what failed.
                os.fdopen(sys.stdout.fileno(), "wb", closefd=False)
                if self._path is None
                else self._path.open("wb")
            )
            if self.is_wav:
                self._wav = self._resources.enter_context(wave.Wave_write(self._file))
                self._wav.setparams((1, _SAMPLE_BYTES, SAMPLE_RATE_HZ, 0, "NONE", ""))
        return self._file

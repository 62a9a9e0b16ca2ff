"""What came of one request, and the one thing that a load needs of a server: to speak a text.

All times are seconds by the clock of the running event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from chattts_triton.constants import SAMPLE_RATE_HZ


@dataclass(frozen=True)
class Arrival:
    """When a piece of audio was there, and how long it is."""

    at_s: float
    num_samples: int


@dataclass(frozen=True)
class Failure:
    """Why there is no whole audio.

    Attributes:
        kind: The error's class in a word, such as "deadline_exceeded".
        message: The server's own.
        is_refusal: The server had no room for the request, or the caller no right to more of it.
    """

    kind: str
    message: str
    is_refusal: bool = False


@dataclass(frozen=True)
class Take:
    """One text as it was spoken, or how far it came.

    Attributes:
        arrivals: Each piece in its order; of a call without a stream the one that it is.
        ended_s: When the last message was there, with samples in it or without.
        finish_reason: "stop", "length" where the audio was cut, or empty where nobody told.
        mode: Of a stream, as the server named it.
        failure: None where the audio is whole.
    """

    arrivals: tuple[Arrival, ...]
    ended_s: float
    finish_reason: str = ""
    mode: str = ""
    failure: Failure | None = None

    @property
    def num_samples(self) -> int:
        """Samples of all pieces."""
        return sum(arrival.num_samples for arrival in self.arrivals)

    @property
    def audio_s(self) -> float:
        """How long all pieces play."""
        return self.num_samples / SAMPLE_RATE_HZ

    @property
    def first_audio_s(self) -> float:
        """When the first sample was there; the end, where none came."""
        return next((one.at_s for one in self.arrivals if one.num_samples), self.ended_s)

    @property
    def is_whole(self) -> bool:
        """Whether the request was answered to its end."""
        return self.failure is None

    @property
    def is_cut(self) -> bool:
        """Whether a limit of steps ended the audio, and not the model."""
        return self.is_whole and self.finish_reason == "length"


class Speaker(Protocol):
    """A server of any kind that speaks; used by many tasks of one event loop."""

    async def speak(self, text: str, seed: int) -> Take:
        """Have a text spoken to its end; what fails is in the take and is not raised."""
        ...

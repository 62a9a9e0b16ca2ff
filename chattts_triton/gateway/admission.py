"""Who may speak what: the one question that the gateway asks before it does any work.

The gateway itself lets everybody in. What keys, limits and filters there are stands behind this
protocol, and knows nothing of Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


def _nothing() -> None:
    """The release of a request that holds nothing."""


@dataclass(frozen=True)
class RequestFacts:
    """What is known of a request before it is let in.

    Attributes:
        method: Of HTTP, in upper case; "WEBSOCKET" for an utterance of a WebSocket.
        path: Of the URL, without the query.
        headers: With names in lower case.
        client_address: IP address of the other end of the connection.
        text: What is to be spoken, None where the request speaks nothing.
        num_characters: Of the text; 0 without one.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    client_address: str
    text: str | None
    num_characters: int


@dataclass(frozen=True)
class Admitted:
    """Leave to go on.

    Attributes:
        text: What is to be spoken in place of the request's text; the same where nothing in it was
            masked.
        headers: Further headers of the answer, such as those that tell a limit.
        release: Is called exactly once when the request is over, however it ends.
    """

    text: str | None
    headers: Mapping[str, str] = field(default_factory=dict)
    release: Callable[[], None] = _nothing


class Admission(Protocol):
    """Decides on each request; called in the event loop."""

    async def admit(self, facts: RequestFacts) -> Admitted:
        """Let a request in.

        Raises:
            ApiError: It is refused; then nothing is to be released.
        """
        ...


class OpenAdmission:
    """Lets everything in, as it is."""

    async def admit(self, facts: RequestFacts) -> Admitted:
        """Leave for any request."""
        return Admitted(text=facts.text)

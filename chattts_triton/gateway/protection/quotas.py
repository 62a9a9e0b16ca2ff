"""How much one caller may ask for, as an operator writes it."""

from __future__ import annotations

from dataclasses import dataclass

import limits

from chattts_triton.errors import InvalidRequestError

_WANTED = "a number and a time, such as 60/minute or 20000/hour"


@dataclass(frozen=True, kw_only=True)
class Quota:
    """The limits of one caller; None sets no limit.

    Attributes:
        requests: In a time, such as "60/minute".
        characters: Of texts in a time, such as "20000/hour".
        max_concurrent: Requests to speak that run at the same time.

    Raises:
        InvalidRequestError: A value cannot be read; the message names the field.
    """

    requests: str | None = None
    characters: str | None = None
    max_concurrent: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "characters"):
            text = getattr(self, name)
            if text is not None:
                rate(name, text)
        number = self.max_concurrent
        if number is not None and (type(number) is not int or number < 1):
            raise InvalidRequestError.of("max_concurrent", number, "a whole number from 1")

    def or_else(self, default: Quota) -> Quota:
        """This quota, and the default's limits where it has none."""
        return Quota(
            requests=self.requests or default.requests,
            characters=self.characters or default.characters,
            max_concurrent=self.max_concurrent or default.max_concurrent,
        )


def rate(field: str, text: object) -> limits.RateLimitItem:
    """A rate as the library `limits` has it.

    Raises:
        InvalidRequestError: It is no rate.
    """
    if not isinstance(text, str):
        raise InvalidRequestError.of(field, text, _WANTED)
    try:
        item = limits.parse(text)
    except ValueError:
        raise InvalidRequestError.of(field, text, _WANTED) from None
    if item.amount < 1 or item.get_expiry() < 1:
        raise InvalidRequestError.of(field, text, _WANTED)
    return item

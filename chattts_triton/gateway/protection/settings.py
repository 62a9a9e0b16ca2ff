"""What an operator may set about the protection, checked once before the gateway starts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from chattts_triton.errors import InvalidRequestError
from chattts_triton.gateway.protection.quotas import Quota


@dataclass(frozen=True, kw_only=True)
class ProtectionSettings:
    """The settings of one gateway's protection.

    Attributes:
        api_keys: The file of keys; None reads none.
        keys_text: More keys, as JSON like that of the file; None has none.
        quota: Of each caller whose key has no limits of its own.
        max_concurrent: Requests to speak that run at the same time, of all callers; None sets no
            limit.
        redis_url: Where several gateways share their rate limits; hidden from `repr`, since it may
            hold a password.
        content_filter: The file of the content filter; None filters nothing.

    Raises:
        InvalidRequestError: A value is out of range; the message names the field.
    """

    api_keys: Path | None = None
    keys_text: str | None = field(default=None, repr=False)
    quota: Quota = field(default_factory=Quota)
    max_concurrent: int | None = None
    redis_url: str | None = field(default=None, repr=False)
    content_filter: Path | None = None

    def __post_init__(self) -> None:
        if self.max_concurrent is not None and self.max_concurrent < 1:
            wanted = "a whole number from 1"
            raise InvalidRequestError.of("max_concurrent", self.max_concurrent, wanted)

    @property
    def needs_key(self) -> bool:
        """Whether only those who have a key are let in."""
        return self.api_keys is not None or self.keys_text is not None

    def check_address(self, host: str, *, is_insecure: bool) -> None:
        """Refuse to let everybody in from everywhere.

        Args:
            host: IP address that is listened on.
            is_insecure: The operator wants just that.

        Raises:
            InvalidRequestError: The address is public, and no key is needed.
        """
        if self.needs_key or is_insecure or ipaddress.ip_address(host).is_loopback:
            return
        raise InvalidRequestError.of(
            "--host",
            host,
            "--api-keys with it, since everybody could speak, or --insecure to allow that",
        )

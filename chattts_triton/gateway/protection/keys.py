"""API keys: what they look like, and whose one is. Only hashes of them are ever kept."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from chattts_triton.errors import InvalidRequestError
from chattts_triton.gateway.protection.quotas import Quota

_PREFIX = "ctts-"
_NUM_RANDOM_BYTES = 32
# Nothing else is looked up, so a key that somebody made up himself never opens anything. A key has
# 256 random bits, which nobody finds by guessing, so one round of SHA-256 is enough to keep it.
_KEY = re.compile(r"ctts-[A-Za-z0-9_-]{43}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_QUOTA_FIELDS = ("requests", "characters", "max_concurrent")


@dataclass(frozen=True)
class ApiKey:
    """What is known of a key.

    Attributes:
        name: Stands in logs, metrics and Redis; it is no secret.
        sha256: Of the key, in hexadecimal.
        quota: Its own limits.

    Raises:
        InvalidRequestError: A value is wrong; the message names the field, and not the hash.
    """

    name: str
    sha256: str
    quota: Quota = field(default_factory=Quota)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            wanted = "up to 64 letters, digits and ._- that begin with a letter or a digit"
            raise InvalidRequestError.of("name", self.name, wanted)
        if not isinstance(self.sha256, str) or not _SHA256.fullmatch(self.sha256):
            raise InvalidRequestError("sha256: wanted 64 hexadecimal digits in lower case")

    @classmethod
    def from_json(cls, name: str, content: object) -> ApiKey:
        """The entry of a file.

        Raises:
            InvalidRequestError: As of the class, or a field is unknown.
        """
        known = ("sha256", *_QUOTA_FIELDS)
        if not isinstance(content, dict):
            raise InvalidRequestError(f"wanted an object with: {', '.join(known)}")
        for key in content:
            if key not in known:
                raise InvalidRequestError.of("field", key, f"one of: {', '.join(known)}")
        quota = Quota(**{key: content[key] for key in _QUOTA_FIELDS if key in content})
        return cls(name, content.get("sha256", ""), quota)

    def to_json(self) -> dict[str, str | int]:
        """What `from_json` reads."""
        limits = {key: getattr(self.quota, key) for key in _QUOTA_FIELDS}
        return {"sha256": self.sha256} | {
            key: value for key, value in limits.items() if value is not None
        }


class KeyRing:
    """All the keys there are."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = [(key.sha256.encode(), key) for key in keys]

    def find(self, secret: str) -> ApiKey | None:
        """Whose key it is; takes as long for a key that is nobody's."""
        if not _KEY.fullmatch(secret):
            return None
        digest = hash_of(secret).encode()
        found = None
        for known, key in self._keys:
            if hmac.compare_digest(known, digest):
                found = key
        return found


def new_secret() -> str:
    """A key that nobody has yet."""
    return _PREFIX + secrets.token_urlsafe(_NUM_RANDOM_BYTES)


def hash_of(secret: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(secret.encode()).hexdigest()


def secret_in(headers: Mapping[str, str]) -> str | None:
    """The key of a request: `Authorization: Bearer KEY`, or `X-API-Key: KEY`.

    Args:
        headers: With names in lower case.
    """
    scheme, _, secret = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return secret.strip()
    return headers.get("x-api-key")

"""The admission of a protected gateway: whose key, how many at once, how much, and what.

A request is refused by the first rule that it breaks, in the order of `Protection.admit`. Only one
that breaks none takes anything of its limits.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from prometheus_client import CollectorRegistry

from chattts_triton.gateway.admission import Admitted, RequestFacts
from chattts_triton.gateway.errors import ApiError
from chattts_triton.gateway.protection.concurrency import Concurrency
from chattts_triton.gateway.protection.content_filter import ContentFilter, FileFilter
from chattts_triton.gateway.protection.key_file import parse_keys, read_keys
from chattts_triton.gateway.protection.keys import ApiKey, KeyRing, secret_in
from chattts_triton.gateway.protection.metrics import ProtectionMetrics
from chattts_triton.gateway.protection.quotas import Quota
from chattts_triton.gateway.protection.rate_limits import RateLimits
from chattts_triton.gateway.protection.settings import ProtectionSettings
from chattts_triton.gateway.protection.watched import Watched

LOGGER = logging.getLogger(__name__)

_IPV6_NETWORK_BITS = 64  # one caller has at least so many addresses


class Protection:
    """Admission by keys, limits and a filter; within it connections to Redis are open.

    Args:
        settings: Of the protection.
        registry: Where its metrics go.
        content_filter: In place of the filter of a file.

    Raises:
        InvalidRequestError: A file or a value cannot be used; the message names it.
    """

    def __init__(
        self,
        settings: ProtectionSettings,
        registry: CollectorRegistry,
        content_filter: ContentFilter | None = None,
    ) -> None:
        metrics = ProtectionMetrics(registry)
        self._quota = settings.quota
        self._keys = _watched_keys(settings, metrics) if settings.needs_key else None
        self._concurrency = Concurrency(settings.max_concurrent)
        self._rate_limits = RateLimits(settings.redis_url, metrics)
        if content_filter is None and settings.content_filter is not None:
            content_filter = FileFilter(settings.content_filter, metrics)
        self._content_filter = content_filter

    async def __aenter__(self) -> Protection:
        """Begin."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close what is open."""
        await self._rate_limits.aclose()

    async def admit(self, facts: RequestFacts) -> Admitted:
        """Let a request in.

        Raises:
            ApiError: It has no valid key, or breaks a limit, or may not be spoken.
        """
        key = await self._key_of(facts)
        caller = f"key:{key.name}" if key else f"address:{_network(facts.client_address)}"
        quota = key.quota.or_else(self._quota) if key else self._quota
        if facts.text is None:
            return Admitted(None, await self._limited(caller, quota, facts))
        release = self._concurrency.enter(caller, quota.max_concurrent)
        try:
            charges = self._rate_limits.charges(caller, quota, facts.num_characters)
            headers = await self._rate_limits.check(charges)
            text = facts.text
            if self._content_filter is not None:
                text = await self._content_filter.apply(text)
            await self._rate_limits.take(charges)
        except (Exception, asyncio.CancelledError):
            release()
            raise
        return Admitted(text, headers, release)

    async def _limited(self, caller: str, quota: Quota, facts: RequestFacts) -> dict[str, str]:
        charges = self._rate_limits.charges(caller, quota, facts.num_characters)
        headers = await self._rate_limits.check(charges)
        await self._rate_limits.take(charges)
        return headers

    async def _key_of(self, facts: RequestFacts) -> ApiKey | None:
        if self._keys is None:
            return None
        ring = await self._keys.current()
        secret = secret_in(facts.headers)
        key = None if secret is None else ring.find(secret)
        if key is None:
            came = "no API key" if secret is None else "an API key that is not known"
            raise ApiError(
                401,
                "invalid_api_key",
                f"Authorization: got {came}, wanted Bearer and a valid one",
                {"WWW-Authenticate": "Bearer"},
            )
        return key


def _watched_keys(settings: ProtectionSettings, metrics: ProtectionMetrics) -> Watched[KeyRing]:
    path = settings.api_keys
    fixed = parse_keys("CHATTTS_GATEWAY_KEYS", settings.keys_text) if settings.keys_text else {}

    def read() -> tuple[KeyRing, Iterable[Path]]:
        keys = fixed | (read_keys(path) if path is not None else {})
        return KeyRing(keys.values()), ()

    return Watched(
        read, [path] if path is not None else [], metrics.reload_failures.labels("api_keys").inc
    )


def _network(address: str) -> str:
    """Whom an address belongs to, as far as it tells."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False))

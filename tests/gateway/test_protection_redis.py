"""Rate limits that gateways share, over a real Redis that also goes away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry
from protection_harness import (
    Clock,
    RedisServer,
    code_of,
    facts,
    outcome_of,
    running_redis,
    settings,
    value_of,
)

from chattts_triton.gateway.admission import Admitted
from chattts_triton.gateway.errors import ApiError
from chattts_triton.gateway.protection.metrics import ProtectionMetrics
from chattts_triton.gateway.protection.protection import Protection
from chattts_triton.gateway.protection.quotas import Quota
from chattts_triton.gateway.protection.rate_limits import REDIS_RETRY_S, RateLimits


@pytest.fixture(scope="module")
def shared_redis() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@asynccontextmanager
async def limited(url: str, registry: CollectorRegistry, clock: Clock) -> AsyncIterator[RateLimits]:
    rate_limits = RateLimits(url, ProtectionMetrics(registry), clock)
    try:
        yield rate_limits
    finally:
        await rate_limits.aclose()


async def code_of_take(rate_limits: RateLimits, quota: Quota) -> str:
    """The code of the refusal, or "ok"."""
    try:
        charges = rate_limits.charges("a", quota, 5)
        await rate_limits.check(charges)
        await rate_limits.take(charges)
    except ApiError as error:
        return error.code
    return "ok"


def test_two_gateways_share_one_limit(shared_redis: RedisServer):
    async def run() -> None:
        given = settings(requests="5/hour", characters="1000/hour", redis_url=shared_redis.url)
        async with (
            Protection(given, CollectorRegistry()) as first,
            Protection(given, CollectorRegistry()) as second,
        ):
            asked = facts(address="192.0.2.7")
            outcomes = [await outcome_of(first, asked)]
            outcomes += [await outcome_of(second, asked)]
            codes = [await code_of(one, asked) for one in (first, second, first, second, first)]

        told = [one.headers for one in outcomes if isinstance(one, Admitted)]
        assert [one["X-RateLimit-Remaining-Requests"] for one in told] == ["4", "3"]
        assert [one["X-RateLimit-Remaining-Characters"] for one in told] == ["995", "990"]
        assert codes == ["ok", "ok", "ok", "rate_limit_exceeded", "rate_limit_exceeded"]

    asyncio.run(run())


def test_callers_of_one_redis_do_not_disturb_each_other(shared_redis: RedisServer):
    async def run() -> None:
        given = settings(requests="1/hour", redis_url=shared_redis.url)
        async with Protection(given, CollectorRegistry()) as protection:
            codes = [
                await code_of(protection, facts(address=address))
                for address in ("192.0.2.8", "192.0.2.9", "192.0.2.8")
            ]

        assert codes == ["ok", "ok", "rate_limit_exceeded"]

    asyncio.run(run())


def test_many_requests_at_once_get_no_more_than_the_limit(shared_redis: RedisServer):
    async def run() -> None:
        given = settings(requests="7/hour", redis_url=shared_redis.url)
        async with (
            Protection(given, CollectorRegistry()) as first,
            Protection(given, CollectorRegistry()) as second,
        ):
            asked = facts(address="192.0.2.10")
            calls = (code_of(one, asked) for one in (first, second) * 15)
            codes = await asyncio.gather(*calls)

        assert codes.count("ok") == 7

    asyncio.run(run())


def test_without_redis_a_gateway_limits_by_itself_and_shares_again_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
):
    registry, clock = CollectorRegistry(), Clock()
    quota = Quota(requests="2/hour")

    async def run(server: RedisServer) -> None:
        async with limited(server.url, registry, clock) as rate_limits:
            assert await code_of_take(rate_limits, quota) == "ok"
            assert value_of(registry, "redis_up") == 1

            server.stop()
            codes = [await code_of_take(rate_limits, quota) for _ in range(3)]
            assert codes == ["ok", "ok", "rate_limit_exceeded"]
            assert value_of(registry, "redis_up") == 0
            num_failures = value_of(registry, "redis_failures_total")
            assert num_failures == 1  # who comes later does not wait for it

            clock.move(REDIS_RETRY_S)
            assert await code_of_take(rate_limits, quota) == "rate_limit_exceeded"
            assert value_of(registry, "redis_failures_total") == num_failures + 1

            server.start()
            clock.move(REDIS_RETRY_S)
            codes = [await code_of_take(rate_limits, quota) for _ in range(3)]
            assert codes == ["ok", "ok", "rate_limit_exceeded"]  # an empty Redis
            assert value_of(registry, "redis_up") == 1

    with running_redis() as server, caplog.at_level(logging.DEBUG):
        asyncio.run(run(server))

    ours = [record.message for record in caplog.records if record.name.startswith("chattts")]
    assert ours == [
        "Redis fails (ConnectionError): limits are counted by this gateway alone",
        "Redis answers again: limits are shared",
    ]


def test_a_redis_that_never_answers_costs_a_request_little():
    registry = CollectorRegistry()
    quota = Quota(requests="2/hour")

    async def run() -> None:
        is_called = asyncio.Event()
        closing = asyncio.Event()

        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            is_called.set()
            await closing.wait()
            writer.close()

        server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with limited(f"redis://127.0.0.1:{port}/0", registry, Clock()) as rate_limits:
            async with asyncio.timeout(10.0):
                assert await code_of_take(rate_limits, quota) == "ok"
        assert is_called.is_set()
        assert value_of(registry, "redis_failures_total") == 1
        closing.set()
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def test_a_wrong_password_is_no_way_around_the_limits_and_is_not_logged(
    caplog: pytest.LogCaptureFixture,
):
    registry = CollectorRegistry()

    async def run(url: str) -> list[str]:
        async with limited(url, registry, Clock()) as rate_limits:
            quota = Quota(requests="1/hour")
            return [await code_of_take(rate_limits, quota) for _ in range(2)]

    with running_redis("--requirepass", "another") as server, caplog.at_level(logging.DEBUG):
        codes = asyncio.run(run(server.url.replace("redis://", "redis://:unspoken@")))

    assert codes == ["ok", "rate_limit_exceeded"]
    assert value_of(registry, "redis_up") == 0
    assert "Redis fails (AuthenticationError)" in caplog.text
    assert "unspoken" not in caplog.text

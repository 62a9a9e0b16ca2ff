"""How much may be asked for in a time, and how many at once."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protection_harness import new_metrics

from chattts_triton.errors import InvalidRequestError
from chattts_triton.gateway.errors import ApiError
from chattts_triton.gateway.protection.concurrency import Concurrency
from chattts_triton.gateway.protection.quotas import Quota
from chattts_triton.gateway.protection.rate_limits import RateLimits, Window

LENGTH_S = 60


def later(window: Window, seconds: float) -> Window:
    """The same limit when so much time has passed in which nothing was taken."""
    to_shift_s = window.current_ttl_s - window.length_s
    if seconds < to_shift_s:
        left_s = max(0.0, window.previous_ttl_s - seconds)
        return Window(
            window.amount,
            window.length_s,
            window.previous,
            left_s,
            window.current,
            window.current_ttl_s - seconds,
        )
    left_s = max(0.0, window.current_ttl_s - seconds)
    return Window(window.amount, window.length_s, window.current, left_s, 0, 2.0 * LENGTH_S)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    amount = draw(st.integers(1, 1000))
    age_s = draw(st.floats(0.0, LENGTH_S - 0.01))
    return Window(
        amount,
        LENGTH_S,
        draw(st.integers(0, amount)),
        LENGTH_S - age_s,
        draw(st.integers(0, amount)),
        2 * LENGTH_S - age_s,
    )


@given(windows(), st.data())
def test_who_waits_as_long_as_told_gets_in_and_not_before(window: Window, data: st.DataObject):
    cost = data.draw(st.integers(1, window.amount))

    wait_s = window.wait_s(cost)

    assert later(window, wait_s + 0.01).remaining >= cost
    if wait_s > 0.01:
        assert later(window, wait_s - 0.01).remaining < cost


async def taken(
    rate_limits: RateLimits, quota: Quota, num_characters: int = 5, caller: str = "a"
) -> dict[str, str] | ApiError:
    try:
        charges = rate_limits.charges(caller, quota, num_characters)
        headers = await rate_limits.check(charges)
        await rate_limits.take(charges)
    except ApiError as error:
        return error
    return headers


def test_as_many_requests_as_allowed_and_no_more():
    async def run() -> None:
        rate_limits = RateLimits(None, new_metrics())
        quota = Quota(requests="3/hour")

        outcomes = [await taken(rate_limits, quota) for _ in range(4)]
        other = await taken(rate_limits, quota, caller="b")

        assert [isinstance(outcome, dict) for outcome in outcomes] == [True, True, True, False]
        refusal = outcomes[3]
        assert isinstance(refusal, ApiError)
        assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")
        assert "requests: the limit is 3 per 1 hour" in refusal.message
        assert 0 < int(refusal.headers["Retry-After"]) <= 7200
        assert isinstance(other, dict)

    asyncio.run(run())


def test_headers_tell_the_limit_and_what_is_left():
    async def run() -> None:
        rate_limits = RateLimits(None, new_metrics())
        quota = Quota(requests="3/hour", characters="100/hour")

        first = await taken(rate_limits, quota, 30)
        second = await taken(rate_limits, quota, 30)

        assert isinstance(first, dict)
        assert isinstance(second, dict)
        assert first["X-RateLimit-Limit-Requests"] == "3"
        assert first["X-RateLimit-Remaining-Requests"] == "2"
        assert first["X-RateLimit-Limit-Characters"] == "100"
        assert first["X-RateLimit-Remaining-Characters"] == "70"
        assert second["X-RateLimit-Remaining-Requests"] == "1"
        assert second["X-RateLimit-Remaining-Characters"] == "40"
        assert 0 < int(second["X-RateLimit-Reset-Requests"].removesuffix("s")) <= 7200

    asyncio.run(run())


def test_a_request_that_one_limit_refuses_takes_nothing_of_the_other():
    async def run() -> None:
        rate_limits = RateLimits(None, new_metrics())
        quota = Quota(requests="3/hour", characters="10/hour")

        first = await taken(rate_limits, quota, 8)
        refused = [await taken(rate_limits, quota, 8) for _ in range(5)]
        last = await taken(rate_limits, quota, 2)

        assert isinstance(first, dict)
        assert all(isinstance(outcome, ApiError) for outcome in refused)
        assert isinstance(refused[0], ApiError)
        assert refused[0].headers["X-RateLimit-Remaining-Characters"] == "2"
        assert refused[0].headers["X-RateLimit-Remaining-Requests"] == "2"
        assert isinstance(last, dict)
        assert last["X-RateLimit-Remaining-Requests"] == "1"

    asyncio.run(run())


def test_a_text_that_no_waiting_would_let_in_is_no_matter_of_waiting():
    async def run() -> None:
        refusal = await taken(RateLimits(None, new_metrics()), Quota(characters="10/hour"), 11)

        assert isinstance(refusal, ApiError)
        assert (refusal.status, refusal.code, refusal.param) == (400, "text_too_long", "input")
        assert "got 11 characters, wanted at most 10" in refusal.message

    asyncio.run(run())


def test_of_requests_that_pass_the_check_together_no_more_get_in_than_allowed():
    async def run() -> None:
        rate_limits = RateLimits(None, new_metrics())
        quota = Quota(requests="3/hour")

        outcomes = await asyncio.gather(*(taken(rate_limits, quota) for _ in range(20)))

        assert sum(isinstance(outcome, dict) for outcome in outcomes) == 3

    asyncio.run(run())


def test_no_limit_has_no_header():
    async def run() -> None:
        assert await taken(RateLimits(None, new_metrics()), Quota()) == {}

    asyncio.run(run())


@pytest.mark.parametrize("url", ["http://x", "redis://:secret@host:port", "secret", ""])
def test_a_url_that_is_none_of_redis_is_refused_without_being_told(url: str):
    with pytest.raises(InvalidRequestError, match="redis: wanted a URL") as error:
        RateLimits(url, new_metrics())

    assert "secret" not in str(error.value)


def test_a_caller_has_as_many_at_once_as_allowed_and_then_again():
    concurrency = Concurrency(None)
    releases = [concurrency.enter("a", 2) for _ in range(2)]

    with pytest.raises(ApiError) as refusal:
        concurrency.enter("a", 2)
    other = concurrency.enter("b", 2)
    releases[0]()
    again = concurrency.enter("a", 2)

    assert (refusal.value.status, refusal.value.code) == (429, "too_many_concurrent_requests")
    assert refusal.value.headers["Retry-After"] == "1"
    for release in (releases[1], other, again):
        release()
    assert not concurrency._running


def test_all_callers_together_have_a_limit_of_their_own():
    concurrency = Concurrency(2)
    release = concurrency.enter("a", None)
    concurrency.enter("b", None)

    with pytest.raises(ApiError) as refusal:
        concurrency.enter("c", None)
    release()
    concurrency.enter("c", None)

    assert (refusal.value.status, refusal.value.code) == (503, "gateway_full")
    assert refusal.value.headers["Retry-After"] == "1"

"""The protection as a whole: in which order it refuses, what it holds, and that it tells nobody."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from fake_triton import FakeTriton
from gateway_harness import running_gateway
from prometheus_client import CollectorRegistry
from protection_harness import add_key, code_of, facts, outcome_of, settings, value_of

from chattts_triton.errors import InvalidRequestError
from chattts_triton.gateway.admission import Admitted
from chattts_triton.gateway.errors import ApiError
from chattts_triton.gateway.metrics import GatewayMetrics
from chattts_triton.gateway.protection.keys import new_secret
from chattts_triton.gateway.protection.protection import Protection
from chattts_triton.gateway.protection.settings import ProtectionSettings

FILTER = """
mask = "#"
[[list]]
name = "insults"
action = "block"
words = ["unspeakable"]
[[list]]
name = "names"
action = "mask"
words = ["nobody"]
"""


@pytest.fixture
def filter_file(tmp_path: Path) -> Path:
    path = tmp_path / "filter.toml"
    path.write_text(FILTER)
    return path


def protection_of(**given: Any) -> Protection:
    return Protection(settings(**given), CollectorRegistry())


def test_without_any_setting_everybody_is_let_in_as_they_come():
    async def run() -> None:
        admitted = await outcome_of(protection_of(), facts("hello"))

        assert isinstance(admitted, Admitted)
        assert (admitted.text, admitted.headers) == ("hello", {})

    asyncio.run(run())


@pytest.mark.parametrize("text", ["hello", None])
def test_only_a_valid_key_lets_in(text: str | None, tmp_path: Path):
    path = tmp_path / "keys.json"
    secret = add_key(path, "anna")

    async def run() -> None:
        protection = protection_of(api_keys=path)
        refusals = [
            await outcome_of(protection, facts(text, wrong))
            for wrong in (None, "", new_secret(), secret[:-1] + "?", secret + "a")
        ]

        assert await code_of(protection, facts(text, secret)) == "ok"
        assert all(isinstance(refusal, ApiError) for refusal in refusals)
        for refusal in refusals:
            assert isinstance(refusal, ApiError)
            assert (refusal.status, refusal.code) == (401, "invalid_api_key")
            assert refusal.headers == {"WWW-Authenticate": "Bearer"}
            assert secret[:-1] not in refusal.message

    asyncio.run(run())


def test_keys_of_the_environment_and_of_the_file_both_count(tmp_path: Path):
    file, other = tmp_path / "keys.json", tmp_path / "other.json"
    secrets = [add_key(file, "anna"), add_key(other, "ben")]

    async def run() -> None:
        protection = protection_of(api_keys=file, keys_text=other.read_text())

        assert [await code_of(protection, facts(secret=secret)) for secret in secrets] == ["ok"] * 2
        assert await code_of(protection, facts()) == "invalid_api_key"

    asyncio.run(run())


def test_a_key_has_its_own_limits_wherever_it_calls_from(tmp_path: Path):
    path = tmp_path / "keys.json"
    few, many = add_key(path, "few", requests="1/hour"), add_key(path, "many")

    async def run() -> None:
        protection = protection_of(api_keys=path, requests="3/hour")
        addresses = ("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4")
        codes = {
            name: [await code_of(protection, facts("a", secret, address)) for address in addresses]
            for name, secret in (("few", few), ("many", many))
        }

        assert codes["few"] == ["ok"] + ["rate_limit_exceeded"] * 3
        assert codes["many"] == ["ok"] * 3 + ["rate_limit_exceeded"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("addresses", "are_one"),
    [
        (("192.0.2.1", "192.0.2.1"), True),
        (("192.0.2.1", "192.0.2.2"), False),
        (("192.0.2.1", "::ffff:192.0.2.1"), True),
        (("2001:db8::1", "2001:db8::ffff:1"), True),
        (("2001:db8::1", "2001:db8:0:1::1"), False),
        (("somewhere", "somewhere"), True),
    ],
)
def test_without_keys_an_address_is_a_caller(addresses: tuple[str, str], are_one: bool):
    async def run() -> None:
        protection = protection_of(requests="1/hour")
        codes = [await code_of(protection, facts(address=address)) for address in addresses]

        assert codes == ["ok", "rate_limit_exceeded" if are_one else "ok"]

    asyncio.run(run())


def test_of_several_reasons_the_first_is_told(filter_file: Path, tmp_path: Path):
    path = tmp_path / "keys.json"
    secret = add_key(path, "anna", requests="1/hour", max_concurrent=1)

    async def run() -> None:
        protection = protection_of(api_keys=path, content_filter=filter_file)
        running = await protection.admit(facts("hello", secret))
        bad = "unspeakable"

        assert await code_of(protection, facts(bad)) == "invalid_api_key"
        assert await code_of(protection, facts(bad, secret)) == "too_many_concurrent_requests"
        running.release()
        assert await code_of(protection, facts(bad, secret)) == "rate_limit_exceeded"

    asyncio.run(run())


def test_what_is_refused_takes_nothing(filter_file: Path):
    async def run() -> None:
        protection = protection_of(
            requests="2/hour", characters="20/hour", max_concurrent=1, content_filter=filter_file
        )
        refused = [await code_of(protection, facts("unspeakable")) for _ in range(5)]
        too_long = await code_of(protection, facts("a" * 21))
        accepted = [await outcome_of(protection, facts("hello"))]
        full = await code_of(protection, facts("hello"))
        accepted[0].release()
        accepted.append(await outcome_of(protection, facts("hello")))

        assert refused == ["content_blocked"] * 5
        assert too_long == "text_too_long"
        assert full == "gateway_full"
        assert [one.headers["X-RateLimit-Remaining-Requests"] for one in accepted] == ["1", "0"]
        assert [one.headers["X-RateLimit-Remaining-Characters"] for one in accepted] == ["15", "10"]

    asyncio.run(run())


def test_a_list_is_no_speech_so_that_it_needs_no_place(tmp_path: Path):
    async def run() -> None:
        protection = protection_of(max_concurrent=1, requests="2/hour")
        await protection.admit(facts("hello"))
        listed = await protection.admit(facts(None))

        assert listed.text is None
        assert listed.headers["X-RateLimit-Remaining-Requests"] == "0"

    asyncio.run(run())


def test_a_request_that_is_cancelled_while_it_is_judged_frees_its_place():
    class Slow:
        def __init__(self) -> None:
            self.began = asyncio.Event()

        async def apply(self, text: str) -> str:
            self.began.set()
            await asyncio.Event().wait()
            return text

    async def run() -> None:
        content_filter = Slow()
        protection = Protection(
            settings(max_concurrent=1), CollectorRegistry(), content_filter=content_filter
        )
        judged = asyncio.ensure_future(protection.admit(facts()))
        await content_filter.began.wait()
        assert await code_of(protection, facts()) == "gateway_full"
        judged.cancel()
        await asyncio.wait([judged])

        again = asyncio.ensure_future(protection.admit(facts()))
        content_filter.began.clear()
        await content_filter.began.wait()
        again.cancel()
        await asyncio.wait([again])

    asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "given", "is_insecure", "is_allowed"),
    [
        ("127.0.0.1", {}, False, True),
        ("127.9.9.9", {}, False, True),
        ("0.0.0.0", {}, False, False),
        ("192.0.2.1", {}, False, False),
        ("0.0.0.0", {}, True, True),
        ("0.0.0.0", {"api_keys": Path("keys.json")}, False, True),
        ("0.0.0.0", {"keys_text": "{}"}, False, True),
    ],
)
def test_a_public_address_needs_keys_or_a_word_for_it(
    host: str, given: dict[str, Any], is_insecure: bool, is_allowed: bool
):
    def check() -> None:
        ProtectionSettings(**given).check_address(host, is_insecure=is_insecure)

    if is_allowed:
        check()
    else:
        with pytest.raises(InvalidRequestError, match=r"--host: got .* wanted --api-keys"):
            check()


def test_settings_do_not_show_what_may_be_secret():
    shown = repr(ProtectionSettings(keys_text="unspoken", redis_url="redis://:unspoken@h:1/0"))

    assert "unspoken" not in shown


def test_no_key_and_no_text_comes_into_the_log(
    triton: FakeTriton, filter_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "keys.json"
    secret = add_key(path, "anna", requests="4/hour")
    wrong = new_secret()
    metrics = GatewayMetrics()
    given = settings(api_keys=path, content_filter=filter_file)
    texts = ("hello zanzibar", "zanzibar unspeakable", "zanzibar nobody")
    statuses = []

    with (
        caplog.at_level(logging.DEBUG),
        running_gateway(
            triton.url, admission=Protection(given, metrics.registry), metrics=metrics
        ) as gateway,
    ):
        for key in (secret, wrong):
            told = {"Authorization": f"Bearer {key}"}
            for text in (*texts, *texts):
                body = {"input": text, "response_format": "pcm"}
                answer = gateway.call("POST", "/v1/audio/speech", body, told)
                statuses.append(answer.status)
                assert key.encode() not in answer.body
            gateway.call("GET", "/v1/models", headers=told)
        shown = gateway.get("/metrics").body.decode()

    assert statuses == [200, 400, 200, 200, 400, 200] + [401] * 6
    spoken = [inputs for inputs in map(str, triton.requests) if "nobody" in inputs]
    assert spoken == []
    for told_nobody in (secret, wrong, "zanzibar", "unspeakable", "nobody"):
        assert told_nobody not in caplog.text
        assert told_nobody not in shown
    assert "list insults, block" in caplog.text
    assert value_of(metrics.registry, "filter_matches_total", list="names", action="mask") == 2

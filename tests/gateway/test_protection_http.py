"""A protected gateway over HTTP, as a client and a browser see it."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pytest
from fake_streams import silence
from fake_triton import FakeTriton
from gateway_harness import WAIT_S, RunningGateway, running_gateway, until
from prometheus_client import CollectorRegistry
from protection_harness import add_key, settings

from chattts_triton.cli.main import main
from chattts_triton.errors import InvalidRequestError
from chattts_triton.gateway import protection as protection_package
from chattts_triton.gateway.errors import ApiError
from chattts_triton.gateway.protection.content_filter import FileFilter
from chattts_triton.gateway.protection.metrics import ProtectionMetrics
from chattts_triton.gateway.protection.protection import Protection
from chattts_triton.gateway.settings import GatewaySettings

SPEECH = "/v1/audio/speech"
ORIGIN = "https://example.org"


def protection_of(**given: object) -> Protection:
    return Protection(settings(**given), CollectorRegistry())


def test_who_has_no_key_is_told_so_in_the_form_of_openai(triton: FakeTriton, tmp_path: Path):
    path = tmp_path / "keys.json"
    secret = add_key(path, "anna")

    with running_gateway(triton.url, admission=protection_of(api_keys=path)) as gateway:
        refused = gateway.speak("hello")
        told = {"Authorization": f"Bearer {secret}"}
        accepted = gateway.call("POST", SPEECH, {"input": "hello"}, told)
        health = [gateway.get(path).status for path in ("/healthz", "/readyz", "/metrics")]

    assert refused.status == 401
    assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert refused.error == {
        "message": "Authorization: got no API key, wanted Bearer and a valid one",
        "type": "authentication_error",
        "param": None,
        "code": "invalid_api_key",
    }
    assert accepted.status == 200
    assert health == [200, 200, 200]
    assert len(triton.requests) == 1


def test_a_limit_is_told_in_headers_and_refuses_with_the_time_to_wait(triton: FakeTriton):
    with running_gateway(triton.url, admission=protection_of(requests="1/hour")) as gateway:
        accepted, refused = gateway.speak("a"), gateway.speak("a")

    assert (accepted.status, refused.status) == (200, 429)
    assert accepted.headers["X-RateLimit-Limit-Requests"] == "1"
    assert accepted.headers["X-RateLimit-Remaining-Requests"] == "0"
    assert refused.headers["X-RateLimit-Remaining-Requests"] == "0"
    assert int(refused.headers["Retry-After"]) > 0
    assert refused.error["code"] == "rate_limit_exceeded"


def test_a_place_is_free_again_when_an_answer_ends_or_its_client_goes(triton: FakeTriton):
    go_on = threading.Event()
    triton.stream_steps = lambda inputs: [silence(0), go_on, silence(1, reason="stop")]
    body = {"input": "a", "response_format": "pcm", "stream_format": "audio"}

    with running_gateway(triton.url, admission=protection_of(max_concurrent=1)) as gateway:
        with gateway.sent("POST", SPEECH, body) as response:
            assert response.read(10)
            full = gateway.speak("b")
        is_free = until(lambda: status_of_speech(gateway, go_on) == 200, WAIT_S)

    assert (full.status, full.error["code"]) == (503, "gateway_full")
    assert full.headers["Retry-After"] == "1"
    assert is_free


def status_of_speech(gateway: RunningGateway, go_on: threading.Event) -> int:
    go_on.set()
    return gateway.speak("b").status


def preflight(gateway: RunningGateway, origin: str) -> dict[str, str]:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    answer = gateway.call("OPTIONS", SPEECH, headers=headers)
    return {name.lower(): value for name, value in answer.headers.items()}


def test_no_page_of_another_origin_may_call_by_default(gateway: RunningGateway):
    answer = gateway.call("POST", SPEECH, {"input": "a"}, {"Origin": ORIGIN})

    assert not any(name.startswith("access-control") for name in preflight(gateway, ORIGIN))
    assert not any(name.lower().startswith("access-control") for name in answer.headers)


def test_pages_of_a_named_origin_may_call_and_read_headers_and_refusals(triton: FakeTriton):
    with running_gateway(
        triton.url, admission=protection_of(requests="1/hour"), cors_origins=(ORIGIN,)
    ) as gateway:
        allowed, other = preflight(gateway, ORIGIN), preflight(gateway, "https://example.com")
        answers = [
            gateway.call("POST", SPEECH, {"input": "a"}, {"Origin": ORIGIN}) for _ in range(2)
        ]

    assert allowed["access-control-allow-origin"] == ORIGIN
    assert "POST" in allowed["access-control-allow-methods"]
    assert "access-control-allow-origin" not in other
    assert [answer.status for answer in answers] == [200, 429]
    for answer in answers:
        assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
        exposed = answer.headers["Access-Control-Expose-Headers"]
        assert {"X-ChatTTS-Seed", "X-RateLimit-Remaining-Requests"} <= set(exposed.split(", "))


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/", "ftp://a", "*.org", ""])
def test_what_is_no_origin_is_refused(origin: str):
    with pytest.raises(InvalidRequestError, match="cors_origins: got"):
        GatewaySettings(cors_origins=(origin,))


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--host", "0.0.0.0"], "--host: got '0.0.0.0', wanted --api-keys"),
        (["--api-keys", "none.json"], "none.json: cannot be read"),
        (["--content-filter", "none.toml"], "none.toml: cannot be read"),
        (["--rate-limit-requests", "lots"], "requests: got 'lots'"),
        (["--rate-limit-characters", "lots"], "characters: got 'lots'"),
        (["--max-concurrent", "0"], "max_concurrent: got 0"),
        (["--max-concurrent-per-key", "0"], "max_concurrent: got 0"),
        (["--redis", "http://:unspoken@host:1"], "redis: wanted a URL"),
        (["--cors-origin", "example.org"], "cors_origins: got 'example.org'"),
    ],
)
def test_the_command_refuses_to_start_with_a_wrong_setting(
    arguments: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["gateway", "--port", "0", *arguments]) == 1

    captured = capsys.readouterr()
    assert wanted in captured.err
    assert "unspoken" not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("CHATTTS_GATEWAY_KEYS", "[]", "CHATTTS_GATEWAY_KEYS: wanted"),
        ("CHATTTS_GATEWAY_REDIS", "http://:unspoken@host:1", "redis: wanted a URL"),
    ],
)
def test_the_command_reads_what_is_secret_from_its_environment(
    name: str,
    value: str,
    wanted: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv(name, value)

    assert main(["gateway", "--port", "0"]) == 1

    captured = capsys.readouterr()
    assert wanted in captured.err
    assert "unspoken" not in captured.err


def section(heading: str) -> str:
    document = Path(__file__).parents[2] / "docs" / "gateway.md"
    return document.read_text(encoding="utf-8").split(f"\n{heading}\n")[1]


def test_every_code_of_a_refusal_is_documented():
    source = Path(protection_package.__file__).parent.glob("*.py")
    raised = {
        (code, status)
        for file in source
        for status, code in re.findall(r'ApiError\(\s*(\d+),\s*"(\w+)"', file.read_text())
    }
    documented = re.findall(r"(?m)^\| `(\w+)` \| (\d+) \|", section("## Protection"))

    assert len(raised) == 6
    assert set(documented) == raised


def test_every_metric_of_the_protection_is_documented():
    registry = CollectorRegistry()
    Protection(settings(), registry)
    made = {family.name for family in registry.collect()}
    rows = re.findall(r"(?m)^\| `(chattts_gateway_\w+)`", section("### What is counted"))
    counted = {name.removesuffix("_total") for name in rows[: len(made)]}

    assert counted == made


def test_the_documented_filter_can_be_read_and_does_what_it_says(tmp_path: Path):
    (example,) = re.findall(r"(?ms)^```toml\n(.*?)^```", section("### Content filter"))
    (tmp_path / "filter.toml").write_text(example, encoding="utf-8")
    (tmp_path / "insults.txt").write_text("# of a test\nfool\n", encoding="utf-8")
    content_filter = FileFilter(tmp_path / "filter.toml", ProtectionMetrics(CollectorRegistry()))

    assert asyncio.run(content_filter.apply("call 13800000001, please")) == "call  , please"
    for text in ("笨 蛋", "an Idiot!", "F O O L"):
        with pytest.raises(ApiError):
            asyncio.run(content_filter.apply(text))

"""API keys, the file of them, and the command that makes them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from chattts_triton.cli.main import main
from chattts_triton.errors import InvalidRequestError
from chattts_triton.gateway.protection.key_file import editing, parse_keys, read_keys
from chattts_triton.gateway.protection.keys import (
    ApiKey,
    KeyRing,
    hash_of,
    new_secret,
    secret_in,
)
from chattts_triton.gateway.protection.quotas import Quota

HASH = hash_of("ctts-" + "a" * 43)


def test_a_key_is_found_by_itself_alone():
    secrets = {name: new_secret() for name in ("anna", "ben", "cleo")}
    ring = KeyRing(ApiKey(name, hash_of(secret)) for name, secret in secrets.items())

    found = {name: ring.find(secret) for name, secret in secrets.items()}

    assert {name: key and key.name for name, key in found.items()} == {n: n for n in secrets}
    assert ring.find(new_secret()) is None
    assert ring.find(secrets["anna"][:-1]) is None
    assert ring.find(secrets["anna"] + "\n") is None


def test_a_word_that_somebody_chose_opens_nothing_even_if_its_hash_is_listed():
    assert KeyRing([ApiKey("anna", hash_of("password"))]).find("password") is None


def test_no_two_keys_are_the_same():
    assert len({new_secret() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("headers", "secret"),
    [
        ({"authorization": "Bearer abc"}, "abc"),
        ({"authorization": "bearer  abc "}, "abc"),
        ({"authorization": "Basic abc"}, None),
        ({"authorization": "abc"}, None),
        ({"authorization": "Bearer"}, ""),
        ({"x-api-key": "abc"}, "abc"),
        ({"authorization": "Basic abc", "x-api-key": "def"}, "def"),
        ({}, None),
    ],
)
def test_a_request_brings_its_key_in_one_of_two_headers(headers: dict[str, str], secret: str):
    assert secret_in(headers) == secret


def test_a_file_gives_back_what_was_written(tmp_path: Path):
    path = tmp_path / "keys.json"
    quota = Quota(requests="60/minute", characters="20000/hour", max_concurrent=2)
    written = {"anna": ApiKey("anna", HASH, quota), "ben": ApiKey("ben", hash_of("b"))}

    with editing(path) as keys:
        keys.update(written)

    assert read_keys(path) == written
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_edit_that_fails_changes_nothing(tmp_path: Path):
    path = tmp_path / "keys.json"
    with editing(path) as keys:
        keys["anna"] = ApiKey("anna", HASH)
    before = path.read_bytes()

    with pytest.raises(InvalidRequestError), editing(path) as keys:
        keys["ben"] = ApiKey("ben", "no hash")

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{", "keys: cannot be read"),
        ("[]", 'keys: wanted {"keys"'),
        ('{"keys": []}', 'keys: wanted {"keys"'),
        ('{"keys": {}, "key": {}}', 'keys: wanted {"keys"'),
        ('{"keys": {"a": 1}}', "key 'a': wanted an object with: sha256"),
        ('{"keys": {"a": {}}}', "key 'a': sha256: wanted 64"),
        ('{"keys": {"a": {"sha256": 5}}}', "key 'a': sha256: wanted 64"),
        (f'{{"keys": {{"a b": {{"sha256": "{HASH}"}}}}}}', "name: got 'a b', wanted up to 64"),
        (f'{{"keys": {{"a": {{"sha256": "{HASH}", "x": 1}}}}}}', "field: got 'x', wanted one of"),
        (
            f'{{"keys": {{"a": {{"sha256": "{HASH}", "requests": "lots"}}}}}}',
            "requests: got 'lots', wanted a number and a time",
        ),
        (
            f'{{"keys": {{"a": {{"sha256": "{HASH}", "requests": 5}}}}}}',
            "requests: got 5, wanted a number and a time",
        ),
        (
            f'{{"keys": {{"a": {{"sha256": "{HASH}", "max_concurrent": 0}}}}}}',
            "max_concurrent: got 0, wanted a whole number from 1",
        ),
        (
            f'{{"keys": {{"a": {{"sha256": "{HASH}"}}, "b": {{"sha256": "{HASH}"}}}}}}',
            "two names have the same key",
        ),
        ('{"keys": {"a": {}, "a": {}}}', "the key 'a' is there twice"),
    ],
)
def test_a_wrong_file_is_refused_with_the_key_and_its_field(text: str, wanted: str):
    with pytest.raises(InvalidRequestError) as error:
        parse_keys("keys", text)

    assert wanted in str(error.value)
    assert HASH not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(InvalidRequestError, match=r"keys\.json: cannot be read"):
        read_keys(tmp_path / "keys.json")
    with pytest.raises(InvalidRequestError, match=r"keys\.json: cannot be written"):
        editing(tmp_path / "none" / "keys.json").__enter__()


@pytest.mark.parametrize("text", ["0/minute", "60", "a/minute", "", "60/fortnight"])
def test_a_rate_that_means_nothing_is_refused(text: str):
    with pytest.raises(InvalidRequestError, match="characters: got"):
        Quota(characters=text)


def test_a_quota_takes_from_the_default_what_it_lacks():
    own = Quota(requests="5/minute")
    default = Quota(requests="60/minute", characters="100/minute", max_concurrent=3)

    assert own.or_else(default) == Quota(
        requests="5/minute", characters="100/minute", max_concurrent=3
    )


def test_the_command_makes_lists_and_removes_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "keys.json"
    file = ["--file", str(path)]

    assert main(["keys", "new", "anna", *file, "--rate-limit-requests", "60/minute"]) == 0
    secret = capsys.readouterr().out.strip()
    assert main(["keys", "new", "ben", *file, "--max-concurrent", "2"]) == 0
    capsys.readouterr()
    assert main(["keys", "list", *file]) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = KeyRing(read_keys(path).values()).find(secret)

    assert found is not None
    assert found.name == "anna"
    assert secret not in path.read_text()
    assert listed == [
        ["name", "requests", "characters", "max_concurrent"],
        ["anna", "60/minute", "-", "-"],
        ["ben", "-", "-", "2"],
    ]

    assert main(["keys", "remove", "anna", *file]) == 0
    assert list(json.loads(path.read_text())["keys"]) == ["ben"]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["new", "anna"], "NAME: anna has a key already"),
        (["new", "a b"], "name: got 'a b'"),
        (["new", "ben", "--rate-limit-characters", "many"], "characters: got 'many'"),
        (["new", "ben", "--max-concurrent", "0"], "max_concurrent: got 0"),
        (["remove", "ben"], "NAME: got 'ben', wanted one of: anna"),
    ],
)
def test_the_command_refuses_what_is_wrong_and_changes_nothing(
    arguments: list[str], wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "keys.json"
    main(["keys", "new", "anna", "--file", str(path)])
    before = path.read_bytes()
    capsys.readouterr()

    assert main(["keys", *arguments, "--file", str(path)]) == 1
    captured = capsys.readouterr()
    assert wanted in captured.err
    assert captured.out == ""
    assert path.read_bytes() == before

"""A flite of a few lines, for machines that have none: only training needs the real one."""

from __future__ import annotations

import json
import sys

import pytest

# Says each word as one phone of 0.2 s (a steady tone) and each comma as a silence of 0.3 s;
# writes down how it was called. `{phones}` is Python for the phones of `token`.
_FAKE_FLITE = """#!{python}
import json, math, sys, wave
options = dict(zip(sys.argv[1:], sys.argv[2:]))
json.dump(sys.argv[1:], open("{calls}", "w"))
if "crash" in options["-t"]:
    sys.exit("flite fell over")
phones = ["pau"]
for token in options["-t"].replace(",", " ,").split():
    phones += ["pau"] if token == "," else {phones}
phones.append("pau")
end, samples = 0.0, bytearray()
for phone in phones:
    length = 0.3 if phone == "pau" else 0.2
    end += length
    print(f"{{phone}}:{{end:.3f}}", end=" ")
    for n in range(round(length * 16000)):
        loud = 3000 if phone == "pau" else 10000  # flite's own silences are to go
        level = round(loud * math.sin(n / 5))
        samples += level.to_bytes(2, "little", signed=True)
with wave.open(options["-o"], "wb") as file:
    file.setnchannels(1)
    file.setsampwidth(2)
    file.setframerate(16000)
    file.writeframes(bytes(samples))
"""


@pytest.fixture
def flite_calls(tmp_path, monkeypatch):
    """A flite whose phones are the words themselves; gives the arguments of its last call."""
    paused = "['pau', token] if token == 'sorry'"
    stressed = "[token, token] if token == options['-t'] == 'and'"
    return _put_in_path(tmp_path, monkeypatch, phones=f"{paused} else {stressed} else [token]")


@pytest.fixture
def monotonous_flite(tmp_path, monkeypatch):
    """A flite that knows one phone."""
    return _put_in_path(tmp_path, monkeypatch, phones="['aa']")


def _put_in_path(tmp_path, monkeypatch, phones):
    calls = tmp_path / "calls.json"
    flite = tmp_path / "flite"
    flite.write_text(_FAKE_FLITE.format(python=sys.executable, calls=calls, phones=phones))
    flite.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return lambda: json.loads(calls.read_text())

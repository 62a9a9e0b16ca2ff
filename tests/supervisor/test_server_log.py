"""Which line of tritonserver's output tells why it ended."""

from __future__ import annotations

import io

import pytest

from chattts_triton.server.server_log import ServerLog

LOADED = "I1130 14:55:11.452903 6064 model_lifecycle.cc:839] \"successfully loaded 'gpt'\""
FAILED = (
    "E1130 14:53:52.4 5555 model_lifecycle.cc:642] \"failed to load 'gpt' version 1: Internal: "
    'ModelLoadError: got \\"a\\"\\n\\nAt:\\n  ./gpt/1/model.py(4): initialize\\n"'
)
CREATING = "error: creating server: Invalid argument - load failed for model 'chattts': no"


def log_of(*lines: str, sink: io.BytesIO | None = None) -> ServerLog:
    text = "".join(f"{line}\n" for line in lines).encode()
    log = ServerLog(io.BytesIO(text), sink or io.BytesIO())
    log.join(5)
    return log


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([LOADED, FAILED, CREATING], "model 'gpt': ModelLoadError: got \"a\""),
        ([LOADED, CREATING], "Invalid argument - load failed for model 'chattts': no"),
        (
            ['E1130 main.cc:257] "failed to start HTTP service: Internal - odd"', CREATING],
            "Internal - odd",
        ),
        (
            ["x: error while loading shared libraries: libz.so.1: cannot open file"],
            "libz.so.1: cannot open file",
        ),
        ([LOADED, "Segmentation fault", ""], "Segmentation fault"),
        ([], "it wrote nothing"),
    ],
)
def test_the_most_telling_line_is_the_reason(lines: list[str], reason: str) -> None:
    assert log_of(*lines).reason() == reason


def test_a_taken_port_is_found() -> None:
    line = "E1130 main.cc:245] \"failed to start GRPC service: Unavailable - Socket '1.2.3.4:81'"

    assert log_of(f'{line} already in use "').taken_port() == 81
    assert log_of(LOADED).taken_port() is None


def test_everything_is_passed_on_as_it_came() -> None:
    sink = io.BytesIO()

    log_of(LOADED, "你好", sink=sink)

    assert sink.getvalue().decode() == f"{LOADED}\n你好\n"


def test_a_sink_that_was_closed_does_not_stop_the_reading() -> None:
    sink = io.BytesIO()
    sink.close()

    assert log_of(FAILED, CREATING, sink=sink).reason().startswith("model 'gpt'")

"""What an HTTP answer that is no audio says, of the gateway or of Triton."""

from __future__ import annotations

import json

from chattts_triton.load.take import Failure

REFUSED = (429, 503)
# The gateway's other 503s: the server behind it is away, or has dropped the call.
_AWAY = ("upstream_unavailable", "cancelled")
_LONGEST_MESSAGE = 300


def failure_of_answer(status: int, body: bytes) -> Failure:
    """The failure of a request that was answered with `status`, where that is not 200.

    The kind is the gateway's code, or the status where there is no such code.
    """
    code, message = f"http_{status}", body.decode("utf-8", errors="replace")
    try:
        error = json.loads(body)["error"]
        message = str(error)
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        pass  # Triton's error is a text, that of a proxy may be anything
    is_refusal = status in REFUSED and code not in _AWAY
    return Failure(code, f"{status}: {message[:_LONGEST_MESSAGE]}", is_refusal)

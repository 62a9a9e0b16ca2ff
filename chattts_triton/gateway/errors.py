"""What a request is answered with when it fails: a status, a stable code, and OpenAI's shape of it.

One function turns the errors of `chattts_client` into it, so each has one status and one code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from chattts_client import (
    ChatTTSClientError,
    DeadlineExceededError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    ServerUnreachableError,
)
from chattts_triton.errors import shorten

RETRY_AFTER_S = 1
_PYDANTIC_OPENING = re.compile(r"^(Input|String) should (be|have) ")
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """The answer to a request that fails.

    Args:
        status: HTTP status, 400 to 599.
        code: Stable, for programs: lower case with underscores, such as "text_too_long".
        message: For people; it names the field, what came and what is wanted. Never a secret.
        headers: Further headers of the answer, such as Retry-After.
        param: The field of the request that is at fault, where it is one.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: Mapping[str, str] | None = None,
        *,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or _NO_HEADERS)
        self.param = param

    @property
    def type(self) -> str:
        """OpenAI's class of the error."""
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        return _TYPES.get(self.status, default)

    def body(self) -> dict[str, dict[str, str | None]]:
        """The JSON object of the answer, as OpenAI's API has it."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


def api_error(error: ChatTTSClientError) -> ApiError:
    """The answer for an error of a call to Triton."""
    message = str(error)
    retry = {"Retry-After": str(RETRY_AFTER_S)}
    match error:
        case InvalidRequestError():
            return ApiError(400, "invalid_request", message, param=_param(message))
        case OverloadedError():
            return ApiError(503, "overloaded", message, retry)
        case ServerUnreachableError():
            return ApiError(503, "upstream_unavailable", message, retry)
        case DeadlineExceededError():
            return ApiError(504, "deadline_exceeded", message)
        case RequestCancelledError():
            return ApiError(503, "cancelled", message, retry)
        case _:
            return ApiError(500, "generation_failed", message)


def described(param: str, error: Mapping[str, Any]) -> tuple[str, str]:
    """Code and message of one error of pydantic's.

    Args:
        param: The field that it is about, or "".
        error: Of `ValidationError.errors()`.
    """
    match error["type"]:
        case "missing":
            return "missing_field", f"{param or 'body'}: missing"
        case "extra_forbidden":
            return "unknown_field", f"{shorten(param)}: unknown field"
        case "json_invalid":
            return "invalid_json", f"body: got no JSON: {error.get('ctx', {}).get('error', '')}"
    wanted = _PYDANTIC_OPENING.sub("", error["msg"])
    return "invalid_value", f"{param or 'body'}: got {shorten(error.get('input'))}, wanted {wanted}"


def _param(message: str) -> str | None:
    """The field of the request that a message such as `TOP_P: got 2.0, wanted ...` names."""
    name = message.rpartition(": got ")[0].rpartition(" ")[2].lower()
    return {"text": "input"}.get(name, name) or None

"""The options of a call, one value for all its texts or one for each; the server knows the ranges.

What is checked here is only that a value can be put into its tensor without being changed.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from chattts_client._errors import InvalidRequestError

T = TypeVar("T")
PerText: TypeAlias = T | Sequence[T]

_FP32_MAX = float(np.finfo(np.float32).max)


class OptionArguments(TypedDict, total=False):
    """What a caller may set, by keyword; None leaves the choice to the server.

    A list has one value for each text.

    Attributes:
        seed: 0 to 2**63 - 1; the same text, voice, options and seed give the same samples.
            None or -1 has the server draw one.
        voice: A name of the server's voices, "seed:N" or a ChatTTS speaker string; without one,
            the seed draws the speaker.
        speed: 0 (slow) to 9 (fast).
        temperature: Of the drawing of codes; lower is steadier.
        top_p: Share of the likeliest codes that are drawn from.
        top_k: How many of the likeliest codes are drawn from.
        repetition_penalty: Above 1, codes that were just drawn become less likely.
        max_new_tokens: Most steps that are generated; one step is 21.33 ms of audio.
        refine: Have the model add pauses and laughter to the text first.
        lang: Language of the text, such as "zh" or "en"; None has the server tell.
        trim: Cut silence at the beginning and the end down to 50 ms.
        queue_priority: How soon the call gets its turn where others wait: 0 first, 1 unless set,
            2 last. One value for all texts of a call.
    """

    seed: PerText[int] | None
    voice: PerText[str] | None
    speed: PerText[int] | None
    temperature: PerText[float] | None
    top_p: PerText[float] | None
    top_k: PerText[int] | None
    repetition_penalty: PerText[float] | None
    max_new_tokens: PerText[int] | None
    refine: PerText[bool] | None
    lang: PerText[str] | None
    trim: PerText[bool] | None
    queue_priority: int | None


@dataclass(frozen=True, kw_only=True)
class SynthesisOptions:
    """The options of one call as they were given; None leaves the choice to the server."""

    seed: PerText[int] | None = None
    voice: PerText[str] | None = None
    speed: PerText[int] | None = None
    temperature: PerText[float] | None = None
    top_p: PerText[float] | None = None
    top_k: PerText[int] | None = None
    repetition_penalty: PerText[float] | None = None
    max_new_tokens: PerText[int] | None = None
    refine: PerText[bool] | None = None
    lang: PerText[str] | None = None
    trim: PerText[bool] | None = None
    queue_priority: int | None = None


class Tensor(NamedTuple):
    """One input of the model: a name, Triton's name of its type, and (N, 1) values."""

    name: str
    datatype: str
    values: NDArray[Any]


OPTION_DATATYPES = {
    "seed": "INT64",
    "voice": "BYTES",
    "speed": "INT32",
    "temperature": "FP32",
    "top_p": "FP32",
    "top_k": "INT32",
    "repetition_penalty": "FP32",
    "max_new_tokens": "INT32",
    "refine": "BOOL",
    "lang": "BYTES",
    "trim": "BOOL",
}


def text_tensor(texts: Sequence[str]) -> Tensor:
    """The input TEXT, one row a text.

    Raises:
        InvalidRequestError: There is no text, or one is no text that UTF-8 can carry.
    """
    if isinstance(texts, str) or len(texts) == 0:
        raise InvalidRequestError.of("TEXT", texts, "a list of at least one text")
    return _tensor("TEXT", "BYTES", list(texts))


def option_tensors(options: SynthesisOptions, num_texts: int) -> list[Tensor]:
    """The inputs of the options that are set, one row a text.

    Raises:
        InvalidRequestError: A value is not of the option's type, or there are too many or few.
    """
    tensors = []
    for option, datatype in OPTION_DATATYPES.items():
        value = getattr(options, option)
        if value is not None:
            name = option.upper()
            tensors.append(_tensor(name, datatype, _rows(name, value, num_texts)))
    return tensors


def mode_tensor(mode: str) -> Tensor:
    """The input MODE of a stream.

    Raises:
        InvalidRequestError: It is no text.
    """
    return _tensor("MODE", "BYTES", [mode])


def option_parameters(options: SynthesisOptions) -> dict[str, int]:
    """The options that belong to the call and not to its texts, as parameters of the request.

    Raises:
        InvalidRequestError: A value is no whole number.
    """
    if options.queue_priority is None:
        return {}
    return {"queue_priority": _integer(np.int64)("queue_priority", options.queue_priority)}


def _rows(name: str, value: object, num_texts: int) -> list[object]:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return [value] * num_texts
    if len(value) != num_texts:
        raise InvalidRequestError.of(
            name, value, f"one value, or one for each of {num_texts} texts"
        )
    return list(value)


def _tensor(name: str, datatype: str, rows: list[Any]) -> Tensor:
    convert, dtype = _CONVERSIONS[datatype]
    values = [convert(name, row) for row in rows]
    return Tensor(name, datatype, np.array(values, dtype=dtype).reshape(-1, 1))


def _utf8(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise InvalidRequestError.of(name, value, "a text")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequestError.of(name, value, "a text that UTF-8 can carry") from None


def _integer(dtype: type[np.signedinteger[Any]]) -> Callable[[str, object], int]:
    info = np.iinfo(dtype)

    def convert(name: str, value: object) -> int:
        # bool is an integer to Python, and would silently become 0 or 1.
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise InvalidRequestError.of(name, value, "a whole number")
        if not info.min <= int(value) <= info.max:
            raise InvalidRequestError.of(name, value, f"{info.min} to {info.max}")
        return int(value)

    return convert


def _float(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidRequestError.of(name, value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not abs(number) <= _FP32_MAX:  # also refuses NaN
        raise InvalidRequestError.of(name, value, "a finite number that float32 can hold")
    return number


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise InvalidRequestError.of(name, value, "true or false")
    return bool(value)


_CONVERSIONS: dict[str, tuple[Callable[[str, object], Any], type[Any]]] = {
    "BYTES": (_utf8, np.object_),
    "INT64": (_integer(np.int64), np.int64),
    "INT32": (_integer(np.int32), np.int32),
    "FP32": (_float, np.float32),
    "BOOL": (_boolean, np.bool_),
}

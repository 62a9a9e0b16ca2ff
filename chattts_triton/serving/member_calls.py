"""What `chattts_stream` asks the other models, for one request of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from chattts_triton.constants import MAX_NEW_CODES
from chattts_triton.errors import ChatTTSError, GenerationError
from chattts_triton.manifest import member_name
from chattts_triton.serving.edge import ERROR_TYPE_END, STREAM_PARAMETER, Tensors, column
from chattts_triton.tensors import GPT, PREPROCESS, VOCOS_DECODER, ModelSpec

_ERRORS: Mapping[str, type[ChatTTSError]] = {
    kind.error_type: kind for kind in ChatTTSError.__subclasses__()
}
_GPT_INPUTS = frozenset(spec.name for spec in GPT.inputs)
_READ_OUTPUTS = (
    *("HIDDENS", "NUM_CODES", "FINISH_REASON", "REFINED_TEXT", "WARNINGS"),
    *("STEP_SECONDS", "RECORD"),
)


class MemberCalls:
    """Calls the members of one set, each call blocking its thread; any thread may call.

    Args:
        pb_utils: Triton's module of that name.
        ensemble: The name of the set.
        request: The request that is served; its id is passed on. Its trace is not: Triton lets go
            of it as soon as `execute` has returned, and dies of a call that names it then.
        parameters: The caller's parameters.
        timeout_s: What every call is sent as its timeout.

    Raises:
        ChatTTSError: In every method, the error of the member, of the class it has there.
    """

    def __init__(
        self,
        pb_utils: Any,
        ensemble: str,
        request: Any,
        parameters: Mapping[str, object],
        timeout_s: float,
    ) -> None:
        self._pb_utils = pb_utils
        self._ensemble = ensemble
        self._request_id = request.request_id()
        self._parameters = {STREAM_PARAMETER: json.dumps(parameters)}
        self._timeout_us = max(1, round(timeout_s * 1e6))

    def preprocess(self, inputs: Tensors) -> Tensors:
        """The prompt of a text: every output of `preprocess`."""
        return self._call(PREPROCESS, inputs, [spec.name for spec in PREPROCESS.outputs])

    def open(self, stream_id: str, prompt: Tensors, min_codes: int) -> Tensors:
        """Have a text generated, and read its first segment from the beginning, as `read` does."""
        inputs = {name: values for name, values in prompt.items() if name in _GPT_INPUTS}
        return self._call(
            GPT, inputs | _read(stream_id, segment=0, cursor=0, min_codes=min_codes), _READ_OUTPUTS
        )

    def read(self, stream_id: str, segment: int, cursor: int, min_codes: int) -> Tensors:
        """What a segment has from `cursor` on, once it has `min_codes` steps of it or has ended."""
        return self._call(GPT, _read(stream_id, segment, cursor, min_codes), _READ_OUTPUTS)

    def close(self, stream_id: str) -> None:
        """Have a text no longer generated."""
        self._call(GPT, _read(stream_id, segment=0, cursor=0, min_codes=0), ["NUM_CODES"])

    def decode(self, hiddens: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The audio (512 * T - 256,) of hidden states (T, hidden)."""
        inputs = {
            "HIDDENS": hiddens[None],
            "NUM_CODES": column([len(hiddens)], np.int32),
            "SEED": column([0], np.int64),
        }
        audio: npt.NDArray[np.float32] = self._call(VOCOS_DECODER, inputs, ["AUDIO"])["AUDIO"][0]
        return audio

    def _call(
        self, model: ModelSpec, inputs: Tensors, outputs: list[str] | tuple[str, ...]
    ) -> Tensors:
        pb_utils = self._pb_utils
        try:
            response = pb_utils.InferenceRequest(
                model_name=member_name(self._ensemble, model.name),
                requested_output_names=list(outputs),
                inputs=[pb_utils.Tensor(name, values) for name, values in inputs.items()],
                request_id=self._request_id,
                timeout=self._timeout_us,
                parameters=self._parameters,
            ).exec()
        except pb_utils.TritonModelException as error:  # not even sent
            raise GenerationError(f"{model.name} cannot be called: {error}") from error
        if response.has_error():
            raise _member_error(model.name, response.error().message())
        return {
            name: pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in outputs
        }


def _read(stream_id: str, segment: int, cursor: int, min_codes: int) -> Tensors:
    return {
        "STREAM_ID": column([stream_id.encode()], np.object_),
        "SEGMENT": column([segment], np.int32),
        "CURSOR": column([cursor], np.int32),
        "MIN_CODES": column([min(min_codes, MAX_NEW_CODES)], np.int32),
    }


def _member_error(model: str, text: str) -> ChatTTSError:
    """The error of a member out of the text that a call between models leaves of it."""
    error_type, end, message = text.partition(ERROR_TYPE_END)
    if not end or error_type not in _ERRORS:  # Triton's own, such as that the model is not loaded
        return GenerationError(f"{model}: {text}")
    error = _ERRORS[error_type](message.removeprefix(f"{model}: "))
    error.model = model
    return error

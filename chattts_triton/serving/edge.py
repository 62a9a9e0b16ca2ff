"""Between Triton's request objects and plain dictionaries of arrays.

`triton_python_backend_utils` exists only inside Triton's stub, so each model.py passes it in.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chattts_triton.config import MAX_CALL_CODES
from chattts_triton.errors import ChatTTSError, GenerationError, InvalidRequestError
from chattts_triton.manifest import (
    DEFAULT_NAME,
    NAME_PARAMETER,
    VERSION_DIRECTORY,
    Manifest,
    load_manifest,
)
from chattts_triton.ort import choose_device
from chattts_triton.tensors import ModelSpec

LOGGER = logging.getLogger(__name__)

# `chattts_stream` calls the members for its own caller. Such a call has this one parameter, the
# caller's parameters as JSON, since a call between models cannot carry a float.
STREAM_PARAMETER = "stream_request"
# A call between models loses the status of an error, and so does a stream of Triton's. The text of
# such an error begins with its type.
ERROR_TYPE_END = ": "

Tensors = dict[str, npt.NDArray[Any]]
Run = Callable[[Tensors, dict[str, object]], Tensors]

NUMPY_DTYPES: Mapping[str, npt.DTypeLike] = {
    "STRING": np.object_,
    "BOOL": np.bool_,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP32": np.float32,
}


def _ignore(_error: Exception) -> None:
    """What `answer` does with an error besides answering: nothing."""


class ModelArgs:
    """What Triton tells a Python model at load: its place, its parameters, its device."""

    def __init__(self, args: Mapping[str, str]) -> None:
        # Relative to the stub's working directory, and never to be made absolute: an isolated
        # stub cannot open a path that holds a character outside ASCII.
        self.directory = Path(args["model_repository"])
        self.repository = self.directory.parent
        is_on_gpu = args["model_instance_kind"] == "GPU"
        self.device = choose_device(wants_cuda=is_on_gpu)
        self.device_id = int(args["model_instance_device_id"]) if is_on_gpu else 0
        config = json.loads(args["model_config"])
        parameters = config.get("parameters", {})
        self.parameters = {name: value["string_value"] for name, value in parameters.items()}
        self.ensemble = self.parameters.pop(NAME_PARAMETER, DEFAULT_NAME)
        # Triton sends these, and waits for the answers, before anybody else's request.
        self.num_warm_up_requests = sum(
            sample["batch_size"] * (sample.get("count") or 1)
            for sample in config.get("model_warmup", [])
        )

    def load_manifest(self) -> tuple[Manifest, Path]:
        """The live export and the directory of this member's files in it."""
        manifest = load_manifest(self.repository, self.ensemble)
        return manifest, self.directory / VERSION_DIRECTORY / manifest.export_id


class TritonEdge:
    """Reads requests and builds responses of one model, by its declared tensors.

    Args:
        pb_utils: Triton's module of that name.
        spec: The tensors of the model.
        num_warm_up_requests: How many of the first requests are Triton's own, see `answer`.
    """

    def __init__(self, pb_utils: Any, spec: ModelSpec, *, num_warm_up_requests: int = 0) -> None:
        self._pb_utils = pb_utils
        self._spec = spec
        self._num_warm_ups_left = num_warm_up_requests
        self.final_flag = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

    def answer(
        self, request: Any, run: Run, on_error: Callable[[Exception], None] = _ignore
    ) -> Any:
        """Run a model on one request; whatever goes wrong becomes an error response.

        A refused warm-up, such as Triton's `zero_data` for a text, gets an empty response: with an
        error one, Triton would not load the model. Only one thread may call this.

        Args:
            request: Triton's.
            run: The model.
            on_error: Told what went wrong, unless it was a warm-up that was refused.
        """
        is_warm_up = self._num_warm_ups_left > 0
        self._num_warm_ups_left -= is_warm_up
        try:
            return self.response(request, run(self.tensors(request), self.parameters(request)))
        except Exception as error:  # noqa: BLE001 - every request must be answered
            if is_warm_up and isinstance(error, InvalidRequestError):
                LOGGER.warning("%s: warm-up refused: %s", self._spec.name, error)
                return self._pb_utils.InferenceResponse(output_tensors=[])
            on_error(error)
            return self.error_response(error, request)

    def tensors(self, request: Any) -> Tensors:
        """The inputs that the request holds, by name."""
        found: Tensors = {}
        for spec in self._spec.inputs:
            tensor = self._pb_utils.get_input_tensor_by_name(request, spec.name)
            if tensor is not None:
                found[spec.name] = tensor.as_numpy()
        return found

    def parameters(self, request: Any) -> dict[str, object]:
        """The parameters of whoever calls, by name.

        Raises:
            InvalidRequestError: They were to come from a stream, and are not what one sends.
        """
        parameters: dict[str, object] = json.loads(request.parameters() or "{}")
        if STREAM_PARAMETER not in parameters:
            return parameters
        passed_on = parameters[STREAM_PARAMETER]
        try:
            callers = json.loads(passed_on) if isinstance(passed_on, str) else None
        except ValueError:
            callers = None
        if not isinstance(callers, dict):
            raise InvalidRequestError.of(STREAM_PARAMETER, passed_on, "a JSON object")
        return callers

    def is_for_stream(self, request: Any) -> bool:
        """Whether `chattts_stream` calls for its own caller."""
        return STREAM_PARAMETER in json.loads(request.parameters() or "{}")

    def response(self, request: Any, outputs: Tensors) -> Any:
        """A response of the outputs that were asked for.

        Raises:
            GenerationError: An output is not of the declared dtype or rank. Triton itself would
                send its bytes as they are.
        """
        wanted = set(request.requested_output_names())
        tensors = []
        for spec in self._spec.outputs:
            array = outputs[spec.name]
            if array.dtype != NUMPY_DTYPES[spec.dtype] or array.ndim != len(spec.shape) + 1:
                raise GenerationError(
                    f"{spec.name}: made {array.dtype} of {array.ndim} dims, "
                    f"declared {spec.dtype} of {len(spec.shape) + 1}"
                )
            if spec.name in wanted:
                tensors.append(self._pb_utils.Tensor(spec.name, np.ascontiguousarray(array)))
        return self._pb_utils.InferenceResponse(output_tensors=tensors)

    def error_response(self, error: BaseException, request: Any) -> Any:
        """The answer to a request that failed, its text beginning with the model's name."""
        if not isinstance(error, ChatTTSError):
            LOGGER.error("%s: unexpected error", self._spec.name, exc_info=error)
            # Its message may quote what the caller wrote, which is not for the log of a stream.
            error = GenerationError(f"internal error: {type(error).__name__}")
        text = f"{error.model or self._spec.name}: {error}"
        if self._spec.is_stream or self.is_for_stream(request):
            text = f"{error.error_type}{ERROR_TYPE_END}{text}"
        code = getattr(self._pb_utils.TritonError, error.triton_code)
        return self._pb_utils.InferenceResponse(error=self._pb_utils.TritonError(text, code))


def pad_rows(rows: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Stack arrays that differ in their first dim, padded behind with zeros or empty strings."""
    longest = max(len(row) for row in rows)
    shape = (len(rows), longest, *rows[0].shape[1:])
    padded = np.zeros(shape, dtype=rows[0].dtype)  # pages that hold padding are never committed
    if padded.dtype == np.object_:
        padded[...] = b""
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


def split_segments(
    name: str, values: npt.NDArray[Any], lengths: npt.NDArray[Any]
) -> list[npt.NDArray[Any]]:
    """Take apart what follows each other in one row; `name` is that of the lengths.

    Args:
        name: Named in the error.
        values: (L, ...), the segments one behind the other, and padding.
        lengths: (S,) how long each segment is; 0 where the row has no more.

    Raises:
        InvalidRequestError: A length is negative or follows a 0, there is no segment, or there
            are more values than were sent.
    """
    num_segments = int(np.count_nonzero(lengths))
    counted = [int(length) for length in lengths[:num_segments]]
    if not counted or min(counted) <= 0 or sum(counted) > len(values):
        got = int(lengths[0]) if len(lengths) == 1 else [int(length) for length in lengths]
        raise InvalidRequestError.of(name, got, f"1 to {len(values)}")
    ends = np.cumsum(counted)
    return [values[end - length : end] for end, length in zip(ends.tolist(), counted, strict=True)]


def check_call_size(field: str, codes_of_rows: list[int]) -> None:
    """Refuse a call whose answer, padded to its longest row, would take too much memory.

    Raises:
        InvalidRequestError: There are no rows, or their padded length is over MAX_CALL_CODES.
    """
    if not codes_of_rows or len(codes_of_rows) * max(codes_of_rows) > MAX_CALL_CODES:
        raise InvalidRequestError(
            f"{field}: got {len(codes_of_rows)} rows of up to {max(codes_of_rows, default=0)} "
            f"steps, wanted at most {MAX_CALL_CODES} steps in all when each row counts as the "
            "longest; send long texts in calls of their own"
        )


def column(values: list[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """One value for each row, as (N, 1)."""
    return np.asarray(values, dtype=dtype).reshape(len(values), 1)

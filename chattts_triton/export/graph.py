"""A small builder over onnx.helper: nodes and initializers by name, saved with external data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
MICROSOFT_OPSET = 1
MICROSOFT = "com.microsoft"


class GraphBuilder:
    """Collects the nodes of one graph in the order in which they run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._num_values = 0

    def input(self, name: str, dtype: int, shape: Sequence[int | str]) -> str:
        """Declare a graph input; strings in `shape` are symbolic axes."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: int, shape: Sequence[int | str]) -> str:
        """Declare a graph output."""
        self._outputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def constant(self, name: str, value: npt.NDArray[Any]) -> str:
        """Add an initializer, or reuse the one of that name."""
        if name not in self._initializers:
            array = np.asarray(value, order="C")  # ascontiguousarray would give a scalar a dim
            self._initializers[name] = numpy_helper.from_array(array, name)
        return name

    def int64(self, *values: int) -> str:
        """An initializer that holds a short list of integers."""
        name = "int64_" + "_".join(str(value) for value in values)
        return self.constant(name, np.asarray(values, dtype=np.int64))

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        *,
        output: str | None = None,
        outputs: Sequence[str] | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Add a node; returns the name of its first output (a fresh one unless given)."""
        self._num_values += 1
        names = list(outputs) if outputs else [output or f"{op.lower()}_{self._num_values}"]
        self._nodes.append(
            helper.make_node(
                op,
                list(inputs),
                names,
                name=f"node_{self._num_values}",
                domain=domain,
                **attributes,
            )
        )
        return names[0]

    def build(self) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(
            self._nodes,
            self._name,
            self._inputs,
            self._outputs,
            initializer=list(self._initializers.values()),
        )
        return helper.make_model(
            graph,
            opset_imports=[
                helper.make_opsetid("", OPSET),
                helper.make_opsetid(MICROSOFT, MICROSOFT_OPSET),
            ],
            producer_name="chattts-triton",
            ir_version=10,
        )


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write `path` and, beside it, `<path>.data` with the weights."""
    onnx.save_model(
        model,
        str(path),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=f"{path.name}.data",
        size_threshold=1024,
    )


def external_data_files(path: Path) -> set[str]:
    """Names of the files that a saved graph keeps its weights in, relative to its directory."""
    model = onnx.load_model(str(path), load_external_data=False)
    return {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }

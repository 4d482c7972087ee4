"""MNN on the CPU, the release pinned in mnn_runner.py, converted from ONNX and run by MNN's Module interface.

The Module interface is the only one that runs `If` (lazily), and needs less memory than sessions do for the same speed.
The wheel has no other backend than the CPU. Option:

* `control`: "switch" runs `If` natively, each branch as a module with buffers of its own; "all" runs both branches and
  a selection.

MNN 3.6.1 computes a max pooling that has its second output, the indices, wrongly at the padding, even when nothing uses
them, and cannot convert an LSTM that lacks its unused outputs. So of unused outputs the indices of poolings are dropped,
and only those.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, TensorProto, helper, numpy_helper

from baselines import bundle, environment
from baselines.engine import BuildFailed, Engine, Options, Unsupported
from devices.device import Device

RUNNER = Path(__file__).with_name("mnn_runner.py")
CONVERTER = Path(__file__).with_name("mnn_convert.py")
TRACE = Path(__file__).with_name("mnn_trace.c")


class Mnn(Engine):
    """MNN from PyPI in an environment of its own."""

    options: ClassVar[Mapping[str, tuple[object, ...]]] = {"control": bundle.CONTROL}
    sources = ("baselines/mnn_runner.py", "baselines/mnn_convert.py", "baselines/mnn_trace.c", *bundle.SOURCES)

    def version(self) -> str:
        return environment.pinned(RUNNER, "mnn")

    def build(self, model: Path, device: Device, processor: str, options: Options, out: Path) -> list[str]:
        if processor != "cpu":
            raise Unsupported(f"MNN's wheel has no backend for processor '{processor}', only for 'cpu'")
        source = bundle.place_model(model, options.get("control", "switch"), out)
        names = drop_unused_indices(source)
        probe = out / "probe.onnx"
        onnx.save(_probe(), probe)
        for onnx_file in (source, probe):
            _convert(onnx_file)
        for leftover in (source, probe, out / f"{model.name}.data"):
            leftover.unlink(missing_ok=True)
        (out / "names.json").write_text(json.dumps(names) + "\n")
        return bundle.preload(TRACE, out, bundle.place_runner(RUNNER, out))


ENGINE = Mnn()


def drop_unused_indices(path: Path) -> dict[str, list[str]]:
    """Remove the indices of max poolings that nothing reads from an ONNX file; returns its input and output names."""
    model = onnx.load(path, load_external_data=False)
    graphs = list(_graphs(model.graph))
    read = {name for graph in graphs for node in graph.node for name in node.input}
    read |= {value.name for graph in graphs for value in graph.output}
    for graph in graphs:
        for node in graph.node:
            if node.op_type == "MaxPool" and len(node.output) == 2 and node.output[1] not in read:
                del node.output[1]
    path.write_bytes(model.SerializeToString())
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in weights]
    return {"inputs": inputs, "outputs": [value.name for value in model.graph.output]}


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and every graph inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _probe() -> onnx.ModelProto:
    """A convolution large enough to need every thread, on which the runner counts them."""
    weights = numpy_helper.from_array(np.ones((64, 64, 3, 3), np.float32), "w")
    shape = [1, 64, 64, 64]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _convert(source: Path) -> None:
    """Write the MNN file beside an ONNX file; BuildFailed with the converter's last words when it does not."""
    target = source.with_suffix(".mnn")
    command = [environment.python(RUNNER).absolute(), CONVERTER, source.name, target.name]
    result = subprocess.run(command, cwd=source.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if result.returncode != 0 or not target.exists():
        lines = result.stdout.decode(errors="replace").strip().splitlines()
        raise BuildFailed(f"MNN's converter ended with status {result.returncode}: {lines[-1] if lines else ''}")

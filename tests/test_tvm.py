"""TVM's importer and schedules as mended here: symbolic dims in arithmetic and pads, the share of unscheduled code."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from baselines import engine
from baselines.reference import compare
from baselines.session import Limits, Session
from devices import device

HOST = device.load("host")
CHANNELS = 16


def pooled(groups: int) -> onnx.ModelProto:
    """A convolution of this many groups, resized to twice its height, whose rows are then read as channels."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((CHANNELS, CHANNELS // groups, 3, 3), np.float32) / 8
    constants = {"w": weights, "two": np.array([2]), "one": np.array([1]), "lead": np.array([1, CHANNELS])}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], group=groups),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Shape", ["r"], ["rows"], start=2, end=3),
        helper.make_node("Shape", ["r"], ["columns"], start=3, end=4),
        helper.make_node("Mul", ["rows", "two"], ["double"]),
        helper.make_node("Concat", ["lead", "double", "columns"], ["sizes"], axis=0),
        helper.make_node(
            "Resize", ["r", "", "", "sizes"], ["tall"], mode="linear", coordinate_transformation_mode="half_pixel"
        ),
        helper.make_node("Concat", ["one", "double", "minus"], ["shape"], axis=0),
        helper.make_node("Transpose", ["tall"], ["turned"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["turned", "shape"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "pooled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, CHANNELS, "H", "W"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "rows", "wide"])],
        [numpy_helper.from_array(v, n) for n, v in (*constants.items(), ("minus", np.array([-1])))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def padded() -> onnx.ModelProto:
    """Rows added in front and behind, as many as a division leaves over, and one column."""
    constants = {"zero": np.array([0]), "one": np.array([1]), "four": np.array([4])}
    nodes = [
        helper.make_node("Shape", ["x"], ["rows"], start=2, end=3),
        helper.make_node("Mod", ["rows", "four"], ["over"]),
        helper.make_node("Concat", ["zero", "zero", "over", "zero", "zero", "zero", "over", "one"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["p"]),
        helper.make_node("Relu", ["p"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "padded",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, CHANNELS, "H", "W"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CHANNELS, "rows", "columns"])],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def unscheduled(source: onnx.ModelProto, options: dict[str, object], tmp_path: Path) -> float:
    """The share of unscheduled code of a bundle that gave right numbers at two shapes, one of a single row."""
    model, samples, folder, outputs = (tmp_path / name for name in ("m.onnx", "samples", "bundle", "outputs"))
    onnx.save(source, model)
    (samples / "reference").mkdir(parents=True)
    folder.mkdir()
    index = []
    for i, shape in enumerate([(1, CHANNELS, 1, 5), (1, CHANNELS, 40, 33)]):
        x = np.random.default_rng(i).standard_normal(shape, np.float32)
        np.save(samples / f"{i}.0.npy", x)
        np.save(samples / "reference" / f"{i}.0.npy", ort.InferenceSession(model).run(None, {"x": x})[0])
        index.append({"shapes": [list(shape)], "path": None, "macs": None, "macs_all": None})
    (samples / "samples.json").write_text(json.dumps(index))
    built = engine.build(folder, name="t", adapter="tvm", options=options, model=model, device=HOST, processor="cpu")
    assert built.command, built.failed
    session = Session(HOST, folder, built.command, samples=str(samples), threads=2, limits=Limits(120, 4 << 30))
    for sample in (0, 1):
        session.run(sample, 1, str(outputs))
        error, reason = compare(samples / "reference", outputs, sample, 1e-4)
        assert reason is None, error
    session.close()
    return float(str(session.ready["unscheduled"]))


@pytest.mark.parametrize(
    ("groups", "options", "least", "most"),
    [
        (1, {}, 0.0, 0.0),  # all scheduled
        (CHANNELS, {}, 0.02, 0.98),  # the convolution is not, the rest is
        (1, {"pipeline": "stock"}, 1.0, 1.0),
    ],
    ids=["scheduled", "grouped", "stock"],
)
def test_unscheduled(groups: int, options: dict[str, object], least: float, most: float, tmp_path: Path) -> None:
    assert least <= unscheduled(pooled(groups), options, tmp_path) <= most


def test_computed_pads(tmp_path: Path) -> None:
    """By one row and by none."""
    unscheduled(padded(), {}, tmp_path)

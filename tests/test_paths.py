"""Outputs of near-by control paths: the inverted gates of a nested model against numpy."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from baselines.paths import FLIP, invertible, other_gate, write_paths
from models.gates import gates


def tensor(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"])


def scaled(name: str, factor: str) -> GraphProto:
    return helper.make_graph([helper.make_node("Mul", ["x", factor], [name])], name, [], [tensor(name)])


def nested() -> ModelProto:
    """y = x by 2 where max(x) > 1, and within that by 3 where min(x) > 0; otherwise by 5. Both gates compare floats."""
    inner = helper.make_graph(
        [
            helper.make_node("ReduceMin", ["x"], ["low"], keepdims=0),
            helper.make_node("Greater", ["low", "0"], ["positive"]),
            helper.make_node(
                "If", ["positive"], ["in"], "inner", then_branch=scaled("a", "3"), else_branch=scaled("b", "2")
            ),
        ],
        "then",
        [],
        [tensor("in")],
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["high"], keepdims=0),
        helper.make_node("Greater", ["high", "1"], ["large"]),
        helper.make_node("If", ["large"], ["y"], "outer", then_branch=inner, else_branch=scaled("c", "5")),
    ]
    constants = [numpy_helper.from_array(np.float32(value), str(value)) for value in (0, 1, 2, 3, 5)]
    graph = helper.make_graph(nodes, "nested", [tensor("x")], [tensor("y")], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def expected(x: np.ndarray, inverted: int) -> np.ndarray:
    """The model in numpy, one decision inverted."""
    if (x.max() > 1) != (inverted == 0):
        return x * (3 if (x.min() > 0) != (inverted == 1) else 2)
    return x * 5


INPUTS = [np.array(values, np.float32) for values in ([2, 1], [2, -1], [0.5, 0.25], [1.5])]


@pytest.mark.parametrize("inverted", [-1, 0, 1])
@pytest.mark.parametrize("x", INPUTS, ids=str)
def test_one_decision_is_inverted(x: np.ndarray, inverted: int) -> None:
    model = nested()
    before = model.SerializeToString()
    assert [gate.name for gate in gates(model)] == ["outer", "inner"]
    session = onnxruntime.InferenceSession(invertible(model).SerializeToString())
    (y,) = session.run(None, {"x": x, FLIP: np.array(inverted, np.int64)})
    np.testing.assert_array_equal(y, expected(x, inverted))
    assert model.SerializeToString() == before


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Three samples: one near at the outer gate, one at both, one at none."""
    onnx.save(nested(), tmp_path / "m.onnx")
    margins = [[0.05, 3.0], [-0.09, 0.0999], [-2.0, None]]
    archive = {f"{i}.x": x for i, x in enumerate(INPUTS[:3])}
    np.savez(tmp_path / "s.npz", facts=np.array(json.dumps([{"margins": m} for m in margins])), **archive)
    for i, x in enumerate(INPUTS[:3]):
        np.save(tmp_path / f"{i}.0.npy", x)
    write_paths(tmp_path / "m.onnx", tmp_path / "s.npz", tmp_path)
    return tmp_path


def test_near_paths_are_written(samples: Path) -> None:
    written = sorted(str(path.relative_to(samples)) for path in samples.glob("paths/*/*"))
    assert written == ["paths/0/0.0.npy", "paths/0/1.0.npy", "paths/1/1.0.npy"]
    np.testing.assert_array_equal(np.load(samples / "paths/1/1.0.npy"), expected(INPUTS[1], 1))


@pytest.mark.parametrize(
    ("sample", "factor", "gate"),
    [
        (0, 5, 0),  # of the outer gate's other branch
        (1, 3.0001, 1),
        (1, 5.0, 0),
        (1, 2.0, None),  # the reference's path
        (1, 2.0001, None),  # nearly
        (2, 3.0, None),  # no decision was close: simply wrong
    ],
)
def test_outputs_name_their_path(sample: int, factor: float, gate: int | None, samples: Path) -> None:
    outputs = samples / "outputs"
    outputs.mkdir()
    x = INPUTS[sample]
    y = np.float32(factor) * x
    np.save(outputs / f"{sample}.0.npy", y)
    right = expected(x, -1)
    found = other_gate(samples, outputs, sample, float(np.abs(y - right).max() / np.abs(right).max()))
    assert (found and found[0]) == gate


def test_a_model_without_close_decisions_has_no_paths(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", facts=np.array(json.dumps([{"margins": []}])))
    write_paths(tmp_path / "missing.onnx", tmp_path / "s.npz", tmp_path)
    assert not (tmp_path / "paths").exists()

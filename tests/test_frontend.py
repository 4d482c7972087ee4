"""From ONNX to the graph: names, control flow, constants, opsets; and one sentence for every file that is no model."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import sod2
from sod2 import frontend
from sod2.graph import Graph
from tests.graphs import assert_close, expected, model, random

PNG = b"\x89PNG\r\n\x1a\n" + bytes(200)


def if_text(then: str, other: str) -> str:
    return f"If (p) <then_branch = t () => (float[?] a) {{ {then} }}, else_branch = e () => (float[?] b) {{ {other} }}>"


def load(inputs: str, outputs: str, body: str, stored: dict | None = None) -> Graph:
    return frontend.load(model(inputs, outputs, body, stored))


@pytest.mark.parametrize(
    ("name", "content"),
    [("empty.onnx", b""), ("image.onnx", PNG), ("text.onnx", b"hello"), ("cut.onnx", None), ("missing.onnx", ...)],
)
def test_files_that_are_no_model(tmp_path: Path, name: str, content: bytes | None) -> None:
    path = tmp_path / name
    if content is None:
        whole = model("float[N] x", "float[N] y", "y = Neg(x)").SerializeToString()
        path.write_bytes(whole[: len(whole) // 2])
    elif content is not ...:
        path.write_bytes(content)
    with pytest.raises(sod2.ModelError, match=name):
        sod2.compile(path)


def test_missing_external_data(tmp_path: Path) -> None:
    source = model("float[N] x", "float[N] y", "y = Add(x, w)", {"w": np.ones(4, np.float32)})
    onnx.save(source, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert_close(sod2.compile(tmp_path / "m.onnx").run({"x": np.ones(4, np.float32)}), {"y": np.full(4, 2, np.float32)})
    (tmp_path / "w.bin").unlink()
    with pytest.raises(sod2.ModelError, match=r"w\.bin"):
        sod2.compile(tmp_path / "m.onnx")


LOOP = "y = Loop(n, c, x) <body = b (int64 i, bool ci) => (bool co, float[?] so) { co = Not(ci) so = Neg(x) }>"
REFUSED = {
    "operator": ("float[N] x", "float[N] y", "y = RandomNormalLike(x)", "RandomNormalLike"),
    "loop": ("float[N] x, int64 n, bool c", "float[?] y", LOOP, "2 inputs; 3 are expected"),
    "no such operator": ("float[N] x", "float[N] y", "y = Frobnicate(x)", "Frobnicate"),
    "undefined": ("float[N] x", "float[N] y", "y = Add(x, nothing)", "nothing"),
    "undefined output": ("float[N] x", "float[N] y", "z = Neg(x)", "'y'"),
    "cycle": ("float[N] x", "float[N] y", "z = Neg(y) y = Neg(z)", "'y'"),
    "twice": ("float[N] x", "float[N] y", "y = Neg(x) y = Relu(x)", "defined twice"),
    "arity": ("float[N] x", "float[N] y", "y = Add(x)", "takes 2"),
    "axis": ("float[N, 4] x", "float[N, 4] y", "y = Softmax <axis = 7> (x)", "axis 7"),
    "perm": ("float[N, 4] x", "float[N, 4] y", "y = Transpose <perm = [0, 5]> (x)", "perm"),
    "predicate": ("float[N] x, float p", "float[?] y", f"y = {if_text('a = Neg(x)', 'b = Relu(x)')}", "bool"),
    "window": ("float[1, 2, H, W] x, float[3, 2, 0, 3] w", "float[1, 3, P, Q] y", "y = Conv (x, w)", "windows of 0"),
    "element type": ("float8e4m3fn[N] x", "float8e4m3fn[N] y", "y = Identity(x)", "float8"),
    "strings": ("string[N] x", "string[N] y", "y = Identity(x)", "object"),
}


@pytest.mark.parametrize(("inputs", "outputs", "body", "offender"), REFUSED.values(), ids=REFUSED)
def test_models_that_are_refused(inputs: str, outputs: str, body: str, offender: str) -> None:
    with pytest.raises((sod2.ModelError, sod2.UnsupportedError), match=offender) as caught:
        sod2.compile(model(inputs, outputs, body))
    assert "\n" not in str(caught.value)


def test_opsets() -> None:
    """Old opsets are converted, one newer than onnx itself is refused."""
    old = model("float[4] x", "float[2, 2] y", "y = Reshape <shape = [2, 2]> (x)", opset=1)
    np.testing.assert_array_equal(sod2.compile(old).run({"x": np.ones(4, np.float32)})["y"], np.ones((2, 2)))
    with pytest.raises(sod2.UnsupportedError, match="opset 99"):
        sod2.compile(model("float[N] x", "float[N] y", "y = Neg(x)", opset=99))
    none = model("float[N] x", "float[N] y", "y = Neg(x)")
    del none.opset_import[:]
    with pytest.raises(sod2.ModelError, match="no version"):
        sod2.compile(none)


def test_dims() -> None:
    """Named dims are symbols, unnamed ones symbols of their own, expressions of one symbol stay what they say."""
    source = model("float[N, 3, ?, N] x", "float[?, ?, ?, ?] y", "y = Neg(x)")
    dims = frontend.load(source).inputs[0].shape
    assert dims is not None
    assert [str(d) for d in dims] == ["N", "3", "x.2", "N"]
    for text, printed in (
        ("32*h", "32*h"),
        ("2*h + 1", "2*h + 1"),
        ("h*w", "`h*w`"),
        ("-1", "x.2"),
        ("ünï c", "`ünï c`"),
    ):
        source.graph.input[0].type.tensor_type.shape.dim[2].dim_param = text
        dims = frontend.load(source).inputs[0].shape
        assert dims is not None
        assert str(dims[2]) == printed


def test_names_of_branches_give_way() -> None:
    """Outputs keep their names, also when a branch before them uses the same ones."""
    source = model(
        "float[N] x, bool p", "float[?] a, float[?] b", f"b = {if_text('a = Neg(x)', 'b = Relu(x)')} a = Exp(x)"
    )
    for value in (True, False):
        inputs = {"x": random("f4", (5,)), "p": np.array(value)}
        assert_close(sod2.compile(source).run(inputs), expected(source, inputs))


def test_names_are_any_text() -> None:
    """Unicode, blanks and C's keywords are names too."""
    source = model("float[N] x", "float[N] y", "y = Neg(x)")
    for old, new in (("x", 'größe "1"/\\n'), ("y", "int main")):
        for values in (source.graph.input, source.graph.output):
            for value in values:
                value.name = new if value.name == old else value.name
        node = source.graph.node[0]
        node.input[:] = [new if t == old else t for t in node.input]
        node.output[:] = [new if t == old else t for t in node.output]
    source.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "*/ größe"
    x = random("f4", (3,))
    np.testing.assert_array_equal(sod2.compile(source).run({'größe "1"/\\n': x})["int main"], -x)


def test_switch_and_combine() -> None:
    """A captured tensor passes one Switch per predicate; a constant none; nested guards are outermost first."""
    body = f"k = Constant <value_floats = [1.0]> () y = {if_text('a = Add(x, k)', 'h = Neg(x) b = Mul(h, x)')}"
    graph = load("float[N] x, bool p", "float[?] y", body)
    assert [n.op for n in graph.nodes] == ["Switch", "Add", "Neg", "Mul", "Combine"]
    guards = {n.op: n.guard for n in graph.nodes}
    assert guards["Add"] == (("p", True),)
    assert guards["Neg"] == guards["Mul"] == (("p", False),)
    assert guards["Switch"] == guards["Combine"] == ()


def test_control_all_runs_every_branch() -> None:
    body = f"y = {if_text('a = Neg(x)', 'b = Relu(x)')}"
    graph = frontend.load(model("float[N] x, bool p", "float[?] y", body), control="all")
    assert [n.op for n in graph.nodes] == ["Neg", "Relu", "Where"]
    assert all(n.guard == () for n in graph.nodes)


def test_outputs_that_are_inputs_or_equal() -> None:
    source = model("float[N] x", "float[N] x, float[N] y, float[N] z", "y = Neg(x) z = Identity(y)")
    inputs = {"x": random("f4", (3,))}
    found = sod2.compile(source).run(inputs)
    np.testing.assert_array_equal(found["x"], inputs["x"])
    np.testing.assert_array_equal(found["y"], -inputs["x"])
    np.testing.assert_array_equal(found["z"], -inputs["x"])


def test_functions_are_inlined() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
              g (float[N] x) => (float[N] y) { y = local.twice(x) }
              <domain: "local", opset_import: ["" : 21]> twice (a) => (b) { b = Add(a, a) }"""
    source = onnx.parser.parse_model(text)
    x = random("f4", (3,))
    np.testing.assert_array_equal(sod2.compile(source).run({"x": x})["y"], x + x)

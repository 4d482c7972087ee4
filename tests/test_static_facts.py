"""`fusion: static` knows exactly what onnx.shape_inference proves of the same graph, no less and no more."""

from functools import partial

import numpy as np
import onnx
import pytest

import sod2
from sod2 import frontend, static_facts
from sod2.lattice import NAC
from sod2.symbolic import Dim, evaluate
from tests.graphs import model
from tests.test_rdp import GRAPHS as ANALYSED

WEIGHTS = {"w": np.zeros((8, 8, 3, 3), np.float32)}
LOOP = """f, stacked = Loop(m, c, x) <body = b (int64 i, bool on, float[?, ?] s)
          => (bool go, float[?, ?] t, float[?, ?] u) { go = Identity(on) t = Identity(s) u = Neg(z) }>
          g = Neg(f) h = Neg(stacked) y = Neg(g)"""
GRAPHS = ANALYSED | {
    "padded convolution": model(
        "float[1, 8, H, W] x",
        "float[?, ?, ?, ?] y",
        "a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Relu(a) c = Add(b, x) y = Neg(c)",
        WEIGHTS,
    ),
    "mask": model("float[N, 12, S, S] x, float[N, 1, 1, S] z", "float[?, ?, ?, ?] y", "a = Add(x, z) y = Neg(a)"),
    "unnamed": model("float[N, ?] x", "float[?, ?] y", "a = Relu(x) b = Exp(x) c = Add(a, b) y = Neg(c)"),
    "computed target": model(
        "float[N, M] x", "float[?, ?] y", "s = Shape(x) a = Expand(x, s) b = Add(a, x) y = Neg(b)"
    ),
    "loop": model(
        "int64 m, bool c, float[N, 3] x, float[N, 5] z", "float[?, ?] y", LOOP
    ),
    "two of a sequence": model(
        "float[N, 6] x", "float[?, ?] y", "a, b = Split <axis = 1, num_outputs = 2> (x) c = Add(a, b) y = Neg(c)"
    ),
}  # fmt: skip


def dims(value: onnx.ValueInfoProto) -> list[int | str] | None:
    tensor = value.type.tensor_type
    return (
        [d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim]
        if tensor.HasField("shape")
        else None
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_they_are_what_onnx_proves_of_the_file(name: str) -> None:
    """Ranks and constants are the same, and two dims have one name exactly where they have one in the file's facts.
    Dims of inputs that have no name are given one first, as the front end does."""
    facts = static_facts.analyze(frontend.load(GRAPHS[name]))
    bare = onnx.ModelProto()
    bare.CopyFrom(GRAPHS[name])
    for output in bare.graph.output:
        output.type.tensor_type.ClearField("shape")
    for value in bare.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.WhichOneof("value"):
                dim.dim_param = f"{value.name}.{axis}"
    ours: dict[str, str] = {}
    theirs: dict[str, str] = {}
    for value in onnx.shape_inference.infer_shapes(bare).graph.value_info:
        wanted, found = dims(value), facts[value.name].shape
        if wanted is None:
            assert found is NAC, value.name
            continue
        assert isinstance(found, tuple) and len(found) == len(wanted), value.name
        for a, b in zip(found, wanted, strict=True):
            assert isinstance(a, Dim) and a.is_constant == isinstance(b, int), value.name
            if isinstance(b, int):
                assert int(a) == b
            else:
                assert ours.setdefault(str(a), b) == b and theirs.setdefault(b, str(a)) == str(a), value.name


def test_they_are_poorer_than_rdp_and_true() -> None:
    """At concrete shapes no dim contradicts what RDP predicts."""
    symbols = {"B": 2, "T": 3, "N": 4, "M": 5, "A": 1, "K": 4, "J": 4, "H": 32, "W": 16, "S": 7}
    for source in GRAPHS.values():
        full = sod2.analyze(source)
        for tensor, fact in static_facts.analyze(full.graph).facts.items():
            best = full[tensor].shape
            if not isinstance(fact.shape, tuple) or not isinstance(best, tuple):
                continue
            assert len(fact.shape) == len(best)
            for dim, known in zip(fact.shape, best, strict=True):
                if isinstance(dim, Dim) and isinstance(known, Dim) and dim.symbols() <= symbols.keys():
                    assert evaluate(dim, symbols) == evaluate(known, symbols), tensor


def test_no_expressions_and_no_run_time_values() -> None:
    convolution, target = (
        static_facts.analyze(frontend.load(GRAPHS[k])) for k in ("padded convolution", "computed target")
    )
    full = sod2.analyze(GRAPHS["padded convolution"])
    assert convolution["a"].shape != convolution["x"].shape and full["a"].shape == full["x"].shape
    assert convolution["a"].shape == convolution["b"].shape
    assert target["a"].shape != target["x"].shape and target["s"].known_value is None


def test_attention_and_group_normalisation_hand_shapes_on() -> None:
    """What the compiler made of ONNX's operators is to onnx what it was."""
    heads = "float[B, T, 4, 8] q, float[B, T, 4, 8] k, float[B, T, 4, 8] v, float[B, 1, 1, T] m"
    body = """a = Transpose <perm = [0, 2, 1, 3]> (q) b = Transpose <perm = [0, 2, 3, 1]> (k) s = MatMul(a, b)
              t = Add(s, m) p = Softmax <axis = -1> (t) c = Transpose <perm = [0, 2, 1, 3]> (v) o = MatMul(p, c)
              r = Transpose <perm = [0, 2, 1, 3]> (o) y = Add(r, q)"""
    found = sod2.plan(model(heads, "float[?, ?, ?, ?] y", body), sod2.Options(fusion="static"))
    assert [n.op for n in found.graph.nodes] == ["Attention", "Add"]
    facts = static_facts.analyze(found.graph)
    assert facts["r"].shape == facts["q"].shape == facts["y"].shape
    body = """c = Conv <pads = [1, 1, 1, 1]> (x, w) r = Reshape(c, apart) i = InstanceNormalization(r, one, one)
              s = Shape(c) n = Reshape(i, s) y = Add(n, c)"""
    stored = WEIGHTS | {"apart": np.int64([0, 4, -1]), "one": np.ones(4, np.float32)}
    source = model("float[N, 8, H, W] x", "float[?, ?, ?, ?] y", body, stored)
    known = partial(static_facts.analyze, values=True)
    found = sod2.plan(source, sod2.Options(fusion="static"), known)
    assert [n.op for n in found.graph.nodes] == ["Conv", "GroupNormalization", "Add"]
    assert known(found.graph)["n"].shape == known(found.graph)["c"].shape

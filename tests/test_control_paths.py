"""Control flow: execution of everything against `If`, gates and paths, multiply-adds of single operators."""

import functools
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, numpy_helper, parser

import sod2
from models import MODELS, build
from models.execute_all import execute_all, walk
from models.flops import macs
from models.gates import decisions, gates, masks, path_string, reached
from models.inputs import concrete_shape, contents, generator
from models.probe import Probe

GATED = ["blockdrop", "convnet_aig", "dgnet", "ranet", "skipnet"]


@functools.cache
def tiny(name: str, variant: str = "tiny") -> ModelProto:
    """A small variant, built once; tests that change it copy it."""
    return build(name, variant)


def run(model: ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def draw(name: str, size: tuple[int, int], index: int = 0) -> dict[str, np.ndarray]:
    """Inputs of a tiny model; DGNet's size is fixed."""
    (value,) = tiny(name).graph.input
    shapes = {value.name: concrete_shape(value, dict(zip("HW", size, strict=True)))}
    return contents(MODELS[name], "tiny", shapes, generator("test", index))


@pytest.mark.parametrize("size", [(33, 47), (64, 64), (225, 301)])
@pytest.mark.parametrize("name", GATED)
def test_execute_all_equals_if(name: str, size: tuple[int, int]) -> None:
    model = tiny(name)
    flat = execute_all(model)
    onnx.checker.check_model(flat)
    assert not any(node.op_type == "If" for node in flat.graph.node)
    for index in range(3):
        inputs = draw(name, size, index)
        expected = run(model, inputs)[0]
        np.testing.assert_allclose(run(flat, inputs)[0], expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", GATED)
def test_execute_all_equals_if_at_full_size(name: str) -> None:
    model = build(name)
    sizes = dict(zip("HW", (224, 256), strict=True))
    shapes = {value.name: concrete_shape(value, sizes) for value in model.graph.input}
    inputs = contents(MODELS[name], "full", shapes, generator("test"))
    expected = run(model, inputs)[0]
    np.testing.assert_allclose(run(execute_all(model), inputs)[0], expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("index", range(6))
def test_dgnet_masks_and_compaction_give_what_skipped_blocks_give(index: int) -> None:
    inputs = draw("dgnet", (0, 0), index)
    expected = run(tiny("dgnet"), inputs)[0]
    for variant in ("tiny-masks", "tiny-compact"):
        got = run(tiny("dgnet", variant), inputs)[0]
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


def test_dgnet_masks_are_found_with_the_branches_that_lead_to_them() -> None:
    found = masks(tiny("dgnet"))
    assert len(found) == 4 * 3  # tiles and twice channels, all of use in the branch only that computes the block
    inner = found[0]
    ((gate, taken),) = inner.inside
    assert taken
    assert reached(inner.inside, {gate: True})
    assert not reached(inner.inside, {gate: False})
    assert not reached(inner.inside, {})
    assert inner.margin({inner.value: np.array([3.0, -1.0, 1.0, -3.0])}) == pytest.approx(1 / np.sqrt(5))
    assert masks(tiny("skipnet")) == masks(tiny("ranet")) == []


@pytest.mark.parametrize("exit_index", range(3))
def test_ranet_gives_the_logits_of_the_exit_where_it_leaves(exit_index: int) -> None:
    """Thresholds that no confidence or every confidence reaches send the picture to each exit in turn."""
    model = ModelProto.FromString(tiny("ranet").SerializeToString())
    for tensor in model.graph.initializer:
        if tensor.name.startswith("gates."):
            threshold = np.array(0.0 if int(tensor.name.split(".")[1]) == exit_index else 2.0, np.float32)
            tensor.CopyFrom(numpy_helper.from_array(threshold, tensor.name))
    inputs = draw("ranet", (64, 96))
    heads = [node.output[0] for node in walk(model.graph) if node.op_type == "Gemm"]
    assert len(heads) == 3
    values, _ = Probe(model, heads).run(inputs)
    np.testing.assert_allclose(run(model, inputs)[0], values[heads[exit_index]], atol=1e-5)


def test_blockdrop_decides_by_the_elements_of_one_vector() -> None:
    model = tiny("blockdrop")
    found = gates(model)
    assert [gate.element for gate in found] == [0, 1, 2, 3]
    assert len({gate.compared for gate in found}) == 1
    probe = Probe(model, [value for gate in found for value in gate.values])
    for index in range(6):
        values, _ = probe.run(draw("blockdrop", (64, 64), index))
        path = decisions(found, values)
        assert [gate.margin(values) >= 0 for gate in found] == [path[gate.name] for gate in found]


NESTED = """
<ir_version: 8, opset_import: ["": 18]>
nested (float[N] x, float a, float b) => (float[N] y, int64 z) {
    zero = Constant <value = float {0}> ()
    p = Greater (a, zero)
    y, z = If <name: string = "outer"> (p) <
        then_branch = one () => (float[N] r, int64 s)
            <float two = {2}, float r_1 = {9}> { r_2 = Mul (x, two)  r = Add (r_2, r_1)  s = Cast <to = 7> (p) },
        else_branch = other () => (float[N] r, int64 s) <float two = {3}> {
            t = Mul (x, two)
            q = Less (b, zero)
            s = Cast <to = 7> (q)
            r = If (q) <
                then_branch = third () => (float[N] u) { r_2 = Add (t, t)  u = Sub (r_2, x) },
                else_branch = fourth () => (float[N] u) { u = Neg (t) }
            >
        }
    >
}
"""


def nested_model() -> ModelProto:
    model = parser.parse_model(NESTED.replace('<name: string = "outer"> ', ""))
    (outer,) = (node for node in model.graph.node if node.op_type == "If")
    outer.name = "outer"
    (inner,) = (node for node in walk(model.graph) if node.op_type == "If" and node is not outer and not node.name)
    inner.name = "inner"
    return model


@pytest.mark.parametrize("length", [0, 1, 5])
@pytest.mark.parametrize("a", [-1.0, 1.0])
@pytest.mark.parametrize("b", [-1.0, 1.0])
def test_execute_all_inlines_nested_branches_with_clashing_names(length: int, a: float, b: float) -> None:
    model = nested_model()
    inputs = {"x": np.arange(length, dtype=np.float32), "a": np.float32(a), "b": np.float32(b)}
    inputs = {name: np.asarray(value) for name, value in inputs.items()}
    before = model.SerializeToString()
    flat = execute_all(model)
    onnx.checker.check_model(flat)
    assert model.SerializeToString() == before
    assert Counter(node.op_type for node in flat.graph.node)["Where"] == 3
    for got, expected in zip(run(flat, inputs), run(model, inputs), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_execute_all_rewrites_inside_a_loop_body() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        looping (int64 n, float x) => (float y) {
            go = Constant <value = bool {1}> ()
            y = Loop (n, go, x) <body = step (int64 i, bool c, float v) => (bool d, float w) {
                d = Identity (c)
                ten = Constant <value = float {10}> ()
                small = Less (v, ten)
                w = If (small) <
                    then_branch = grow () => (float e) { e = Add (v, v) },
                    else_branch = shrink () => (float e) { e = Sub (v, ten) }
                >
            }>
        }""")
    flat = execute_all(model)
    assert not any(node.op_type == "If" for node in walk(flat.graph))
    for steps in (0, 1, 6):
        inputs = {"n": np.array(steps), "x": np.array(3, np.float32)}
        assert run(flat, inputs) == run(model, inputs)


def test_execute_all_names_a_branch_result_that_is_no_tensor() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        sequences (bool p, float[N] x) => (float[N] y) {
            s = If (p) <
                then_branch = one () => (seq(float[N]) a) { a = SequenceConstruct (x) },
                else_branch = two () => (seq(float[N]) b) { b = SequenceConstruct (x, x) }
            >
            zero = Constant <value = int64 {0}> ()
            y = SequenceAt (s, zero)
        }""")
    with pytest.raises(ValueError, match="'a', which is no tensor"):
        execute_all(model)


@pytest.mark.parametrize(("a", "b", "expected"), [(1, -1, "1-"), (-1, -1, "01"), (-1, 1, "00")])
def test_path_of_nested_gates(a: float, b: float, expected: str) -> None:
    model = nested_model()
    found = gates(model)
    assert [gate.name for gate in found] == ["outer", "inner"]
    inputs = {"x": np.ones(2, np.float32), "a": np.array(a, np.float32), "b": np.array(b, np.float32)}
    values, _ = Probe(model, [value for gate in found for value in gate.values]).run(inputs)
    assert path_string(found, decisions(found, values)) == expected
    assert [gate.margin(values) for gate in found] == [a, b]


# Multiply-adds of single operators, counted by hand.


@pytest.mark.parametrize(
    ("text", "shapes", "expected"),
    [
        ("y = Conv <pads = [1,1,1,1], strides = [2,2], group = 2> (x, w)", [(1, 4, 9, 7), (6, 2, 3, 3)], 6 * 20 * 18),
        ("y = ConvTranspose <strides = [2,2]> (x, w)", [(1, 4, 5, 3), (4, 6, 2, 2)], 4 * 15 * 24),
        ("y = MatMul (x, w)", [(2, 3, 5, 7), (7, 4)], 2 * 3 * 5 * 7 * 4),
        ("y = MatMul (x, w)", [(0, 7), (7, 4)], 0),
        ("y = Gemm <transA = 1, transB = 1> (x, w)", [(7, 3), (4, 7)], 3 * 4 * 7),
        ('y = Einsum <equation = "bhwc,wkc->bhwk"> (x, w)', [(2, 3, 5, 7), (5, 4, 7)], 2 * 3 * 5 * 4 * 7),
        ("y = LSTM <hidden_size = 5> (x, w, r)", [(6, 2, 3), (1, 20, 3), (1, 20, 5)], 6 * 2 * 20 * (3 + 5)),
    ],
    ids=["grouped-conv", "conv-transpose", "matmul", "matmul-of-nothing", "gemm", "einsum", "lstm"],
)
def test_multiply_adds_of_one_operator(text: str, shapes: list[tuple[int, ...]], expected: int) -> None:
    names = ["x", "w", "r"][: len(shapes)]
    arguments = ", ".join(f"float[{','.join(map(str, s))}] {n}" for n, s in zip(names, shapes, strict=True))
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g ({arguments}) => (float y) {{ {text} }}')
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.node[0].name = "node"
    inputs = {name: np.zeros(shape, np.float32) for name, shape in zip(names, shapes, strict=True)}
    assert macs(model, inputs) == {"node": expected}


def test_sod2_compacts_dgnet() -> None:
    compiled = sod2.compile(tiny("dgnet", "tiny-compact"))
    for index in range(6):
        inputs = draw("dgnet", (0, 0), index)
        expected = run(tiny("dgnet", "tiny-masks"), inputs)[0]
        np.testing.assert_allclose(compiled.run(inputs)["logits"], expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow
def test_dgnet_compaction_gives_what_masks_give_at_full_size() -> None:
    models = {variant: build("dgnet", variant) for variant in ("full", "masks", "compact")}
    for index in range(4):
        shapes = {"images": (1, 3, 224, 224)}
        inputs = contents(MODELS["dgnet"], "full", shapes, generator("test", index))
        expected = run(models["masks"], inputs)[0]
        for variant in ("full", "compact"):
            np.testing.assert_allclose(run(models[variant], inputs)[0], expected, atol=1e-5 * np.abs(expected).max())


def test_the_analysis_of_compaction_is_unknown_only_behind_nonzero() -> None:
    facts = sod2.analyze(tiny("dgnet", "tiny-compact"))
    behind: set[str] = set()
    for node in facts.graph.nodes:
        if node.op == "NonZero" or behind.intersection(node.inputs):
            behind.update(node.outputs)
    shapes = facts.shapes({"images": (1, 3, 224, 224)})
    unknown = {name for name, shape in shapes.items() if shape is None}
    assert unknown
    assert unknown <= behind
    last = [node.outputs[0] for node in facts.graph.nodes if node.inputs[-1].endswith("conv3.bias")]
    assert len(last) == 4  # each block ends in all of its channels
    assert all(shapes[name] is not None for name in (*last, "logits"))

"""The models: parameters, nodes and multiply-adds as published; the numbers against other ways to compute them."""

import functools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import spox
from onnx import ModelProto, numpy_helper, parser

from models import MODELS, __main__, build, calibrate, parameters
from models.blocks import conv_bn
from models.codebert import CONFIGS as CODEBERT
from models.execute_all import execute_all, walk
from models.flops import count, executed, macs, shaped_values
from models.gates import decisions, gates, path_string
from models.inputs import contents, generator
from models.parameters import Parameters
from models.probe import Probe


@functools.cache
def full(name: str) -> ModelProto:
    """The full model, built once for all tests."""
    return build(name)


@functools.cache
def full_probe(name: str) -> Probe:
    """A session that gives the shapes from which the full model's multiply-adds are counted."""
    return Probe(full(name), shaped=shaped_values(full(name)))


def run(model: ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def picture(height: int, width: int, index: int = 0) -> dict[str, np.ndarray]:
    shapes = {"images": (1, 3, height, width)}
    return contents(MODELS["skipnet"], "full", shapes, generator("test", index))


def tokens(length: int) -> dict[str, np.ndarray]:
    shapes = {"input_ids": (1, length), "attention_mask": (1, length)}
    return contents(MODELS["codebert"], "tiny", shapes, generator("test"))


# Structure, against the published figures.

PARAMETERS = {"codebert": 124_055_040, "yolov6": 4_646_940, "skipnet": 44_875_501}

NODES = {  # of the PyTorch exports, at all levels
    "codebert": (
        442,
        {"Add": 123, "MatMul": 96, "Reshape": 48, "Transpose": 48, "Mul": 37, "LayerNormalization": 25, "Softmax": 12}
        | {"Erf": 12, "Shape": 2},
    ),
    "yolov6": (
        248,
        {"Conv": 69, "Relu": 54, "Concat": 21, "Reshape": 18, "Mul": 13, "Sigmoid": 12, "Expand": 10, "Shape": 7}
        | {"Range": 6, "MaxPool": 3, "ConvTranspose": 2},
    ),
    "skipnet": (
        719,
        {"If": 32, "LSTM": 32, "Conv": 136, "Relu": 100, "Reshape": 97, "Slice": 62, "Gemm": 33, "ReduceMean": 33},
    ),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_parameter_count_is_the_checkpoints(name: str) -> None:
    assert parameters(name) == PARAMETERS[name]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_nodes_are_those_of_an_export(name: str) -> None:
    model = full(name)
    total, expected = NODES[name]
    found = Counter(node.op_type for node in walk(model.graph))
    assert sum(found.values()) == pytest.approx(total, rel=0.1)
    for op_type, number in expected.items():
        assert found[op_type] == pytest.approx(number, rel=0.1), op_type
    assert "Constant" not in found
    assert not model.graph.value_info


@pytest.mark.parametrize("variant", ["tiny", "full"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_values_and_nodes_are_named_uniquely_over_all_branches(name: str, variant: str) -> None:
    model = full(name) if variant == "full" else build(name, "tiny")
    onnx.checker.check_model(model)
    nodes = list(walk(model.graph))
    assert len({node.name for node in nodes}) == len(nodes)
    values = [value for node in nodes for value in node.output]
    assert len(set(values)) == len(values)


def test_symbolic_dims_are_declared() -> None:
    def dims(name: str) -> list[list[object]]:
        inputs = build(name, "tiny").graph.input
        return [[d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] for value in inputs]

    assert dims("codebert") == [[1, "T"], [1, "T"]]
    assert dims("yolov6") == [[1, 3, "32*h", "32*w"]]
    assert dims("skipnet") == [[1, 3, "H", "W"]]


@pytest.mark.parametrize(
    ("name", "inputs", "gmac"),
    [
        ("codebert", tokens(32), 2.74),
        ("codebert", tokens(128), 11.2),
        ("codebert", tokens(384), 35.3),
        ("yolov6", picture(224, 224), 0.69),
        ("yolov6", picture(640, 640), 5.66),
        ("skipnet", picture(224, 224), 7.80),
        ("skipnet", picture(640, 640), 63.7),
    ],
    ids=lambda value: "x".join(map(str, next(iter(value.values())).shape)) if isinstance(value, dict) else str(value),
)
def test_multiply_adds_are_the_published_ones(name: str, inputs: dict[str, np.ndarray], gmac: float) -> None:
    _, shapes = full_probe(name).run(inputs)
    assert sum(count(full(name), shapes).values()) / 1e9 == pytest.approx(gmac, rel=0.01)


def test_skipnet_that_skips_everything_runs_its_stem_first_block_and_shortcuts() -> None:
    model = full("skipnet")
    _, shapes = full_probe("skipnet").run(picture(224, 224))
    counts = count(model, shapes)
    path = {gate.name: False for gate in gates(model)}
    assert executed(model, counts, path) / 1e9 == pytest.approx(0.66, rel=0.01)
    assert executed(model, counts, dict.fromkeys(path, True)) == sum(counts.values())


# Numbers.


erf = np.vectorize(math.erf)


def codebert_in_numpy(model: ModelProto, ids: np.ndarray, mask: np.ndarray, heads: int, layers: int) -> np.ndarray:
    """The encoder written out in float64, from the weights by their names."""
    w = {tensor.name: numpy_helper.to_array(tensor).astype(np.float64) for tensor in model.graph.initializer}

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    present = ids[0] != 1
    positions = np.where(present, 1 + np.cumsum(present), 1)
    x = w["embeddings.word_embeddings.weight"][ids[0]] + w["embeddings.position_embeddings.weight"][positions]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        parts = [np.split(dense(x, f"{name}.attention.self.{r}"), heads, -1) for r in ("query", "key", "value")]
        mixed = []
        for q, k, v in zip(*parts, strict=True):
            scores = np.where(mask[0] != 0, q @ k.T / math.sqrt(q.shape[-1]), -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v)
        attended = dense(np.concatenate(mixed, -1), f"{name}.attention.output.dense")
        x = norm(x + attended, f"{name}.attention.output.LayerNorm")
        y = dense(x, f"{name}.intermediate.dense")
        y = dense(y * 0.5 * (1 + erf(y / math.sqrt(2))), f"{name}.output.dense")
        x = norm(x + y, f"{name}.output.LayerNorm")
    return x[None]


@pytest.mark.parametrize(("length", "padding"), [(1, 0), (2, 0), (33, 0), (12, 5)])
def test_codebert_equals_the_encoder_written_out(length: int, padding: int) -> None:
    model, config = build("codebert", "tiny"), CODEBERT["tiny"]
    inputs = tokens(length)
    if padding:
        inputs["input_ids"][0, -padding:] = 1
        inputs["attention_mask"][0, -padding:] = 0
    expected = codebert_in_numpy(model, *inputs.values(), heads=config.heads, layers=config.layers)
    np.testing.assert_allclose(run(model, inputs)[0], expected, atol=2e-5)


def test_yolov6_decodes_cells_in_order_of_level_row_column() -> None:
    model = build("yolov6", "tiny")
    height, width = 64, 96
    inputs = picture(height, width)
    (split,) = (node for node in model.graph.node if node.op_type == "Split")
    values, _ = Probe(model, values=[split.input[0]]).run(inputs)
    output = run(model, inputs)[0]
    assert output.shape == (1, 21 * 2 * 3, 10)
    distances = iter(values[split.input[0]][0])
    rows = iter(output[0])
    for stride in (8, 16, 32):
        for i in range(height // stride):
            for j in range(width // stride):
                left, top, right, bottom = next(distances)
                x, y, w, h, objectness, *scores = next(rows)
                centre = (j + 0.5 + (right - left) / 2, i + 0.5 + (bottom - top) / 2)
                assert (x, y) == pytest.approx(np.multiply(centre, stride), rel=1e-4, abs=1e-3)
                assert (w, h) == pytest.approx(np.multiply((left + right, top + bottom), stride), rel=1e-4, abs=1e-3)
                assert objectness == 1
                assert all(0 < score < 1 for score in scores)


def test_yolov6_refuses_a_size_that_is_no_multiple_of_32() -> None:
    with pytest.raises(Exception, match="Concat"):
        run(build("yolov6", "tiny"), picture(224, 240))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_building_twice_gives_equal_bytes(name: str) -> None:
    first, second = (build(name, "tiny").SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


# Control flow.


@pytest.mark.parametrize("size", [(33, 47), (64, 64), (225, 301)])
def test_execute_all_equals_if_on_tiny_skipnet(size: tuple[int, int]) -> None:
    model = build("skipnet", "tiny")
    flat = execute_all(model)
    onnx.checker.check_model(flat)
    assert not any(node.op_type == "If" for node in flat.graph.node)
    for index in range(4):
        inputs = picture(*size, index)
        np.testing.assert_allclose(run(flat, inputs)[0], run(model, inputs)[0], atol=1e-5)


def test_execute_all_equals_if_on_full_skipnet() -> None:
    model = full("skipnet")
    inputs = picture(224, 256)
    expected = run(model, inputs)[0]
    np.testing.assert_allclose(run(execute_all(model), inputs)[0], expected, atol=1e-4 * np.abs(expected).max())


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
        ("y = LSTM <hidden_size = 5> (x, w, r)", [(6, 2, 3), (1, 20, 3), (1, 20, 5)], 6 * 2 * 20 * (3 + 5)),
    ],
    ids=["grouped-conv", "conv-transpose", "matmul", "matmul-of-nothing", "gemm", "lstm"],
)
def test_multiply_adds_of_one_operator(text: str, shapes: list[tuple[int, ...]], expected: int) -> None:
    names = ["x", "w", "r"][: len(shapes)]
    arguments = ", ".join(f"float[{','.join(map(str, s))}] {n}" for n, s in zip(names, shapes, strict=True))
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g ({arguments}) => (float y) {{ {text} }}')
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.node[0].name = "node"
    inputs = {name: np.zeros(shape, np.float32) for name, shape in zip(names, shapes, strict=True)}
    assert macs(model, inputs) == {"node": expected}


# Calibration.


def test_folded_batch_norm_equals_convolution_and_batch_norm() -> None:
    names, channels = ("conv", "bn"), (3, 5)
    rng = np.random.default_rng(0)
    batch = [rng.normal(1, 3, (1, 3, *size)).astype(np.float32) for size in ((8, 8), (1, 1), (5, 9))]
    p = Parameters()
    expected = calibrate.conv_bn(p, [array.copy() for array in batch], names, channels, 3, stride=2)
    folded = Parameters(p.calibration)
    x = spox.argument(spox.Tensor(np.float32, (1, 3, None, None)))
    model = folded.assemble("folded", {"x": x}, {"y": conv_bn(folded, x, names, channels, 3, stride=2)})
    for array, wanted in zip(batch, expected, strict=True):
        np.testing.assert_allclose(run(model, {"x": array})[0], wanted, atol=1e-4)
    assert folded.count() == 5 * 3 * 9 + 2 * 5


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.691, 0.9])
def test_threshold_opens_a_gate_at_the_wanted_rate_and_keeps_clear_of_every_logit(rate: float) -> None:
    logits = np.random.default_rng(7).normal(size=96)
    threshold = calibrate.choose_threshold(logits, rate)
    assert np.mean(logits > threshold) == pytest.approx(rate, abs=0.03 + 1 / 96)
    near = np.sort(np.abs(logits - threshold))[:2]
    assert near[0] == pytest.approx(near[1], rel=1e-3)  # the middle of a gap


# Files and the command line.


@pytest.mark.parametrize("inline", [0, 1 << 30])
def test_export_writes_the_model_and_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: int) -> None:
    monkeypatch.setattr(__main__, "INLINE_BYTES", inline)
    out = tmp_path / "net.onnx"
    assert __main__.main(["export", "codebert", str(out), "--variant", "tiny"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx"] + ["net.onnx.data"] * (inline == 0)
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    inputs = tokens(9)
    np.testing.assert_array_equal(session.run(None, inputs)[0], run(build("codebert", "tiny"), inputs)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "resnet", "x.onnx"], "unknown model 'resnet': the models are codebert, skipnet, yolov6"),
        (["export", "yolov6", "x.onnx", "--variant", "huge"], "unknown variant 'huge'"),
        (["export", "yolov6", "absent/x.onnx"], "absent/x.onnx"),
        (["calibrate", "yolov6"], "'yolov6' needs no calibration"),
    ],
)
def test_bad_command_ends_in_one_sentence(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert __main__.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())

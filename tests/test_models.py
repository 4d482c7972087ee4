"""The models: parameters, nodes and multiply-adds as published; names, symbolic dims, export."""

import functools
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto

from models import MODELS, PAPER, __main__, build, declared, parameters
from models.execute_all import walk
from models.flops import count, executed, shaped_values
from models.gates import gates
from models.inputs import concrete_shape, contents, generator
from models.parameters import Parameters
from models.probe import Probe
from models.published import LARGE_GMACS, NODES, PARAMETERS, SKIPPED_GMACS, SMALL_GMACS

NAMES = sorted(MODELS)


@functools.cache
def structure(name: str, variant: str = "full") -> ModelProto:
    """The model without its weights, whose names are free in it: composed in a second."""
    p = Parameters()
    return p.graph(name, *MODELS[name].module.compose(p, variant))


def draw(name: str, variant: str, value: int, index: int = 0) -> dict[str, np.ndarray]:
    """Inputs of a model, every symbolic dim of the given value."""
    model = MODELS[name]
    sizes = dict.fromkeys(model.symbols, value)
    shapes = {entry.name: concrete_shape(entry, sizes) for entry in structure(name, variant).graph.input}
    return contents(model, variant, shapes, generator("test", index))


# Structure, against the published figures.


@pytest.mark.parametrize("name", NAMES)
def test_parameter_count_is_the_checkpoints(name: str) -> None:
    assert parameters(name) == PARAMETERS[name]


def test_parameters_of_parts_and_options() -> None:
    def part(name: str, prefix: str) -> int:
        return sum(int(np.prod(shape)) for key, shape in declared(name).upstream.items() if key.startswith(prefix))

    assert parameters("yolov6", "small") == 18_537_276
    assert part("sam", "image_encoder.") == 89_670_912
    assert part("conformer", "encoder.") == 27_257_856
    assert part("blockdrop", "agent.") == 4_923_234
    assert parameters("dgnet", "masks") == parameters("dgnet", "compact") == PARAMETERS["dgnet"]


@pytest.mark.parametrize("name", PAPER)
def test_nodes_are_those_of_an_export(name: str) -> None:
    model = structure(name)
    total, expected = NODES[name]
    found = Counter(node.op_type for node in walk(model.graph))
    assert sum(found.values()) == pytest.approx(total, rel=0.1)
    for op_type, number in expected.items():
        assert found[op_type] == pytest.approx(number, rel=0.1), op_type
    assert "Constant" not in found
    assert not model.graph.value_info


@pytest.mark.parametrize("name", NAMES)
def test_values_and_nodes_are_named_uniquely_over_all_branches(name: str) -> None:
    onnx.checker.check_model(build(name, "tiny"))
    for variant in MODELS[name].variants:
        nodes = list(walk(structure(name, variant).graph))
        assert len({node.name for node in nodes}) == len(nodes)
        values = [value for node in nodes for value in node.output if value]
        assert len(set(values)) == len(values)


@pytest.mark.parametrize(("name", "share"), [("codebert", 0.9), ("conformer", 0.9), ("skipnet", 0.3)])
def test_declared_shapes_are_the_real_ones(name: str, share: float) -> None:
    """Shapes by ONNX's own inference, at all but the dims that it names itself; conditional ones are not inferred."""
    model = build(name, "tiny")
    symbols = MODELS[name].symbols
    sizes = {symbol: extent.low + 5 for symbol, extent in symbols.items()}
    shapes = {value.name: concrete_shape(value, sizes) for value in model.graph.input}
    declared_shapes = {value.name: value.type.tensor_type.shape.dim for value in model.graph.value_info}
    written = [output for node in model.graph.node for output in node.output if output]
    assert len(declared_shapes) >= share * len(written)
    _, real = Probe(model, shaped=list(declared_shapes)).run(contents(MODELS[name], "tiny", shapes, generator("test")))
    known = 0
    for value, dims in declared_shapes.items():
        assert len(real[value]) == len(dims)
        for dim, extent in zip(dims, real[value], strict=True):
            expected = dim.dim_value if dim.HasField("dim_value") else sizes.get(dim.dim_param)
            assert expected in (None, extent), value
            known += expected is not None
    assert known > len(declared_shapes)


def test_symbolic_dims_are_declared() -> None:
    def dims(name: str) -> list[list[object]]:
        inputs = structure(name).graph.input
        return [[d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] for value in inputs]

    assert dims("codebert") == [[1, "T"], [1, "T"]]
    assert dims("conformer") == [[1, "T", 80], [1]]
    assert dims("yolov6") == [[1, 3, "32*h", "32*w"]]
    assert dims("dgnet") == [[1, 3, 224, 224]]
    assert dims("sam") == [[1, 3, "H", "W"], [1, 2, 2], [1, 2]]
    for name in ("sde", "skipnet", "convnet_aig", "ranet", "blockdrop"):
        assert dims(name) == [[1, 3, "H", "W"]]
    assert dims("lstm") == [["T", 300]]
    assert dims("tree_lstm") == [["N", 300], ["N", 2]]


def multiply_adds(name: str, value: int) -> dict[str, int]:
    model = build(name)
    _, shapes = Probe(model, shaped=shaped_values(model)).run(draw(name, "full", value))
    return count(model, shapes)


@pytest.mark.parametrize(
    ("name", "value", "gmac"), [*SMALL_GMACS, *(pytest.param(*case, marks=pytest.mark.slow) for case in LARGE_GMACS)]
)
def test_multiply_adds_are_the_published_ones(name: str, value: int, gmac: float) -> None:
    counts = multiply_adds(name, value)
    assert sum(counts.values()) / 1e9 == pytest.approx(gmac, rel=0.01)
    if (name, value, gmac) in SMALL_GMACS and name in SKIPPED_GMACS:
        model = structure(name)
        path = {gate.name: False for gate in gates(model)}
        assert executed(model, counts, path) / 1e9 == pytest.approx(SKIPPED_GMACS[name], rel=0.03)
        assert executed(model, counts, dict.fromkeys(path, True)) == sum(counts.values())


def test_multiply_adds_to_each_exit_of_ranet_are_the_published_ones() -> None:
    model = structure("ranet")
    found = gates(model)
    counts = multiply_adds("ranet", 224)
    for index, mmac in enumerate([245, 630, 858, 1039, 1866, 2157, 2729, 2823]):
        path = {gate.name: i == index for i, gate in enumerate(found[: index + 1])}
        assert executed(model, counts, path) / 1e6 == pytest.approx(mmac, rel=0.003)


@pytest.mark.parametrize("name", NAMES)
def test_building_twice_gives_equal_bytes(name: str) -> None:
    first, second = (build(name, "tiny").SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", NAMES)
def test_tiny_variants_run_at_their_smallest_and_largest_size(name: str) -> None:
    model = build(name, "tiny")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    extents = MODELS[name].symbols.values()
    for value in {min((e.low for e in extents), default=0), max((e.high for e in extents), default=0)}:
        for output in session.run(None, draw(name, "tiny", value)):
            assert np.isfinite(output).all()
            assert output.std() > 1e-3  # random weights neither vanish nor blow up
            assert np.abs(output).max() < 1e3


# The command line.


@pytest.mark.parametrize("inline", [0, 1 << 30])
def test_export_writes_the_model_and_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: int) -> None:
    monkeypatch.setattr(__main__, "INLINE_BYTES", inline)
    out = tmp_path / "net.onnx"
    assert __main__.main(["export", "codebert", str(out), "--variant", "tiny"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx"] + ["net.onnx.data"] * (inline == 0)
    inputs = draw("codebert", "tiny", 9)
    sources = (str(out), build("codebert", "tiny").SerializeToString())
    sessions = [onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"]) for source in sources]
    got, expected = (session.run(None, inputs)[0] for session in sessions)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "resnet", "x.onnx"], "unknown model 'resnet': the models are blockdrop, codebert, conformer,"),
        (["export", "yolov6", "x.onnx", "--variant", "huge"], "unknown variant 'huge' of model 'yolov6'"),
        (["export", "yolov6", "absent/x.onnx"], "absent/x.onnx"),
        (["export", "yolov6", "x.onnx", "--weights", "absent.safetensors"], "absent.safetensors"),
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

"""The engine contract, and onnxruntime's bundle run for real: built, started, compared, measured."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from baselines import engine, environment, sod2
from baselines.__main__ import main
from baselines.engine import Bundle, EngineError
from baselines.ort import RUNNER
from baselines.reference import compare
from baselines.session import Limits, Session
from devices import device

HOST = device.load("host")
WIDTH = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = If(sum(x) > 0, relu(x W), x W): input x (n, 64) with n symbolic."""
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((WIDTH, WIDTH), np.float32), "w")
    zero = numpy_helper.from_array(np.float32(0), "zero")

    def branch(operator: str) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(operator, TensorProto.FLOAT, ["n", WIDTH])
        return helper.make_graph([helper.make_node(operator, ["z"], [operator])], operator, [], [output])

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=branch("Relu"), else_branch=branch("Identity")),
    ]
    graph = helper.make_graph(
        nodes,
        "branchy",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [weights, zero],
    )
    path = tmp_path_factory.mktemp("model") / "branchy.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def samples(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both paths, a small and a large shape; the reference is numpy."""
    folder = tmp_path_factory.mktemp("samples")
    (folder / "reference").mkdir()
    graph = onnx.load(model).graph
    weights = numpy_helper.to_array(graph.initializer[0])
    for i, (rows, sign) in enumerate([(1, 1), (256, -1)]):
        x = sign * np.random.default_rng(i).random((rows, WIDTH), np.float32)
        z = x @ weights
        np.save(folder / f"{i}.0.npy", x)
        np.save(folder / "reference" / f"{i}.0.npy", np.maximum(z, 0) if sign > 0 else z)
    return folder


@pytest.fixture(scope="module", autouse=True)
def environments(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Baselines' environments of this module in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "ENVIRONMENTS", tmp_path_factory.mktemp("envs"))
        yield


@pytest.mark.parametrize("options", [{}, {"arena": False}, {"control": "all"}, {"optimise": False}], ids=json.dumps)
def test_onnxruntime(options: dict[str, object], model: Path, samples: Path, tmp_path: Path) -> None:
    bundle = engine.build(
        tmp_path, name="ort", adapter="ort", options=options, model=model, device=HOST, processor="cpu"
    )
    assert Bundle.read(tmp_path) == bundle
    if options.get("control") == "all":
        assert not [node for node in onnx.load(tmp_path / "model.onnx").graph.node if node.op_type == "If"]
    outputs = tmp_path / "outputs"
    session = Session(HOST, tmp_path, bundle.command, samples=str(samples), threads=2, limits=Limits(60, 1 << 32))
    assert session.ready["version"] == bundle.version
    assert session.ready["threads"] == 2
    weights = WIDTH * WIDTH * 4
    assert weights <= int(str(session.ready["weight_bytes"])) < 1 << 22
    small = session.run(0, 2, str(outputs))
    large = session.run(1, 2, str(outputs))
    again = session.run(0, 1, str(outputs))
    session.close()
    assert [line["first"] for line in (*small, *large, *again)] == [True, False, True, False, True]
    for sample in (0, 1):
        error, reason = compare(samples / "reference", outputs, sample, 1e-5)
        assert reason is None, error
    output = 256 * WIDTH * 4
    assert all(int(str(line["peak_bytes"])) >= output for line in large)
    lean = options.get("arena") is False
    held = int(str(again[0]["peak_bytes"]))
    assert held < output if lean else held >= output  # an arena keeps what the larger sample needed


def test_adapters() -> None:
    assert set(engine.adapters()) >= {"ort", "sod2"}
    for adapter in engine.adapters():
        assert engine.load(adapter).version()
        assert all(isinstance(name, str) for name in engine.load(adapter).options)
        assert len(engine.fingerprint(adapter)) == 16


@pytest.mark.parametrize(
    ("adapter", "options", "message"),
    [
        ("orrt", {}, "adapter 'orrt' has no engine in baselines/; known adapters: "),
        ("sod2", {"spe": False}, "adapter 'sod2' has no option 'spe'; its options: fusion, sep, dmp, mvc, control"),
        ("sod2", {"sep": "false"}, "option 'sep' of adapter 'sod2' is \"false\"; accepted values: true, false"),
        ("sod2", {"sep": 0}, "option 'sep' of adapter 'sod2' is 0; accepted values: true, false"),
    ],
)
def test_wrong_options_are_named(adapter: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(EngineError) as error:
        engine.check_options(adapter, options)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("adapter", ["ort", "sod2"])
def test_unsupported_processor(adapter: str, model: Path, tmp_path: Path) -> None:
    bundle = engine.build(tmp_path, name="e", adapter=adapter, options={}, model=model, device=HOST, processor="gpu")
    assert bundle.unsupported
    assert "'gpu'" in bundle.unsupported
    assert bundle.command == []


def test_a_model_that_the_compiler_refuses_is_a_failed_bundle(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    bundle = engine.build(
        tmp_path, name="s", adapter="sod2", options={}, model=tmp_path / "bad.onnx", device=HOST, processor="cpu"
    )
    assert bundle.failed
    assert bundle.failed.startswith("build failed: ")
    assert "bad.onnx" in bundle.failed


def test_toggles_become_flags() -> None:
    options: dict[str, object] = {"fusion": "static", "sep": False, "dmp": True, "control": "all"}
    assert sod2.flags(options) == ["--control", "all", "--fusion", "static", "--no-sep"]


def test_every_pin_of_a_runner_is_exact() -> None:
    pins = [line for line in environment.header(RUNNER).splitlines() if line.startswith('    "')]
    assert pins
    assert all("==" in pin for pin in pins)
    with pytest.raises(ValueError, match="does not pin torch"):
        environment.pinned(RUNNER, "torch")
    with pytest.raises(ValueError, match="no PEP 723 header"):
        environment.header(Path(__file__))


def test_command_line_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = ["build", "x", "missing.onnx", str(tmp_path / "out"), "--adapter", "ort", "--processor", "cpu"]
    assert main([*build, "--device", "phone"]) == 1
    assert capsys.readouterr().err.startswith("error: device 'phone' has no file devices/phone.yaml; known devices: ")
    assert main([*build, "--device", "host"]) == 1
    assert "missing.onnx" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

"""TFLite's conversion and rematerialisation, run by the converter's own environment, against the model as it was."""

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from baselines import bundle, engine, environment, tflite
from baselines.reference import compare
from baselines.session import Limits, Session
from devices import device

HOST = device.load("host")
REMAT = tflite.FOLDER / "tflite_remat.py"
SIDE, CHANNELS, WIDTH = 32, 16, 256
CHECK = """
import json, math, sys
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

def run(path, x):
    interpreter = Interpreter(path)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

def peak(path):  # of bytes that some operator from here on reads and some operator up to here wrote
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(open(path, "rb").read(), 0))
    graph = model.subgraphs[0]
    steps = [({int(t) for t in o.inputs}, {int(t) for t in o.outputs}) for o in graph.operators]
    sizes = [4 * math.prod(t.shape.tolist() if t.shape is not None else []) for t in graph.tensors]
    most = 0
    for k in range(len(steps)):
        written = set().union(*(outputs for _, outputs in steps[: k + 1]))
        needed = set().union(*(inputs for inputs, _ in steps[k:]), set(map(int, graph.outputs))) | steps[k][1]
        most = max(most, sum(sizes[t] for t in written & needed))
    return most

x = np.load(sys.argv[1])
before, after = sys.argv[2:4]
np.save(sys.argv[4], run(before, x))
same = bool((run(before, x) == run(after, x)).all())
model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(open(before, "rb").read(), 0))
linear = any(code.builtinCode == schema.BuiltinOperator.FULLY_CONNECTED for code in model.operatorCodes)
print(json.dumps({"same": same, "peaks": [peak(before), peak(after)], "linear": linear}))
"""


def skipping() -> onnx.ModelProto:
    """A cheap tensor that is read at both ends of a body with larger ones, then a product by a large matrix."""
    rng = np.random.default_rng(0)
    weights = {
        "first": rng.standard_normal((CHANNELS, 3, 1, 1), np.float32),
        "wide": rng.standard_normal((2 * CHANNELS, CHANNELS, 3, 3), np.float32) / 12,
        "back": rng.standard_normal((CHANNELS, 2 * CHANNELS, 3, 3), np.float32) / 17,
        "matrix": rng.standard_normal((CHANNELS, WIDTH * 8), np.float32) / 4,
        "last": np.array([3]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["early"]),
        helper.make_node("Conv", ["early", "wide"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "back"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "early"], ["sum"]),
        helper.make_node("GlobalAveragePool", ["sum"], ["mean"]),
        helper.make_node("Squeeze", ["mean", "last"], ["column"]),
        helper.make_node("Transpose", ["column"], ["rows"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["rows", "matrix"], ["product"]),
        helper.make_node("Flatten", ["product"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "skipping",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "H", "W"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WIDTH * 8])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_rematerialised_files_compute_the_same_in_less_memory(tmp_path: Path) -> None:
    """Conversion keeps the numbers, rematerialisation keeps every bit; the peaks are those of a count from scratch."""
    onnx.save(skipping(), tmp_path / "model.onnx")
    x = np.random.default_rng(1).random((1, 3, SIDE, SIDE), np.float32)
    np.save(tmp_path / "x.npy", x)
    plain = SIDE * SIDE * 4 * CHANNELS
    requests = [
        {"out": "free.tflite", "shapes": [[1, 3, SIDE, SIDE]], "path": ""},
        {"out": "held.tflite", "source": "free.tflite", "budget": 7 * plain // 2},
        {"out": "none.tflite", "source": "free.tflite", "budget": 0},
    ]
    python = environment.python(tflite.CONVERTER).absolute()
    names = [json.dumps(request) for request in requests]
    bundle.run_script(python, tflite.CONVERTER, ["model.onnx", *names], tmp_path, [REMAT])
    command = [python, "-c", CHECK, "x.npy", "free.tflite", "held.tflite", "y.npy"]
    found = json.loads(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert found["same"]
    assert found["linear"]  # the product by weights is no product of two tensors
    before, after = found["peaks"]
    assert after < before
    (want,) = ort.InferenceSession(tmp_path / "model.onnx").run(None, {"x": x})
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), want, rtol=1e-4, atol=1e-4)
    assert (tmp_path / "none.tflite").exists()  # what cannot be met is approached


def test_images_come_out_in_the_layout_of_the_model(tmp_path: Path) -> None:
    """The converter turns an output of four dimensions channels last; the runner turns it back."""
    weight = np.random.default_rng(0).standard_normal((CHANNELS, 3, 3, 3), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "image",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "H", "W"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CHANNELS, "H", "W"])],
        [numpy_helper.from_array(weight, "w")],
    )
    model, bundled, samples = tmp_path / "image.onnx", tmp_path / "bundle", tmp_path / "samples"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), model)
    (samples / "reference").mkdir(parents=True)
    bundled.mkdir()
    x = np.random.default_rng(1).random((1, 3, 6, 10), np.float32)
    np.save(samples / "0.0.npy", x)
    (y,) = ort.InferenceSession(model).run(None, {"x": x})
    np.save(samples / "reference" / "0.0.npy", y)
    (samples / "samples.json").write_text(json.dumps([{"shapes": [list(x.shape)], "path": None}]))
    built = engine.build(bundled, name="t", adapter="tflite", options={}, model=model, device=HOST, processor="cpu")
    session = Session(
        HOST, bundled, built.command, samples=str(samples), threads=HOST.threads, limits=Limits(60, 4 << 30)
    )
    session.run(0, 1, str(tmp_path / "outputs"))
    session.close()
    assert compare(samples / "reference", tmp_path / "outputs", 0, 1e-4)[1] is None


def test_without_a_newer_python_the_engine_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "ENVIRONMENTS", tmp_path / "envs")
    monkeypatch.setattr(environment.shutil, "which", lambda _name: None)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    model = tmp_path / "model.onnx"
    onnx.save(skipping(), model)
    required = environment.header(tflite.CONVERTER)
    if "3.11" in required:
        pytest.fail("the converter accepts the Python that runs the tests")
    built = engine.build(tmp_path, name="t", adapter="tflite", options={}, model=model, device=HOST, processor="cpu")
    assert built.unsupported is not None
    assert "tflite_convert.py needs Python >=3.12, and none is installed: install one" in built.unsupported

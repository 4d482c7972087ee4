"""The baselines' bundles run for real on a model with a branch, and what prepares their models."""

import hashlib
import json
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from baselines import bundle, engine, runner, tflite_convert
from baselines.reference import compare
from baselines.session import Limits, Session
from devices import device

HOST = device.load("host")
WIDTH = 64


def tensor(name: str, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def branch(operator: str, scale: float) -> onnx.GraphProto:
    """operator(factor * z), with a weight of its own."""
    nodes = [
        helper.make_node("Mul", ["z", f"{operator}_w"], ["scaled"]),
        helper.make_node(operator, ["scaled"], [operator]),
    ]
    weight = numpy_helper.from_array(np.float32(scale), f"{operator}_w")
    return helper.make_graph(nodes, operator, [], [tensor(operator, ["n", WIDTH])], [weight])


def branchy() -> onnx.ModelProto:
    """y = relu(2 x W) where the sum of x is positive, tanh(3 x W) otherwise; x is (n, 64) with n symbolic."""
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((WIDTH, WIDTH), np.float32) / 8, "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=branch("Relu", 2), else_branch=branch("Tanh", 3)),
    ]
    initializers = [weights, numpy_helper.from_array(np.float32(0), "zero")]
    graph = helper.make_graph(nodes, "branchy", [tensor("x", ["n", WIDTH])], [tensor("y", ["n", WIDTH])], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def expected(x: np.ndarray) -> np.ndarray:
    """The model in numpy."""
    z = x @ numpy_helper.to_array(branchy().graph.initializer[0])
    return np.maximum(2 * z, 0) if x.sum() > 0 else np.tanh(3 * z)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both paths, a small and a large shape."""
    folder = tmp_path_factory.mktemp("samples")
    (folder / "reference").mkdir()
    index = []
    for i, (rows, sign) in enumerate([(1, 1), (256, -1)]):
        x = sign * np.random.default_rng(i).random((rows, WIDTH), np.float32)
        np.save(folder / f"{i}.0.npy", x)
        np.save(folder / "reference" / f"{i}.0.npy", expected(x))
        index.append({"shapes": [list(x.shape)], "path": "1" if sign > 0 else "0", "macs": None, "macs_all": None})
    (folder / "samples.json").write_text(json.dumps(index))
    return folder


CONFIGURATIONS = [
    ("openvino", {}),
    ("openvino", {"control": "all"}),
    ("mnn", {}),
    ("mnn", {"control": "all"}),
    ("tvm", {"memory": "naive"}),
    ("tflite", {}),
    ("tflite", {"memory": "sod2", "xnnpack": False}),
]


@pytest.mark.parametrize(("adapter", "options"), CONFIGURATIONS, ids=str)
def test_bundle(adapter: str, options: dict[str, object], samples: Path, tmp_path: Path) -> None:
    """Right numbers on both paths, the threads that were asked for, and honest first runs and peaks."""
    model = tmp_path / "branchy.onnx"
    onnx.save(branchy(), model)
    folder, outputs = tmp_path / "bundle", tmp_path / "outputs"
    folder.mkdir()
    built = engine.build(folder, name="e", adapter=adapter, options=options, model=model, device=HOST, processor="cpu")
    assert built.command, built.unsupported or built.failed
    session = Session(HOST, folder, built.command, samples=str(samples), threads=2, limits=Limits(120, 4 << 30))
    assert session.ready["version"].startswith(built.version.split(".post")[0])
    lines = [session.run(i, 2, str(outputs)) for i in (0, 1, 0)]
    session.close()
    assert [[line["first"] for line in pair] for pair in lines] == [[True, False]] * 3
    assert all(line["latency_ns"] > 0 and line["copy_ns"] >= 0 for pair in lines for line in pair)
    for i in (0, 1):
        error, reason = compare(samples / "reference", outputs, i, 1e-3)
        assert reason is None, error
    assert lines[1][1]["peak_bytes"] >= 256 * WIDTH * 4  # the output at least


@pytest.mark.parametrize("adapter", ["openvino", "mnn", "tvm", "tflite"])
def test_other_processors_are_unsupported(adapter: str, tmp_path: Path) -> None:
    model = tmp_path / "branchy.onnx"
    onnx.save(branchy(), model)
    built = engine.build(tmp_path, name="e", adapter=adapter, options={}, model=model, device=HOST, processor="gpu")
    assert built.unsupported is not None
    assert "'gpu'" in built.unsupported


@pytest.mark.parametrize("path", ["1", "0"])
def test_fixed_path_is_the_branch(path: str) -> None:
    """The model cut down for TFLite agrees with numpy on the inputs that take this path."""
    x = np.random.default_rng(2).random((3, WIDTH), np.float32) * (1 if path == "1" else -1)
    model = branchy()
    tflite_convert.fix(model, [[3, WIDTH]], path)
    assert [node.op_type for node in model.graph.node][-2:] == ["Relu" if path == "1" else "Tanh", "Identity"]
    assert {tensor.name for tensor in model.graph.initializer} - {"w", "zero", tflite_convert.ONE} == {
        "Relu_w" if path == "1" else "Tanh_w"  # the other branch's weight is gone
    }
    y, taken = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert taken.tolist() == [path == "1"]
    np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)


def test_sums_of_wide_integers() -> None:
    """CumSum of 64-bit integers becomes one of floats with equal results; one of floats stays."""
    graph = helper.make_graph(
        [helper.make_node("CumSum", ["x", "axis"], ["y"]), helper.make_node("CumSum", ["f", "axis"], ["g"])],
        "sums",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n"]), tensor("f", ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["n"]), tensor("g", ["n"])],
        [numpy_helper.from_array(np.int64(0), "axis")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    tflite_convert.mend(model.graph)
    assert [node.op_type for node in model.graph.node] == ["Cast", "CumSum", "Cast", "CumSum"]
    for n in (0, 1, 7):
        x = np.arange(n, dtype=np.int64)
        y, g = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x, "f": x.astype(np.float32)})
        np.testing.assert_array_equal(y, np.cumsum(x))
        np.testing.assert_array_equal(g, np.cumsum(x))


def test_products_of_constants() -> None:
    """A product of two weights is computed by the converter's side, and the one that reads it stays."""
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((1, 3, 4), np.float32), rng.standard_normal((4, 5), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])],
        "constant",
        [tensor("x", [1, 3, 5])],
        [tensor("y", [1, 3, 5])],
        [numpy_helper.from_array(left, "a"), numpy_helper.from_array(right, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    tflite_convert.mend(model.graph)
    assert [node.op_type for node in model.graph.node] == ["Add"]
    x = rng.standard_normal((1, 3, 5), np.float32)
    (y,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(y, x + left @ right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("given", [3, 4])
def test_states_of_an_lstm(given: int) -> None:
    """Initial states are computed zeros, whether the node has a bias or not; the numbers stay."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((1, *rest), np.float32) for name, rest in (("w", (12, 5)), ("r", (12, 3)))}
    weights["b"] = rng.standard_normal((1, 24), np.float32)
    node = helper.make_node("LSTM", ["x", "w", "r", "b"][:given], ["y"], hidden_size=3)
    graph = helper.make_graph(
        [node],
        "lstm",
        [tensor("x", [4, 2, 5])],
        [tensor("y", [4, 1, 2, 3])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    x = rng.standard_normal((4, 2, 5), np.float32)
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    tflite_convert.mend(model.graph)
    assert len(model.graph.node[-1].input) == 7
    (y,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(y, want, rtol=1e-6)


@pytest.mark.parametrize("used", [False, True])
def test_unused_indices_are_dropped(used: bool) -> None:
    outputs = [tensor("y", [1, 1, 4, 4])]
    if used:
        outputs.append(helper.make_tensor_value_info("at", TensorProto.INT64, [1, 1, 4, 4]))
    node = helper.make_node("MaxPool", ["x"], ["y", "at"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    model = helper.make_model(helper.make_graph([node], "pool", [tensor("x", [1, 1, 4, 4])], outputs))
    bundle.drop_unused_indices(model)
    assert len(model.graph.node[0].output) == 1 + used


def test_a_thread_that_has_ended_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    here, gone = threading.get_native_id(), 1 + int(Path("/proc/sys/kernel/pid_max").read_text())
    monkeypatch.setattr(runner, "_threads", lambda: [here, gone])
    assert list(runner.processor_times()) == [here]


@pytest.mark.parametrize("workers", [0, 1])
def test_threads_are_counted_by_their_work(workers: int) -> None:
    """Idle threads do not count; hashing frees the interpreter's lock."""
    data = bytes(4 << 20)
    stop = threading.Event()
    idle = threading.Thread(target=stop.wait)
    idle.start()

    def work() -> None:
        hashlib.sha256(data).digest()

    def loop() -> None:
        while not stop.is_set():
            work()

    busy = [threading.Thread(target=loop) for _ in range(workers)]
    for thread in busy:
        thread.start()
    try:
        assert runner.busy_threads(work, 1 + workers) == 1 + workers
    finally:
        stop.set()
        for thread in (idle, *busy):
            thread.join()

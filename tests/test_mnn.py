"""MNN's weights are held once: packed, without those of the file beside them."""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from baselines import engine
from baselines.session import Limits, Session
from devices import device

HOST = device.load("host")
WIDTH = 1024


def test_weights_are_held_once(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((WIDTH, WIDTH), np.float32) / 32, "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [weights],
    )
    model, samples, folder = tmp_path / "product.onnx", tmp_path / "samples", tmp_path / "bundle"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    for path in (samples, folder):
        path.mkdir()
    np.save(samples / "0.0.npy", np.ones((3, WIDTH), np.float32))
    (samples / "samples.json").write_text(json.dumps([{"shapes": [[3, WIDTH]], "path": None}]))
    built = engine.build(folder, name="m", adapter="mnn", options={}, model=model, device=HOST, processor="cpu")
    session = Session(HOST, folder, built.command, samples=str(samples), threads=2, limits=Limits(60, 1 << 32))
    held = int(str(session.ready["weight_bytes"]))
    session.close()
    raw = 4 * WIDTH * WIDTH
    assert raw <= held < 1.3 * raw

"""The gated networks' numbers and paths, each network written out in float64 from its weights by their names."""

import functools
from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

from models import MODELS, build, resnet
from models.blockdrop import POLICIES
from models.gates import decisions, gates, path_string
from models.inputs import concrete_shape, contents, generator
from models.probe import Probe
from tests.plain_layers import Array, Weights, conv, pool, relu, rows, tiles, weights_of

Net = Callable[[Weights, Array, resnet.Config], tuple[Array, str]]


@functools.cache
def tiny(name: str) -> ModelProto:
    """The small variant, built once."""
    return build(name, "tiny")


def stem(w: Weights, x: Array, name: str = "conv1") -> Array:
    return pool(relu(conv(w, x, name, 2)), 3, 2, 1)


def bottleneck(w: Weights, block: resnet.Block, x: Array, name: str) -> Array:
    y = relu(conv(w, x, f"{name}.conv1"))
    return conv(w, relu(conv(w, y, f"{name}.conv2", block.stride)), f"{name}.conv3")


def shortcut(w: Weights, block: resnet.Block, x: Array, name: str) -> Array:
    return conv(w, x, name, block.stride) if f"{name}.weight" in w else x


def column(x: Array) -> Array:
    """Global mean as a map of one pixel."""
    return x.mean((1, 2))[:, None, None]


def skipnet(w: Weights, x: Array, config: resnet.Config) -> tuple[Array, str]:
    x, path = stem(w, x), ""
    hidden, cell, runs = np.zeros(10), np.zeros(10), True
    for number, block in enumerate(resnet.blocks(config)):
        skipped = shortcut(w, block, x, f"group{block.stage + 1}_ds{block.index}.0")
        if number:
            path += str(int(runs))
        body = f"group{block.stage + 1}_layer{block.index}"
        x = relu(bottleneck(w, block, x, body) + skipped) if runs else skipped
        gate = f"group{block.stage + 1}_gate{block.index}.1"
        if f"{gate}.weight" in w:
            bias = np.split(w["control.rnn.bias"][0], 2)
            step = conv(w, column(x), gate)[:, 0, 0]
            sums = w["control.rnn.weight_ih_l0"][0] @ step + w["control.rnn.weight_hh_l0"][0] @ hidden + sum(bias)
            i, o, f, c = np.split(sums, 4)
            cell = cell / (1 + np.exp(-f)) + np.tanh(c) / (1 + np.exp(-i))
            hidden = np.tanh(cell) / (1 + np.exp(-o))
            runs = rows(w, hidden, "control.proj").item() > w[f"gates.{number}.threshold"]
    return rows(w, x.mean((1, 2)), "fc"), path


def convnet_aig(w: Weights, x: Array, config: resnet.Config) -> tuple[Array, str]:
    x, path = stem(w, x), ""
    for block in resnet.blocks(config):
        name = f"layer{block.stage + 1}.{block.index}"
        skip, run = conv(w, relu(conv(w, column(x), f"{name}.fc1")), f"{name}.fc2")[:, 0, 0]
        path += str(int(run > skip))
        body = bottleneck(w, block, x, name) if run > skip else 0
        x = relu(shortcut(w, block, x, f"{name}.downsample.0") + body)
    return rows(w, x.mean((1, 2)), "fc"), path


def blockdrop(w: Weights, x: Array, config: resnet.Config) -> tuple[Array, str]:
    y = stem(w, tiles(x, 2), "agent.features.conv1")
    for block in resnet.blocks(POLICIES["tiny"]):
        name = f"agent.features.blocks.{block.stage}.{block.index}"
        body = conv(w, relu(conv(w, y, f"{name}.conv1", block.stride)), f"{name}.conv2")
        y = relu(body + shortcut(w, block, y, f"agent.features.ds.{block.stage}.0"))
    actions = rows(w, y.mean((1, 2)), "agent.logit") >= 0
    x = stem(w, x, "resnet.conv1")
    for runs, block in zip(actions, resnet.blocks(config), strict=True):
        skipped = shortcut(w, block, x, f"resnet.ds.{block.stage}.0") if block.index == 0 else x
        body = f"resnet.blocks.{block.stage}.{block.index}"
        x = relu(bottleneck(w, block, x, body) + skipped) if runs else skipped
    return rows(w, x.mean((1, 2)), "resnet.fc"), "".join(str(int(runs)) for runs in actions)


def dgnet(w: Weights, x: Array, config: resnet.Config) -> tuple[Array, str]:
    x, path = stem(w, x), ""
    for block in resnet.blocks(config):
        name = f"layer{block.stage + 1}.{block.index}"

        def channels(x: Array, gate: str, name: str = name) -> Array:
            return conv(w, relu(conv(w, column(x), f"{name}.{gate}.fc1")), f"{name}.{gate}.fc2") >= 0

        mask = conv(w, tiles(x, x.shape[1] // 7), f"{name}.mask_s.conv") >= 0
        path += str(int(mask.any()))
        before = mask.repeat(x.shape[1] // 7, 1).repeat(x.shape[1] // 7, 2)
        after = before[:, :: block.stride, :: block.stride]
        y = relu(conv(w, x, f"{name}.conv1")) * channels(x, "mask_c1") * before
        y = relu(conv(w, y, f"{name}.conv2", block.stride)) * channels(y, "mask_c2") * after
        x = relu(conv(w, y, f"{name}.conv3") * after + shortcut(w, block, x, f"{name}.downsample.0"))
    return rows(w, x.mean((1, 2)), "fc"), path


NETS: dict[str, Net] = {"skipnet": skipnet, "convnet_aig": convnet_aig, "blockdrop": blockdrop, "dgnet": dgnet}


@pytest.mark.parametrize("name", sorted(NETS))
def test_logits_and_path(name: str) -> None:
    model = tiny(name)
    config = getattr(MODELS[name].module.CONFIGS["tiny"], "net", MODELS[name].module.CONFIGS["tiny"])
    w, found = weights_of(model), gates(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    probe = Probe(model, [value for gate in found for value in gate.values])
    paths = set()
    for index, (height, width) in enumerate([(64, 96), (33, 47), (65, 64), (96, 50), (40, 41), (224, 120)]):
        sizes = {"H": height, "W": width}
        shapes = {value.name: concrete_shape(value, sizes) for value in model.graph.input}
        inputs = contents(MODELS[name], "tiny", shapes, generator("test", index))
        logits, path = NETS[name](w, inputs["images"][0].astype(np.float64), config)
        got = session.run(None, inputs)[0][0]
        np.testing.assert_allclose(got, logits, atol=1e-5 * np.abs(logits).max())
        values, _ = probe.run(inputs)
        assert path_string(found, decisions(found, values)) == path
        paths.add(path)
    assert len(paths) > 1

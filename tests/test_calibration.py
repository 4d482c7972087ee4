"""Calibration: the statistics it measures, the thresholds it chooses, and the rates that follow."""

import dataclasses
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np
import onnxruntime
import pytest
import spox
import spox.opset.ai.onnx.v18 as op
from onnx import TensorProto, helper

from models import MODELS, Extent, Pictures, calibrate, calibration, resnet
from models.blocks import conv_bn, integers
from models.inputs import generator, random_sizes
from models.parameters import Parameters
from models.statistics import channel_statistics, choose_threshold


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.691, 0.9])
def test_threshold_opens_a_gate_at_the_wanted_rate_and_keeps_clear_of_every_logit(rate: float) -> None:
    logits = np.random.default_rng(7).normal(size=96)
    threshold = choose_threshold(logits, rate)
    assert np.mean(logits > threshold) == pytest.approx(rate, abs=0.03 + 1 / 96)
    near = np.sort(np.abs(logits - threshold))[:2]
    assert near[0] == pytest.approx(near[1], rel=1e-3)  # the middle of a gap


def test_threshold_of_a_gate_that_never_decides_is_far_from_every_logit() -> None:
    logits = np.random.default_rng(7).normal(size=50)
    assert logits.min() - choose_threshold(logits, 1.0) == pytest.approx(3 * logits.std())
    assert choose_threshold(logits, 0.0) - logits.max() == pytest.approx(3 * logits.std())


def test_statistics_count_every_picture_alike_whatever_its_size() -> None:
    small, large = np.full((1, 2, 1, 1), 1.0, np.float32), np.full((1, 2, 30, 20), 3.0, np.float32)
    mean, std = channel_statistics([small, large], epsilon=0)
    np.testing.assert_array_equal(mean, [2, 2])
    np.testing.assert_array_equal(std, [1, 1])


def test_folded_batch_norm_equals_convolution_and_batch_norm() -> None:
    """The oracle is onnxruntime's BatchNormalization with the measured statistics."""
    rng = np.random.default_rng(0)
    p = Parameters({"bn.mean": rng.normal(size=5).astype("f4"), "bn.std": rng.uniform(0.5, 2, 5).astype("f4")})
    x = spox.argument(spox.Tensor(np.float32, (1, 3, None, None)))
    model = p.assemble("folded", {"x": x}, {"y": conv_bn(p, x, ("conv", "bn"), (3, 5), 3, stride=2, biased=True)})
    folding = p.foldings["conv.weight"]
    assert folding.bias is not None
    gain, shift = folding.affine()
    mean, variance = p.calibration["bn.mean"], p.calibration["bn.std"] ** 2
    scale = gain * p.calibration["bn.std"]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c", "s", "o", "m", "v"], ["y"], epsilon=0.0),
    ]
    arrays = {
        "w": folding.weight(),
        "b": folding.bias(),
        "s": scale,
        "o": shift + mean * gain,
        "m": mean,
        "v": variance,
    }
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    weights = [
        helper.make_tensor(k, TensorProto.FLOAT, a.shape, a.astype("f4").tobytes(), raw=True) for k, a in arrays.items()
    ]
    graph = helper.make_graph(
        nodes, "g", [value], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights
    )
    plain = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    for size in ((8, 8), (1, 1), (5, 9)):
        inputs = {"x": rng.normal(1, 3, (1, 3, *size)).astype(np.float32)}
        got, expected = (
            onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, inputs)[0]
            for m in (model, plain)
        )
        np.testing.assert_allclose(got, expected, atol=1e-4)
    assert p.count() == 5 * 3 * 9 + 5 + 2 * 5


class _Branching:
    """A network of one convolution with BatchNorm inside the branch of a gate that reads the mean."""

    CONFIGS: ClassVar = {"tiny": None}

    @staticmethod
    def compose(p: Parameters, variant: str) -> tuple[dict[str, spox.Var], dict[str, spox.Var]]:
        images = spox.argument(spox.Tensor(np.float32, (1, 3, "H", "W")))
        runs = op.greater(op.reduce_mean(images, keepdims=0), p.threshold(0))
        (y,) = op.if_(
            op.reshape(runs, integers()),
            then_branch=lambda: [op.relu(conv_bn(p, images, ("conv", "bn"), (3, 3), 1))],
            else_branch=lambda: [op.identity(images)],
        )
        return {"images": images}, {"y": y}


@pytest.mark.parametrize("reached_only", [False, True])
def test_calibration_of_a_gated_layer(reached_only: bool) -> None:
    model = dataclasses.replace(
        MODELS["skipnet"],
        module=_Branching,
        calibration=40,
        content=Pictures(),
        symbols={"H": Extent(8, 24), "W": Extent(8, 24)},
        reached_only=reached_only,
        gate_rates=lambda variant: np.array([0.3]),
    )
    vectors = calibrate.calibrate(model, "tiny")
    assert set(vectors) == {"bn.mean", "bn.std", "gates.threshold", "gates.spread"}
    p = Parameters()
    graph = p.graph("branching", *_Branching.compose(p, "tiny")).graph
    pictures = calibrate.inputs_of(model, "tiny", graph.input)["images"]
    means = np.array([picture.mean() for picture in pictures])
    taken = means > vectors["gates.threshold"][0]
    assert taken.mean() == pytest.approx(0.3, abs=0.05)
    assert vectors["gates.spread"][0] == pytest.approx(means.std(), rel=1e-3)
    weight = p.foldings["conv.weight"].weight()[:, :, 0, 0]
    counted = [a for a, t in zip(pictures, taken, strict=True) if t or not reached_only]
    outputs = [np.einsum("oc,nchw->nohw", weight, picture) for picture in counted]
    mean, std = channel_statistics(outputs)
    np.testing.assert_allclose(vectors["bn.mean"], mean, rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(vectors["bn.std"], std, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name, model in MODELS.items() if model.calibration))
def test_committed_calibration_of_the_small_variant_is_what_the_command_measures(name: str) -> None:
    stored, measured = calibration(name, "tiny"), calibrate.calibrate(MODELS[name], "tiny")
    assert set(stored) == set(measured)
    for key, value in measured.items():
        np.testing.assert_allclose(stored[key], value, rtol=0.02, atol=0.01, err_msg=key)


def load_sampling() -> ModuleType:
    path = Path(__file__).parents[1] / "datasets" / "sample.py"
    spec = importlib.util.spec_from_file_location("sample", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PATHS = {"skipnet": 20, "convnet_aig": 20, "dgnet": 20, "ranet": 8, "blockdrop": 8}  # least number of distinct ones


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PATHS))
def test_gates_run_at_the_published_rate_on_50_unseen_inputs(name: str) -> None:
    sampler = load_sampling().Sampler(name, "full")
    paths = []
    for index in range(50):
        sizes = random_sizes(sampler.model.symbols, generator("random sizes", 3, index))
        paths.append(sampler.sample(sizes, 3, index)[1]["path"])
    assert len(set(paths)) >= PATHS[name]
    rate = MODELS[name].rate
    if rate is not None:
        assert np.mean([character == "1" for path in paths for character in path]) == pytest.approx(rate, abs=0.05)


def test_blocks_of_a_network_follow_its_configuration() -> None:
    blocks = list(resnet.blocks(resnet.R101))
    assert len(blocks) == 33
    assert [block.projects for block in blocks].count(True) == 4
    assert (blocks[-1].outward, sum(block.stride == 2 for block in blocks)) == (2048, 3)
    shallow = list(resnet.blocks(resnet.Config((1, 1, 1, 1), (64, 128, 256, 512), 33, expansion=1)))
    assert [block.projects for block in shallow] == [False, True, True, True]

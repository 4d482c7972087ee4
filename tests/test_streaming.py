"""Streaming: which first layers run strip by strip, and that strips give what onnxruntime gives on the whole."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

import sod2
from sod2 import compiler
from sod2.compiler import Options
from sod2.fusion import Group
from tests import graphs

SIZES = ((7, 40), (64, 9), (220, 150), (330, 480), (61, 640))
FOLLOWERS = {
    "pool": "y = MaxPool <kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]> (r)",
    "pool, ceil": "y = MaxPool <kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1> (r)",
    "pool, dilated": "y = MaxPool <kernel_shape=[3, 2], strides=[1, 3], pads=[2, 0, 1, 1], dilations=[2, 1]> (r)",
    "pool, same": 'y = MaxPool <kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"> (r)',
    "convolution": "y = Conv <strides=[2, 2], pads=[1, 1, 1, 1]> (r, v)",
    "convolution, tiled": "y = Conv <pads=[1, 1, 1, 1]> (r, v)",  # Winograd is what it is computed by
}


def stem(follower: str, kernel: int = 7, channels: int = 3, width: int = 24) -> onnx.ModelProto:
    """A convolution of stride 2 with bias and ReLU, and `follower`, which makes y of r."""
    rng = np.random.default_rng(3)
    stored = {
        "w": rng.standard_normal((width, channels, kernel, kernel)).astype(np.float32),
        "b": rng.standard_normal(width).astype(np.float32),
        "v": rng.standard_normal((width, width, 3, 3)).astype(np.float32),
    }
    pads = ", ".join([str(kernel // 2)] * 4)
    body = f"c = Conv <strides=[2, 2], pads=[{pads}]> (x, w, b) r = Relu (c) {follower}"
    return graphs.model(f"float[N, {channels}, H, W] x", f"float[N, {width}, P, Q] y", body, stored)


def streamed(source: onnx.ModelProto, *, sep: bool = True) -> list[Group]:
    """The groups that read another one's result in strips."""
    steps = compiler.plan(source, Options(sep=sep)).storage.steps
    return [step for step in steps if isinstance(step, Group) and step.lead is not None]


@pytest.mark.parametrize("kernel", [3, 7])
@pytest.mark.parametrize("follower", FOLLOWERS)
def test_strips_give_the_whole(follower: str, kernel: int) -> None:
    """In one session over all sizes, with the bits of the whole, of any number of threads and of any run before."""
    source = stem(FOLLOWERS[follower], kernel, width=64)
    assert len(streamed(source)) == 1
    roomy = Options(weight_budget=9)  # all versions
    models = [sod2.compile(source, roomy, threads=threads) for threads in (1, 2)]
    whole = sod2.compile(source, replace(roomy, sep=False))
    before: dict[tuple[int, ...], bytes] = {}
    for height, width in (*SIZES, *SIZES):
        inputs = {"x": graphs.random(np.float32, (2, 3, height, width))}
        got = [model.run(inputs) for model in models]
        assert got[0]["y"].tobytes() == got[1]["y"].tobytes() == whole.run(inputs)["y"].tobytes()
        if (height, width) not in before:
            graphs.assert_close(got[0], graphs.expected(source, inputs))
        assert before.setdefault((height, width), got[0]["y"].tobytes()) == got[0]["y"].tobytes()


def test_sizes_of_none_and_one() -> None:
    source = stem(FOLLOWERS["pool"])
    compiled = sod2.compile(source, threads=2)
    for shape in ((0, 3, 9, 9), (1, 3, 1, 1), (1, 3, 1, 70), (3, 3, 2, 1)):
        inputs = {"x": graphs.random(np.float32, shape)}
        graphs.assert_close(compiled.run(inputs), graphs.expected(source, inputs))


def test_not_a_number_spreads_as_over_the_whole() -> None:
    source = stem(FOLLOWERS["pool"], 3)
    inputs = {"x": graphs.random(np.float32, (1, 3, 300, 200))}
    inputs["x"][0, 1, 150, 7] = np.nan
    strips, whole = (sod2.compile(source, Options(sep=sep)).run(inputs)["y"] for sep in (True, False))
    np.testing.assert_array_equal(strips, whole)


def test_the_whole_never_exists() -> None:
    """The peak falls by the first one's result; what the strips take is independent of the image's height."""
    source = stem(FOLLOWERS["pool"], width=64)
    peaks = [sod2.compile(source, Options(sep=sep)).peak_bytes({"x": (1, 3, 1200, 200)}) for sep in (True, False)]
    assert peaks[0] < peaks[1] / 3


def test_strips_are_small_where_the_peak_is() -> None:
    """The only step takes the least scratch: two rows of the second's, and their copy."""
    peak = sod2.compile(stem(FOLLOWERS["convolution"], 3, width=64)).peak_bytes({"x": (1, 3, 128, 128)})
    first, second = 4 * 64 * 64 * 64, 4 * 64 * 32 * 32
    assert second < peak < second + first / 2


@pytest.mark.parametrize(
    ("follower", "channels"),
    [
        ("y = MaxPool <kernel_shape=[2, 2]> (r)", 5),  # too many channels for a first layer
        ("y = AveragePool <kernel_shape=[2, 2]> (r)", 3),
        ("z = MaxPool <kernel_shape=[2, 2]> (r) y = Conv (r, v)", 3),  # two readers
        ("y = MaxPool <kernel_shape=[1, 1], pads=[0, 1, 0, 0]> (r)", 3),  # a larger result
    ],
)
def test_what_is_not_streamed(follower: str, channels: int) -> None:
    source = stem(follower, channels=channels)
    if "z =" in follower:
        source.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    assert not streamed(source)


def test_the_order_of_the_file_streams_nothing() -> None:
    assert not streamed(stem(FOLLOWERS["pool"]), sep=False)

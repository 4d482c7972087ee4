"""Normalisations that a convolution computes where it reads them: which, what they give, and that none is stored."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import sod2
from sod2 import Options
from tests import graphs
from tests.test_streaming import streamed

SILU = "g = Sigmoid(n) a = Mul(n, g)"
SIZES = ((1, 1), (7, 40), (64, 9), (33, 130), (90, 75), (1, 70))


def block(
    conv: str = "<pads = [1, 1, 1, 1]>", *, width: int = 32, out: int = 24, kernel: tuple[int, ...] = (3, 3),
    share: int = 1, behind: str = SILU, read: str = "a", plane: str = "H, W",
) -> onnx.ModelProto:  # fmt: skip
    """y, a convolution of what follows the group normalisation of x + 1, which also leaves the model."""
    stored = {
        "one": np.float32(1),
        "two": np.float32([[2]]),
        "apart": np.int64([0, 4, -1]),
        "s": graphs.random("f4", (4,)),
        "o": graphs.random("f4", (4,), 1),
        "scale": graphs.random("f4", (width, *[1] * len(kernel)), 2),
        "each": graphs.random("f4", (1, width, *[1] * len(kernel)), 3),
        "w": graphs.random("f4", (out, width // share, *kernel), 4),
        "b": graphs.random("f4", (out,), 5),
    }
    body = (
        "z = Add(x, one) t = Shape(z) r = Reshape(z, apart) i = InstanceNormalization(r, s, o) k = Reshape(i, t) "
        f"n = Mul(k, scale) {behind} y = Conv {conv} ({read}, w, b)"
    )
    like = "float[N, ?" + ", ?" * len(kernel) + "]"
    return graphs.model(f"float[N, {width}, {plane}] x", f"{like} y, {like} z", body, stored)


CONVOLUTIONS = {
    "winograd": block(),
    "winograd, a part of a vector of channels": block(width=20, out=17),
    "winograd, far padding": block("<pads = [3, 0, 2, 4]>"),
    "panels": block(width=8, out=40),
    "panels, dilated": block("<pads = [2, 2, 2, 2], dilations = [2, 2]>"),
    "panels, no padding to speak of": block("<pads = [0, 2, 1, 3]>", kernel=(2, 5)),
    "groups": block("<pads = [1, 1, 1, 1], group = 4>", share=4),
    "one axis": block("<pads = [2, 1]>", kernel=(3,), plane="L"),
    "nothing behind": block(behind="", read="n"),
    "numbers behind": block(behind="h = HardSigmoid(n) c = Mul(h, two) a = Sub(c, one)"),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_results(name: str) -> None:
    """In one session over all sizes, with bits that depend neither on threads nor on what ran before."""
    source = CONVOLUTIONS[name]
    assert len(streamed(source)) == 1
    models = [sod2.compile(source, threads=threads) for threads in (1, 2)]
    _, width, *plane = source.graph.input[0].type.tensor_type.shape.dim
    before: dict[tuple[int, ...], bytes] = {}
    for height, columns in (*SIZES, *SIZES):
        shape = (2, width.dim_value, *((height, columns) if len(plane) == 2 else (height * columns,)))
        inputs = {"x": graphs.random("f4", shape)}
        got = [model.run(inputs) for model in models]
        assert got[0]["y"].tobytes() == got[1]["y"].tobytes()
        if shape not in before:
            graphs.assert_close(got[0], graphs.expected(source, inputs))
        assert before.setdefault(shape, got[0]["y"].tobytes()) == got[0]["y"].tobytes()


def test_no_image_and_empty_ones() -> None:
    """Where there is nothing to normalise, a window sees its padding."""
    stored = {name: graphs.random("f4", shape) for name, shape in (("s", (8,)), ("w", (5, 8, 3, 3)), ("b", (5,)))}
    body = "n = InstanceNormalization(x, s, s) a = Relu(n) y = Conv <pads = [2, 2, 2, 2]> (a, w, b)"
    source = graphs.model("float[N, 8, H, W] x", "float[N, ?, ?, ?] y", body, stored)
    assert len(streamed(source)) == 1
    compiled = sod2.compile(source, threads=2)
    for n, h, w in ((0, 9, 9), (1, 3, 0), (2, 0, 5)):
        wanted = np.broadcast_to(stored["b"].reshape(-1, 1, 1), (n, 5, h + 2, w + 2))
        np.testing.assert_array_equal(compiled.run({"x": np.zeros((n, 8, h, w), np.float32)})["y"], wanted)


def test_bits_are_those_of_the_stored_result() -> None:
    inputs = {"x": graphs.random("f4", (1, 32, 50, 70))}
    loaded, stored = (sod2.compile(block(), Options(sep=sep)).run(inputs)["y"] for sep in (True, False))
    np.testing.assert_array_equal(loaded, stored)


def test_nothing_is_stored() -> None:
    """The peak is x + 1 and the result, with the scratch of one step."""
    peaks = [
        sod2.compile(block(out=32), Options(sep=sep)).peak_bytes({"x": (1, 32, 300, 200)}) for sep in (True, False)
    ]
    image = 4 * 32 * 300 * 200
    assert 2 * image < peaks[0] < 2.05 * image and peaks[1] > 3 * image


@pytest.mark.parametrize(
    "source",
    [
        block("<pads = [1, 1, 1, 1], strides = [2, 2]>"),
        block('<auto_pad = "SAME_UPPER">'),
        block(kernel=(1, 1), conv=""),
        block("<pads = [1, 1, 1, 1], group = 32>", out=32, share=32),
        block(behind=f"{SILU} q = Neg(a)"),
        block(behind="m = Sigmoid(n) a = Mul(m, each)"),
        block(behind="m = Sigmoid(n) a = Mul(m, z)"),
    ],
    ids=[
        "stride",
        "padding by the sizes",
        "1x1",
        "depthwise",
        "another reader",
        "each channel",
        "a tensor",
    ],
)
def test_what_is_stored(source: onnx.ModelProto) -> None:
    if any("q" in node.output for node in source.graph.node):
        source.graph.output.append(onnx.helper.make_tensor_value_info("q", onnx.TensorProto.FLOAT, None))
    assert not streamed(source)


def test_a_double_normalisation_is_stored() -> None:
    """The convolution's kernel reads floats where it computes."""
    constants = {"s": graphs.random("f8", (4,)), "o": graphs.random("f8", (4,), 1), "apart": np.int64([0, 4, -1])}
    proto = graphs.model(
        "double[N, 8, H, W] x",
        "double[?] y",
        f"t = Shape(x) r = Reshape(x, apart) i = InstanceNormalization(r, s, o) n = Reshape(i, t) {SILU}"
        " y = Conv <pads = [1, 1, 1, 1]> (a, w)",
        constants | {"w": graphs.random("f8", (8, 8, 3, 3), 2)},
    )
    x = graphs.random("f8", (2, 8, 17, 9))
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(sod2.compile(proto).run({"x": x})["y"], wanted, rtol=0, atol=1e-11)

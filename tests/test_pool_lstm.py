"""Pooling and LSTM of the runtime against onnxruntime, whose reading of ONNX's conventions is the point.

Each runs inline and with pools of 2 and 3 threads, whose bits must agree.
"""

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from native import Array, build, close, normal, on_each, open_pools, pointer, scratch
from onnx import helper


@pytest.fixture(scope="module")
def lib(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = build(["threads.c", "pool.c", "lstm.c"], [], tmp_path_factory.mktemp("pool"))
    library.sod2_lstm_scratch.restype = ctypes.c_int64
    return library


@pytest.fixture(scope="module")
def pools(lib: ctypes.CDLL) -> Iterator[list[ctypes.c_void_p]]:
    with open_pools(lib) as pools:
        yield pools


def onnx_run(op: str, inputs: dict[str, Array | None], outputs: int, **attributes: Any) -> list[Array]:
    """One ONNX node in onnxruntime; inputs that are None are absent."""
    names = [name if value is not None else "" for name, value in inputs.items()]
    results = [f"result{i}" for i in range(outputs)]
    present = {name: value for name, value in inputs.items() if value is not None}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in present.items()
    ]
    outs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in results]
    graph = helper.make_graph([helper.make_node(op, names, results, **attributes)], "g", infos, outs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, present)


# ---- pool.c ----------------------------------------------------------------------------------------------------------


SIZES = ("n", "c", "ih", "iw", "oh", "ow", "kh", "kw", "sh", "sw", "dh", "dw", "pt", "pl", "pb", "pr")


class Pooling(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in SIZES),
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
    ]


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "dilation", "pads"),
    [
        ((1, 3, 56, 56), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
        ((1, 2, 20, 20), (5, 5), (1, 1), (1, 1), (2, 2, 2, 2)),
        ((1, 2, 7, 7), (5, 5), (1, 1), (1, 1), (2, 2, 2, 2)),
        ((2, 2, 13, 35), (3, 3), (1, 1), (1, 1), (0, 2, 1, 0)),
        ((1, 2, 5, 17), (4, 7), (1, 1), (1, 1), (3, 0, 1, 6)),
        ((1, 2, 3, 1030), (3, 20), (1, 1), (1, 1), (1, 9, 1, 10)),  # more than one tile of columns
        ((1, 1, 6, 700), (2, 600), (1, 1), (1, 1), (0, 0, 0, 0)),  # a window longer than a tile
        ((2, 3, 7, 9), (2, 3), (2, 3), (1, 1), (0, 1, 1, 0)),
        ((1, 1, 1, 1), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
        ((1, 2, 13, 17), (3, 2), (1, 2), (2, 3), (2, 1, 0, 1)),
        ((1, 1, 3, 5000), (1, 3), (1, 4), (1, 1), (0, 1, 0, 1)),
        ((1, 1, 2, 6000), (2, 5000), (1, 600), (1, 1), (0, 0, 0, 0)),  # a window longer than the buffered line
        ((0, 2, 5, 5), (3, 3), (1, 1), (1, 1), (0, 0, 0, 0)),
        ((2, 40, 14, 14), (2, 2), (2, 2), (1, 1), (0, 0, 0, 0)),  # windows that tile the image
        ((1, 5, 8, 36), (4, 4), (4, 4), (1, 1), (0, 0, 0, 0)),
        ((3, 2, 56, 56), (8, 8), (8, 8), (1, 1), (0, 0, 0, 0)),
        ((1, 3, 10, 1020), (5, 3), (5, 3), (1, 1), (0, 0, 0, 0)),
        ((1, 2, 3, 1), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    ],
)
def test_pooling(
    lib: ctypes.CDLL,
    pools: list[ctypes.c_void_p],
    *,
    shape: tuple[int, ...],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    pads: tuple[int, ...],
    ceil_mode: int,
) -> None:
    x = normal(*shape)
    attributes = {
        "kernel_shape": kernel,
        "strides": stride,
        "dilations": dilation,
        "pads": pads,
        "ceil_mode": ceil_mode,
    }

    def run(expected: Array, function: Any, *arguments: Any) -> None:
        def on(pool: ctypes.c_void_p) -> Array:
            y = np.full(expected.shape, np.nan, np.float32)
            p = Pooling(*shape, *y.shape[2:], *kernel, *stride, *dilation, *pads, pointer(x), pointer(y))
            function(ctypes.byref(p), *arguments, pool)
            return y

        close(on_each(pools, on), expected)

    run(onnx_run("MaxPool", {"x": x}, 1, **attributes)[0], lib.sod2_max_pool)
    for include in (0, 1):
        mean = onnx_run("AveragePool", {"x": x}, 1, count_include_pad=include, **attributes)[0]
        run(mean, lib.sod2_average_pool, ctypes.c_int(include))


def test_max_pool_keeps_nan(lib: ctypes.CDLL) -> None:
    x = normal(1, 1, 6, 6)
    x[0, 0, 2, 3] = np.nan
    y = np.empty((1, 1, 6, 6), np.float32)
    p = Pooling(1, 1, 6, 6, 6, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, pointer(x), pointer(y))
    lib.sod2_max_pool(ctypes.byref(p), None)
    touched = np.zeros((6, 6), bool)
    touched[1:4, 2:5] = True
    assert np.array_equal(np.isnan(y[0, 0]), touched)


# ---- lstm.c ----------------------------------------------------------------------------------------------------------


class Lstm(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("steps", "batch", "input", "hidden")),
        *((name, ctypes.c_int) for name in ("directions", "reverse", "input_forget", "quantised")),
        ("clip", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("x", "w", "r", "b", "p", "h0", "c0", "lengths", "y", "y_h", "y_c")),
    ]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("sizes", "full", "attributes"),
    [
        ((1, 1, 10, 10), False, {}),
        ((7, 3, 5, 17), True, {}),
        ((4, 2, 33, 64), True, {"clip": 0.3}),
        ((3, 1, 300, 257), False, {"input_forget": 1}),
    ],
)
def test_lstm(
    lib: ctypes.CDLL,
    pools: list[ctypes.c_void_p],
    *,
    sizes: tuple[int, int, int, int],
    full: bool,
    attributes: dict[str, Any],
    direction: str,
) -> None:
    """`full` has every optional input, and sequences of different length."""
    steps, batch, size, hidden = sizes
    directions = 2 if direction == "bidirectional" else 1
    lengths = np.arange(steps, steps - batch, -1, dtype=np.int32) if full else None
    state = (directions, batch, hidden)
    inputs: dict[str, Array | None] = {
        "x": normal(steps, batch, size),
        "w": size**-0.5 * normal(directions, 4 * hidden, size, seed=1),
        "r": hidden**-0.5 * normal(directions, 4 * hidden, hidden, seed=2),
        "b": normal(directions, 8 * hidden, seed=3) if full else None,
        "lengths": lengths,
        "h0": normal(*state, seed=4) if full else None,
        "c0": normal(*state, seed=5) if full else None,
        "p": normal(directions, 3 * hidden, seed=6) if full else None,
    }
    expected = onnx_run("LSTM", inputs, 3, hidden_size=hidden, direction=direction, **attributes)

    def run(pool: ctypes.c_void_p) -> Array:
        out = [np.full_like(value, np.nan) for value in expected]
        pointers = [pointer(inputs[name]) for name in ("x", "w", "r", "b", "p", "h0", "c0", "lengths")]
        flags = (directions, direction == "reverse", attributes.get("input_forget", 0), 0)
        clip = attributes.get("clip", np.inf)
        layer = Lstm(*sizes, *flags, clip, *pointers, *map(pointer, out))
        work = scratch(lib.sod2_lstm_scratch(ctypes.byref(layer), lib.sod2_pool_threads(pool)))
        lib.sod2_lstm_run(ctypes.byref(layer), pointer(work), pool)
        return np.concatenate([value.ravel() for value in out])

    close(on_each(pools, run), np.concatenate([value.ravel() for value in expected]))


@pytest.mark.parametrize("sizes", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 1, 0, 4), (2, 1, 3, 0)])
def test_lstm_empty(lib: ctypes.CDLL, sizes: tuple[int, int, int, int]) -> None:
    steps, batch, size, hidden = sizes
    w, r, x = normal(1, 4 * hidden, size), normal(1, 4 * hidden, hidden), normal(steps, batch, size)
    h0 = normal(1, batch, hidden)
    y, last = np.full((steps, 1, batch, hidden), np.nan, np.float32), np.full((1, batch, hidden), np.nan, np.float32)
    inputs = [pointer(value) for value in (x, w, r, None, None, h0, None, None)]
    layer = Lstm(*sizes, 1, 0, 0, 0, np.inf, *inputs, pointer(y), pointer(last), pointer(None))
    work = scratch(lib.sod2_lstm_scratch(ctypes.byref(layer), 1))
    lib.sod2_lstm_run(ctypes.byref(layer), pointer(work), None)
    assert np.isfinite(y).all()
    assert np.isfinite(last).all()
    if steps == 0:
        assert np.array_equal(last, h0)

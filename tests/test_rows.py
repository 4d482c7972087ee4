"""Attention, softmax, normalisations and reductions of the runtime against numpy in float64.

Each runs inline and with pools of 2 and 3 threads, whose bits must agree.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from native import Array, build, call, close, normal, on_each, open_pools, pointer, scratch

SOURCES = ("threads.c", "tile.c", "attention.c", "rows.c", "group_norm.c")


@pytest.fixture(scope="module")
def lib(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = build(SOURCES, (), tmp_path_factory.mktemp("rows"))
    library.sod2_attention_scratch.restype = ctypes.c_int64
    return library


@pytest.fixture(scope="module")
def pools(lib: ctypes.CDLL) -> Iterator[list[ctypes.c_void_p]]:
    with open_pools(lib) as pools:
        yield pools


# ---- attention.c -----------------------------------------------------------------------------------------------------


class Attention(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "heads", "sq", "sk", "d", "dv")),
        *((name, ctypes.c_void_p) for name in "qkvo"),
        *((f"{tensor}_{step}", ctypes.c_int64) for tensor in "qkvo" for step in ("batch", "head", "row")),
        ("scale", ctypes.c_float),
        ("mask", ctypes.c_void_p),
        *((f"mask_{step}", ctypes.c_int64) for step in ("batch", "head", "row", "col")),
        ("down", ctypes.c_void_p),
        ("across", ctypes.c_void_p),
        ("columns", ctypes.c_int64),
        ("relative", ctypes.c_int),
        ("place", ctypes.c_void_p),
        ("distances", ctypes.c_void_p),
        *((f"{t}_{step}", ctypes.c_int64) for t in ("place", "distances") for step in ("batch", "head", "row")),
        ("hidden", ctypes.c_void_p),
        *((f"hidden_{step}", ctypes.c_int64) for step in ("batch", "head", "row", "col")),
        ("hides", ctypes.c_int),
        ("fill", ctypes.c_float),
    ]


def attention(lib: ctypes.CDLL, pool: ctypes.c_void_p, qkv: Sequence[Array], scale: float, mask: Any) -> Array:
    """Tensors [batch, heads, rows, columns], views with any strides but the last; mask broadcast to scores, or None."""
    batch, heads, sq, d = qkv[0].shape
    sk, dv = qkv[2].shape[2:]
    out = np.full((batch, sq, heads, dv), np.nan, np.float32).transpose(0, 2, 1, 3)
    tensors = (*qkv, out)
    steps = [tensor.strides[axis] // 4 for tensor in tensors for axis in range(3)]
    scores = np.broadcast_to(np.zeros(1, np.float32) if mask is None else mask, (batch, heads, sq, sk))
    sizes = (batch, heads, sq, sk, d, dv)
    mask_steps = [step // 4 for step in scores.strides]
    a = Attention(*sizes, *map(pointer, tensors), *steps, scale, pointer(mask), *mask_steps)
    work = scratch(lib.sod2_attention_scratch(ctypes.byref(a), lib.sod2_pool_threads(pool)))
    lib.sod2_attention_run(ctypes.byref(a), pointer(work), pool)
    return np.ascontiguousarray(out)


def attention_reference(qkv: Sequence[Array], scale: float, mask: Any) -> Array:
    q, k, v = (tensor.astype(np.float64) for tensor in qkv)
    scores = np.float64(np.float32(scale)) * (q @ k.swapaxes(2, 3))
    if mask is not None:
        scores = np.maximum(scores + mask, -1e30)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 12, 32, 32, 64, 64),
        (2, 3, 77, 77, 64, 64),
        (1, 1, 1, 1, 1, 1),
        (1, 2, 5, 700, 64, 64),  # two chunks of keys
        (1, 1, 90, 130, 512, 512),  # chunks of few keys, few queries carried
        (1, 2, 1, 33, 40, 24),
        (3, 1, 20, 1, 7, 130),
        (1, 1, 150, 1100, 80, 33),
        (2, 2, 15, 16, 8, 96),
        (1, 1, 29, 17, 3, 5),
        (1, 2, 9, 40, 0, 6),  # no features: the mean of V
    ],
)
def test_attention(lib: ctypes.CDLL, pools: list[ctypes.c_void_p], sizes: tuple[int, ...], interleaved: bool) -> None:
    batch, heads, sq, sk, d, dv = sizes
    shapes = [(batch, heads, sq, d), (batch, heads, sk, d), (batch, heads, sk, dv)]
    if interleaved:
        q, k, v = (normal(b, n, h, c, seed=i).transpose(0, 2, 1, 3) for i, (b, h, n, c) in enumerate(shapes))
    else:
        q, k, v = (normal(*shape, seed=i) for i, shape in enumerate(shapes))
    scale = 1.0 / max(d, 1) ** 0.5
    result = on_each(pools, lambda pool: attention(lib, pool, (q, k, v), scale, None))
    close(result, attention_reference((q, k, v), scale, None), 4e-6)


@pytest.mark.parametrize("shape", [(1, 1, 1, 600), (2, 1, 1, 600), (1, 3, 20, 600), (1, 1, 20, 1), (2, 3, 20, 600)])
def test_attention_mask(lib: ctypes.CDLL, pools: list[ctypes.c_void_p], shape: tuple[int, ...]) -> None:
    q, k, v = normal(2, 3, 20, 32), normal(2, 3, 600, 32, seed=1), normal(2, 3, 600, 32, seed=2)
    mask = normal(*shape, seed=3)
    mask[mask > 0.7] = -30
    mask[mask > 0.5] = -np.inf
    result = on_each(pools, lambda pool: attention(lib, pool, (q, k, v), 0.5, mask))
    close(result, attention_reference((q, k, v), 0.5, mask))


def test_attention_transposed_mask(lib: ctypes.CDLL, pools: list[ctypes.c_void_p]) -> None:
    q, k, v, mask = normal(1, 1, 30, 16), normal(1, 1, 45, 16), normal(1, 1, 45, 16), normal(45, 30).T
    close(attention(lib, pools[0], (q, k, v), 1.0, mask), attention_reference((q, k, v), 1.0, mask))


@pytest.mark.parametrize("hidden", [-np.inf, np.finfo(np.float32).min, -1e30])
@pytest.mark.parametrize("keys", [40, 1100])
def test_attention_hidden_rows(lib: ctypes.CDLL, pools: list[ctypes.c_void_p], hidden: float, keys: int) -> None:
    q, k, v = normal(1, 1, 3, 64), normal(1, 1, keys, 64, seed=1), normal(1, 1, keys, 64, seed=2)
    mask = np.zeros((3, keys), np.float32)
    mask[0], mask[1, : keys // 2 + 70] = hidden, hidden  # a hidden row; one whose first chunk is hidden
    result = attention(lib, pools[0], (q, k, v), 0.125, mask)
    close(result, attention_reference((q, k, v), 0.125, mask))
    close(result[0, 0, 0], v[0, 0].mean(0))


def test_attention_nan_stays_in_its_row(lib: ctypes.CDLL, pools: list[ctypes.c_void_p]) -> None:
    q, k, v = normal(1, 1, 5, 64), normal(1, 1, 9, 64), normal(1, 1, 9, 64)
    q[0, 0, 2, 7] = np.nan
    result = attention(lib, pools[0], (q, k, v), 0.125, None)
    assert np.array_equal(np.isnan(result).all(-1)[0, 0], [False, False, True, False, False])
    assert np.isnan(result).sum() == 64


@pytest.mark.parametrize(
    "sizes", [(0, 2, 3, 4, 8, 8), (1, 0, 3, 4, 8, 8), (1, 2, 0, 4, 8, 8), (1, 2, 3, 0, 8, 8), (1, 2, 3, 4, 8, 0)]
)
def test_attention_empty(lib: ctypes.CDLL, pools: list[ctypes.c_void_p], sizes: tuple[int, ...]) -> None:
    batch, heads, sq, sk, d, dv = sizes
    q, k, v = normal(batch, heads, sq, d), normal(batch, heads, sk, d), normal(batch, heads, sk, dv)
    result = attention(lib, pools[1], (q, k, v), 1.0, None)
    assert np.array_equal(result, np.zeros((batch, heads, sq, dv)))


def test_attention_scratch_is_bounded(lib: ctypes.CDLL) -> None:
    for d in (16, 64, 128, 512):
        for length in (32, 384, 4096, 10**6):
            a = Attention(1, 12, length, length, d, d)
            assert lib.sod2_attention_scratch(ctypes.byref(a), 1) <= 280 * 1024, (d, length)
            assert lib.sod2_attention_scratch(ctypes.byref(a), 3) == 3 * lib.sod2_attention_scratch(ctypes.byref(a), 1)


# ---- rows.c ----------------------------------------------------------------------------------------------------------

AXES = [
    (1, 1, 1),
    (3, 2, 1),
    (5, 17, 1),
    (64, 384, 1),
    (40, 1000, 1),
    (2, 16, 7),
    (3, 5, 300),
    (1, 33, 513),
    (7, 1, 64),
]
EMPTY = [(0, 5, 1), (4, 0, 1), (4, 0, 3), (0, 3, 2), (2, 3, 0)]


def softmax_reference(x: Array) -> Array:
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True, initial=-np.inf))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("shape", AXES + EMPTY)
def test_softmax(lib: ctypes.CDLL, pools: list[ctypes.c_void_p], shape: tuple[int, ...], in_place: bool) -> None:
    x = 10 * normal(*shape)

    def run(function: Any, pool: ctypes.c_void_p) -> Array:
        source = x.copy()
        y = source if in_place else np.full_like(x, np.nan)
        call(function, source, y, *shape, pool)
        return y

    close(on_each(pools, lambda pool: run(lib.sod2_softmax, pool)), softmax_reference(x))
    log = x.astype(np.float64) - np.logaddexp.reduce(x.astype(np.float64), axis=1, keepdims=True) if x.size else x
    close(on_each(pools, lambda pool: run(lib.sod2_log_softmax, pool)), log)


@pytest.mark.parametrize("inner", [1, 3])
@np.errstate(all="ignore")
def test_softmax_special_values(lib: ctypes.CDLL, inner: int) -> None:
    lowest = np.finfo(np.float32).min
    rows = np.float32(
        [[-np.inf, 0, 1], [-np.inf] * 3, [np.inf, 0, 1], [np.nan, 0, 1], [lowest] * 3, [-lowest, 0, lowest]]
    )
    x = np.ascontiguousarray(np.repeat(rows[:, :, None], inner, 2))
    y, log = np.empty_like(x), np.empty_like(x)
    call(lib.sod2_softmax, x, y, *x.shape, None)
    call(lib.sod2_log_softmax, x, log, *x.shape, None)
    close(y, softmax_reference(x))
    assert (y[0, 0] == 0).all()
    np.testing.assert_allclose(log[[0, 3, 4]], np.log(softmax_reference(x))[[0, 3, 4]], rtol=1e-6)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (128, 768), (40, 1000), (2, 100003), (0, 4), (4, 0)])
def test_row_norms(lib: ctypes.CDLL, pools: list[ctypes.c_void_p], shape: tuple[int, int], affine: bool) -> None:
    outer, n = shape
    x = 3 + normal(outer, n)
    scale, bias = (normal(n, seed=1), normal(n, seed=2)) if affine else (None, None)
    wide = x.astype(np.float64)
    statistics = np.empty((2, outer), np.float32)

    def layer_norm(pool: ctypes.c_void_p) -> Array:
        y = np.empty_like(x)
        call(lib.sod2_layer_norm, x, scale, bias, y, statistics[0], statistics[1], outer, n, 1e-5, None, None, pool)
        return y

    def rms_norm(pool: ctypes.c_void_p) -> Array:
        y = x.copy()
        call(lib.sod2_rms_norm, y, scale, y, outer, n, 1e-5, None, None, pool)
        return y

    result, rms = on_each(pools, layer_norm), on_each(pools, rms_norm)
    if x.size == 0:
        return
    mean, inv_std = wide.mean(1), 1 / np.sqrt(wide.var(1) + 1e-5)
    expected = (wide - mean[:, None]) * inv_std[:, None]
    close(result, expected * scale + bias if affine else expected, 5e-6)
    close(statistics, np.stack([mean, inv_std]))
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    close(rms, expected * scale if affine else expected)


class Norm(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "scale", "bias")),
        *((name, ctypes.c_int64) for name in ("batch", "channels", "groups", "spatial")),
        ("epsilon", ctypes.c_float),
        ("affine", ctypes.c_void_p),
        ("lines", ctypes.c_void_p),
    ]


@pytest.mark.parametrize("sizes", [(2, 8, 2, 35), (1, 32, 32, 400), (3, 6, 1, 1), (1, 4, 2, 0)])
def test_group_norm(lib: ctypes.CDLL, pools: list[ctypes.c_void_p], sizes: tuple[int, int, int, int]) -> None:
    batch, channels, groups, spatial = sizes
    x, scale, bias = normal(batch, channels, spatial), normal(channels, seed=1), normal(channels, seed=2)

    def run(pool: ctypes.c_void_p) -> Array:
        y = np.empty_like(x)
        norm = Norm(pointer(x), pointer(scale), pointer(bias), *sizes, 1e-6)
        call(lib.sod2_group_norm, ctypes.byref(norm), y, None, None, pool)
        return y

    result = on_each(pools, run)
    if x.size:
        wide = x.astype(np.float64).reshape(batch, groups, -1)
        wide = (wide - wide.mean(2, keepdims=True)) / np.sqrt(wide.var(2, keepdims=True) + 1e-6)
        close(result, wide.reshape(x.shape) * scale[:, None] + bias[:, None], 5e-6)


REDUCTIONS: list[Callable[[Array], Array]] = [
    lambda x: x.sum(1),
    lambda x: x.mean(1),
    lambda x: x.max(1, initial=-np.inf),
    lambda x: x.min(1, initial=np.inf),
    lambda x: x.prod(1),
    lambda x: np.abs(x).sum(1),
    lambda x: np.sqrt((x**2).sum(1)),
    lambda x: (x**2).sum(1),
    lambda x: np.log(x.sum(1)),
    lambda x: np.logaddexp.reduce(x, axis=1, initial=-np.inf),
]


@pytest.mark.parametrize("op", range(len(REDUCTIONS)))
@pytest.mark.parametrize("shape", AXES + EMPTY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_reduce(lib: ctypes.CDLL, pools: list[ctypes.c_void_p], shape: tuple[int, int, int], op: int) -> None:
    outer, n, inner = shape
    x = 1 + 0.1 * normal(*shape)

    def run(pool: ctypes.c_void_p) -> Array:
        y = np.full((outer, inner), 7, np.float32)
        call(lib.sod2_reduce, x, y, ctypes.c_int(op), outer, n, inner, None, None, pool)
        return y

    close(on_each(pools, run), REDUCTIONS[op](x.astype(np.float64)), 2e-5 if op == 4 else 2e-6)


@pytest.mark.parametrize("n", [3, 50, 100])
@pytest.mark.parametrize("inner", [1, 2])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_reduce_special_values(lib: ctypes.CDLL, n: int, inner: int) -> None:
    x = normal(4 * n, n, inner)
    for position in range(n):  # NaN must survive in every lane
        x[position, position], x[n + position, position] = np.nan, np.inf
        x[2 * n + position, position] = -np.inf
    x[3 * n] = -np.inf
    for op in (0, 2, 3, 9):
        y = np.empty((4 * n, inner), np.float32)
        call(lib.sod2_reduce, x, y, ctypes.c_int(op), *x.shape, None, None, None)
        close(y, REDUCTIONS[op](x.astype(np.float64)))

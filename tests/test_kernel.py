"""The runtime's prelude (kernel.h, vmath.h) and its thread pool, against numpy in float64 and Python's integers."""

import ctypes
import itertools
import math
import platform
from collections.abc import Callable

import numpy as np
import pytest
from native import Array, build, call, pointer

from sod2.codegen import target as toolchain

# Function: (reference in float64, largest error in ulp that vmath.h promises)
UNARY: dict[str, tuple[Callable[[Array], Array], float]] = {
    "expf": (np.exp, 1.1),
    "expm1f": (np.expm1, 1.5),
    "logf": (np.log, 1.0),
    "log1pf": (np.log1p, 2.5),
    "tanhf": (np.tanh, 2.5),
    "sigmoidf": (lambda x: 1 / (1 + np.exp(-x)), 2.5),
    "erff": (np.vectorize(math.erf, otypes=[float]), 5),
    "softplusf": (lambda x: np.logaddexp(0, x), 3.0),
    "sqrtf": (np.sqrt, 0.5),
    "rsqrtf": (lambda x: 1 / np.sqrt(x), 1.5),
    "floorf": (np.floor, 0.0),
    "ceilf": (np.ceil, 0.0),
    "truncf": (np.trunc, 0.0),
    "roundevenf": (np.rint, 0.0),
    "absf": (np.abs, 0.0),
    "signf": (np.sign, 0.0),
    "reluf": (lambda x: np.where(np.isnan(x), x, np.maximum(x, 0)), 0.0),
    "sinf": (np.sin, 1.5),
    "cosf": (np.cos, 1.5),
}
BINARY = {"maxf": np.maximum, "minf": np.minimum, "powf": np.power}
INTEGER = ("truncdiv", "truncmod", "floordiv", "floormod", "ceildiv")
CHECKED = ("add", "sub", "mul", "div", "mod")


@pytest.fixture(scope="module")
def target() -> toolchain.Target:
    return toolchain.host()


@pytest.fixture(scope="module")
def lib(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = build(["threads.c"], ["kernel_probe.c"], tmp_path_factory.mktemp("kernel"))
    library.sod2_denormals_off.restype = ctypes.c_uint64
    library.probe_half.restype = ctypes.c_float
    for name in (*INTEGER, *CHECKED):
        getattr(library, f"probe_{name}").restype = ctypes.c_int64
    return library


# ---- vmath.h ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def floats() -> Array:
    """Every 8009th float, a fine grid of [-100, 100] and the special values; a multiple of 16 of them."""
    bits = np.arange(0, 2**32, 8009, dtype=np.uint64).astype(np.uint32)
    grid = np.linspace(-100, 100, 200003, dtype=np.float32)
    special = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, 1.5, 2.5])
    x = np.concatenate([special, bits.view(np.float32), grid])
    return x[: x.size // 16 * 16].copy()


def apply(lib: ctypes.CDLL, name: str, *inputs: Array) -> Array:
    y = np.empty_like(inputs[0])
    call(getattr(lib, f"probe_{name}"), *inputs, y, y.size)
    return y


@pytest.mark.parametrize("name", UNARY)
@np.errstate(all="ignore")
def test_unary(lib: ctypes.CDLL, floats: Array, name: str) -> None:
    reference, limit = UNARY[name]
    x = floats if name != "logf" else floats[~((np.abs(floats) < 1.2e-38) & (floats != 0))]
    y = apply(lib, name, x)
    exact = reference(x.astype(np.float64))
    rounded = exact.astype(np.float32)
    assert np.array_equal(np.isnan(y), np.isnan(exact))
    assert np.array_equal(y[np.isinf(rounded)], rounded[np.isinf(rounded)])
    normal_result = np.isfinite(rounded) & (np.abs(rounded) > 1.2e-38) & (np.abs(x) > 1.2e-38)
    ulp = np.abs(y.astype(np.float64) - exact)[normal_result] / np.spacing(np.abs(rounded[normal_result]))
    assert ulp.max() <= limit
    tiny = np.isfinite(rounded) & (np.abs(rounded) <= 1.2e-38)
    assert np.abs(y - exact)[tiny].max(initial=0) <= 1.2e-38


@pytest.mark.parametrize("name", ["expm1f", "erff", "truncf", "roundevenf"])
def test_sign_of_zero(lib: ctypes.CDLL, name: str) -> None:
    assert np.array_equal(np.signbit(apply(lib, name, np.float32([0.0, -0.0] * 8))), [False, True] * 8)


@np.errstate(all="ignore")
def test_absolute_errors(lib: ctypes.CDLL, floats: Array) -> None:
    x = floats[np.isfinite(floats) & (np.abs(floats) < 100)].astype(np.float32)
    x = x[: x.size // 16 * 16].copy()
    wide = x.astype(np.float64)
    erf = UNARY["erff"][0]
    assert np.abs(apply(lib, "geluf", x) - 0.5 * wide * (1 + erf(wide / math.sqrt(2)))).max() < 4e-6
    gelu = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    assert np.abs(apply(lib, "gelu_tanhf", x) - gelu).max() < 4e-6
    x = -np.abs(x)
    assert np.abs(apply(lib, "exp2_negative", x) - np.exp2(x.astype(np.float64))).max() < 1.4e-7
    assert apply(lib, "exp2_negative", np.zeros(16, np.float32))[0] == 1
    assert np.isnan(apply(lib, "exp2_negative", np.full(16, np.nan, np.float32))).all()


@pytest.mark.parametrize("name", BINARY)
@np.errstate(all="ignore")
def test_binary(lib: ctypes.CDLL, name: str) -> None:
    values = np.float32([0, 1, -1, 2.5, -3, 1e30, -1e30, np.inf, -np.inf, np.nan])
    a, b = (np.ascontiguousarray(x.ravel()) for x in np.meshgrid(values, values))
    np.testing.assert_allclose(apply(lib, name, a, b), BINARY[name](a, b), rtol=2e-7)


def test_integer_division(lib: ctypes.CDLL) -> None:
    for a, b in itertools.product((-7, -6, 0, 5, 2**62, -(2**63)), (-3, -1, 0, 1, 2, 2**40)):
        results = [getattr(lib, f"probe_{name}")(ctypes.c_int64(a), ctypes.c_int64(b)) for name in INTEGER[:4]]
        if b == 0:
            assert results == [0, 0, 0, 0]
            continue
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        wrapped = [(v + 2**63) % 2**64 - 2**63 for v in (quotient, a - quotient * b, a // b, a % b)]
        assert results == wrapped, (a, b)
    for a, b in itertools.product((0, 1, 31, 32, 33), (1, 16, 32)):
        assert lib.probe_ceildiv(ctypes.c_int64(a), ctypes.c_int64(b)) == -(-a // b)


def test_checked_arithmetic(lib: ctypes.CDLL) -> None:
    exact: dict[str, Callable[[int, int], int]] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a // b,
        "mod": lambda a, b: a % b,
    }
    values = (0, 1, -1, 3, -3, 2**31, -(2**40), 2**62, 2**63 - 1, -(2**63))
    for name, a, b in itertools.product(CHECKED, values, values):
        flag = ctypes.c_int(0)
        result = getattr(lib, f"probe_{name}")(ctypes.c_int64(a), ctypes.c_int64(b), ctypes.byref(flag))
        undefined = b == 0 and name in ("div", "mod")
        if undefined or not -(2**63) <= exact[name](a, b) < 2**63:
            assert flag.value == 1, (name, a, b)
        else:
            assert (result, flag.value) == (exact[name](a, b), 0), (name, a, b)


def test_partial_vectors(lib: ctypes.CDLL, target: toolchain.Target) -> None:
    x = np.arange(1, 17, dtype=np.float32)
    for n in range(target.lanes + 1):
        y = np.zeros(16, np.float32)
        call(lib.probe_partial, x, y, n)
        assert np.array_equal(y, np.where(np.arange(16) < n, x, 0))
    y = np.zeros(3, np.float32)
    lib.probe_lanes(pointer(x), pointer(y))
    assert np.array_equal(y, [x[: target.lanes].sum(), target.lanes, 1])


# ---- threads.c -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_chunk_once(lib: ctypes.CDLL, threads: int) -> None:
    pool = ctypes.c_void_p(lib.sod2_pool_create(threads))
    assert lib.sod2_pool_threads(pool) == threads
    for chunks in [0, 1, 2, 7, 1000, *([3] * 300)]:  # many short jobs: workers arrive late
        seen, thread = np.zeros(chunks, np.int32), np.zeros(chunks, np.int32)
        lib.probe_parallel(pool, ctypes.c_int64(chunks), pointer(seen), pointer(thread))
        assert (seen == 1).all()
        assert ((thread >= 0) & (thread < threads)).all()
    lib.sod2_pool_free(pool)


def test_null_pool(lib: ctypes.CDLL) -> None:
    assert lib.sod2_pool_threads(None) == 1
    lib.sod2_pool_free(None)
    seen = np.zeros(5, np.int32)
    lib.probe_parallel(None, ctypes.c_int64(5), pointer(seen), pointer(np.zeros(5, np.int32)))
    assert (seen == 1).all()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64", "arm64"), reason="no control register is known")
def test_denormals(lib: ctypes.CDLL) -> None:
    tiny = ctypes.c_float(np.finfo(np.float32).tiny)
    assert lib.probe_half(tiny) > 0
    state = lib.sod2_denormals_off()
    flushed = lib.probe_half(tiny)
    lib.sod2_denormals_restore(ctypes.c_uint64(state))
    assert flushed == 0
    assert lib.probe_half(tiny) > 0

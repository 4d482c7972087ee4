"""GEMM, convolutions and transposed convolution of the runtime against float64, at 1 and 2 threads."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sod2 import conv_cost, packing, versions

RUNTIME = Path(packing.__file__).parent / "runtime"
SOURCES = [
    *("gemm", "tile", "strips", "strip_lines", "conv", "conv_panel", "conv_pixel", "conv_dot"),
    *("winograd", "depthwise", "conv_transpose", "conv_taps"),
]
I64, PTR = ctypes.c_int64, ctypes.c_void_p
CONV_SIZES = ["n", "ic", "ih", "iw", "oc", "oh", "ow", "groups", "kh", "kw", "sh", "sw", "pt", "pl", "dh", "dw"]
# Relative to the largest output: sums of up to 2000 products in float32, and the transforms of Winograd.
TOLERANCE = {"panel": 3e-6, "pixel": 3e-6, "dot": 3e-6, "depthwise": 3e-6, "taps": 3e-6, "wino2": 5e-6, "wino4": 1e-5}
TOLERANCE |= {"wino3": 1e-5, "wino6": 4e-5}


class Epilogue(ctypes.Structure):
    _fields_ = [
        *((name, PTR) for name in ("y", "bias", "residual", "stores")),
        *((name, I64) for name in ("rows", "cols")),
        *((name, ctypes.c_int32) for name in ("bias_by_row", "relu")),
    ]


class Gemm(ctypes.Structure):
    _fields_ = [
        *((name, I64) for name in ("batch", "m", "n", "k")),
        ("a", PTR),
        *((name, I64) for name in ("lda", "a_batch", "a_col")),
        ("b", PTR),
        *((name, I64) for name in ("b_batch", "b_count")),
        ("out", PTR),
        *((name, I64) for name in ("ldo", "out_batch")),
        ("epilogue", PTR),
        ("epilogue_args", PTR),
        ("touched", PTR * 2),
    ]


class Conv(ctypes.Structure):
    _fields_ = [
        *((name, I64) for name in CONV_SIZES),
        ("x", PTR),
        ("prologue", PTR),
        ("prologue_args", PTR),
        ("w", PTR * len(packing.CONV_VERSIONS)),
        ("y", PTR),
        ("bias", PTR),
        ("rectified", ctypes.c_int32),
        ("epilogue", PTR),
        ("epilogue_args", PTR),
        ("touched", PTR * 2),
        ("scratch_limit", I64),
    ]


class Image(ctypes.Structure):
    """What the prologue of the tests copies lines of."""

    _fields_ = [("x", PTR), ("channels", I64), ("pixels", I64)]


@dataclass(frozen=True)
class Kernels:
    """The compiled kernels, the tile they were compiled for, and pools of 1 and 2 threads."""

    lib: ctypes.CDLL
    tile: packing.Tile
    pools: tuple[ctypes.c_void_p | None, ctypes.c_void_p]


def compiler() -> list[str]:
    found = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler on PATH")
    return [found]


@pytest.fixture(scope="session", params=["native", "portable"])
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernels]:
    """The kernels for this machine, and for vectors of 4 floats."""
    target = ["-march=native"] if request.param == "native" else []
    library = tmp_path_factory.mktemp("kernels") / f"{request.param}.so"
    sources = [RUNTIME / f"{name}.c" for name in [*SOURCES, "threads"]] + [Path(__file__).parent / "kernels_test.c"]
    flags = [
        "-O3",
        "-std=gnu11",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
    ]
    command = [*compiler(), *flags, *target, f"-I{RUNTIME}", "-o", library, *sources, "-lm", "-lpthread"]
    subprocess.run([str(part) for part in command], check=True)
    lib = ctypes.CDLL(str(library))
    lib.sod2_pool_create.restype = PTR
    lib.test_cost.restype = ctypes.c_double
    lib.sod2_conv_scratch.restype = lib.sod2_conv_transpose_scratch.restype = lib.sod2_gemm_packed_floats.restype = I64
    shape = (ctypes.c_int32 * 4).in_dll(lib, "test_tile")
    pool = ctypes.c_void_p(lib.sod2_pool_create(2))
    yield Kernels(lib, packing.Tile(*shape), (None, pool))
    lib.sod2_pool_free(pool)


def pointer(array: np.ndarray | None) -> int | None:
    return None if array is None else array.ctypes.data


def epilogue(kernels: Kernels, shape: tuple[int, int, int], by_row: bool, rng: np.random.Generator) -> SimpleNamespace:
    """An epilogue with bias, residual and ReLU for an output of `shape`, and what it computes from a plain result."""
    bias = rng.standard_normal(shape[1] if by_row else shape[2], np.float32)
    y = rng.standard_normal(shape, np.float32)  # stored in place over the residual
    residual, stores = y.copy(), np.zeros(shape, np.int32)
    args = Epilogue(pointer(y), pointer(bias), pointer(y), pointer(stores), shape[1], shape[2], int(by_row), 1)
    spread = bias[:, None] if by_row else bias
    return SimpleNamespace(
        y=y,
        stores=stores,
        bias=bias,
        args=args,
        function=ctypes.cast(kernels.lib.test_store, PTR),
        expected=lambda plain: np.maximum(plain + spread + residual, 0),
    )


def check(result: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    scale = np.abs(expected).max(initial=1e-30)
    assert np.abs(result - expected).max(initial=0) <= tolerance * scale


# ---- GEMM ---------------------------------------------------------------------------------------------------------


def run_gemm(
    kernels: Kernels, a: np.ndarray, b: np.ndarray, *, pool: int, fused: bool = False, transposed: bool = False
) -> np.ndarray:
    """a: [batch, m, k], b: [k, n] or [batch, k, n]. With `transposed`, A is stored as [batch, k, m]."""
    batch, m, k = a.shape
    n = b.shape[-1]
    packed = packing.gemm_b(b, kernels.tile.nr)
    stored = np.ascontiguousarray(a.transpose(0, 2, 1)) if transposed else a
    out = np.full((batch, m, n), np.nan, np.float32)
    gemm = Gemm(
        batch, m, n, k, pointer(stored), 1 if transposed else k, m * k, m if transposed else 1,
        pointer(packed), packed.size // batch if b.ndim == 3 and batch else 0, 0, pointer(out), n, m * n,
    )  # fmt: skip
    if not fused:
        kernels.lib.sod2_gemm_run(ctypes.byref(gemm), kernels.pools[pool])
        return out
    target = epilogue(kernels, (batch, m, n), by_row=False, rng=np.random.default_rng(7))
    gemm.epilogue, gemm.epilogue_args, gemm.out = target.function, ctypes.addressof(target.args), None
    gemm.touched[0] = pointer(target.y)
    kernels.lib.sod2_gemm_run(ctypes.byref(gemm), kernels.pools[pool])
    assert (target.stores == 1).all()
    check(target.y, target.expected(a.astype(np.float64) @ b.astype(np.float64)), 1e-5)
    return target.y


GEMM_SHAPES = [
    (1, 1, 1, 1), (1, 1, 100, 70), (1, 7, 33, 77), (1, 13, 32, 600), (2, 5, 31, 16), (1, 129, 65, 40), (1, 250, 3, 9),
    (3, 0, 4, 5), (0, 3, 4, 5), (1, 3, 0, 5), (1, 3, 40, 0), (1, 40, 96, 1030), (4, 30, 20, 10),
]  # fmt: skip


@pytest.mark.parametrize("shape", GEMM_SHAPES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_gemm(kernels: Kernels, shape: tuple[int, int, int, int], transposed: bool) -> None:
    batch, m, n, k = shape
    rng = np.random.default_rng(shape)
    a = rng.standard_normal((batch, m, k), np.float32)
    for b in (rng.standard_normal((k, n), np.float32), rng.standard_normal((batch, k, n), np.float32)):
        plain = run_gemm(kernels, a, b, pool=0, transposed=transposed)
        check(plain, a.astype(np.float64) @ b.astype(np.float64), 3e-6)
        assert run_gemm(kernels, a, b, pool=1, transposed=transposed).tobytes() == plain.tobytes()
        one, two = (run_gemm(kernels, a, b, pool=p, fused=True, transposed=transposed) for p in (0, 1))
        assert one.tobytes() == two.tobytes()


def test_gemm_row_does_not_depend_on_others(kernels: Kernels) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((1, 50, 700), np.float32), rng.standard_normal((700, 40), np.float32)
    whole = run_gemm(kernels, a, b, pool=0)
    for rows in (1, 2, 9, 33):
        part = run_gemm(kernels, np.ascontiguousarray(a[:, :rows]), b, pool=1)
        assert part.tobytes() == whole[:, :rows].tobytes()


@pytest.mark.parametrize(("k", "n"), [(1, 1), (40, 64), (33, 65), (0, 5), (5, 0), (100, 7)])
def test_pack_b_at_run_time_equals_packing(kernels: Kernels, k: int, n: int) -> None:
    b = np.random.default_rng(k * n).standard_normal((k, n), np.float32)
    expected = packing.gemm_b(b, kernels.tile.nr)
    assert kernels.lib.sod2_gemm_packed_floats(I64(k), I64(n)) == expected.size
    for source, ldk, ldn in ((b, n, 1), (np.ascontiguousarray(b.T), 1, k)):
        packed = np.full(expected.size, np.nan, np.float32)
        sizes = [I64(v) for v in (k, n, ldk, ldn)]
        kernels.lib.sod2_gemm_pack_b(PTR(pointer(source)), *sizes, PTR(pointer(packed)), kernels.pools[1])
        assert packed.tobytes() == expected.tobytes()


# ---- convolution --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One convolution: sizes, strides and dilations by axis, pads as top, left, bottom, right."""

    n: int
    ic: int
    oc: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def out(self) -> list[int]:
        return [
            (self.size[i] + self.pads[i] + self.pads[i + 2] - (self.kernel[i] - 1) * self.dilation[i] - 1)
            // self.stride[i] + 1
            for i in range(2)
        ]  # fmt: skip

    def conv(self, out: list[int], limit: int = 0) -> Conv:
        return Conv(
            self.n, self.ic, *self.size, self.oc, *out, self.groups, *self.kernel, *self.stride, *self.pads[:2],
            *self.dilation, scratch_limit=limit,
        )  # fmt: skip


def reference(case: Case, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Sum over taps in float64."""
    (sh, sw), (dh, dw), (oh, ow) = case.stride, case.dilation, case.out()
    top, left, bottom, right = case.pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    y = np.zeros((case.n, case.oc, oh, ow))
    inputs, outputs = case.ic // case.groups, case.oc // case.groups
    for group, ky, kx in itertools.product(range(case.groups), *map(range, case.kernel)):
        tap = padded[:, group * inputs :][:, :inputs, ky * dh :, kx * dw :][
            :, :, : (oh - 1) * sh + 1 : sh, : (ow - 1) * sw + 1 : sw
        ]
        rows = slice(group * outputs, (group + 1) * outputs)
        y[:, rows] += np.einsum("oc,nchw->nohw", w[rows, :, ky, kx].astype(np.float64), tap[:, :, :oh, :ow])
    return y


def run_conv(
    kernels: Kernels,
    conv: Conv,
    version: str,
    packed: np.ndarray,
    *,
    x: np.ndarray,
    pool: int,
    fused: SimpleNamespace | None = None,
    loaded: bool = False,
) -> np.ndarray:
    """The result; x passes through a prologue if `loaded`."""
    y = np.full((conv.n, conv.oc, conv.oh, conv.ow), np.nan, np.float32)
    index = packing.CONV_VERSIONS.index(version)
    image = Image(pointer(x), conv.ic, conv.ih * conv.iw)
    conv.x, conv.y = None if loaded else pointer(x), pointer(y)
    if loaded:
        conv.prologue = ctypes.cast(kernels.lib.test_prologue, PTR)
        conv.prologue_args = ctypes.addressof(image)
    conv.w[index] = pointer(packed)
    conv.epilogue = fused.function if fused else None
    conv.epilogue_args = ctypes.addressof(fused.args) if fused else None
    conv.touched[0] = pointer(fused.y) if fused else None
    size = kernels.lib.sod2_conv_scratch(ctypes.byref(conv), index, pool + 1)
    raw = np.full(size // 4 + 64, np.nan, np.float32)  # scratch of a previous run may hold anything
    aligned = raw.ctypes.data + (-raw.ctypes.data % 64)
    assert kernels.lib.sod2_conv_choose(ctypes.byref(conv), pool + 1) == index
    kernels.lib.sod2_conv_run(ctypes.byref(conv), index, PTR(aligned), kernels.pools[pool])
    assert np.isnan(raw[(aligned - raw.ctypes.data + size) // 4 :]).all(), "wrote behind its scratch"
    return fused.y if fused else y


def check_conv(kernels: Kernels, case: Case, version: str) -> None:
    rng = np.random.default_rng(abs(hash(case)) % 2**32)
    x = rng.standard_normal((case.n, case.ic, *case.size), np.float32)
    w = rng.standard_normal((case.oc, case.ic // case.groups, *case.kernel), np.float32)
    packed = packing.conv_weights(version, w, case.groups, kernels.tile)
    out = case.out()
    expected = reference(case, x, w)
    plain = [run_conv(kernels, case.conv(out), version, packed, x=x, pool=pool) for pool in (0, 1)]
    check(plain[0], expected, TOLERANCE[version])
    assert plain[0].tobytes() == plain[1].tobytes()
    for limit, pool in ((1, 0), (1, 1), (200_000, 1)):
        limited = run_conv(kernels, case.conv(out, limit), version, packed, x=x, pool=pool)
        assert limited.tobytes() == plain[0].tobytes()
    if case.stride == (1, 1) and case.kernel != (1, 1) and version not in ("depthwise", "taps"):
        loaded = run_conv(kernels, case.conv(out), version, packed, x=x, pool=1, loaded=True)
        assert loaded.tobytes() == plain[0].tobytes()
    shape = (case.n, case.oc, out[0] * out[1])
    for pool in (0, 1):
        conv, bias = case.conv(out), rng.standard_normal(case.oc, np.float32)
        conv.bias, conv.rectified = pointer(bias), pool
        y, least = run_conv(kernels, conv, version, packed, x=x, pool=pool), 0 if pool else -np.inf
        check(y, np.maximum(expected + bias[:, None, None], least), 2 * TOLERANCE[version])
        fused = epilogue(kernels, shape, by_row=True, rng=np.random.default_rng(5))
        y = run_conv(kernels, case.conv(out), version, packed, x=x, pool=pool, fused=fused)
        assert (fused.stores == 1).all()
        check(y, fused.expected(expected.reshape(shape)), 2 * TOLERANCE[version])


SINGLE = [
    Case(1, 512, 1, (7, 7), (3, 3), pads=(1, 1, 1, 1)),
    Case(3, 5, 1, (2, 1), (3, 3), pads=(1, 1, 1, 1)),
    Case(2, 33, 1, (9, 40), (5, 4), pads=(2, 0, 1, 3)),
    Case(1, 20, 1, (13, 17), (3, 2), pads=(0, 2, 4, 1), dilation=(2, 3)),
    Case(1, 3, 1, (4, 700), (2, 3), pads=(1, 0, 0, 1)),
    Case(1, 8, 1, (60, 60), (3, 3), pads=(1, 1, 1, 1)),  # more products than it is meant for
    Case(0, 8, 1, (6, 6), (3, 3)),
]
GENERAL = [
    Case(1, 3, 16, (23, 37), (3, 3), (2, 2), (1, 1, 1, 1)),
    Case(1, 3, 20, (29, 31), (7, 7), (2, 2), (3, 3, 3, 3)),
    Case(2, 5, 7, (9, 11), (3, 2), (1, 3), (2, 0, 1, 2)),
    Case(1, 17, 35, (13, 13), (1, 1)),
    Case(1, 40, 33, (7, 7), (1, 1)),
    Case(1, 70, 60, (28, 28), (1, 1)),
    Case(1, 300, 40, (14, 14), (1, 1)),
    Case(1, 16, 40, (15, 9), (1, 1), (2, 2)),
    Case(2, 24, 30, (40, 41), (1, 1), (2, 3), (1, 0, 0, 1)),
    Case(1, 600, 20, (3, 500), (1, 1), (2, 1)),
    Case(1, 6, 20, (130, 75), (1, 1), (2, 1), (1, 3, 0, 2)),
    Case(1, 40, 9, (140, 67), (3, 3), (2, 2), (1, 1, 1, 1)),
    Case(2, 6, 8, (70, 90), (3, 3), (2, 1), (1, 1, 1, 1), groups=2),
    Case(1, 2, 3, (3, 4200), (3, 3), (2, 1), (0, 1, 0, 1)),
    Case(1, 64, 70, (10, 10), (3, 3), (2, 2), (0, 0, 1, 1)),
    Case(1, 8, 6, (17, 19), (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), groups=2),
    Case(2, 6, 6, (8, 40), (1, 5), (1, 1), (0, 2, 0, 2), groups=3),
    Case(1, 4, 3, (50, 50), (4, 4), (4, 4)),
    Case(1, 2, 3, (12, 70), (5, 3), (3, 2), (4, 1, 0, 1), (1, 4)),
    Case(1, 1, 1, (1, 1), (1, 1)),
    Case(1, 2, 2, (1, 200), (1, 3), (1, 1), (0, 1, 0, 1)),
    Case(0, 2, 2, (4, 4), (3, 3)),
    Case(1, 0, 2, (4, 4), (1, 1)),
    Case(1, 2, 0, (4, 4), (3, 3)),
    Case(1, 2, 3, (0, 4), (1, 1)),
    Case(1, 130, 50, (20, 24), (1, 1)),
    Case(1, 300, 9, (6, 5), (3, 3), (1, 1), (1, 1, 1, 1)),
    Case(1, 1024, 1, (7, 7), (3, 3), (1, 1), (1, 1, 1, 1)),  # one channel: threads share its panels
    Case(1, 150, 40, (7, 7), (3, 3), (2, 2), (1, 1, 1, 1)),  # a few pixels of several lines
    Case(1, 32, 24, (45, 208), (3, 3), (2, 2), (1, 1, 1, 1)),  # of little scratch: windows of a part of two lines
    Case(1, 70, 10, (1, 1), (1, 1)),
    Case(2, 700, 3, (1, 1), (1, 1)),
    Case(1, 500, 300, (1, 1), (1, 1)),
    Case(1, 130, 120, (2, 1), (3, 3), (1, 1), (1, 1, 1, 1), groups=2),
]
WINOGRAD = [
    Case(1, 16, 16, (14, 14), (3, 3), pads=(1, 1, 1, 1)),
    Case(1, 17, 35, (7, 7), (3, 3), pads=(1, 1, 1, 1)),
    Case(2, 33, 20, (37, 29), (3, 3), pads=(1, 1, 1, 1)),
    Case(1, 3, 5, (15, 131), (3, 3), pads=(1, 1, 1, 1)),
    Case(1, 20, 70, (13, 5), (3, 3), pads=(0, 2, 1, 0)),
    Case(1, 8, 8, (3, 3), (3, 3)),
    Case(1, 300, 40, (9, 9), (3, 3), pads=(1, 1, 1, 1)),
    Case(1, 2, 2, (1, 1), (3, 3), pads=(1, 1, 1, 1)),
    Case(0, 2, 2, (6, 6), (3, 3)),
    Case(1, 0, 2, (6, 6), (3, 3)),
    Case(1, 24, 16, (90, 60), (3, 3), pads=(1, 1, 1, 1)),
]
STEMS = [
    Case(1, 3, 64, (60, 73), (7, 7), (2, 2), (3, 3, 3, 3)),
    Case(2, 3, 20, (223, 31), (7, 7), (2, 2), (3, 3, 3, 3)),
    Case(1, 1, 5, (7, 8), (7, 7), (2, 2)),
    Case(1, 9, 33, (21, 300), (7, 7), (2, 2), (2, 0, 4, 5)),
    Case(2, 5, 2, (2, 1), (7, 7), (2, 2), (3, 3, 3, 3)),
    Case(0, 3, 4, (9, 9), (7, 7), (2, 2)),
    Case(1, 0, 4, (9, 9), (7, 7), (2, 2)),
]
DEPTHWISE = [
    Case(1, 9, 9, (20, 33), (3, 3), pads=(1, 1, 1, 1), groups=9),
    Case(2, 5, 10, (17, 90), (5, 5), (2, 2), (2, 2, 2, 2), groups=5),
    Case(1, 3, 6, (4, 17), (3, 3), pads=(1, 1, 1, 1), groups=3),
    Case(1, 3, 3, (3, 40), (3, 3), pads=(1, 0, 1, 2), groups=3),
    Case(2, 2, 2, (7, 1), (3, 3), pads=(1, 1, 1, 1), groups=2),
    Case(1, 4, 4, (1, 150), (1, 31), pads=(0, 15, 0, 15), groups=4),
    Case(1, 3, 3, (3, 8000), (3, 9), pads=(0, 4, 0, 4), groups=3),  # longer rows than a strip holds
    Case(1, 3, 3, (1, 22178), (1, 256), (1, 128), groups=3),
    Case(1, 3, 3, (11, 12), (3, 2), (3, 1), (0, 1, 2, 0), (2, 3), groups=3),
    Case(1, 2, 2, (1, 1), (1, 1), groups=2),
    Case(1, 2, 2, (500, 80), (3, 3), pads=(1, 1, 1, 1), groups=2),
    Case(0, 2, 2, (4, 4), (3, 3), groups=2),
    *(
        Case(2, 3, 3, size, (3, 3), (stride, stride), pads, groups=3)
        for stride in (1, 2)
        for size in ((1, 1), (7, 15), (9, 40), (13, 101))
        for pads in ((1, 1, 1, 1), (0, 2, 3, 20), (4, 18, 1, 0))
    ),
    *(
        Case(2, 3, 6, (3, width), (1, taps), (stride, 1), (0, left, 0, taps), groups=3)
        for taps, width, stride, left in (
            (1, 5, 1, 0),
            (4, 70, 1, 3),
            (17, 40, 2, 8),
            (16, 130, 1, 0),
            (33, 129, 1, 20),
            (70, 300, 1, 64),
        )
    ),
]


# A column stride of 2 splits both phases of a row at once: every padding and parity of the ends, and rows outside.
PAIRS = [
    Case(1, 2, 3, (height, width), (3, kernel), (2, 2), (top, left, 1, right))
    for height, width, kernel, top, left, right in [
        *((4, width, 3, 1, left, 1) for width in (1, 2, 33, 34, 65) for left in (0, 1, 2)),
        *((3, width, 2, 4, left, 3) for width in (5, 32) for left in (0, 3, 5)),
        *((5, 36, 4, 0, left, right) for left in (0, 4, 41) for right in (0, 40)),
    ]
] + [
    Case(1, 3, 2, (7, 38), (2, 3), (1, 2), (0, 2, 1, 1), (1, 3)),
    Case(2, 4, 4, (9, 35), (3, 3), (1, 2), (1, 1, 1, 1), groups=4),
    Case(1, 2, 3, (3, 1400), (3, 3), (2, 2), (1, 1, 1, 1)),
]


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_pairs_of_columns(kernels: Kernels, case: Case) -> None:
    check_conv(kernels, case, "panel")
    if case.groups == case.ic:
        check_conv(kernels, case, "depthwise")


@pytest.mark.parametrize("case", GENERAL + WINOGRAD, ids=str)
@pytest.mark.parametrize("version", ["panel", "pixel", "dot"])
def test_implicit_gemm(kernels: Kernels, case: Case, version: str) -> None:
    check_conv(kernels, case, version)


@pytest.mark.parametrize("case", WINOGRAD, ids=str)
@pytest.mark.parametrize("version", ["wino2", "wino4", "wino6"])
def test_winograd(kernels: Kernels, case: Case, version: str) -> None:
    check_conv(kernels, case, version)


@pytest.mark.parametrize("version", ["wino4", "wino6"])
def test_scratch_of_winograd_keeps_its_limit(kernels: Kernels, version: str) -> None:
    """Eight threads share a block where blocks of their own, for weights as large as these, would need more."""
    case, limit = Case(1, 256, 256, (56, 56), (3, 3), pads=(1, 1, 1, 1)), 3 << 20
    conv = case.conv(case.out(), limit)
    size = kernels.lib.sod2_conv_scratch(ctypes.byref(conv), packing.CONV_VERSIONS.index(version), 8)
    assert size < 1.02 * limit  # planes are padded


@pytest.mark.parametrize("version", ["panel", "pixel", "wino4"])
def test_a_relu_keeps_nan(kernels: Kernels, version: str) -> None:
    """Whole vectors of pixels, and a part of one."""
    case = Case(1, 16, 20, (11, 13), (3, 3), pads=(1, 1, 1, 1))
    x, bias = np.ones((1, 16, 11, 13), np.float32), np.full(20, np.nan, np.float32)
    packed = packing.conv_weights(version, np.ones((20, 16, 3, 3), np.float32), 1, kernels.tile)
    conv = case.conv(case.out())
    conv.bias, conv.rectified = pointer(bias), 1
    assert np.isnan(run_conv(kernels, conv, version, packed, x=x, pool=0)).all()


@pytest.mark.parametrize("channels", [32, 128, 512])
@pytest.mark.parametrize("version", ["wino2", "wino4", "wino6"])
def test_error_of_winograd_is_foreseen(kernels: Kernels, version: str, channels: int) -> None:
    """Root mean squares: that of the sums, as many times as the transforms' numbers are larger than results."""
    case = Case(1, channels, 16, (20, 20), (3, 3), pads=(1, 1, 1, 1))
    rng = np.random.default_rng(channels)
    x = rng.standard_normal((1, channels, 20, 20), np.float32)
    w = rng.standard_normal((16, channels, 3, 3), np.float32)
    packed = packing.conv_weights(version, w, 1, kernels.tile)
    expected = reference(case, x, w)
    error = run_conv(kernels, case.conv(case.out()), version, packed, x=x, pool=0).reshape(expected.shape) - expected
    assert np.sqrt((error**2).mean() / (expected**2).mean()) == pytest.approx(versions.layer_error([version]), rel=0.3)


@pytest.mark.parametrize("case", STEMS, ids=str)
def test_winograd_of_phases(kernels: Kernels, case: Case) -> None:
    check_conv(kernels, case, "wino3")


@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
@pytest.mark.parametrize("version", ["depthwise", "panel"])
def test_depthwise(kernels: Kernels, case: Case, version: str) -> None:
    check_conv(kernels, case, version)


@pytest.mark.parametrize("case", SINGLE, ids=str)
@pytest.mark.parametrize("version", ["taps", "panel"])
def test_one_output_channel(kernels: Kernels, case: Case, version: str) -> None:
    check_conv(kernels, case, version)


# ---- cost model ---------------------------------------------------------------------------------------------------


def layer_of(case: Case) -> conv_cost.ConvLayer:
    height, width = case.out()
    return conv_cost.ConvLayer(
        case.n, case.ic, case.oc, case.groups, case.size, (height, width), case.kernel, case.stride, case.dilation,
        any(case.pads),
    )  # fmt: skip


@pytest.mark.parametrize("case", [c for c in GENERAL + WINOGRAD + STEMS + DEPTHWISE + SINGLE if c.n], ids=str)
def test_cost_model_is_the_same_in_c_and_python(kernels: Kernels, case: Case) -> None:
    conv, layer = case.conv(case.out()), layer_of(case)
    if min(case.oc, *case.out()) == 0:
        return
    weights = np.ones(1, np.float32)
    times = {}
    for version in conv_cost.possible_versions(layer):
        index = packing.CONV_VERSIONS.index(version)
        conv.w[index] = pointer(weights)
        times[version] = kernels.lib.test_cost(ctypes.byref(conv), index)
        assert times[version] == pytest.approx(conv_cost.conv_cycles(version, layer, kernels.tile), rel=1e-12)
        w = np.zeros((case.oc, case.ic // case.groups, *case.kernel), np.float32)
        size = conv_cost.packed_floats(version, layer, kernels.tile)
        assert size == packing.conv_weights(version, w, case.groups, kernels.tile).size
    for threads in (1, 2):
        chosen = packing.CONV_VERSIONS[kernels.lib.sod2_conv_choose(ctypes.byref(conv), threads)]
        assert times[chosen] == min(times.values())


def test_choose_without_weights(kernels: Kernels) -> None:
    case = GENERAL[0]
    assert kernels.lib.sod2_conv_choose(ctypes.byref(case.conv(case.out())), 1) == -1


# ---- transposed convolution ---------------------------------------------------------------------------------------

TRANSPOSED = [
    Case(1, 20, 9, (10, 13), (2, 2), (2, 2)),
    Case(2, 6, 30, (5, 41), (2, 2), (2, 2), groups=2),
    Case(2, 6, 4, (7, 40), (3, 3), (2, 2), (1, 1, 0, 1), groups=2),
    Case(1, 5, 3, (6, 5), (4, 3), (1, 3), (2, 0, 1, 1), (2, 1)),
    Case(1, 3, 40, (1, 1), (5, 5)),
    Case(1, 70, 2, (3, 33), (1, 1), (3, 2)),
    Case(0, 2, 2, (3, 3), (2, 2)),
    Case(1, 2, 2, (0, 3), (2, 2), (2, 2)),
    Case(1, 0, 2, (3, 3), (2, 2), (2, 2)),
]


@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_conv_transpose(kernels: Kernels, case: Case) -> None:
    rng = np.random.default_rng(abs(hash(case)) % 2**32)
    x = rng.standard_normal((case.n, case.ic, *case.size), np.float32)
    w = rng.standard_normal((case.ic, case.oc // case.groups, *case.kernel), np.float32)
    (sh, sw), (dh, dw), (top, left, bottom, right) = case.stride, case.dilation, case.pads
    full = [max(0, (case.size[i] - 1) * case.stride[i] + (case.kernel[i] - 1) * case.dilation[i] + 1) for i in range(2)]
    sums = np.zeros((case.n, case.oc, *full))
    inputs, outputs = case.ic // case.groups, case.oc // case.groups
    for group, ky, kx in itertools.product(range(case.groups), *map(range, case.kernel)):
        rows = slice(group * inputs, (group + 1) * inputs)
        product = np.einsum("co,nchw->nohw", w[rows, :, ky, kx].astype(np.float64), x[:, rows])
        window = sums[:, group * outputs :][:, :outputs, ky * dh :, kx * dw :]
        window[:, :, : case.size[0] * sh : sh, : case.size[1] * sw : sw][:, :, : case.size[0], : case.size[1]] += (
            product
        )
    expected = sums[:, :, top : full[0] - bottom, left : full[1] - right]
    out = list(expected.shape[2:])
    packed = packing.conv_transpose(w, case.groups, kernels.tile.mr)
    results = []
    for pool in (0, 1):
        conv = case.conv(out)
        y = np.full(expected.shape, np.nan, np.float32)
        conv.x, conv.y, conv.w[0] = pointer(x), pointer(y), pointer(packed)
        scratch = np.full(
            kernels.lib.sod2_conv_transpose_scratch(ctypes.byref(conv), pool + 1) // 4 + 1, np.nan, np.float32
        )
        kernels.lib.sod2_conv_transpose_run(ctypes.byref(conv), PTR(pointer(scratch)), kernels.pools[pool])
        check(y, expected, 3e-6)
        results.append(y.tobytes())
    assert results[0] == results[1]

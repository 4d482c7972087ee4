"""GEMM and convolutions of the runtime as plain functions, without a model around them."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sod2 import packing

RUNTIME = Path(packing.__file__).parent / "runtime"
SOURCES = [
    *("gemm", "tile", "strips", "strip_lines", "conv", "conv_panel", "conv_pixel", "conv_dot"),
    *("winograd", "depthwise", "conv_transpose", "conv_taps"),
]
I64, PTR = ctypes.c_int64, ctypes.c_void_p
CONV_SIZES = ["n", "ic", "ih", "iw", "oc", "oh", "ow", "groups", "kh", "kw", "sh", "sw", "pt", "pl", "dh", "dw"]


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


@contextlib.contextmanager
def build(folder: Path, machine: Sequence[str]) -> Iterator[Kernels]:
    """The kernels, compiled into the folder with these flags of the machine."""
    library = folder / "kernels.so"
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
    command = [*compiler(), *flags, *machine, f"-I{RUNTIME}", "-o", library, *sources, "-lm", "-lpthread"]
    subprocess.run([str(part) for part in command], check=True)
    lib = ctypes.CDLL(str(library))
    lib.sod2_pool_create.restype = PTR
    lib.test_cost.restype = ctypes.c_double
    lib.sod2_conv_scratch.restype = lib.sod2_conv_transpose_scratch.restype = lib.sod2_gemm_packed_floats.restype = I64
    shape = (ctypes.c_int32 * 5).in_dll(lib, "test_tile")
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

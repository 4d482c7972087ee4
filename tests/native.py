"""Calls runtime kernels from tests: builds a library of some of its C files and passes numpy arrays by pointer."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sod2.codegen import target as toolchain

Array = np.ndarray[Any, Any]
TESTS = Path(__file__).parent


def build(runtime: Sequence[str], probes: Sequence[str], folder: Path) -> ctypes.CDLL:
    """A library of `runtime` (files of sod2/runtime) and `probes` (files beside the tests), linked in `folder`."""
    target = toolchain.host()
    sources = [*(toolchain.RUNTIME / name for name in runtime), *(TESTS / name for name in probes)]
    objects = toolchain.compile_objects(target, sources, (), toolchain.default_cache())
    library = ctypes.CDLL(str(toolchain.link_shared(target, objects, folder / "probe.so")))
    library.sod2_pool_create.restype = ctypes.c_void_p
    return library


def pointer(array: Array | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def call(function: Any, *arguments: Any) -> Any:
    """Arrays and None become pointers, integers int64 and floats float; other values pass."""
    converted = []
    for argument in arguments:
        if argument is None or isinstance(argument, np.ndarray):
            converted.append(pointer(argument))
        elif isinstance(argument, int):
            converted.append(ctypes.c_int64(argument))
        else:
            converted.append(ctypes.c_float(argument) if isinstance(argument, float) else argument)
    return function(*converted)


def scratch(size: int) -> Array:
    """`size` bytes at a multiple of 64."""
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def normal(*shape: int, seed: int = 0) -> Array:
    """Standard normal float32 numbers that depend on shape and seed alone."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


@contextmanager
def open_pools(library: ctypes.CDLL) -> Iterator[list[ctypes.c_void_p]]:
    """NULL (inline), and pools of 2 and 3 threads."""
    made = [ctypes.c_void_p(library.sod2_pool_create(threads)) for threads in (2, 3)]
    yield [ctypes.c_void_p(None), *made]
    for pool in made:
        library.sod2_pool_free(pool)


def on_each(pools: Sequence[ctypes.c_void_p], run: Callable[[ctypes.c_void_p], Array]) -> Array:
    """The result of `run` on every pool, after checking that all have the same bits."""
    first, *others = [run(pool) for pool in pools]
    for other in others:
        assert np.array_equal(first.view(np.int32), other.view(np.int32))
    return first


def close(actual: Array, expected: Array, tolerance: float = 2e-6) -> None:
    """Within `tolerance` of the output's scale; NaN and infinities at the same places."""
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=1e-30)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)

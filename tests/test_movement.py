"""Concat and Split of the runtime against numpy: element types, empty pieces, chunks that end inside a run."""

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from native import Array, build, open_pools, pointer

SHAPES = [
    # (outer, inner, pieces along the axis)
    (1, 1, (3, 0, 5)),
    (4, 3, (1, 2, 1)),
    (0, 5, (2, 2)),
    (3, 0, (2, 2)),
    (1, 7, (60_001, 12_345)),  # a few long runs: chunks end inside them
    (5_003, 9, (1, 3, 0, 2)),  # many short runs
    (60_001, 1, (1, 2, 0, 1)),  # runs of one element
    (2, 1, (0, 0)),
]


@pytest.fixture(scope="module")
def lib(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(("threads.c", "movement.c"), (), tmp_path_factory.mktemp("movement"))


@pytest.fixture(scope="module")
def pools(lib: ctypes.CDLL) -> Iterator[list[ctypes.c_void_p]]:
    with open_pools(lib) as pools:
        yield pools


def addresses(arrays: Sequence[Array]) -> Array:
    return np.array([pointer(a).value if a.size else 0 for a in arrays], np.uint64)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("sizes", SHAPES)
def test_concat_and_split(
    lib: ctypes.CDLL, pools: list[ctypes.c_void_p], dtype: str, sizes: tuple[int, int, tuple[int, ...]]
) -> None:
    outer, inner, lengths = sizes
    rng = np.random.default_rng(len(lengths))
    pieces = [rng.integers(0, 2 if dtype == "bool" else 100, (outer, n, inner)).astype(dtype) for n in lengths]
    whole = np.concatenate(pieces, axis=1)
    run_bytes = np.array([n * inner * whole.itemsize for n in lengths], np.int64)
    shape = ctypes.c_int64(outer), ctypes.c_int64(len(lengths))
    for pool in pools:
        joined = np.zeros_like(whole)
        lib.sod2_concat(*shape, pointer(addresses(pieces)), pointer(run_bytes), pointer(joined), pool)
        assert np.array_equal(joined, whole)
        parts = [np.zeros_like(p) for p in pieces]
        lib.sod2_split(*shape, pointer(addresses(parts)), pointer(run_bytes), pointer(whole), pool)
        assert all(np.array_equal(a, b) for a, b in zip(parts, pieces, strict=True))
        unread = np.zeros(len(parts), np.uint64)
        lib.sod2_split(*shape, pointer(unread), pointer(run_bytes), pointer(whole), pool)

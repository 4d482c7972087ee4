"""Products of matrices of the runtime against float64, at 1 and 2 threads."""

import ctypes

import numpy as np
import pytest

from sod2 import packing
from tests.plain_kernels import I64, PTR, Gemm, Kernels, check, epilogue, pointer


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

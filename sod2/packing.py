"""Weights in the layouts that the kernels of `sod2/runtime` read.

Every function takes a weight as ONNX stores it and returns a flat float32 array. `lanes` is the number of floats of a
vector (SOD2_VL), `mr` and `nr` are the rows and columns of a register tile (SOD2_MR, SOD2_NR of `tile.h`); they must be
those of the target that the runtime is compiled for. Padding is zeros, so it never changes a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import ceil

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

CONV_VERSIONS = ("panel", "pixel", "dot", "wino2", "wino3", "wino4", "wino6", "depthwise", "taps")
"""Names of the versions of a convolution, in the order of the enumeration of `conv.h`."""

WINOGRAD_POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(1),),
    3: (Fraction(5, 8), Fraction(3, 2)),
    4: (Fraction(5, 8), Fraction(3, 2)),
    6: (Fraction(1), Fraction(2), Fraction(1, 2)),
}
"""Finite points of F(m, 3) and F(3, 4) other than 0, each standing for +-p; the same as in `winograd_transform.h`.

Largest error over the largest output, on random normal data of 32, 128 and 512 channels:
    F(2): 2.8e-7, 2.3e-7, 2.6e-7;  F(4): 1.2e-6, 1.1e-6, 1.3e-6;  F(6): 8.3e-6, 5.7e-6, 8.7e-6
of sums in chains of 32 channels (`tile.c`). In one chain 512 channels would have 1.1e-6, 5.1e-6 and 3.2e-5.
"""


@dataclass(frozen=True)
class Tile:
    """Register tile of a target: floats of a vector, rows and columns of a tile.

    `apart`: percent that it takes longer where what it reads lies on many pages; `crowded`: for each MiB by which a row
    block of Winograd's tiles is larger than one.
    """

    lanes: int
    mr: int
    nr: int
    apart: int = 0
    crowded: int = 0


TILES = {"avx512": Tile(16, 14, 32), "avx2": Tile(8, 6, 16), "portable": Tile(4, 6, 16)}
"""By instruction set; `portable` is also NEON."""


def _panels(matrix: Array, nr: int) -> Array:
    """Matrix [k, n] -> [ceil(n / nr), k, nr]."""
    k, n = matrix.shape
    panels = ceil(n / nr)
    padded = np.zeros((k, panels * nr), np.float32)
    padded[:, :n] = matrix
    return np.ascontiguousarray(padded.reshape(k, panels, nr).transpose(1, 0, 2))


def _joined(parts: Iterable[Array]) -> Array:
    """The parts as one flat array, also where there are none."""
    return np.concatenate([np.empty(0, np.float32), *(part.ravel() for part in parts)])


def _row_blocks(matrix: Array, mr: int) -> Array:
    """Matrix [rows, k] -> its balanced row blocks one after the other, each [k, rows of the block]."""
    rows = len(matrix)
    blocks = ceil(rows / mr)
    edges = [rows * i // blocks for i in range(blocks + 1)] if blocks else []
    return _joined(matrix[a:b].T for a, b in pairwise(edges))


def gemm_b(b: Array, nr: int) -> Array:
    """Pack B, [k, n] or [batch, k, n], for `sod2_gemm_run`; `b_batch` is then the size of one packed matrix."""
    batches = b if b.ndim == 3 else b[None]
    return _joined(_panels(matrix, nr) for matrix in batches)


def _grouped(w: Array, groups: int) -> Array:
    """Weight [oc, ic / groups, kh, kw] -> [groups, oc / groups, k]."""
    return w.reshape(groups, w.shape[0] // groups, w.shape[1] * w.shape[2] * w.shape[3])


def conv_panel(w: Array, groups: int, mr: int) -> Array:
    """[group][row block][k][rows of the block], k = (channel, ky, kx)."""
    return _joined(_row_blocks(matrix, mr) for matrix in _grouped(w, groups))


def conv_pixel(w: Array, groups: int, nr: int) -> Array:
    """[group][panel of nr output channels][k][nr]."""
    return _joined(_panels(matrix.T, nr) for matrix in _grouped(w, groups))


def conv_plain(w: Array) -> Array:
    """[oc][kh][kw]: as ONNX has it."""
    return np.ascontiguousarray(w, np.float32).ravel()


def conv_taps(w: Array, mr: int) -> Array:
    """Weight [1, ic, kh, kw] -> [row block of taps][ic][rows of the block]."""
    return _row_blocks(w[0].reshape(w.shape[1], -1).T, mr)


def conv_transpose(w: Array, groups: int, mr: int) -> Array:
    """Weight [ic, oc / groups, kh, kw] -> [group][channel block][row block of (channel, ky, kx)][ic / groups][rows].

    A block has as many output channels as give at most `mr` rows, at least one.
    """
    ic, channels, kh, kw = w.shape
    taps = w.reshape(groups, ic // groups, channels, kh * kw).transpose(0, 2, 3, 1)
    blocks = ceil(channels / max(1, mr // (kh * kw)))
    edges = [channels * i // blocks for i in range(blocks + 1)] if blocks else []
    rows = [group[a:b].reshape((b - a) * kh * kw, ic // groups) for group in taps for a, b in pairwise(edges)]
    return _joined(_row_blocks(matrix, mr) for matrix in rows)


def winograd_inputs(m: int) -> int:
    """Inputs of a tile along one axis: as many as points, with 0 and infinity."""
    return 2 * len(WINOGRAD_POINTS[m]) + 2


def winograd_phases(m: int) -> int:
    """Channels of the transformed convolution for each of the image: the 4 phases of a stride of 2 for F(3, 4)."""
    return 4 if m == 3 else 1


def winograd_reduction(m: int) -> float:
    """Multiply-adds of the direct algorithm, 7x7 or 3x3, over those of Winograd's, on whole tiles."""
    taps = 49 if m == 3 else 9
    return taps * m**2 / (winograd_phases(m) * winograd_inputs(m) ** 2)


@cache
def winograd_gain(m: int) -> float:
    """How much larger than an output the products are that it is a sum of, and with them their rounding.

    Root mean squares over weights and inputs that are independent. The stages are Vandermonde matrices V of the points:
    outputs V^T, weights V, inputs the inverse of V^T.
    """
    points = [0.0, *(sign * float(p) for p in WINOGRAD_POINTS[m] for sign in (1, -1))]
    inputs = winograd_inputs(m)

    def stage(columns: int) -> NDArray[np.float64]:
        return np.vstack([np.vander(points, columns, increasing=True), np.eye(columns)[-1]])

    taps = inputs - m + 1
    products = (stage(taps) ** 2).sum(1) * (np.linalg.inv(stage(inputs)) ** 2).sum(0)
    return float((products @ stage(m) ** 2).mean() / taps)


def winograd_weight_transform(m: int) -> NDArray[np.float64]:
    """Matrix G, [inputs, taps], of F(m, taps): rows for 0, +p, -p, .., infinity."""
    taps = winograd_inputs(m) - m + 1
    points = [Fraction(0)]
    for p in WINOGRAD_POINTS[m]:
        points += [p, -p]
    rows = []
    for j, a in enumerate(points):
        scale = Fraction(1)
        for i, b in enumerate(points):
            scale *= a - b if i != j else 1
        rows.append([float(a**e / scale) for e in range(taps)])
    return np.array([*rows, [0.0] * (taps - 1) + [1.0]])


def _phases(w: Array) -> Array:
    """Weight [oc, ic, 7, 7] -> [oc, (ic, phase of a line, of a column), 4, 4]: tap k is tap k // 2 of phase k % 2."""
    oc, ic = w.shape[:2]
    padded = np.pad(w, ((0, 0), (0, 0), (0, 1), (0, 1)))
    return padded.reshape(oc, ic, 4, 2, 4, 2).transpose(0, 1, 3, 5, 2, 4).reshape(oc, ic * 4, 4, 4)


def conv_winograd(w: Array, m: int, lanes: int, nr: int) -> Array:
    """Weight [oc, ic, 3, 3], of m = 3 [oc, ic, 7, 7], -> [panel of nr output channels][xi][ic padded to lanes][nr].

    Transformed in float64; for m = 3 phases stand in place of channels.
    """
    w = _phases(w) if m == 3 else w
    oc, ic = w.shape[:2]
    g = winograd_weight_transform(m)
    points = winograd_inputs(m) ** 2
    depth, panels = ceil(ic / lanes) * lanes, ceil(oc / nr)
    packed = np.zeros((panels, points, depth, nr), np.float32)
    for panel in range(panels):  # one panel at a time: the float64 copy of a whole layer may be 100 MB
        part = w[panel * nr : (panel + 1) * nr].astype(np.float64)
        u = np.einsum("ia,ocab,jb->ijco", g, part, g, optimize=True)
        packed[panel, :, :ic, : len(part)] = u.reshape(points, ic, len(part))
    return packed.ravel()


def conv_weights(version: str, w: Array, groups: int, tile: Tile) -> Array:
    """Pack the weight of a convolution for `version`, one of CONV_VERSIONS."""
    pack: dict[str, Callable[[], Array]] = {
        "panel": lambda: conv_panel(w, groups, tile.mr),
        "pixel": lambda: conv_pixel(w, groups, tile.nr),
        "dot": lambda: conv_plain(w),
        "depthwise": lambda: conv_plain(w),
        "taps": lambda: conv_taps(w, tile.mr),
        "wino2": lambda: conv_winograd(w, 2, tile.lanes, tile.nr),
        "wino3": lambda: conv_winograd(w, 3, tile.lanes, tile.nr),
        "wino4": lambda: conv_winograd(w, 4, tile.lanes, tile.nr),
        "wino6": lambda: conv_winograd(w, 6, tile.lanes, tile.nr),
    }
    return pack[version]()

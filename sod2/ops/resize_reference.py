"""Resize in numpy, by the formulas of the standard: every axis is multiplied by its matrix of weights, in double."""

import math
from typing import Any

import numpy as np

from sod2.graph import Node
from sod2.ops.antialias import taps_at
from sod2.ops.attributes import present
from sod2.ops.op import Array


def resized(node: Node, *arrays: Array | None) -> Array:
    """What Resize gives."""
    x = arrays[0]
    assert x is not None
    rank = x.ndim
    axes = [int(a) % rank for a in node.attrs.get("axes", range(rank))]
    scales, sizes, roi = present(arrays, 2), present(arrays, 3), present(arrays, 1)
    result, outside = x.astype(np.float64), np.zeros((1,) * rank, bool)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    for k, axis in enumerate(axes):
        size = x.shape[axis]
        if scales is not None and scales.size:
            scale = wide(scales[k])
            out = int(np.floor(np.float32(size) * np.float32(scale)))
        else:
            assert sizes is not None
            out = int(sizes[k])
            scale = wide(out) / wide(size)
        region = (0.0, 1.0) if roi is None or not roi.size else (roi[k], roi[k + len(axes)])
        where = _positions(node, size, out, scale, region)
        matrix = _weights(node, where, size, float(scale))
        result = np.moveaxis(np.tensordot(matrix, result, (1, axis)), 0, axis)
        outside = outside | np.moveaxis(((where < 0) | (where > size - 1)).reshape(-1, *(1,) * (rank - 1)), 0, axis)
    if node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        result = np.where(outside, node.attrs.get("extrapolation_value", 0.0), result)
    return result.astype(x.dtype)


def _positions(node: Node, size: int, out: int, scale: np.floating[Any], region: tuple[float, float]) -> Array:
    """Where output elements lie in the input, by the formulas of the standard, in the type of the scale."""
    wide = type(scale)
    i: Array = np.arange(out, dtype=wide)
    half = wide(0.5)
    n, m = wide(size), wide(out)
    mode = node.attrs.get("coordinate_transformation_mode", "half_pixel")
    centre = (i + half) / scale - half
    a, b = (wide(r) for r in region)
    if mode == "half_pixel_symmetric":
        return np.asarray(n / 2 * (1 - m / (n * scale)) + centre)
    if mode == "pytorch_half_pixel":
        return centre if out > 1 else i * 0
    if mode == "asymmetric":
        return np.asarray(i / scale)
    if mode == "align_corners":
        return i * (n - 1) / (m - 1) if out > 1 else i * 0
    if mode == "tf_crop_and_resize":
        middle = half * (a + b) * (n - 1)
        return np.asarray(a * (n - 1) + i * ((b - a) * (n - 1)) / (m - 1) if out > 1 else middle + i)
    return np.asarray(centre)


def _weights(node: Node, where: Array, size: int, scale: float) -> Array:
    """The interpolation along one axis as a matrix [out, in]."""
    matrix = np.zeros((len(where), size))
    mode = node.attrs.get("mode", "nearest")
    for row, position in zip(matrix, where, strict=True):
        if mode == "nearest":
            rounding = {
                "round_prefer_floor": math.ceil(position - type(position)(0.5)),
                "round_prefer_ceil": math.floor(position + type(position)(0.5)),
                "floor": math.floor(position),
                "ceil": math.ceil(position),
            }[node.attrs.get("nearest_mode", "round_prefer_floor")]
            taps = [(rounding, 1.0)]
        elif node.attrs.get("antialias", 0):
            taps = taps_at(node, float(position), size, scale)
        elif mode == "linear":
            place = min(max(float(position), 0.0), size - 1.0)
            taps = [(math.floor(place), 1 - place % 1), (math.floor(place) + 1, place % 1)]
        else:
            taps = _cubic(node, float(position), size)
        for place, weight in taps:
            row[min(max(place, 0), size - 1)] += weight
    return matrix


def _cubic(node: Node, position: float, size: int) -> list[tuple[int, float]]:
    a = node.attrs.get("cubic_coeff_a", -0.75)
    taps = []
    for place in range(math.floor(position) - 1, math.floor(position) + 3):
        d = abs(position - place)
        weight = (a + 2) * d**3 - (a + 3) * d**2 + 1 if d <= 1 else a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
        taps.append((place, weight))
    if node.attrs.get("exclude_outside", 0):
        taps = [(p, w) for p, w in taps if 0 <= p < size]
        taps = [(p, w / sum(w for _, w in taps)) for p, w in taps]
    return taps

"""Layers in plain numpy, float64, written from their definitions: the oracle of the models' numbers."""

import math
from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, numpy_helper

Array = np.ndarray
Weights = dict[str, Array]

erf = np.vectorize(math.erf)


def weights_of(model: ModelProto) -> Weights:
    """The initializers by name."""
    return {tensor.name: numpy_helper.to_array(tensor).astype(np.float64) for tensor in model.graph.initializer}


def conv(
    w: Weights, x: Array, name: str, stride: int = 1, pads: Sequence[int] | None = None, *, groups: int = 1
) -> Array:
    """Convolution of (C, H, W) with bias if there is one, zero padding kernel // 2 or (top, left, bottom, right)."""
    weight = w[f"{name}.weight"]
    kernel = weight.shape[2:]
    top, left, bottom, right = pads if pads is not None else (kernel[0] // 2, kernel[1] // 2) * 2
    x = np.pad(x, ((0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, axis=(1, 2))[:, ::stride, ::stride]
    parts = zip(np.split(windows, groups), np.split(weight, groups), strict=True)
    y = np.concatenate([np.einsum("chwij,ocij->ohw", a, b) for a, b in parts])
    return y + w[f"{name}.bias"][:, None, None] if f"{name}.bias" in w else y


def dense(w: Weights, x: Array, name: str) -> Array:
    """Linear layer, its weight stored (in, out)."""
    return x @ w[f"{name}.weight"] + w.get(f"{name}.bias", 0.0)


def rows(w: Weights, x: Array, name: str) -> Array:
    """Linear layer, its weight stored (out, in)."""
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def norm(w: Weights, x: Array, name: str, epsilon: float, axis: int = -1) -> Array:
    """LayerNorm over one axis."""
    centred = x - x.mean(axis, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis, keepdims=True) + epsilon)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def group_norm(w: Weights, x: Array, name: str, groups: int, epsilon: float) -> Array:
    """GroupNorm of (C, H, W)."""
    grouped = x.reshape(groups, -1)
    centred = grouped - grouped.mean(1, keepdims=True)
    scaled = (centred / np.sqrt((centred**2).mean(1, keepdims=True) + epsilon)).reshape(x.shape)
    return scaled * w[f"{name}.weight"].reshape(-1, 1, 1) + w[f"{name}.bias"].reshape(-1, 1, 1)


def softmax(x: Array) -> Array:
    """Over the last axis."""
    y = np.exp(x - x.max(-1, keepdims=True))
    return y / y.sum(-1, keepdims=True)


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return x / (1 + np.exp(-x))


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, 0)


def gelu(x: Array) -> Array:
    """Exact GELU."""
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def pool(x: Array, kernel: int, stride: int, pad: int = 0) -> Array:
    """Max-pool of (C, H, W)."""
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(1, 2))
    return windows[:, ::stride, ::stride].max((3, 4))


def tiles(x: Array, side: int) -> Array:
    """Means over the tiles of side x side pixels that fit into (C, H, W)."""
    height, width = x.shape[1] // side, x.shape[2] // side
    return x[:, : height * side, : width * side].reshape(len(x), height, side, width, side).mean((2, 4))


def cubic(x: Array, length: int) -> Array:
    """Resize axis 0 with the cubic kernel of a = -0.75, borders repeated, no corners aligned."""
    a = -0.75

    def kernel(t: float) -> float:
        t = abs(t)
        if t <= 1:
            return (a + 2) * t**3 - (a + 3) * t**2 + 1
        return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0

    result = []
    for i in range(length):
        source = (i + 0.5) * len(x) / length - 0.5
        base = math.floor(source)
        taps = range(base - 1, base + 3)
        result.append(sum(kernel(source - tap) * x[min(max(tap, 0), len(x) - 1)] for tap in taps))
    return np.stack(result)


def linear_resize(x: Array, length: int) -> Array:
    """Resize axis 0 linearly, no corners aligned."""
    places = (np.arange(length) + 0.5) * len(x) / length - 0.5
    flat = x.reshape(len(x), -1)
    columns = [np.interp(places, np.arange(len(x)), column) for column in flat.T]
    return np.stack(columns, axis=1).reshape(length, *x.shape[1:])

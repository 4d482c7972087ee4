"""The measured statistics that random weights need, from what reaches a layer for a batch of calibration inputs.

A batch is a list of arrays, one per input, whose spatial sizes differ; every input counts alike. BatchNorm statistics
are rounded to float16, in which they are stored, so that the calibrated network is exactly the one built from the file.
"""

import math
from collections.abc import Sequence

import numpy as np

EPSILON = 1e-5
CLEARANCE = 3.0  # standard deviations between the threshold of a gate that never decides and the nearest logit seen

Batch = list[np.ndarray]


def channel_statistics(batch: Sequence[np.ndarray], epsilon: float = EPSILON) -> tuple[np.ndarray, np.ndarray]:
    """Mean, and root of variance + epsilon, per channel (axis 1); float32 values on the grid of float16."""
    flat = [array.reshape(array.shape[1], -1) for array in batch]
    mean = np.stack([array.mean(axis=1, dtype=np.float64) for array in flat]).mean(axis=0)
    squares = np.stack([np.einsum("cn,cn->c", array, array, dtype=np.float64) / array.shape[1] for array in flat])
    std = np.sqrt(np.maximum(squares.mean(axis=0) - mean**2, 0) + epsilon)
    return mean.astype(np.float16).astype(np.float32), std.astype(np.float16).astype(np.float32)


def choose_threshold(logits: np.ndarray, rate: float, slack: float = 0.03) -> float:
    """A threshold which the share `rate` of the logits exceeds: the middle of the widest gap within +- slack of it.

    A rate of 0 or 1 gives a threshold well above or below all of them.
    """
    ordered = np.sort(logits)
    if rate in (0.0, 1.0):
        clearance = CLEARANCE * max(float(ordered.std()), 1e-3)
        return float(np.float32(ordered[0] - clearance if rate else ordered[-1] + clearance))
    count = len(ordered)
    first = max(1, math.ceil((1 - rate - slack) * count))
    last = max(first, min(count - 1, math.floor((1 - rate + slack) * count)))
    gaps = ordered[first : last + 1] - ordered[first - 1 : last]
    position = first + int(np.argmax(gaps))
    return float(np.float32((ordered[position - 1] + ordered[position]) / 2))

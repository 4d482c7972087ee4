"""Measuring the statistics that random weights need: BatchNorm means and deviations, gate thresholds.

Random convolutions with untrained running statistics let a residual sum grow without bound, and random gates all
decide alike. Both are repaired by running calibration pictures through the network layer by layer: a BatchNorm gets
the mean and deviation of what reaches it, a gate the threshold that opens it for the wanted share of pictures. The
pictures have the sizes of the evaluation, because gates read means over pixels, which shift with size.

A stored vector is rounded to float16 before the next layer is measured, so that the calibrated network is exactly the
one that is built from the file.
"""

import math
from collections.abc import Callable

import numpy as np
import onnxruntime
import spox
import spox.opset.ai.onnx.v18 as op
from spox import Var

from models import Model, Pictures
from models.blocks import BATCH_NORM_EPSILON, bare_weight
from models.inputs import generator, normalise, picture, random_sizes, read_dataset
from models.parameters import Parameters, normal

Batch = list[np.ndarray]  # one array (1, C, H, W) per picture, of differing H and W


def pictures(model: Model, count: int) -> Batch:
    """Calibration pictures: sizes and contents distributed as in the evaluation, drawn from their own stream."""
    assert isinstance(model.content, Pictures)
    description = read_dataset(model.dataset)
    batch = []
    for index in range(count):
        rng = generator("calibration", index)
        sizes = random_sizes(model.symbols, rng)
        batch.append(normalise(picture(description, sizes["H"], sizes["W"], rng), model.content))
    return batch


def over(function: Callable[[Var], Var], batch: Batch) -> Batch:
    """Apply a composition of operators to every picture with onnxruntime."""
    x = spox.argument(spox.Tensor(np.float32, (1, batch[0].shape[1], None, None)))
    session = open_session(spox.build({"x": x}, {"y": function(x)}).SerializeToString())
    return [session.run(None, {"x": array})[0] for array in batch]


def open_session(model: bytes) -> onnxruntime.InferenceSession:
    """An onnxruntime session on the CPU."""
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def conv_bn(
    p: Parameters, batch: Batch, names: tuple[str, str], channels: tuple[int, int], kernel: int, *, stride: int = 1
) -> Batch:
    """The convolution and BatchNorm of `blocks.conv_bn` on a batch, measuring the statistics into p.calibration."""
    conv_name, bn_name = names
    weight = bare_weight(p, conv_name, channels, kernel)
    pads = [kernel // 2] * 4
    outputs = over(lambda x: op.conv(x, op.const(weight), pads=pads, strides=[stride, stride]), batch)
    mean, std = _channel_statistics(outputs)
    p.calibration[f"{bn_name}.mean"] = mean
    p.calibration[f"{bn_name}.std"] = std
    width = (channels[1],)
    gain = p.draw(f"{bn_name}.weight", normal(width, 0.1, 1.0)) / std
    shift = p.draw(f"{bn_name}.bias", normal(width, 0.1)) - mean * gain
    for array in outputs:
        np.multiply(array, gain[:, None, None], out=array)
        np.add(array, shift[:, None, None], out=array)
    return outputs


def relu(batch: Batch) -> Batch:
    """ReLU in place."""
    for array in batch:
        np.maximum(array, 0, out=array)
    return batch


def _channel_statistics(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation per channel, every picture counting alike; rounded to float16, returned as float32."""
    means = np.stack([array.mean(axis=(0, 2, 3), dtype=np.float64) for array in batch])
    squares = np.stack([np.einsum("nchw,nchw->c", array, array) / math.prod(array.shape[2:]) for array in batch])
    mean = means.mean(axis=0)
    variance = squares.mean(axis=0) - mean**2
    std = np.sqrt(variance + BATCH_NORM_EPSILON)
    return mean.astype(np.float16).astype(np.float32), std.astype(np.float16).astype(np.float32)


def choose_threshold(logits: np.ndarray, rate: float, slack: float = 0.03) -> float:
    """A threshold which the share `rate` of the logits exceeds: the middle of the widest gap within +- slack of it."""
    ordered = np.sort(logits)
    count = len(ordered)
    first = max(1, math.ceil((1 - rate - slack) * count))
    last = min(count - 1, math.floor((1 - rate + slack) * count))
    gaps = ordered[first : last + 1] - ordered[first - 1 : last]
    position = first + int(np.argmax(gaps))
    return float(np.float32((ordered[position - 1] + ordered[position]) / 2))

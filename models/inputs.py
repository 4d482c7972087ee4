"""Inputs of the models: sizes drawn from the admissible ones, and contents of those sizes.

Sizes: each symbolic dim is uniform over its admissible values, independently. At a *quantile* q the drawn size is the
one of that rank when many independent draws are sorted by their product (pixels, tokens); q = 0 is the smallest
admissible size and q = 1 the largest. Contents follow the data set's file in datasets/: pictures are generated from
1/f noise with random colour mixing, brightness, contrast and translucent discs, rounded to 8 bits per channel; tokens
are uniform ids between a fixed first and a fixed last one. Everything is a function of the generator passed in.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml

from models import Extent, Frames, Model, Noise, Pictures, Sentences, Tokens

DATASETS = Path(__file__).parents[1] / "datasets"
POPULATION = 10_001  # draws that stand for the size distribution when a quantile is asked for


def generator(purpose: str, *numbers: int) -> np.random.Generator:
    """The random generator of one purpose and index: streams of different purposes never overlap."""
    return np.random.default_rng([zlib.crc32(purpose.encode()), *numbers])


def read_dataset(name: str) -> dict[str, Any]:
    """The description of a data set, from datasets/<name>.yaml."""
    path = DATASETS / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in DATASETS.glob("*.yaml")))
        raise ValueError(f"unknown data set {name!r}: datasets/ describes {known}")
    description: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return description


def random_sizes(symbols: Mapping[str, Extent], rng: np.random.Generator) -> dict[str, int]:
    """One size, uniform over the admissible values of each symbol."""
    return {symbol: int(rng.choice(extent.values())) for symbol, extent in symbols.items()}


def quantile_sizes(symbols: Mapping[str, Extent], quantiles: Sequence[float], seed: int) -> list[dict[str, int]]:
    """The sizes at the given quantiles (0..1) of the size distribution, ordered by the product of the symbols."""
    if any(not 0 <= q <= 1 for q in quantiles):
        raise ValueError(f"quantiles {list(quantiles)} leave the range 0..1")
    if not symbols:
        return [{} for _ in quantiles]
    rng = generator("sizes", seed)
    columns = [rng.choice(extent.values(), POPULATION) for extent in symbols.values()]
    draws = np.stack(columns, axis=1)
    draws[0] = [extent.low for extent in symbols.values()]
    draws[1] = [extent.high for extent in symbols.values()]
    ranked = draws[np.argsort(draws.prod(axis=1), kind="stable")]
    rows = [ranked[round(q * (POPULATION - 1))] for q in quantiles]
    return [dict(zip(symbols, map(int, row), strict=True)) for row in rows]


def admissible_sizes(symbols: Mapping[str, Extent], sizes: Mapping[str, int]) -> dict[str, int]:
    """The named sizes; ValueError when they are not one admissible value for each symbol."""
    if set(sizes) != set(symbols):
        raise ValueError(
            f"sizes of {', '.join(sizes)} are given: those of {', '.join(symbols) or 'nothing'} are wanted"
        )
    for symbol, value in sizes.items():
        extent = symbols[symbol]
        if value not in extent.values():
            steps = f" in steps of {extent.step}" if extent.step > 1 else ""
            raise ValueError(f"size {symbol} = {value} is not admissible: {extent.low} to {extent.high}{steps} is")
    return dict(sizes)


def concrete_shape(value: onnx.ValueInfoProto, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a graph input at the given sizes; its symbolic dims read "s" or "<factor>*s"."""
    shape = []
    for dim in value.type.tensor_type.shape.dim:
        if dim.HasField("dim_value"):
            shape.append(dim.dim_value)
        else:
            *factors, symbol = dim.dim_param.split("*")
            shape.append(math.prod(map(int, factors)) * sizes[symbol])
    return tuple(shape)


def contents(
    model: Model, variant: str, shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """The input arrays of one sample, by input name and of the given shapes."""
    description, content = read_dataset(model.dataset), model.content
    if isinstance(content, Frames):
        _, length, bands = shapes["features"]
        return {"features": speech(description, length, bands, rng)[None], "length": np.array([length], np.int64)}
    if isinstance(content, Noise):
        return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    if isinstance(content, Sentences):
        return sentence(shapes, rng, padded=variant in content.padded)
    if isinstance(content, Tokens):
        ids = token_ids(description, content, variant, shapes["input_ids"], rng)
        return {"input_ids": ids, "attention_mask": np.ones(shapes["attention_mask"], np.int64)}
    _, _, height, width = shapes["images"]
    arrays = {"images": normalise(picture(description, height, width, rng), content)}
    return arrays | point(height, width, rng) if content.point else arrays


def sentence(shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator, *, padded: bool) -> dict[str, np.ndarray]:
    """A random vector per word and, where the model reads `children`, a random binary tree over the words.

    The tree has as many nodes as the arrays have rows, or with `padded` fewer: each possible number is as likely.
    """
    words = rng.standard_normal(shapes["words"], dtype=np.float32)
    if "children" not in shapes:
        return {"words": words}
    rows = len(words)
    leaves = int(rng.integers(1, (rows + 1) // 2 + 1)) if padded else (rows + 1) // 2
    children = np.full((rows, 2), -1, np.int64)
    children[: 2 * leaves - 1] = random_tree(leaves, rng)
    words[children[:, 0] != 0] = 0
    return {"words": words, "children": children}


def random_tree(leaves: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """The children of each node of a binary tree in post-order: numbers of nodes counted from 1, zeros at a leaf.

    Where a span of words is divided is uniform over the places between two of them.
    """
    rows: list[tuple[int, int]] = []

    def grow(span: int) -> int:
        if span == 1:
            rows.append((0, 0))
        else:
            left = int(rng.integers(1, span))
            rows.append((grow(left), grow(span - left)))
        return len(rows)

    grow(leaves)
    return rows


def point(height: int, width: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A prompt: one foreground point (label 1) at pixel coordinates (x, y), and the padding point (label -1)."""
    place = [rng.uniform(0, width), rng.uniform(0, height)]
    return {
        "point_coords": np.array([[place, [0, 0]]], np.float32),
        "point_labels": np.array([[1, -1]], np.float32),
    }


def token_ids(
    description: Mapping[str, Any], tokens: Tokens, variant: str, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    """Random token ids, int64, between the data set's first and last id."""
    low, high = description["ids"]
    ids = rng.integers(low, min(high + 1, tokens.vocabulary[variant]), shape)
    ids[..., -1] = description["last"]
    ids[..., 0] = description["first"]
    return ids


def normalise(pixels: np.ndarray, content: Pictures) -> np.ndarray:
    """(1, 3, H, W) float32, from a picture (3, H, W) in 0..1."""
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (content.mean, content.std))
    return np.ascontiguousarray(((pixels - mean) / std)[None], dtype=np.float32)


def picture(description: Mapping[str, Any], height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """A generated RGB picture, (3, H, W) float32 in 0..1, on the grid of 8-bit values."""
    noise = _noise(rng.uniform(*description["slope"]), height, width, rng)
    mixed = np.tensordot(rng.normal(size=(3, 3)), noise, axes=1)
    mixed += rng.normal(size=(3, 1, 1)) * 0.5
    mixed = (mixed - mixed.mean()) / mixed.std()
    pixels = rng.uniform(*description["brightness"]) + rng.uniform(*description["contrast"]) * mixed
    low, high = description["discs"]
    for _ in range(rng.integers(low, high + 1)):
        _paint_disc(pixels, rng)
    return np.round(np.clip(pixels, 0, 1) * 255).astype(np.float32) / np.float32(255)


def _noise(slope: float, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Three independent planes of noise whose amplitude falls as 1 / frequency ** slope, unit variance each."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    frequency[0, 0] = 1.0  # the mean is removed below, whatever its amplitude
    planes = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(3, height, width))) / frequency**slope, s=(height, width))
    planes -= planes.mean(axis=(1, 2), keepdims=True)
    spread = planes.std(axis=(1, 2), keepdims=True)
    return planes / np.where(spread > 0, spread, 1.0)  # a single pixel has no spread


def _paint_disc(pixels: np.ndarray, rng: np.random.Generator) -> None:
    """Blend a disc of random place, radius, colour and opacity into the picture."""
    _, height, width = pixels.shape
    rows = np.arange(height)[:, None] - rng.uniform(0, height)
    columns = np.arange(width)[None, :] - rng.uniform(0, width)
    radius = rng.uniform(0.05, 0.35) * min(height, width)
    opacity = rng.uniform(0.3, 0.9) * (np.hypot(rows, columns) <= radius)
    pixels += opacity * (rng.uniform(0, 1, (3, 1, 1)) - pixels)


def speech(description: Mapping[str, Any], length: int, bands: int, rng: np.random.Generator) -> np.ndarray:
    """Generated log-mel frames (length, bands), float32, normalised over time and bands."""
    frames = rng.normal(0, 0.3, (length, bands)) - 1.0
    start = 0
    while start < length:
        duration = int(rng.integers(*description["syllable"]))
        if rng.random() >= description["pause"]:
            part = min(duration, length - start)
            frames[start : start + part] += _syllable(description, duration, bands, rng)[:part]
        start += duration
    return ((frames - frames.mean()) / frames.std()).astype(np.float32)


def _syllable(description: Mapping[str, Any], duration: int, bands: int, rng: np.random.Generator) -> np.ndarray:
    """Log energies (duration, bands) of one syllable: gliding formants, and harmonics of a pitch in the low bands."""
    time = np.linspace(0, 1, duration)[:, None]
    band = np.arange(bands)[None, :]
    energy = np.zeros((duration, bands))
    for _ in range(description["formants"]):
        centre = rng.uniform(0, bands) + rng.uniform(-0.15, 0.15) * bands * time
        width = rng.uniform(*description["bandwidth"])
        energy += rng.uniform(1, 3) * np.exp(-(((band - centre) / width) ** 2))
    energy += rng.uniform(0.2, 0.6) * np.cos(2 * math.pi * band / rng.uniform(3, 7)) * np.exp(-3 * band / bands)
    return energy * np.sin(math.pi * time) ** 0.5

"""The models of the evaluation, built as ONNX with random weights from a fixed seed.

`build(name, variant)` returns the model; `MODELS` says of each what varies in its input, which data set feeds it and
what the paper says of it. Every model has two variants: `full`, true to the published architecture, and `tiny`, the
same graph with fewer and narrower layers, for tests.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx

from models import codebert, skipnet, yolov6
from models.parameters import Parameters

VARIANTS = ("full", "tiny")


class Definition(Protocol):
    """What the module of a model offers."""

    def parameters(self, variant: str) -> Parameters:
        """The declared parameters of the variant."""

    def build(self, variant: str) -> onnx.ModelProto:
        """The model of the given variant."""


@dataclass(frozen=True)
class Extent:
    """Admissible values of one symbolic dim: from `low` to `high`, both included, in steps of `step`."""

    low: int
    high: int
    step: int = 1

    def values(self) -> np.ndarray:
        """All admissible values, ascending."""
        return np.arange(self.low, self.high + 1, self.step)


@dataclass(frozen=True)
class Pictures:
    """A model that reads RGB pictures in 0..1, normalised as (x - mean) / std per channel."""

    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Tokens:
    """A model that reads token ids below `vocabulary[variant]` and a mask of ones."""

    vocabulary: Mapping[str, int]


IMAGENET = Pictures((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Model:
    """One model of the evaluation.

    `dynamism` is "shape", "control" or "shape + control"; `symbols` are the symbolic dims of its inputs with their
    admissible values; `dataset` names a file in datasets/ and `content` says how the model reads what that file
    describes; `rate` is the published share of gated blocks that run, and `gate_spread` gives for a variant the
    standard deviation of each gate's logit in order of execution, both None without gates.
    `title` and `short` are the paper's names, `trained_on` the data the paper's weights come from.
    """

    module: Definition
    title: str
    short: str
    dynamism: str
    symbols: Mapping[str, Extent]
    dataset: str
    content: Pictures | Tokens
    trained_on: str
    rate: float | None = None
    gate_spread: Callable[[str], np.ndarray] | None = None


MODELS: dict[str, Model] = {
    "codebert": Model(
        module=codebert,
        title="CodeBERT",
        short="CodeBERT",
        dynamism="shape",
        symbols={"T": Extent(32, 384)},
        dataset="codesearchnet",
        content=Tokens({variant: config.vocabulary for variant, config in codebert.CONFIGS.items()}),
        trained_on="CodeSearchNet",
    ),
    "yolov6": Model(
        module=yolov6,
        title="YOLO-V6",
        short="YL-V6",
        dynamism="shape",
        symbols={"h": Extent(7, 20), "w": Extent(7, 20)},
        dataset="coco",
        content=Pictures(),
        trained_on="MS COCO",
    ),
    "skipnet": Model(
        module=skipnet,
        title="SkipNet",
        short="SNet",
        dynamism="shape + control",
        symbols={"H": Extent(224, 640), "W": Extent(224, 640)},
        dataset="imagenet",
        content=IMAGENET,
        trained_on="ImageNet",
        rate=skipnet.RATE,
        gate_spread=skipnet.gate_spread,
    ),
}


def find(name: str, variant: str = "full") -> Model:
    """The registry's entry of a model; ValueError when the model or the variant does not exist."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}: the models are {', '.join(sorted(MODELS))}")
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r} of model {name!r}: the variants are {', '.join(VARIANTS)}")
    return MODELS[name]


def build(name: str, variant: str = "full") -> onnx.ModelProto:
    """The model as ONNX, weights inside; equal bytes at every call."""
    return find(name, variant).module.build(variant)


def parameters(name: str, variant: str = "full") -> int:
    """Number of scalar parameters of the upstream checkpoint, BatchNorm scales and shifts included.

    SkipNet's count includes the gate behind the last block, which the checkpoint holds and no inference reads.
    CodeBERT's excludes the pooler, which is no part of the encoder.
    """
    return find(name, variant).module.parameters(variant).count()

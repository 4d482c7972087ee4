"""The models of the evaluation, built as ONNX with random weights from a fixed seed, or with those of a checkpoint.

`build(name, variant)` returns the model; `MODELS` says of each what varies in its input, which data set feeds it and
what the paper says of it. Every model has the variants `full`, true to the published architecture, and `tiny`, the
same graph with fewer and narrower layers, for tests; some have further ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx
from spox import Var

from models import (
    blockdrop,
    codebert,
    conformer,
    convnet_aig,
    dgnet,
    lstm,
    operators,
    ranet,
    sam,
    sde,
    skipnet,
    tree_lstm,
    yolov6,
)
from models.parameters import Parameters, read_calibration


class Definition(Protocol):
    """What the module of a model offers."""

    CONFIGS: Mapping[str, Any]
    """The sizes of each variant."""

    def compose(self, p: Parameters, variant: str) -> tuple[dict[str, Var], dict[str, Var]]:
        """Inputs and outputs of the variant by name, its parameters declared in `p`."""


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
    """A model that reads RGB pictures in 0..1, normalised as (x - mean) / std; with `point`, a foreground point too."""

    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    point: bool = False


@dataclass(frozen=True)
class Frames:
    """A model that reads normalised log-mel frames, and how many of them are speech."""


@dataclass(frozen=True)
class Tokens:
    """A model that reads token ids below `vocabulary[variant]` and a mask of ones."""

    vocabulary: Mapping[str, int]


@dataclass(frozen=True)
class Sentences:
    """A model that reads a vector per word; with `padded`, the variants whose arrays are longer than a parse tree."""

    padded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Noise:
    """A model whose work does not depend on its contents: independent normal numbers."""


IMAGENET = Pictures((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Model:
    """One model of the evaluation, or with `suite` "extra" a workload of related systems, in no table of the paper, or
    with `suite` "operators" a single operator.

    `dynamism` is "shape", "control" or "shape + control"; `symbols` are the symbolic dims of its inputs with their
    admissible values; `dataset` names a file in datasets/ and `content` says how the model reads what that file
    describes. `title` and `short` are the paper's names, `trained_on` the data the paper's weights come from.

    `calibration` is the number of inputs on which the statistics of random weights are measured, 0 where none are
    needed, and `rate` the share of gated blocks that should run, None without gates. `gate_rates` gives for a variant
    the rate of each gate, for models whose gates have thresholds of their own; in the others the thresholds are folded
    into the layers that make the logits. `reached_only` takes the statistics of a branch from the inputs that reach it,
    where the others would have nothing but masked zeros there. `same_weights` maps a variant to the one whose
    calibration it shares.
    """

    module: Definition
    title: str
    short: str
    dynamism: str
    symbols: Mapping[str, Extent]
    dataset: str
    content: Pictures | Tokens | Frames | Sentences | Noise
    trained_on: str
    calibration: int = 0
    reached_only: bool = False
    rate: float | None = None
    gate_rates: Callable[[str], np.ndarray] | None = None
    same_weights: Mapping[str, str] = field(default_factory=dict)
    suite: str = "paper"

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants it can be built in."""
        return tuple(self.module.CONFIGS)


MODELS: dict[str, Model] = {
    "sde": Model(
        module=sde,
        title="StableDiffusion Encoder",
        short="SDE",
        dynamism="shape",
        symbols={"H": Extent(64, 224, 8), "W": Extent(64, 224, 8)},
        dataset="imagenet",
        content=Pictures((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        trained_on="ImageNet",
    ),
    "sam": Model(
        module=sam,
        title="SegmentAnything",
        short="SAM",
        dynamism="shape",
        symbols={"H": Extent(64, 224, 16), "W": Extent(64, 224, 16)},
        dataset="sa1b",
        content=Pictures(IMAGENET.mean, IMAGENET.std, point=True),
        trained_on="SA-1B",
    ),
    "conformer": Model(
        module=conformer,
        title="Conformer",
        short="Conformer",
        dynamism="shape",
        symbols={"T": Extent(32, 384)},
        dataset="librispeech",
        content=Frames(),
        trained_on="LibriSpeech",
        calibration=64,
    ),
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
        calibration=96,
        rate=skipnet.RATE,
        gate_rates=skipnet.gate_rates,
    ),
    "convnet_aig": Model(
        module=convnet_aig,
        title="ConvNet-AIG",
        short="CNet",
        dynamism="shape + control",
        symbols={"H": Extent(224, 640), "W": Extent(224, 640)},
        dataset="imagenet",
        content=IMAGENET,
        trained_on="ImageNet",
        calibration=96,
        rate=sum(convnet_aig.RATES) / len(convnet_aig.RATES),
    ),
    "dgnet": Model(
        module=dgnet,
        title="DGNet",
        short="DGNet",
        dynamism="control",
        symbols={},
        dataset="imagenet",
        content=IMAGENET,
        trained_on="ImageNet",
        calibration=256,
        reached_only=True,
        rate=dgnet.RATE,
        same_weights=dgnet.SAME_WEIGHTS,
    ),
    "ranet": Model(
        module=ranet,
        title="RANet",
        short="RaNet",
        dynamism="shape + control",
        symbols={"H": Extent(224, 640), "W": Extent(224, 640)},
        dataset="imagenet",
        content=IMAGENET,
        trained_on="ImageNet",
        calibration=64,
        gate_rates=ranet.gate_rates,
    ),
    "blockdrop": Model(
        module=blockdrop,
        title="BlockDrop",
        short="BDrop",
        dynamism="shape + control",
        symbols={"H": Extent(224, 640), "W": Extent(224, 640)},
        dataset="imagenet",
        content=IMAGENET,
        trained_on="ImageNet",
        calibration=96,
        rate=blockdrop.RATE,
    ),
    "lstm": Model(
        module=lstm,
        title="LSTM",
        short="LSTM",
        dynamism="shape + loop",
        symbols={"T": Extent(5, 50)},
        dataset="mrpc",
        content=Sentences(),
        trained_on="MRPC",
        suite="extra",
    ),
    "tree_lstm": Model(
        module=tree_lstm,
        title="Tree-LSTM",
        short="TLSTM",
        dynamism="shape + loop",
        symbols={"N": Extent(3, 101, 2)},
        dataset="sst",
        content=Sentences(tree_lstm.PADDED),
        trained_on="SST",
        suite="extra",
    ),
}
PAPER = tuple(name for name, model in MODELS.items() if model.suite == "paper")
"""The models of the paper's tables."""
OPERATORS: dict[str, Model] = {
    name: Model(
        module=operator,
        title=name,
        short=name,
        dynamism="shape",
        symbols={"S": Extent(operator.low, operator.high, operator.step)},
        dataset="noise",
        content=Noise(),
        trained_on="",
        suite="operators",
    )
    for name, operator in operators.OPERATORS.items()
}
"""Single operators, which a figure of their own is about."""


def find(name: str, variant: str = "full") -> Model:
    """The registry's entry of a model; ValueError when the model or the variant does not exist."""
    model = MODELS.get(name) or OPERATORS.get(name)
    if model is None:
        raise ValueError(f"unknown model {name!r}: the models are {', '.join(sorted(MODELS))}")
    if variant not in model.variants:
        raise ValueError(f"unknown variant {variant!r} of model {name!r}: its variants are {', '.join(model.variants)}")
    return model


def calibration(name: str, variant: str = "full") -> dict[str, np.ndarray]:
    """The committed calibration vectors of a variant, empty where the model needs none."""
    model = find(name, variant)
    return read_calibration(name, model.same_weights.get(variant, variant)) if model.calibration else {}


def gate_spread(name: str, variant: str = "full") -> np.ndarray:
    """Standard deviation of each gate's compared value over the calibration inputs, in the order of execution."""
    return calibration(name, variant).get("gates.spread", np.ones(0, np.float32))


def build(name: str, variant: str = "full", weights: Mapping[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """The model as ONNX, weights inside; equal bytes at every call.

    `weights` are those of a checkpoint, in place of random ones: every parameter and running statistic by its name
    (see models/checkpoint.py). Gates then compare with zero.
    """
    p = Parameters(calibration(name, variant))
    inputs, outputs = find(name, variant).module.compose(p, variant)
    if weights is not None:
        p.load(weights)
    return p.assemble(name, inputs, outputs)


def declared(name: str, variant: str = "full") -> Parameters:
    """The parameters of the upstream checkpoint, declared without values.

    SkipNet's include the gate behind the last block and BlockDrop's the value head of its policy, which checkpoints
    hold and no inference reads. CodeBERT's exclude the pooler, which is no part of the encoder.
    """
    p = Parameters()
    find(name, variant).module.compose(p, variant)
    return p


def parameters(name: str, variant: str = "full") -> int:
    """Number of scalar parameters of the upstream checkpoint, BatchNorm scales and shifts included."""
    return declared(name, variant).count()

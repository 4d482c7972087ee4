"""What onnxruntime fuses in PyTorch's exports of the models, and in ours: `python -m models exported` writes the page.

Our definitions write the nodes that an exporter writes, so that no engine loses a fusion by them. Here the published
modules themselves, with random weights, go through torch.export at three opsets and through the older TorchScript
exporter. Axes are dynamic, but for SegmentAnything, whose published module takes one size only.

The differences seen, with the reasons that onnxruntime logs or its graphs show:
- At opset 18 torch.export multiplies by a half before the last product of a Gelu, a form that is not fused; from opset
  20 on it writes the operator Gelu.
- TorchScript adds a bias from the left; no SkipLayerNormalization is made of such sums.
- Attention is made nowhere: its pattern wants that bias at the right, and the heads split by a constant shape that
  begins with 0, where torch.export writes 1; with scaled_dot_product_attention at opset 23 the exporter writes the
  operator itself. The scale of the scores goes into FusedMatMul instead.
- Parakeet scales the two terms of its scores, Conformer their sum, which is no product.

Needs what nothing else here does: the extra `pytorch` of pyproject.toml.
"""

import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import diffusers
import onnx
import torch
import transformers

from models import MODELS, build
from models.__main__ import save
from models.evidence import fusions, head, listed
from models.execute_all import walk

OPSETS = (18, 20, 23)  # of torch.export
TRACED_OPSET = 17  # of TorchScript
PACKAGES = ("torch", "onnxscript", "transformers", "diffusers", "onnxruntime")
PICTURE = 224


class Source(NamedTuple):
    """A published module: the model of ours that it is, how it is called, example inputs and their dynamic axes."""

    model: str
    title: str
    module: torch.nn.Module
    call: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    axes: tuple[int, ...]


class _Called(torch.nn.Module):
    """A module whose inputs and outputs are only those of the model."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.module, self.call = source.module, source.call

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.call(self.module, *inputs)


def sources() -> Iterator[Source]:
    """The modules, in our full-size configurations."""
    yield _autoencoder()
    yield _segment_anything()
    yield _conformer()
    yield from (_roberta(attention) for attention in ("eager", "sdpa"))


def _autoencoder() -> Source:
    module = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=2,
    )

    def encode(module: Any, images: torch.Tensor) -> Any:
        return module.quant_conv(module.encoder(images))[:, :4]

    return Source("sde", "diffusers AutoencoderKL", module, encode, (torch.randn(1, 3, 64, 96),), (2, 3))


def _segment_anything() -> Source:
    size = {"image_size": PICTURE}
    config = transformers.SamConfig(vision_config=size, prompt_encoder_config=size, attn_implementation="eager")

    def segment(module: Any, images: torch.Tensor, points: torch.Tensor, labels: torch.Tensor) -> Any:
        return module(pixel_values=images, input_points=points, input_labels=labels)[:2]

    inputs = (torch.randn(1, 3, PICTURE, PICTURE), torch.rand(1, 1, 2, 2) * PICTURE, torch.tensor([[[1, -1]]]))
    return Source("sam", "transformers SamModel, eager", transformers.SamModel(config), segment, inputs, ())


def _conformer() -> Source:
    config = transformers.ParakeetEncoderConfig(
        hidden_size=256,
        num_hidden_layers=16,
        num_attention_heads=4,
        intermediate_size=1024,
        conv_kernel_size=31,
        subsampling_factor=4,
        attn_implementation="eager",
    )

    def encode(module: Any, frames: torch.Tensor, mask: torch.Tensor) -> Any:
        return module(input_features=frames, attention_mask=mask)[0]

    inputs = (torch.randn(1, 383, 80), torch.ones(1, 383, dtype=torch.bool))
    module = transformers.ParakeetEncoder(config)
    return Source("conformer", "transformers ParakeetEncoder, eager", module, encode, inputs, (1,))


def _roberta(attention: str) -> Source:
    config = transformers.RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, attn_implementation=attention
    )

    def encode(module: Any, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        return module(input_ids=ids, attention_mask=mask)[0]

    inputs = (torch.arange(3, 40)[None], torch.ones(1, 37, dtype=torch.int64))
    module = transformers.RobertaModel(config, add_pooling_layer=False)
    return Source("codebert", f"transformers RobertaModel, {attention}", module, encode, inputs, (1,))


def export(source: Source, opset: int, path: Path) -> None:
    """Write the module as ONNX by torch.export."""
    axes = tuple(dict.fromkeys(source.axes, torch.export.Dim.DYNAMIC) for _ in source.inputs)
    module = _Called(source).eval()
    program = torch.onnx.export(
        module, source.inputs, dynamo=True, dynamic_shapes=(axes,), opset_version=opset, verbose=False
    )
    program.save(path, external_data=True)


def trace(source: Source, opset: int, path: Path) -> None:
    """Write the module as ONNX by the TorchScript exporter."""
    names = [f"input_{index}" for index in range(len(source.inputs))]
    torch.onnx.export(
        _Called(source).eval(),
        source.inputs,
        path,
        dynamo=False,
        input_names=names,
        dynamic_axes={name: {axis: f"D{axis}" for axis in source.axes} for name in names},
        opset_version=opset,
    )


def _measured(path: Path) -> tuple[int, Counter[str]]:
    """Nodes of a file, and what onnxruntime fuses in it."""
    return len(list(walk(onnx.load(path, load_external_data=False).graph))), fusions(path)


def _rows(source: Source) -> Iterator[tuple[str, int, Counter[str]]]:
    """Exporter, nodes and fusions of every export of a module."""
    ways = [("torch.export", export, opset) for opset in OPSETS] + [("TorchScript", trace, TRACED_OPSET)]
    for title, write, opset in ways:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
            write(source, opset, Path(folder) / "m.onnx")
            yield f"{title}, opset {opset}", *_measured(Path(folder) / "m.onnx")


def _ours(name: str) -> tuple[int, Counter[str]]:
    with tempfile.TemporaryDirectory() as folder:
        save(build(name), Path(folder) / "m.onnx")
        return _measured(Path(folder) / "m.onnx")


def lines() -> Iterator[str]:
    """The page: one row for each export, and one for ours ahead of the exports of its module."""
    yield "# What onnxruntime fuses in exports, and in ours"
    yield ""
    yield "Written by `python -m models exported`; models/exported.py says what was exported, and where differences"
    yield "come from. Only operators that onnxruntime makes are counted, not those that a file already has. Versions:"
    yield f"{', '.join(f'{package} {version(package)}' for package in PACKAGES)}."
    yield ""
    yield from head("model", "definition", "written by", "nodes", "made by onnxruntime")
    shown: set[str] = set()
    for source in sources():
        title = MODELS[source.model].title
        if source.model not in shown:
            nodes, fused = _ours(source.model)
            yield f"| {title} | models/{source.model}.py | spox, opset 18 | {nodes} | {listed(fused)} |"
            shown.add(source.model)
        for exporter, nodes, fused in _rows(source):
            yield f"| {title} | {source.title} | {exporter} | {nodes} | {listed(fused)} |"

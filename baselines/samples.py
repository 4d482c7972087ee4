"""The samples of a model as runners read them: one .npy file per input, an index, and the reference outputs.

    samples.json          list of {"shapes", "path", "macs", "macs_all"}, by sample
    <i>.<k>.npy           input k, in the model's order, of sample i
    reference/<i>.<k>.npy output k

Made from the .npz file of datasets/sample.py, where a sample's arrays are named `<i>.<input>` and `facts` holds a JSON
list of {"path", "macs", "macs_all"}.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx


@dataclass(frozen=True)
class Sample:
    """What the index says of one sample."""

    index: int
    shapes: tuple[tuple[int, ...], ...]
    path: str | None
    macs: int | None
    macs_all: int | None

    @property
    def size(self) -> int:
        """Elements of all inputs."""
        return sum(math.prod(shape) for shape in self.shapes)


def unpack(archive: Path, inputs: list[str], folder: Path) -> None:
    """Write the samples of datasets/sample.py's file into a folder; `inputs` are the names in the model's order."""
    with np.load(archive) as content:
        facts = json.loads(str(content["facts"]))
        index = []
        for i, fact in enumerate(facts):
            arrays = [content[f"{i}.{name}"] for name in inputs]
            for k, array in enumerate(arrays):
                np.save(folder / f"{i}.{k}.npy", np.ascontiguousarray(array))
            chosen = {key: fact[key] for key in ("path", "macs", "macs_all")}
            index.append({"shapes": [list(array.shape) for array in arrays], **chosen})
    (folder / "samples.json").write_text(json.dumps(index, indent=1) + "\n")


def read_index(folder: Path) -> list[Sample]:
    """The samples of a folder, in their order."""
    entries = json.loads((folder / "samples.json").read_text())
    return [
        Sample(i, tuple(map(tuple, e["shapes"])), e["path"], e["macs"], e["macs_all"]) for i, e in enumerate(entries)
    ]


def array_files(folder: Path, sample: int) -> list[Path]:
    """Files of a sample's inputs or outputs, in the model's order."""
    return sorted(folder.glob(f"{sample}.*.npy"), key=lambda path: int(path.name.split(".")[1]))


def input_names(model: Path) -> list[str]:
    """Inputs of an ONNX file in its order, without those that are weights."""
    graph = onnx.load(model, load_external_data=False).graph
    weights = {initializer.name for initializer in graph.initializer}
    return [value.name for value in graph.input if value.name not in weights]

"""Models with inputs that declare no rank: compiled when a run's arrays tell it, once for each combination of ranks.

Before that nothing can be said of their tensors, and the analysis says so. Limits: an artifact is of one rank an input,
so that such a model has none before its first run, and `compiler.build` refuses it; the C compiler is needed then.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import onnx

from sod2.artifact import CompiledModel
from sod2.errors import InputError
from sod2.graph import Array


def inputs(model: onnx.ModelProto) -> tuple[str, ...]:
    """Names of the inputs of no declared rank."""
    stored = {t.name for t in model.graph.initializer}
    tensors = (v for v in model.graph.input if v.name not in stored and v.type.HasField("tensor_type"))
    return tuple(v.name for v in tensors if not v.type.tensor_type.HasField("shape"))


def ranked(model: onnx.ModelProto, ranks: Mapping[str, int]) -> onnx.ModelProto:
    """A copy in which each of these inputs declares as many unnamed dims as its rank."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        if value.name in ranks:
            value.type.tensor_type.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in range(ranks[value.name]))
            value.type.tensor_type.shape.SetInParent()  # also where there are no dims
    return copy


class UnrankedModel(CompiledModel):
    """A CompiledModel that loads the artifact for the ranks at hand whenever those change."""

    def __init__(self, model: onnx.ModelProto, compiled: Callable[[onnx.ModelProto], Path], threads: int) -> None:
        """`compiled` gives the artifact of a model whose inputs all have a rank."""
        self._model, self._compiled, self._threads = model, compiled, threads
        self._folders: dict[tuple[int, ...], Path] = {}
        self._loaded: tuple[int, ...] | None = None

    def __getattr__(self, name: str) -> NoReturn:
        """What an artifact has, asked for before there is one."""
        raise AttributeError(f"no {name} before a run has told the ranks of the inputs that declare none")

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self._take({name: np.shape(array) for name, array in inputs.items()})
        return super().run(inputs)

    def peak_bytes(self, shapes: Mapping[str, Sequence[int]]) -> int:
        self._take(shapes)
        return super().peak_bytes(shapes)

    def profile(self, inputs: Mapping[str, Array]) -> list[tuple[str, int]]:
        self._take({name: np.shape(array) for name, array in inputs.items()})
        return super().profile(inputs)

    def _take(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Load the artifact for these ranks."""
        names = inputs(self._model)
        if missing := [name for name in names if name not in shapes]:
            raise InputError(f"input {missing[0]!r} is missing")
        ranks = tuple(len(shapes[name]) for name in names)
        if ranks not in self._folders:
            self._folders[ranks] = self._compiled(ranked(self._model, dict(zip(names, ranks, strict=True))))
        if ranks != self._loaded:
            if self._loaded is not None:
                self._free()
                self._loaded = None  # also where the next one cannot be loaded
            super().__init__(self._folders[ranks], self._threads)
            self._loaded = ranks

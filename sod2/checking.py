"""The self-check: everything that the analysis predicts, held against one execution by the reference interpreter.

A shape or value over the symbols of the input dims is checked as it is; one over minted symbols with the values that
the execution gives them. Tensors of branches that were not taken have nothing to be checked against.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sod2 import reference
from sod2.graph import Array
from sod2.lattice import Shape
from sod2.minting import Minted
from sod2.rdp import Analysis
from sod2.symbolic import Dim, evaluate


@dataclass(frozen=True)
class Report:
    """How many tensors of a run were predicted, by what, and every prediction that was wrong."""

    values: Mapping[str, Array]  # of all tensors that were computed
    minted: Mapping[str, int]  # the symbols that execution told
    from_inputs: int
    from_execution: int  # predicted over minted symbols
    unknown: tuple[str, ...]
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        total = self.from_inputs + self.from_execution + len(self.unknown)
        lines = [
            f"{total} tensors: {self.from_inputs} shapes predicted from the input dims, {self.from_execution} over "
            f"minted symbols, {len(self.unknown)} not; {len(self.wrong)} wrong"
        ]
        lines += [f"{name} = {value}" for name, value in self.minted.items()]
        return "\n".join([*lines, *(f"not predicted: {t}" for t in self.unknown), *self.wrong])


def check(analysis: Analysis, inputs: Mapping[str, Array]) -> Report:
    """Run once and compare; errors are those of `reference.run_all` and `Analysis.bind`."""
    values = reference.run_all(analysis.graph, inputs)
    minted = {name: _told(m, values) for name, m in analysis.minted.items() if m.tensor in values}
    symbols = analysis.bind({name: array.shape for name, array in inputs.items()}) | minted
    counts, unknown, wrong = {False: 0, True: 0}, [], []
    for tensor, array in values.items():
        fact = analysis[tensor]
        names = _symbols(fact.shape)
        if names is None or not names <= symbols.keys():
            unknown.append(tensor)
            continue
        counts[names.isdisjoint(minted)] += 1
        shape = tuple(evaluate(d, symbols) for d in fact.dims)
        if shape != array.shape:
            wrong.append(f"{tensor}: predicted {list(shape)} by {fact}, found {list(array.shape)}")
        elif (element := _wrong_element(fact.value, array, symbols)) is not None:
            wrong.append(f"{tensor}: {element}")
    return Report(values, minted, counts[True], counts[False], tuple(unknown), tuple(wrong))


def _told(minted: Minted, values: Mapping[str, Array]) -> int:
    array = values[minted.tensor]
    return int(array.flat[minted.index]) if minted.kind == "value" else int(array.shape[minted.index])


def _symbols(shape: Shape) -> set[str] | None:
    """The symbols of a shape, None when some of it is not known."""
    if not isinstance(shape, tuple) or not all(isinstance(d, Dim) for d in shape):
        return None
    return {name for d in shape if isinstance(d, Dim) for name in d.symbols()}


def _wrong_element(value: object, array: Array, symbols: Mapping[str, int]) -> str | None:
    """The first followed element that is another number than the one computed."""
    if not isinstance(value, np.ndarray) or value.dtype != object:
        return None
    for k, (element, found) in enumerate(zip(value.flat, array.flat, strict=True)):
        if isinstance(element, Dim) and element.symbols() <= symbols.keys():
            predicted = evaluate(element, symbols)
            if predicted != found:
                return f"element {k} predicted {predicted} by {element}, found {found}"
    return None

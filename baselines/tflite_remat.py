"""Rematerialisation of a TFLite file: recompute tensors shortly before a late use, to keep fewer bytes meanwhile.

TFLite's own pass for this is part of no wheel, so the graph in the file is changed instead. What counts is the sum of
live intermediates while each operator runs. As long as it exceeds the budget anywhere: take the operator at the peak
and the tensors that live across it without being read by it; for each, clone the operators that make it (and those that
make what they read, where that is dead by then, up to DEPTH) to just before its next use; keep the clone that takes off
most excess bytes, summed over operators, per multiply-add that it repeats. Greedy, so not the least possible.

Limits: operators with several outputs are not repeated. The sum is what a perfect allocator needs; TFLite's arena
comes close to it, and what it took is measured by the runner.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema  # type: ignore[import-not-found]

DEPTH = 4
"""Operators in a chain that is repeated."""
ELEMENT_BYTES = {
    schema.TensorType.FLOAT32: 4,
    schema.TensorType.INT32: 4,
    schema.TensorType.INT64: 8,
    schema.TensorType.BOOL: 1,
}

Operators = list[Any]
Lives = dict[int, tuple[int, int]]
"""First and last operator during which each tensor exists."""


class Graph:
    """The subgraph of a file whose operators are rearranged; an operator reads and writes tensors by number."""

    def __init__(self, model: Any) -> None:
        self.subgraph = model.subgraphs[0]
        self.tensors = self.subgraph.tensors
        self.codes = [code.builtinCode for code in model.operatorCodes]
        data = [buffer.data for buffer in model.buffers]
        self.constant = {i for i, t in enumerate(self.tensors) if data[t.buffer] is not None and len(data[t.buffer])}
        self.kept = {int(i) for i in (*self.subgraph.inputs, *self.subgraph.outputs)} | self.constant

    def size(self, tensor: int) -> int:
        """Bytes of a tensor; KeyError for element types that no model here has."""
        shape = self.tensors[tensor].shape
        return (1 if shape is None else math.prod(map(int, shape))) * ELEMENT_BYTES[self.tensors[tensor].type]

    def reads(self, operator: Any) -> list[int]:
        """Tensors that an operator reads and that are no constants."""
        return [int(t) for t in operator.inputs if t >= 0 and t not in self.constant]

    def lives(self, operators: Operators) -> Lives:
        """First and last operator during which each tensor exists; inputs of the graph are the caller's."""
        lives: Lives = {}
        for k, operator in enumerate(operators):
            for tensor in self.reads(operator):
                if tensor in lives:
                    lives[tensor] = (lives[tensor][0], k)
            for tensor in map(int, operator.outputs):
                lives[tensor] = (k, k)
        last = len(operators) - 1
        return lives | {int(t): (lives[t][0], last) for t in self.subgraph.outputs if t in lives}

    def profile(self, operators: Operators) -> np.ndarray:
        """Live bytes while each operator runs."""
        change = np.zeros(len(operators) + 1, np.int64)
        for tensor, (first, last) in self.lives(operators).items():
            change[first] += self.size(tensor)
            change[last + 1] -= self.size(tensor)
        return np.cumsum(change[:-1])

    def work(self, operator: Any) -> int:
        """Multiply-adds, or elements written by an operator that has none."""
        kinds = schema.BuiltinOperator
        kind = self.codes[operator.opcodeIndex]
        written = sum(self.size(int(t)) // 4 for t in operator.outputs)
        if kind in (kinds.CONV_2D, kinds.DEPTHWISE_CONV_2D, kinds.TRANSPOSE_CONV):
            weights = self.tensors[operator.inputs[1]].shape
            return written * math.prod(map(int, weights[1:3] if kind == kinds.DEPTHWISE_CONV_2D else weights[1:]))
        if kind in (kinds.FULLY_CONNECTED, kinds.BATCH_MATMUL):
            return written * int(self.tensors[operator.inputs[0]].shape[-1])
        return written


def rematerialise(model: Any, budget: int) -> tuple[int, int]:
    """Change the operators of a model (`schema.ModelT`) to keep at most `budget` bytes of intermediates, as far as that
    can be; returns the largest number of bytes that live at once, before and after."""
    graph = Graph(model)
    operators = list(graph.subgraph.operators)
    before = int(graph.profile(operators).max(initial=0))
    while (better := _best_change(graph, operators, budget)) is not None:
        operators = better
    graph.subgraph.operators = operators
    return before, int(graph.profile(operators).max(initial=0))


def _best_change(graph: Graph, operators: Operators, budget: int) -> Operators | None:
    """The operators after the best change at the peak; None when the budget is met or no change helps."""
    profile = graph.profile(operators)
    excess = _excess(profile, budget)
    if excess == 0:
        return None
    peak = int(profile.argmax())
    lives = graph.lives(operators)
    best, best_gain = None, 0.0
    for tensor, (first, last) in lives.items():
        if tensor in graph.kept or not first < peak < last or tensor in graph.reads(operators[peak]):
            continue
        count = len(graph.tensors)
        changed, work = _recompute(graph, operators, lives, tensor, peak)
        gain = (excess - _excess(graph.profile(changed), budget)) / max(work, 1) if changed else 0.0
        del graph.tensors[count:]  # of the clones, which are made once more for the best
        if gain > best_gain:
            best, best_gain = tensor, gain
    return None if best is None else _recompute(graph, operators, lives, best, peak)[0]


def _excess(profile: np.ndarray, budget: int) -> int:
    return int(np.maximum(profile - budget, 0).sum())


def _recompute(graph: Graph, operators: Operators, lives: Lives, tensor: int, peak: int) -> tuple[Operators, int]:
    """The operators with a tensor made again before its first use behind the peak, and the work of that; empty when it
    cannot be made again."""
    use = next(k for k in range(peak + 1, len(operators)) if tensor in graph.reads(operators[k]))
    chain = Chain(graph, operators, lives, use)
    if not chain.make(tensor, DEPTH):
        return [], 0
    late = [_with_inputs(operator, {tensor: chain.copies[tensor]}) for operator in operators[use:]]
    return [*operators[:use], *chain.clones, *late], sum(map(graph.work, chain.clones))


@dataclass
class Chain:
    """Clones of operators to run just before operator `use`, and the copies of tensors that they write."""

    graph: Graph
    operators: Operators
    lives: Lives
    use: int
    copies: dict[int, int] = field(default_factory=dict)
    clones: Operators = field(default_factory=list)

    def make(self, tensor: int, depth: int) -> bool:
        """Append what makes a copy of the tensor; False when that takes more than `depth` operators in a row."""
        if tensor in self.copies:
            return True
        graph, producer = self.graph, self.operators[self.lives[tensor][0]]
        if depth == 0 or len(producer.outputs) != 1:
            return False
        for read in graph.reads(producer):
            dead = read in self.lives and self.lives[read][1] < self.use
            if dead and not self.make(read, depth - 1):
                return False
        duplicate = copy.copy(graph.tensors[tensor])
        duplicate.name = b"%b_again_%d" % (duplicate.name or b"", len(graph.tensors))
        self.copies[tensor] = len(graph.tensors)
        graph.tensors.append(duplicate)
        clone = copy.copy(_with_inputs(producer, self.copies))
        clone.outputs = np.array([self.copies[tensor]], np.int32)
        self.clones.append(clone)
        return True


def _with_inputs(operator: Any, renamed: dict[int, int]) -> Any:
    """The operator, or a copy of it when it reads a tensor that is replaced."""
    inputs = [renamed.get(int(t), int(t)) for t in operator.inputs]
    if inputs == [int(t) for t in operator.inputs]:
        return operator
    changed = copy.copy(operator)
    changed.inputs = np.array(inputs, np.int32)
    return changed


def rewrite(source: Path, out: Path, budget: int) -> tuple[int, int]:
    """Rematerialise a file into another; returns the bytes that live at once, before and after."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(source.read_bytes(), 0))
    planned = rematerialise(model, budget)
    builder = flatbuffers.Builder(source.stat().st_size)
    builder.Finish(model.Pack(builder), b"TFL3")
    part = out.with_suffix(".part")
    part.write_bytes(builder.Output())
    part.replace(out)
    return planned

"""Where tensors live: buffers of tiny graphs as goldens, and a replay that checks no step reads overwritten bytes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

import sod2
from sod2.fusion import Group
from sod2.ops import OPS
from sod2.storage import Copy, Materialize, Step, byte_size
from sod2.symbolic import Dim, evaluate
from tests import random_graphs
from tests.graphs import model


def if_(then: str, other: str) -> str:
    return f"If (p) <then_branch = t () => (float[?] a) {{ {then} }}, else_branch = e () => (float[?] b) {{ {other} }}>"


GRAPHS = {
    "in place": model("float[N] x", "float[?] y", "a = Softmax(x) b = Neg(a) c = Softmax(b) y = Exp(c)"),
    "views": model(
        "float[N, 4] x", "float[?] y", "a = Softmax(x) b = Reshape(a, t) y = Neg(b)", {"t": np.int64([-1])}
    ),
    "residual in a branch": model(
        "float[N] v, bool p",
        "float[?] y",
        f"x = Softmax(v) y = {if_('h = Softmax(x) a = Add(h, x)', 'b = Identity(x)')}",
    ),
    "copy in a branch": model(
        "float[N] v, float[N] w, bool p", "float[?] y", f"y = {if_('a = Identity(v)', 'b = Identity(w)')}"
    ),
    "dense block": model(
        "float[1, C, N] x",
        "float[?] y",
        "a = Softmax(x) b = Softmax(a) c = Concat<axis=1>(a, b) d = Softmax(c) e = Concat<axis=1>(c, d) f = Neg(c)"
        "g = Softmax(e) h = Softmax(f) i = Concat<axis=1>(g, h) y = Exp(i)",
    ),
    "pieces": model(
        "float[1, 4, N] x",
        "float[?] y",
        "s = Softmax(x) a, b = Split<axis=1, num_outputs=2>(s) c = Neg(a) d = Softmax(b) e = Mul(c, d)"
        "y = Concat<axis=1>(e, e)",
    ),
    "slices": model(
        "float[1, 4, N] x",
        "float[?] y",
        "s = Softmax(x) a = Slice(s, i0, i2, i1) b = Slice(s, i1, i3, i1) c = Slice(s, i0, i2, i2) d = Softmax(a)"
        "e = Softmax(b) f = Add(d, e) g = Softmax(c) h = ReduceSum<keepdims=0>(g) k = Softmax(f) y = Add(k, h)",
        {f"i{k}": np.int64([k]) for k in range(4)},
    ),
    "unconditional": model(
        "float[N] v, bool p",
        "float[?] y",
        f"x = Softmax(v) n = Neg(x) y = {if_('a = Identity(n)', 'b = Identity(x)')}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_buffers(name: str, golden: Callable[[str, str], None]) -> None:
    storage = sod2.plan(GRAPHS[name], sod2.Options(fusion="none")).storage
    steps = "\n".join(f"{k}: {s if isinstance(s, Group) else s.name}" for k, s in enumerate(storage.steps))
    places = "\n".join(f"{t} in {p.kind} {p.number}" for t, p in sorted(storage.places.items()) if p.kind == "buffer")
    golden(f"storage {name}", f"{steps}\n{storage}\n{places}")


def written(step: Step) -> tuple[str, ...]:
    if isinstance(step, Copy):
        return (step.target,)
    return (step.tensor,) if isinstance(step, Materialize) else step.outputs


def guards(predicates: list[str]) -> Iterator[dict[str, bool]]:
    """Every combination of the predicates' values, at most 64 of them."""
    for number in range(min(2 ** len(predicates), 64)):
        yield {p: bool(number >> k & 1) for k, p in enumerate(predicates)}


Bytes = tuple[int, int, int]  # buffer, begin, end


@dataclass
class Replay:
    """A walk over the steps that knows which tensor's value lies where: a read must meet the one it names."""

    plan: sod2.compiler.Plan
    taken: dict[str, bool]
    content: dict[Bytes, str] = field(default_factory=dict)  # bytes of a buffer -> tensor that made the value in it

    def number(self, dim: Dim) -> int:
        """A size where every symbol is 7: parts of a tensor then have bytes of their own."""
        return evaluate(dim, dict.fromkeys(dim.symbols(), 7))

    def bytes_of(self, tensor: str) -> Bytes:
        place = self.plan.storage.places[tensor]
        begin = self.number(place.offset)
        return place.number, begin, begin + self.number(byte_size(self.plan.analysis, tensor))

    def holds(self, tensor: str, where: Bytes) -> bool:
        """Whether these bytes are the tensor's: written by its maker, or part by part, or part of a whole that is."""
        if self.content.get(where) == tensor:
            return True
        node = self.plan.graph.producer.get(tensor)
        if node is not None and node.op == "Concat":
            sizes = [self.number(byte_size(self.plan.analysis, t)) for t in node.inputs]
            ends = [where[1] + sum(sizes[: k + 1]) for k in range(len(sizes))]
            pieces = zip(node.inputs, sizes, ends, strict=True)
            return all(self.holds(self.maker(t), (where[0], end - n, end)) for t, n, end in pieces)
        if node is not None and node.op in ("Split", "Slice"):
            whole = self.plan.storage.places[node.inputs[0]]
            return whole.kind != "buffer" or self.holds(self.maker(node.inputs[0]), self.bytes_of(node.inputs[0]))
        return False

    def write(self, tensor: str, where: Bytes) -> None:
        number, begin, end = where
        self.content = {w: t for w, t in self.content.items() if w[0] != number or w[2] <= begin or w[1] >= end}
        self.content[where] = tensor

    def maker(self, tensor: str) -> str:
        """The tensor that made a value: through views and taken branches."""
        node = self.plan.graph.producer.get(tensor)
        if node is None or self.plan.analysis[tensor].known_value is not None:
            return tensor
        if node.op == "Combine":
            return self.maker(node.inputs[1 if self.taken[node.inputs[0]] else 2])
        if node.op == "Switch":
            return self.maker(node.inputs[1])
        return self.maker(node.inputs[0]) if OPS(node).is_view else tensor

    def check(self, tensor: str, number: int) -> None:
        """A read of a tensor by a step."""
        place = self.plan.storage.places[tensor]
        if place.kind == "buffer":
            buffer = self.plan.storage.buffers[place.number]
            assert buffer.first <= number <= buffer.last, (tensor, number)
            assert self.holds(self.maker(tensor), self.bytes_of(tensor)), (tensor, number)

    def step(self, number: int, step: Step) -> None:
        reads = (step.source,) if isinstance(step, Copy) else step.inputs if isinstance(step, Group) else ()
        for tensor in reads:
            self.check(tensor, number)
        for tensor in written(step):
            where = self.bytes_of(tensor)
            if isinstance(step, Copy):
                begin = where[1] + self.number(step.offset)
                where = where[0], begin, begin + self.number(byte_size(self.plan.analysis, step.source))
            self.write(self.maker(step.source) if isinstance(step, Copy) else tensor, where)

    def run(self) -> None:
        steps = self.plan.storage.steps
        for number, step in enumerate(steps):
            guard = () if isinstance(step, Materialize) else step.guard
            if all(self.taken[p] == branch for p, branch in guard):
                self.step(number, step)
        for tensor in self.plan.graph.outputs:
            self.check(tensor, len(steps) - 1)


OPTIONS = (sod2.Options(), sod2.Options(fusion="none", sep=False), sod2.Options(fusion="static"))


@pytest.mark.parametrize("name", GRAPHS)
def test_replay(name: str) -> None:
    for options in OPTIONS:
        plan = sod2.plan(GRAPHS[name], options)
        for taken in guards(sorted({n.inputs[0] for n in plan.graph.nodes if n.op in ("Combine", "Switch")})):
            Replay(plan, taken).run()


@pytest.mark.parametrize("seed", range(2000, 2100))
def test_replay_random_graphs(seed: int) -> None:
    plan = sod2.plan(random_graphs.build(seed, steps=20), OPTIONS[seed % len(OPTIONS)])
    for taken in guards(sorted({n.inputs[0] for n in plan.graph.nodes if n.op in ("Combine", "Switch")})):
        Replay(plan, taken).run()

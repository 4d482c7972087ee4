"""Where tensors live: buffers of tiny graphs as goldens, and a replay that checks no step reads overwritten bytes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

import sod2
from sod2.fusion import Group
from sod2.ops import OPS
from sod2.storage import Copy, Materialize, Step
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


@dataclass
class Replay:
    """A walk over the steps that knows which tensor's value lies in every buffer: a read must meet the one it names."""

    plan: sod2.compiler.Plan
    taken: dict[str, bool]
    content: dict[int, str] = field(default_factory=dict)  # buffer -> tensor that made the value in it

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
            assert self.content.get(place.number) == self.maker(tensor), (tensor, number)

    def step(self, number: int, step: Step) -> None:
        reads = (step.source,) if isinstance(step, Copy) else step.inputs if isinstance(step, Group) else ()
        for tensor in reads:
            self.check(tensor, number)
        for tensor in written(step):
            made = self.maker(step.source) if isinstance(step, Copy) else tensor
            self.content[self.plan.storage.places[tensor].number] = made

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

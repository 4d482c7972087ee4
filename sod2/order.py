"""From a fusion plan to an order of execution: the adapter between groups and the scheduler.

The scheduler sees items that read and write tensors; here they are the groups and the live joints, reading the
tensors behind views: a Combine stays an item because its output may need a copy, and so do a loop's beginning and end
(sharing.py decides).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from sod2 import loop_storage, schedule, streaming
from sod2.fusion import FusionPlan, Group, live_nodes
from sod2.graph import Graph, Node
from sod2.minting import Mint
from sod2.ops import OPS
from sod2.peak import Environment
from sod2.rdp import Analysis
from sod2.schedule import Item
from sod2.storage import JOINTS, byte_size
from sod2.symbolic import Dim, constant

Thing = Group | Node | Mint
Order = tuple[Thing, ...]
T = TypeVar("T")


def root(graph: Graph, analysis: Analysis, tensor: str) -> str:
    """The tensor whose bytes a view shows; a Combine, or a loop's beginning or end, is no view here."""
    node = graph.producer.get(tensor)
    while node is not None and node.op not in JOINTS and OPS(node).is_view and analysis.known(tensor) is None:
        tensor = node.inputs[1 if node.op == "Switch" else 0]
        node = graph.producer.get(tensor)
    return tensor


def _items(graph: Graph, analysis: Analysis, fused: FusionPlan) -> tuple[list[Thing], list[Item]]:
    """Groups, joints and mints in a valid order, and what the scheduler sees of them."""
    position = {n.name: k for k, n in enumerate(graph.nodes)}
    joints = [n for n in live_nodes(graph, analysis) if n.op in JOINTS and analysis.alternatives(n.outputs[0]) is None]
    running: list[Group | Node] = [*fused.groups, *joints]
    awaited = {thing.name: _awaited(analysis, thing) for thing in running}
    results = [mint for t in analysis.results for mint in analysis.minting.awaited_by(t)]
    mints = analysis.minting.closure([*results, *(mint for found in awaited.values() for mint in found)])
    awaited.update({mint.name: analysis.minting.before(mint) for mint in mints})
    things: list[Thing] = [*mints, *running]

    def at(thing: Thing) -> int:
        if isinstance(thing, Group):
            return max(position[n.name] for n in thing.nodes)
        origin = thing.node or graph.producer.get(thing.inputs[0]) if isinstance(thing, Mint) else thing
        return position[origin.name] if origin is not None else -1

    items = {}
    for thing in things:
        reads = dict.fromkeys(root(graph, analysis, t) for t in thing.inputs if t and analysis.known(t) is None)
        reads.update(dict.fromkeys(mint.name for mint in awaited[thing.name]))
        guard = tuple((root(graph, analysis, predicate), branch) for predicate, branch in thing.guard)
        items[thing.name] = Item(thing.name, tuple(reads), tuple(filter(None, thing.outputs)), guard, constant(0))
    things.sort(key=at)
    ordered = _topological(things, items)
    return ordered, [items[t.name] for t in ordered]


def _awaited(analysis: Analysis, thing: Group | Node) -> tuple[Mint, ...]:
    """The mints behind which a group or a joint runs. What a loop stacks has its memory when the loop begins."""
    if isinstance(thing, Node) and thing.op == "LoopBegin":
        loop = analysis.graph.loop_of(thing)
        stacked = analysis.minting.awaited(replace(loop.end, inputs=()))
        return tuple(dict.fromkeys((*analysis.minting.awaited(thing), *stacked)))
    lead = thing.lead.nodes if isinstance(thing, Group) and thing.lead is not None else ()
    nodes = (*lead, *thing.nodes) if isinstance(thing, Group) else (thing,)
    return tuple(dict.fromkeys(mint for node in nodes for mint in analysis.minting.awaited(node)))


def _topological(things: Sequence[Thing], items: dict[str, Item]) -> list[Thing]:
    """The given order, repaired where a group's early member comes before what a later member reads."""
    maker = {t: thing for thing in things for t in items[thing.name].writes}
    done: set[str] = set()
    order: list[Thing] = []

    def visit(thing: Thing) -> None:
        if thing.name in done:
            return
        done.add(thing.name)
        item = items[thing.name]
        for tensor in (*item.reads, *(p for p, _ in item.guard)):
            if tensor in maker:
                visit(maker[tensor])
        order.append(thing)

    for thing in things:
        visit(thing)
    return order


def _scheduled(choose: Callable[..., T], graph: Graph, analysis: Analysis, fused: FusionPlan) -> tuple[list[Thing], T]:
    """The things in a valid order, and what the scheduler says of them."""
    things, items = _items(graph, analysis, fused)
    sizes: dict[str, Dim] = {}
    elsewhere = loop_storage.blocks(graph, analysis)
    for item in items:
        for tensor in (*item.reads, *item.writes):
            if tensor in analysis.facts and tensor not in elsewhere:  # the name of a mint is no tensor
                sizes[tensor] = byte_size(analysis, tensor)
    live_out = [root(graph, analysis, t) for t in analysis.results]
    return things, choose(items, sizes, live_out)


def near_optimal(graph: Graph, analysis: Analysis, fused: FusionPlan) -> Order:
    """SEP: what can be streamed is, then the order of the lowest peak that the scheduler finds."""
    things, order = _scheduled(schedule.order, graph, analysis, streaming.pair(graph, analysis, fused))
    return tuple(things[k] for k in order)


def subgraphs(
    graph: Graph, analysis: Analysis, fused: FusionPlan, checked: Sequence[Environment] = ()
) -> list[tuple[Order, float]]:
    """What SEP orders on its own, each in its order, and its gap (schedule.Subgraph), taken at `checked` too."""
    streamed = streaming.pair(graph, analysis, fused)
    things, found = _scheduled(partial(schedule.subgraphs, checked=checked), graph, analysis, streamed)
    return [(tuple(things[k] for k in part.items), part.gap) for part in found]


def as_given(graph: Graph, analysis: Analysis, fused: FusionPlan) -> Order:
    """SEP off: the file's order."""
    things, order = _scheduled(schedule.given, graph, analysis, fused)
    return tuple(things[k] for k in order)

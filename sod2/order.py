"""From a fusion plan to an order of execution: the adapter between groups and the scheduler.

The scheduler sees items that read and write tensors; here they are the groups and the live Combine nodes, reading the
tensors behind views. Combine stays an item because its output may need a copy (storage.py decides).
"""

from collections.abc import Callable, Sequence

from sod2 import schedule, streaming
from sod2.fusion import FusionPlan, Group, live_nodes
from sod2.graph import Graph, Node
from sod2.ops import OPS
from sod2.rdp import Analysis
from sod2.schedule import Item
from sod2.storage import byte_size
from sod2.symbolic import Dim, constant

Order = tuple[Group | Node, ...]


def root(graph: Graph, analysis: Analysis, tensor: str) -> str:
    """The tensor whose bytes a view shows; Combine is no view here."""
    node = graph.producer.get(tensor)
    while node is not None and node.op != "Combine" and OPS(node).is_view and analysis[tensor].known_value is None:
        tensor = node.inputs[1 if node.op == "Switch" else 0]
        node = graph.producer.get(tensor)
    return tensor


def _items(graph: Graph, analysis: Analysis, fused: FusionPlan) -> tuple[list[Group | Node], list[Item]]:
    """Groups and Combines in a valid order, and what the scheduler sees of them."""
    position = {n.name: k for k, n in enumerate(graph.nodes)}
    combines = [n for n in live_nodes(graph, analysis) if n.op == "Combine"]
    things: list[Group | Node] = [*fused.groups, *combines]

    def at(thing: Group | Node) -> int:
        return max(position[n.name] for n in thing.nodes) if isinstance(thing, Group) else position[thing.name]

    items = {}
    for thing in things:
        reads = dict.fromkeys(root(graph, analysis, t) for t in thing.inputs if analysis[t].known_value is None)
        guard = tuple((root(graph, analysis, predicate), branch) for predicate, branch in thing.guard)
        items[thing.name] = Item(thing.name, tuple(reads), thing.outputs, guard, constant(0))
    things.sort(key=at)
    ordered = _topological(things, items)
    return ordered, [items[t.name] for t in ordered]


def _topological(things: Sequence[Group | Node], items: dict[str, Item]) -> list[Group | Node]:
    """The given order, repaired where a group's early member comes before what a later member reads."""
    maker = {t: thing for thing in things for t in items[thing.name].writes}
    done: set[str] = set()
    order: list[Group | Node] = []

    def visit(thing: Group | Node) -> None:
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


def _ordered(choose: Callable[..., tuple[int, ...]], graph: Graph, analysis: Analysis, fused: FusionPlan) -> Order:
    things, items = _items(graph, analysis, fused)
    sizes: dict[str, Dim] = {}
    for item in items:
        for tensor in (*item.reads, *item.writes):
            sizes[tensor] = byte_size(analysis, tensor)
    live_out = [root(graph, analysis, t) for t in graph.outputs]
    return tuple(things[k] for k in choose(items, sizes, live_out))


def near_optimal(graph: Graph, analysis: Analysis, fused: FusionPlan) -> Order:
    """SEP: first layers streamed, then the order of the lowest peak that the scheduler finds."""
    return _ordered(schedule.order, graph, analysis, streaming.pair(graph, analysis, fused))


def as_given(graph: Graph, analysis: Analysis, fused: FusionPlan) -> Order:
    """SEP off: the file's order."""
    return _ordered(schedule.given, graph, analysis, fused)

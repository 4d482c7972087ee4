"""How deep in branches each buffer is first needed: a run maps only the arena of the depths that it enters.

The depth of a step is the number of branches around it (loops do not count: they run in place of their branch). The
depth of a buffer is the least depth of a step that touches it, so that a run which never goes deeper than some depth
touches no buffer beyond it. runtime/arena.c places the outer tiers of depths first and the inner ones around them, and
runtime/plan.c maps the arena as far as a depth needs when a branch of that depth is entered: an early exit costs what
it uses, not what the longest path would.
"""

from collections.abc import Collection, Iterator

from sod2.fusion import Group
from sod2.graph import Guard
from sod2.storage import Copy, Materialize, Step, Storage


def of_guard(guard: Guard, loops: Collection[str]) -> int:
    """The number of branches among the entries of a guard."""
    return sum(predicate not in loops for predicate, _ in guard)


def of_buffers(storage: Storage, outputs: Collection[str], loops: Collection[str]) -> list[int]:
    """The depth of every buffer; outputs of the model are read outside all branches."""
    deep = 1 << 30
    found = [deep] * len(storage.buffers)

    def touch(tensor: str, depth: int) -> None:
        place = storage.places.get(tensor)
        if place is not None and place.kind == "buffer":
            found[place.number] = min(found[place.number], depth)

    for number, step in enumerate(storage.steps):
        depth = of_guard(step.guard, loops)
        for k, (predicate, _) in enumerate(step.guard):
            touch(predicate, of_guard(step.guard[:k], loops))
        touched = _touched(step)
        for tensor in touched or ():
            touch(tensor, depth)
        if touched is None:  # of other steps it is not known what they touch: it may be whatever lives then
            for k, buffer in enumerate(storage.buffers):
                if buffer.first <= number <= buffer.last:
                    found[k] = min(found[k], depth)
    for tensor in outputs:
        touch(tensor, 0)
    return [0 if depth == deep else depth for depth in found]


def _touched(step: Step) -> tuple[str, ...] | None:
    match step:
        case Group():
            return tuple(_of_group(step))
        case Copy():
            return step.source, step.target
        case Materialize():
            return (step.tensor,)
    return None


def _of_group(group: Group) -> Iterator[str]:
    yield from group.inputs
    yield from group.outputs
    if group.lead is not None:
        yield from _of_group(group.lead)

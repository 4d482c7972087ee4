"""Where the tensors of a loop live: carried states, what comes out of them, and stacked outputs.

A state has one buffer for all trips, and what comes out of the loop is that buffer. It is the buffer of what the state
begins as, when nothing else reads that, else a copy is made before the first trip. The body's result for the next trip
is written over the state where its last reader comes before, or reads element by element at the position that is
written (sharing.py finds that); else it is copied at the end of the trip. Those copies happen at once, as in a parallel
assignment: a state is copied before it is overwritten, and a cycle, two states that swap, goes through a spare buffer.

A state whose size differs from trip to trip lies in a block outside the arena, and so does an output stacked of as many
trips as only execution tells (runtime/blocks.c). Such a state is computed in a second block, for which a Hold
makes room, or copied there; a Carry lets the two blocks change places at the end of a trip.

Rows of a stacked output are computed where they belong, when nothing else claims their bytes, else copied there.

Everything that a loop reads from outside lives through its last step, because another trip may follow: its readers
inside count as readers at the end (`reach`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sod2.graph import Graph, Guard, Loop, State
from sod2.loops import SAME
from sod2.rdp import Analysis
from sod2.storage import Carry, Copy, Hold, Stack
from sod2.symbolic import eq
from sod2.tensor_class import TensorClass

if TYPE_CHECKING:
    from sod2.sharing import Planner


def blocks(graph: Graph, analysis: Analysis) -> dict[str, int]:
    """The block of every tensor of a loop whose size is known by trips alone; those of a state are two, the first is
    what it has now."""
    numbers: dict[str, int] = {}
    count = 0
    for loop in graph.loops.values():
        for state in loop.states:
            if varies(analysis, state):
                numbers.update({t: count for t in (state.state, state.final) if t})
                count += 2
        for _, stacked in loop.stacks:
            if any(m.tensor == stacked and m.kind == "carried" for m in analysis.minted.values()):
                numbers[stacked] = count
                count += 1
    return numbers


def varies(analysis: Analysis, state: State) -> bool:
    """Whether a state's size differs from trip to trip."""
    return bool(analysis.varying.get(state.state, SAME).axes)


def reach(planner: "Planner", guard: Guard, root: str, position: int) -> int:
    """The position up to which a reader at `position` needs a tensor: the end of the outermost loop around the reader
    that does not write the tensor anew in every trip."""
    written = written_in(planner, root)
    loop = next((loop for loop in planner.graph.within(guard) if (loop.iteration, True) not in written), None)
    return position if loop is None else planner.positions[loop.end.name]


def written_in(planner: "Planner", root: str) -> Guard:
    """The guard under which a tensor gets its bytes."""
    known = planner.classes.get(root)
    if known is not None and known.is_value:
        return planner.order[known.first].guard if known.first >= 0 else ()
    return planner.graph.guard_of(root)


def in_memory(planner: "Planner", loop: Loop) -> list[State]:
    """The states whose value is not known: the others need no bytes."""
    return [s for s in loop.states if planner.analysis.known(s.state) is None]


def in_arena(planner: "Planner", loop: Loop) -> list[State]:
    """Those of them that have one size in all trips."""
    return [s for s in in_memory(planner, loop) if s.state not in planner.blocks]


def reads(planner: "Planner", loop: Loop, begins: bool) -> list[str]:
    """The tensors that the beginning or the end of a loop reads from memory."""
    states = in_memory(planner, loop)
    trip = [loop.trip] if loop.trip and planner.analysis.known(loop.trip) is None else []
    if begins:
        return [*trip, *(s.init for s in states)]
    return [*trip, *(s.next for s in states), *(scan for scan, _ in loop.stacks)]


def begin(planner: "Planner", loop: Loop, position: int) -> list[Copy | Carry]:
    """Homes of the iteration and of the states; the copies that give states their first value."""
    end = planner.positions[loop.end.name]
    copies: list[Copy | Carry] = list(_carry(planner, loop, True))
    taken: list[TensorClass] = []
    _open(planner, loop.iteration, position, end)
    for state in in_arena(planner, loop):
        found = planner.classes[planner.root(state.init)]
        later = any(p > position for p, _, _ in found.family_uses())
        same = eq(planner.size(state.init), planner.size(state.state)) is True
        if found.home is None and not found.is_value and not later and same and found not in taken:
            planner.join(state.state, planner.root(state.init))
            taken.append(found)
        else:
            copies.append(planner.copy(state.init, state.state, loop.begin, like=state.state))
        _open(planner, state.state, position, end)
    for _, stacked in loop.stacks:
        if stacked not in planner.blocks:
            _open(planner, stacked, position, end)
    return copies


def _carry(planner: "Planner", loop: Loop, begins: bool) -> Iterator[Carry]:
    node = loop.begin if begins else loop.end
    carried = [s.state for s in loop.states] + [stacked for _, stacked in loop.stacks]
    if any(t in planner.blocks for t in carried):
        yield Carry(f"{node.name}:carry", loop, begins, node.guard)


def _open(planner: "Planner", tensor: str, first: int, until: int) -> None:
    found = planner.note(tensor)
    found.first, found.until = min(found.first, first), max(found.until, until)


@dataclass(frozen=True)
class _Move:
    source: TensorClass
    target: TensorClass
    read: str
    written: str


def end(planner: "Planner", loop: Loop, position: int) -> list[Copy | Stack | Carry]:
    """The copies at the end of a trip: rows that were computed elsewhere, then states."""
    for result in results(planner, loop):
        claim(planner, loop, result)
    copies: list[Copy | Stack | Carry] = [*_stacks(planner, loop), *_carry(planner, loop, False)]
    copies += _assignments(planner, loop, position)
    for state in in_arena(planner, loop):
        if state.final:
            planner.join(state.final, state.state)
    return copies


def results(planner: "Planner", loop: Loop) -> list[State | str]:
    """What a trip gives back: next values of states, and stacked outputs of which it has a row."""
    return [*in_memory(planner, loop), *(stacked for _, stacked in loop.stacks)]


def source(loop: Loop, result: State | str) -> str:
    """The tensor of the body that is this result."""
    return result.next if isinstance(result, State) else next(s for s, stacked in loop.stacks if stacked == result)


def claim(planner: "Planner", loop: Loop, result: State | str) -> None:
    """Let a result of the trip be computed where it is wanted, if its bytes may lie anywhere."""
    if isinstance(result, str):
        _in_its_row(planner, loop, result)
    elif result.state in planner.blocks:
        _aside(planner, loop, result)
    else:
        _over(planner, loop, result)


def is_foreign(planner: "Planner", tensor: str, target: TensorClass) -> bool:
    """Whether bytes are those of a state and the tensor is another one's next value: it would have to move again."""
    own = [r for _, r in planner.results.get(tensor, ()) if isinstance(r, State) and r.state not in planner.blocks]
    return bool(own) and target.until >= 0 and all(planner.classes[s.state] is not target for s in own)


def _is_free(planner: "Planner", loop: Loop, found: TensorClass) -> bool:
    """Whether tensors that share bytes are made anew in every trip and may be put anywhere: no state is among them."""
    made = all((loop.iteration, True) in written_in(planner, tensor) for tensor in found.members)
    return made and found.is_plain and found.first > planner.positions[loop.begin.name]


def _over(planner: "Planner", loop: Loop, state: State) -> None:
    """Let the next value be written over the state, where the trip has read that before."""
    old, new = planner.classes[state.state], planner.classes[planner.root(state.next)]
    dead = all(p < new.first for p, _, _ in old.family_uses())
    if _is_free(planner, loop, new) and dead and eq(planner.size(state.next), planner.size(state.state)) is True:
        planner.join(planner.root(state.next), state.state)


def _aside(planner: "Planner", loop: Loop, state: State) -> None:
    """Let the next value of a state in blocks be computed in the second one, unless a state in the arena gets it too:
    that is copied when the blocks have changed places."""
    new = planner.classes[planner.root(state.next)]
    always = all(written_in(planner, tensor) == loop.end.guard for tensor in new.members)
    shared = any(planner.classes[planner.root(s.next)] is new for s in in_arena(planner, loop))
    if always and not shared and _is_free(planner, loop, new):
        new.home = planner.second_block(state.state)
        planner.holds.append((new.first, Hold(f"{loop.end.name}:hold:{state.next}", state.next, loop.end.guard)))


def _in_its_row(planner: "Planner", loop: Loop, stacked: str) -> None:
    """Let a row be computed in its stacked output."""
    scan = source(loop, stacked)
    found = planner.classes[planner.root(scan)]
    if stacked not in planner.blocks and _is_free(planner, loop, found):
        found.row_of = planner.classes[stacked], loop.iteration, planner.size(scan)


def _stacks(planner: "Planner", loop: Loop) -> Iterator[Stack]:
    """Copies of the rows that were not computed in their stacked output."""
    for scan, stacked in loop.stacks:
        row = planner.classes[planner.root(scan)].row_of
        if stacked not in planner.blocks and (row is None or row[0] is not planner.classes[stacked]):
            yield Stack(f"{loop.end.name}:{stacked}", scan, stacked, loop.iteration, loop.end.guard)


def _assignments(planner: "Planner", loop: Loop, position: int) -> list[Copy]:
    """Copies that assign all states at once, each before its source is overwritten."""
    pending = []
    for state in in_arena(planner, loop):
        move = _Move(planner.classes[planner.root(state.next)], planner.classes[state.state], state.next, state.state)
        if move.source is not move.target:
            pending.append(move)
    copies: list[Copy] = []
    while pending:
        free = next((m for m in pending if not any(m.target.top is other.source.top for other in pending)), None)
        move = free or pending[0]
        pending.remove(move)
        target = move.written
        if free is None:
            target = planner.spare(move.read, position)
            pending.append(_Move(planner.classes[target], move.target, target, move.written))
        copies.append(planner.copy(move.read, target, loop.end, like=move.written))
    return copies

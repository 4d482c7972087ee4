"""C of loops: what opens one, and the steps at its beginning, at the end of every trip and behind it.

A loop is a `for` over the tensor that counts its trips, so that steps of the body read their number from memory like
any other operand. Its own cost is an increment and the tests that it needs: none for a condition that is always true.
"""

from typing import TYPE_CHECKING

from sod2.codegen.elements import c_string
from sod2.graph import Loop
from sod2.loop_storage import varies
from sod2.loops import only_counts
from sod2.minting import Mint
from sod2.storage import Carry, Hold, Place, Stack, byte_size

if TYPE_CHECKING:
    from sod2.codegen.steps import Emission


def opening(emission: "Emission", loop: Loop) -> str:
    """The head of the `for` statement."""
    count = f"*(int64_t *){emission.address(loop.iteration)}"
    tests = [f"{count} < {emission.scalar(loop.trip)}"] if loop.trip else []
    if not only_counts(loop, emission.analysis.facts):
        tests.append(emission.scalar(loop.condition.state))
    return f"for ({count} = 0; {' && '.join(tests)}; ++{count})"


def stack(emission: "Emission", number: int, step: Stack) -> None:
    """Copy a row to its place in a stacked output."""
    size = emission.size(byte_size(emission.analysis, step.source))
    row = f"(char *){emission.address(step.target)} + {emission.scalar(step.iteration)} * {size}"
    emission.function(number, [f"sod2_copy({row}, {emission.address(step.source)}, {size}, pool);"])


def carry(emission: "Emission", number: int, step: Carry) -> None:
    """Fill the blocks of a loop. All is read before anything that the trip has is replaced."""
    write = _begin_stacked if step.begins else _append
    stacks = [pair for pair in step.loop.stacks if pair[1] in emission.storage.blocks]
    stacked = [line for pair in stacks for line in write(emission, step.loop, *pair)]
    before: list[str] = []
    after: list[str] = []
    for state in (s for s in step.loop.states if varies(emission.analysis, s)):
        source = state.init if step.begins else state.next
        block, dims = emission.storage.blocks[state.state], emission.analysis.dims(source)
        if step.begins or emission.storage.places[source] != Place("block", block + 1):
            before += _filled(emission, f"{block + 1}", source)
        after.append(f"sod2_exchange(s, {block});")
        for tensor in (state.state, state.final):
            for axis, place in _places(emission, tensor):
                before.append(f"const int64_t d{len(before)} = {emission.size(dims[axis])};")
                after.append(f"{place} = d{len(before) - 1};")
    emission.function(number, [*stacked, *before, *after])


def hold(emission: "Emission", number: int, step: Hold) -> None:
    """Make room for a tensor."""
    block, size = emission.storage.places[step.tensor].number, emission.size(byte_size(emission.analysis, step.tensor))
    emission.function(number, [f"if (sod2_hold(s, {block}, {size}, 0) == NULL) return sod2_message();"])


def _filled(emission: "Emission", block: str, source: str) -> list[str]:
    size = emission.size(byte_size(emission.analysis, source))
    return [
        f"char *block{block} = sod2_hold(s, {block}, {size}, 0);",
        f"if (block{block} == NULL) return sod2_message();",
        f"sod2_copy(block{block}, {emission.address(source)}, {size}, pool);",
    ]


def _places(emission: "Emission", tensor: str) -> list[tuple[int, str]]:
    """Axes of a tensor that have a minted symbol, and where its value is stored."""
    return [(m.index, emission.lvalue(m)) for m in emission.minted if m.kind == "carried" and m.tensor == tensor]


def _begin_stacked(emission: "Emission", loop: Loop, scan: str, stacked: str) -> list[str]:
    block = emission.storage.blocks[stacked]
    empty = [f"{place} = 0;" for _, place in _places(emission, stacked)]
    return [f"if (sod2_hold(s, {block}, 0, 0) == NULL) return sod2_message();", *empty]


def _append(emission: "Emission", loop: Loop, scan: str, stacked: str) -> list[str]:
    """A row behind those of the trips before, all of which have the dims of the first one."""
    block, dims = emission.storage.blocks[stacked], emission.analysis.dims(scan)
    size, trip = emission.size(byte_size(emission.analysis, scan)), emission.scalar(loop.iteration)
    lines = []
    for axis, place in _places(emission, stacked):
        if axis > 0:
            dim = emission.size(dims[axis - 1])
            text = c_string(f"dim {axis - 1} of {scan!r} must be the same in all trips, which stack it")
            lines += [f"if ({trip} > 0 && {place} != {dim}) return {text};", f"{place} = {dim};"]
    return [
        *lines,
        f"char *rows{block} = sod2_hold(s, {block}, ({trip} + 1) * {size}, {trip} * {size});",
        f"if (rows{block} == NULL) return sod2_message();",
        f"sod2_copy(rows{block} + {trip} * {size}, {emission.address(scan)}, {size}, pool);",
    ]


def learned(emission: "Emission", step: Mint) -> list[str]:
    """What a mint of a loop learns: the number of trips, behind the loop. The other dims are there already."""
    loop = emission.analysis.graph.loop_of(emission.analysis.graph.producer[step.minted[0].tensor])
    rows = {stacked for _, stacked in loop.stacks}
    counts = [m for m in step.minted if m.index == 0 and m.tensor in rows]
    return [f"{emission.lvalue(m)} = {emission.scalar(loop.iteration)};" for m in counts]

"""C of a streamed pair of convolutions: a loop over strips around both kernels (runtime/stream.h, streaming.py).

Both argument structs are those that the operators themselves declare; what differs is the first one's epilogue, whose
result is a strip, [channels, rows of the strip, columns], and whose operands therefore change from strip to strip.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from string import Template

from sod2.codegen.nest import Kernel
from sod2.codegen.steps import Emission, StepCall
from sod2.fusion import Group
from sod2.graph import Node
from sod2.ops import OPS
from sod2.ops.conv import Conv
from sod2.symbolic import Dim, symbol, to_c

_ROWS = "rows of a strip"
_NAMES = ("first", "second")
_STREAM = Template((Path(__file__).parent / "templates" / "stream.c.in").read_text())


def emit(emission: Emission, number: int, lead: Group, group: Group) -> None:
    """Write step `number`: `lead`, streamed into `group`."""
    first, second = lead.anchor, group.anchor
    assert first is not None and second is not None
    after, inside = emission.epilogue(group, second), _strip_epilogue(emission, lead, first)
    calls = [(first, inside), (second, after)]
    running = [_setup(emission, StepCall(emission, number, n, e, binding=False)) for n, e in calls]
    scratch = emission.reserve(f"streamed step {number}", number)
    operands = [emission.operands(after), "const sod2_operands epilogue_operands = {p, n};"] if after else []
    # Both structs take their scratch limit from the first choice of the step; the versions are the next two.
    v1, v2 = (f"plan[{emission.choices + k}]" for k in (1, 2))
    loop = _STREAM.substitute(
        second_operands="\n".join(operands),
        first=running[0],
        second=running[1],
        scratch=f"s->buffer[{scratch}]",
        strip_operands=_strip_operands(emission, inside, lead.outputs[0]) if inside else "",
        version1=v1,
        version2=v2,
    )
    emission.function(number, loop.splitlines())
    bound = [_setup(emission, StepCall(emission, number, n, e, binding=True)) for n, e in calls]
    decisions = [
        f"{v1} = sod2_stream_choose_first(&first, &second, threads);",
        f"{v2} = sod2_stream_choose_second(&first, &second, threads);",
        f"bytes[{scratch}] = sod2_stream_scratch(&first, &second, (int){v1}, (int){v2}, threads);",
    ]
    structs = ["sod2_conv first, second;", *(f"{{\n{b}\n{k} = g;\n}}" for k, b in zip(_NAMES, bound, strict=True))]
    emission.sizer(number, [*structs, *decisions])
    emission.choices += 3


def _setup(emission: Emission, call: StepCall) -> str:
    """What the call decides first, and the declaration of the argument struct g of its convolution."""
    op = OPS(call.node)
    assert isinstance(op, Conv)  # streaming.py pairs nothing else
    declaration = op.declare(call.node, call, emission.analysis.of(call.node.inputs))
    return "\n".join([*call.lines, declaration])


def _strip_epilogue(emission: Emission, lead: Group, node: Node) -> Kernel | None:
    """The first convolution's epilogue with the rows of a strip in place of all rows of its result."""
    facts = dict(emission.analysis.facts)
    for tensor in (t for n in lead.nodes for t in n.outputs if t):
        batch, channels, _, columns = facts[tensor].dims
        facts[tensor] = replace(facts[tensor], shape=(batch, channels, symbol(_ROWS), columns))
    return emission.epilogue(lead, node, replace(emission.analysis, facts=facts))


def _strip_operands(emission: Emission, kernel: Kernel, result: str) -> str:
    """Declaration of the operands of the first epilogue, inside the loop over strips."""

    def size(dim: Dim) -> str:
        return to_c(dim, lambda name: "strip_rows" if name == _ROWS else emission.symbol(name))

    def address(tensor: str) -> str:
        strip = "(void *)sod2_stream_result(&first, &second, scratch)"
        return strip if tensor == result else emission.address(tensor)

    pointers = ", ".join(map(address, kernel.tensors))
    dims: Sequence[str] = [size(d) for d in kernel.dims]
    return "\n".join(
        [
            f"void *const strip_p[] = {{{pointers}}};",
            f"const int64_t strip_n[] = {{{', '.join(dims) or '0'}}};",
            "const sod2_operands strip_operands = {strip_p, strip_n};",
            "first.epilogue_args = &strip_operands;",
        ]
    )

"""C of a convolution streamed into another or into a pooling: a function of a strip (runtime/stream.h, streaming.py).

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
from sod2.ops.pool import MaxPool
from sod2.symbolic import Dim, symbol, to_c

_ROWS = "rows of a strip"
# Both structs name them; the first one's own are set for each strip.
_OPERANDS = "const sod2_operands epilogue_operands = {};\n(void)epilogue_operands;"
_STRIP = Template((Path(__file__).parent / "templates" / "stream.c.in").read_text())


def emit(emission: Emission, number: int, lead: Group, group: Group) -> None:
    """Write step `number`: `lead`, streamed into `group`."""
    first, second = lead.anchor, group.anchor
    assert first is not None and second is not None
    after, inside = emission.epilogue(group, second), _strip_epilogue(emission, lead, first)
    call = StepCall(emission, number, first, inside, binding=False)
    binding = replace(call, binding=True, lines=[], numbers=[])
    running, bound = (_structs(k, second, after) for k in (call, binding))
    scratch = emission.reserve(f"streamed step {number}", number)
    operands = [emission.operands(after), _OPERANDS.format("{p, n}")] if after else [_OPERANDS.format("{0}")]
    pooling = "&g" if second.op == "MaxPool" else "NULL"
    stream = f"sod2_stream z = {{.first = first, .second = second, .pooling = {pooling}}};"
    # Both structs take their scratch limit from the first choice of the step.
    v1, v2, size = (f"plan[{emission.choices + k}]" for k in (1, 2, 3))
    emission.functions.append(
        _STRIP.substitute(
            number=number,
            strip_operands=_strip_operands(emission, inside, lead.outputs[0]) if inside else "",
            strip_arguments="&strip_operands" if inside else "NULL",
        )
    )
    emission.function(
        number,
        [
            *operands,
            running,
            stream,
            f"z.version1 = (int){v1}, z.version2 = (int){v2}, z.bytes = {size};",
            f"z.scratch = s->buffer[{scratch}], z.state = s, z.pool = pool;",
            f"sod2_stream_run(&z, step_{number}_strip);",
        ],
    )
    decisions = [
        stream,
        "choice[1] = z.version1 = sod2_conv_choose(&first, threads);",
        "choice[2] = z.version2 = sod2_conv_choose(&second, threads);",
        "choice[3] = sod2_stream_scratch(&z, threads);",
        "scratch[0] = choice[3] * sod2_stream_owners(&z, threads);",
    ]
    emission.decide(number, replace(binding, choice_count=4), [bound, *decisions], scratch=1)


def _structs(first: StepCall, node: Node, epilogue: Kernel | None) -> str:
    """Both structs; the second one's numbers stand behind the first one's."""
    second = replace(first, node=node, fused=epilogue, lines=[])
    return "\n".join(["sod2_conv first, second;", _struct("first", first), _struct("second", second)])


def _struct(name: str, call: StepCall) -> str:
    """What the call decides first, and the windows of its kernel as `name`; those of a pooling also as its own `g`."""
    op, x = OPS(call.node), call.emission.analysis.of(call.node.inputs)
    if isinstance(op, MaxPool):
        return f"{op.struct(call.node, call, x)}\n{name} = sod2_stream_windows(&first, &g);"
    assert isinstance(op, Conv)  # streaming.py pairs nothing else
    declared = op.declare(call.node, call, x)
    return "\n".join(["{", *call.lines, declared, f"{name} = g;", "}"])


def _strip_epilogue(emission: Emission, lead: Group, node: Node) -> Kernel | None:
    """The first convolution's epilogue with the rows of a strip in place of all rows of its result."""
    facts = dict(emission.analysis.facts)
    for tensor in (t for n in lead.nodes for t in n.outputs if t):
        batch, channels, _, columns = facts[tensor].dims
        facts[tensor] = replace(facts[tensor], shape=(batch, channels, symbol(_ROWS), columns))
    return emission.epilogue(lead, node, replace(emission.analysis, facts=facts))


def _strip_operands(emission: Emission, kernel: Kernel, result: str) -> str:
    """Declaration of the operands of the first epilogue, in the function of a strip."""

    def size(dim: Dim) -> str:
        return to_c(dim, lambda name: "strip_rows" if name == _ROWS else emission.symbol(name))

    def address(tensor: str) -> str:
        return "t.middle" if tensor == result else emission.address(tensor)

    pointers = ", ".join(map(address, kernel.tensors))
    dims: Sequence[str] = [size(d) for d in kernel.dims]
    return "\n".join(
        [
            f"void *const strip_p[] = {{{pointers}}};",
            f"const int64_t strip_n[] = {{{', '.join(dims) or '0'}}};",
            "const sod2_operands strip_operands = {strip_p, strip_n};",
        ]
    )

"""C of a convolution that computes a normalisation where it reads it (runtime/group_norm.h, on_load in streaming.py).

The step computes the statistics and runs the convolution, whose kernels ask for pieces of lines of their image. The
element-wise operators behind the normalisation are applied while such a piece is computed.
"""

from dataclasses import replace

from sod2.codegen.nest import lines_kernel
from sod2.codegen.steps import Emission, StepCall
from sod2.fusion import Group
from sod2.graph import Node
from sod2.ops import OPS
from sod2.ops.norm import ChannelNormalization
from sod2.ops.op import Facts


def emit(emission: Emission, number: int, lead: Group, group: Group) -> None:
    """Write step `number`: `group`, which computes what `lead` would store."""
    norm, conv = lead.anchor, group.anchor
    assert norm is not None and conv is not None
    op, operands = OPS(norm), emission.analysis.of(norm.inputs)
    assert isinstance(op, ChannelNormalization)  # streaming.py chooses nothing else
    behind = [n for n in lead.nodes if n is not norm]
    lines = emission.kernel(lines_kernel(behind, lead.outputs[0], emission.analysis, norm.outputs[0]))

    def rule(node: Node, k: StepCall, x: Facts, y: Facts) -> str:
        affine = k.scratch(op.affine_bytes(k, operands))
        if not k.binding:  # what is decided there depends on the convolution alone
            k.setup(op.declare(norm, replace(k, node=norm, end=None), operands, affine=affine, lines=lines))
        run = OPS(node).call(node, k, x, y)
        return f"sod2_norm_prepare(&norm, pool);\ng.prologue = sod2_norm_load, g.prologue_args = &norm;\n{run}"

    emission.anchor(number, group, conv, rule)

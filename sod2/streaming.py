"""Which kernels' results are computed piece by piece by what reads them, so that the tensor between never exists.

First convolutions, strip by strip: on high-resolution inputs the peak of a network is often its first convolution's
result beside that of the second one, or of the maximum pooling, behind it: large images of few channels. Both are then
computed in strips of rows small enough for the cache, which also saves a pooling, little work on much data, its way to
memory and back. Rows at the seams are computed twice, which costs a few per cent of the first, cheap, convolution.

A pair is streamed when the first convolution reads few channels, the tensor between the two is read by nothing else, is
provably no smaller than the second one's result, and the first one's epilogue reads nothing but constants along the
channels (its results are then the same in a strip as in the whole).

Normalisations, on load: in a residual block that begins with a normalisation and an activation, the peak is the
block's input, which the shortcut keeps, its normalised copy and the convolution's result. The copy takes a pass for the
input's statistics and then a few operations an element; a convolution of stride 1 does them while it copies its image
to strips or transforms it, once for all output channels, and once more for the rows where strips or tiles overlap. So
it is done when a plain convolution of stride 1, larger than 1x1, not depthwise and of several output channels, alone
reads the normalisation, or element-wise operators behind it whose other operands are numbers.
"""

import math
from dataclasses import replace

import numpy as np

from sod2.fusion import FusionPlan, Group
from sod2.graph import Array, Graph, Node
from sod2.ops import OPS
from sod2.ops.norm import ChannelNormalization
from sod2.rdp import Analysis
from sod2.storage import byte_size
from sod2.symbolic import ge

_CHANNELS = 4  # input channels of a first layer, whose rows are copied for each strip


def pair(graph: Graph, analysis: Analysis, fused: FusionPlan) -> FusionPlan:
    """The plan with every streamed pair as one group, at the place of its second."""
    readers: dict[str, list[Group]] = {}
    for group in fused.groups:
        for tensor in group.inputs:
            readers.setdefault(tensor, []).append(group)
    leads: dict[str, Group] = {}
    for lead in fused.groups:
        follower = _follower(lead, readers, graph, analysis)
        if follower is not None and lead.name not in leads and follower.name not in leads:
            leads[follower.name] = lead
    gone = {lead.name for lead in leads.values()}
    groups = tuple(_joined(g, leads.get(g.name)) for g in fused.groups if g.name not in gone)
    return replace(fused, groups=groups)


def _joined(group: Group, lead: Group | None) -> Group:
    if lead is None:
        return group
    inputs = dict.fromkeys((*lead.inputs, *(t for t in group.inputs if t not in lead.outputs)))
    return replace(group, inputs=tuple(inputs), lead=lead)


def _follower(lead: Group, readers: dict[str, list[Group]], graph: Graph, analysis: Analysis) -> Group | None:
    """The group that may compute the lead's result piece by piece."""
    first = lead.anchor
    if first is None or len(lead.outputs) != 1 or lead.outputs[0] in graph.outputs:
        return None
    (between,) = lead.outputs
    found = readers.get(between, ())
    if len(found) != 1 or len(graph.consumers[between]) != 1:
        return None
    (second,) = found
    if second.anchor is None or second.anchor.inputs[0] != between or second.guard != lead.guard:
        return None
    fits = _on_load if is_norm(lead) else _in_strips
    return second if fits(lead, first, second.anchor, graph, analysis) else None


def _in_strips(lead: Group, first: Node, second: Node, graph: Graph, analysis: Analysis) -> bool:
    """Whether a first convolution runs strip by strip with the second or with a pooling."""
    if not _is_plain(first, graph) or not (_is_plain(second, graph) or (second.op == "MaxPool" and not second.domain)):
        return False
    image = analysis[first.inputs[0]].dims
    if len(image) != 4 or not image[1].is_constant or int(image[1]) > _CHANNELS:
        return False
    bias = all(_known(analysis, t) is not None for t in first.inputs[2:])  # one value per channel
    return bias and _constant_along_rows(lead, analysis) and _shrinks(analysis, lead.outputs[0], second.outputs[0])


def is_norm(lead: Group) -> bool:
    """Whether a lead is computed on load."""
    assert lead.anchor is not None
    return isinstance(OPS(lead.anchor), ChannelNormalization)


def _on_load(lead: Group, first: Node, second: Node, graph: Graph, analysis: Analysis) -> bool:
    """Whether a convolution computes the normalisation where it reads it."""
    if not _is_plain(second, graph) or any(s != 1 for s in second.attrs.get("strides", ())):
        return False
    if analysis[first.inputs[0]].dtype != np.float32:
        return False
    outputs, channels, *window = graph.constants[second.inputs[1]].shape
    numbers = all((value := _known(analysis, t)) is not None and value.size == 1 for t in _operands(lead))
    return len(window) <= 2 and channels > 1 and outputs > 1 and math.prod(window) > 1 and numbers


def _shrinks(analysis: Analysis, between: str, result: str) -> bool:
    """Whether the result is provably no larger: each of its dims, or all together."""
    pairs = zip(analysis[between].dims, analysis[result].dims, strict=True)
    sizes = byte_size(analysis, between), byte_size(analysis, result)
    return all(ge(a, b) is True for a, b in pairs) or ge(*sizes) is True


def _is_plain(node: Node, graph: Graph) -> bool:
    """A convolution with constant weights and explicit padding."""
    constant = len(node.inputs) > 1 and node.inputs[1] in graph.constants
    return node.op == "Conv" and not node.domain and constant and node.attrs.get("auto_pad", "NOTSET") == "NOTSET"


def _operands(lead: Group) -> list[str]:
    """What the nodes behind the anchor read beside what the group makes."""
    made = {t for n in lead.nodes for t in n.outputs}
    return [t for n in lead.nodes if n is not lead.anchor for t in n.inputs if t and t not in made]


def _constant_along_rows(lead: Group, analysis: Analysis) -> bool:
    """Whether all operands of an epilogue are constants, each the same for all rows of the result."""
    return all(
        _known(analysis, t) is not None and (len(dims := analysis[t].dims) < 2 or dims[-2] == 1)
        for t in _operands(lead)
    )


def _known(analysis: Analysis, tensor: str) -> Array | None:
    """The value of a tensor of numbers that is known when compiling."""
    value = analysis[tensor].known_value
    return value if value is not None and value.dtype != object else None

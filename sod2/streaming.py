"""Which first convolutions run strip by strip with what reads them, so that the tensor between never exists as a whole.

On high-resolution inputs the peak of a network is often its first convolution's result beside that of the second one,
or of the maximum pooling, behind it: large images of few channels. Both are then computed in strips of rows small
enough for the cache, which also saves a pooling, little work on much data, its way to memory and back. Rows at the
seams are computed twice, which costs a few per cent of the first, cheap, convolution.

A pair is streamed when the first convolution reads few channels, the tensor between the two is read by nothing else, is
provably no smaller than the second one's result, and the first one's epilogue reads nothing but constants along the
channels (its results are then the same in a strip as in the whole).
"""

from dataclasses import replace

from sod2.fusion import FusionPlan, Group
from sod2.graph import Graph, Node
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
    """The group that may read the lead's result in strips."""
    first = lead.anchor
    if first is None or not _streams(first, graph) or len(lead.outputs) != 1 or lead.outputs[0] in graph.outputs:
        return None
    (between,) = lead.outputs
    image = analysis[first.inputs[0]].dims
    found = readers.get(between, ())
    if len(found) != 1 or len(graph.consumers[between]) != 1 or not image[1].is_constant or int(image[1]) > _CHANNELS:
        return None
    (second,) = found
    if second.anchor is None or not _follows(second.anchor, graph) or second.anchor.inputs[0] != between:
        return None
    local = _local(lead, first, analysis)
    fits = second.guard == lead.guard and len(image) == 4 and local
    return second if fits and _shrinks(analysis, between, second.anchor.outputs[0]) else None


def _shrinks(analysis: Analysis, between: str, result: str) -> bool:
    """Whether the result is provably no larger: each of its dims, or all together."""
    pairs = zip(analysis[between].dims, analysis[result].dims, strict=True)
    sizes = byte_size(analysis, between), byte_size(analysis, result)
    return all(ge(a, b) is True for a, b in pairs) or ge(*sizes) is True


def _streams(node: Node, graph: Graph) -> bool:
    """A plain convolution with constant weights."""
    constant = len(node.inputs) > 1 and node.inputs[1] in graph.constants
    return node.op == "Conv" and not node.domain and constant and node.attrs.get("auto_pad", "NOTSET") == "NOTSET"


def _follows(node: Node, graph: Graph) -> bool:
    """Such a convolution or a maximum pooling."""
    return (node.op == "MaxPool" and not node.domain) or _streams(node, graph)


def _local(lead: Group, first: Node, analysis: Analysis) -> bool:
    """Whether all operands but the convolution's image are constants, each constant along the rows of the result."""
    made = {t for n in lead.nodes for t in n.outputs}
    bias = first.inputs[2:]  # one value per channel
    others = [t for n in lead.nodes if n is not first for t in n.inputs if t and t not in made]
    return all(_is_number(analysis, t) for t in bias) and all(
        _is_number(analysis, t) and (len(dims := analysis[t].dims) < 2 or dims[-2] == 1) for t in others
    )


def _is_number(analysis: Analysis, tensor: str) -> bool:
    value = analysis[tensor].known_value
    return value is not None and value.dtype != object

"""ONNX to Graph: one flat, named, frozen graph with `<Switch, Combine>` in place of `If`, loops between two nodes.

Local functions are inlined by onnx itself; initializers and Constant nodes become constants; a dim_param becomes an
expression over symbols (`32*h`), and an unnamed dim a symbol of its own. Tensors and nodes of a branch keep their names
unless those are taken. With `control="all"` both branches of every If run and a Where picks the result, which is how
the paper's baselines execute control flow. Loop and Scan are read by loop_frontend.py, sequences by sequences.py.

Limits: opsets older than 13 are converted by onnx's version converter; sparse initializers are refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from onnx import numpy_helper

from sod2 import functions, loop_frontend, old_scan, sequences
from sod2.errors import ModelError, UnsupportedError
from sod2.graph import Array, Graph, Guard, Node, Value
from sod2.sequences import Elements
from sod2.symbolic import Dim, as_dim, constant, parse, substitute, symbol

OLDEST_OPSET = 13
_SCAN_OPSET = 9  # before it, Scan had a batch dim, which onnx's version converter drops
_UNKNOWN_NAMES = {"", "?", "-1", "None", "unk", "unknown"}


def read(source: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    """The model of a path or proto; ModelError when there is no readable ONNX model behind it."""
    if isinstance(source, onnx.ModelProto):
        return source
    path = Path(source)
    if not path.is_file():
        raise ModelError(f"model {str(path)!r} is no file; a path to an .onnx file is expected")
    try:
        model = onnx.load(path)
    except (FileNotFoundError, onnx.checker.ValidationError) as error:
        raise ModelError(f"model {str(path)!r} refers to external data that cannot be read: {error}") from None
    except Exception as error:  # protobuf raises several unrelated classes for bytes that are no ModelProto
        raise ModelError(f"model {str(path)!r} is not a readable ONNX file ({type(error).__name__})") from None
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"model {str(path)!r} is not an ONNX model: it has no graph")
    return model


def load(source: str | Path | onnx.ModelProto, control: str = "switch") -> Graph:
    """Read a model into a Graph. `control`: `switch` (the taken branch runs) or `all` (every branch, then Where)."""
    model = read(source)
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if not opset and any(n.domain in ("", "ai.onnx") for n in model.graph.node):
        raise ModelError(f"model {model.graph.name!r} imports no version of the ai.onnx operators")
    opset = opset or onnx.defs.onnx_opset_version()
    if opset > onnx.defs.onnx_opset_version():
        newest = onnx.defs.onnx_opset_version()
        raise UnsupportedError(f"model {model.graph.name!r} uses opset {opset}; up to {newest} is supported")
    if opset < OLDEST_OPSET:
        model, opset = _converted(model, opset), OLDEST_OPSET
    model = functions.inlined(model)
    reader = Reader(control, opset)
    return reader.graph(model.graph, opset)


def _converted(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    batched = old_scan.batched(model) if opset < _SCAN_OPSET else model
    light, heavy = functions.without_data(batched)  # the converter's models must not exceed 2 GB
    try:
        converted = onnx.version_converter.convert_version(light, OLDEST_OPSET)
    except Exception as error:  # the converter raises plain RuntimeError and its own C++ exceptions
        first = str(error).strip().splitlines()[0]
        raise UnsupportedError(
            f"the model uses opset {opset}, which onnx could not convert to {OLDEST_OPSET}, "
            f"the oldest one supported: {first}"
        ) from None
    converted.graph.initializer.extend(heavy)
    return converted


def attributes(proto: onnx.NodeProto) -> dict[str, Any]:
    """Attributes of a node as Python values; sub-graphs are left out."""
    found: dict[str, Any] = {}
    for attribute in proto.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.type == onnx.AttributeProto.STRING:
            found[attribute.name] = value.decode()
        elif attribute.type == onnx.AttributeProto.STRINGS:
            found[attribute.name] = [v.decode() for v in value]
        elif attribute.type == onnx.AttributeProto.TENSOR:
            found[attribute.name] = numpy_helper.to_array(value)
        elif attribute.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            found[attribute.name] = list(value) if attribute.type in _LISTS else value
    return found


_LISTS = (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS)


def _constant(node: onnx.NodeProto) -> Array:
    found = attributes(node)
    name, value = next(iter(found.items()), ("", None))
    if name == "value":
        return np.asarray(value)
    dtypes = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    if name not in dtypes:
        raise UnsupportedError(f"Constant {node.output[0]!r} holds {name or 'nothing'}; numeric tensors are supported")
    return np.asarray(value, dtypes[name])


def dims_of(name: str, proto: onnx.TensorShapeProto) -> tuple[Dim, ...]:
    """Symbolic dims of an input. A dim that is no affine expression of one symbol becomes a symbol of its own text."""
    dims = []
    for axis, dim in enumerate(proto.dim):
        text = dim.dim_param.strip()
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(constant(dim.dim_value))
        elif text in _UNKNOWN_NAMES or text.startswith("unk__"):
            dims.append(symbol(f"{name}.{axis}"))
        else:
            parsed = parse(text)
            dims.append(parsed if is_affine(parsed) else symbol(text))
    return tuple(dims)


def is_affine(dim: Dim) -> bool:
    """Whether a dim is scale * symbol + base, so that a concrete size gives the symbol's value."""
    names = dim.symbols()
    if dim.is_constant or len(names) != 1:
        return dim.is_constant
    (name,) = names
    at0, at1, at2 = (substitute(dim, {name: as_dim(k)}) for k in range(3))
    slope = at1 - at0
    return all(d.is_constant for d in (at0, at1, at2)) and slope == at2 - at1 and _rebuilt(dim, name, at0, slope)


def _rebuilt(dim: Dim, name: str, base: Dim, slope: Dim) -> bool:
    return dim == symbol(name) * slope + base and slope != constant(0)


def _dtype(tensor: onnx.TypeProto.Tensor, name: str) -> np.dtype[Any]:
    try:
        return onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    except KeyError:
        raise ModelError(f"input {name!r} has no valid element type ({tensor.elem_type})") from None


@dataclass
class Scope:
    """Names visible in one (sub-)graph: the file's names to the graph's; captures go through `outer`.

    `nodes` is where its nodes go: a list of its own for the body of a loop, that around it for a branch.
    """

    names: dict[str, str]
    nodes: list[Node]
    guard: Guard = ()
    defined: set[str] = field(default_factory=set)
    outer: "Scope | None" = None
    predicate: str = ""
    branch: bool = True


@dataclass
class Reader:
    """Collects the nodes and constants of a graph and of those inside it."""

    control: str
    opset: int
    constants: dict[str, Array] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    sequences: dict[str, Elements] = field(default_factory=dict)  # what each holds, by its own name
    switches: dict[tuple[str, str, Guard], tuple[str, str]] = field(default_factory=dict)

    def unique(self, name: str) -> str:
        """`name`, or name with a number when it is taken."""
        fresh, count = name, 1
        while fresh in self.taken:
            fresh, count = f"{name}#{count}", count + 1
        self.taken.add(fresh)
        return fresh

    def graph(self, proto: onnx.GraphProto, opset: int) -> Graph:
        scope = Scope({}, [])
        # The tensors of the outer graph keep their names; those of branches give way.
        self.taken.update(t.name for t in (*proto.initializer, *proto.input))
        self.taken.update(t for n in proto.node for t in n.output)
        stored = {t.name for t in proto.initializer}
        inputs = [self.input(v, scope) for v in proto.input if v.name not in stored]
        self.body(proto, scope)
        wheres = [(o.name, f"output {o.name!r} of the graph") for o in proto.output]
        outputs = tuple(self.tensor(self.lookup(name, scope, where), where) for name, where in wheres)
        return Graph(proto.name or "model", tuple(inputs), outputs, tuple(scope.nodes), self.constants, opset)

    def input(self, value: onnx.ValueInfoProto, scope: Scope) -> Value:
        tensor = sequences.declared(value)
        self.define(value.name, scope)
        shape = dims_of(value.name, tensor.shape) if tensor.HasField("shape") else None
        return Value(value.name, _dtype(tensor, value.name), shape)

    def body(self, proto: onnx.GraphProto, scope: Scope) -> None:
        """The initializers and nodes of a (sub-)graph."""
        if proto.sparse_initializer:
            raise UnsupportedError(f"graph {proto.name!r} has sparse initializers; dense ones are supported")
        for tensor in proto.initializer:
            self.constants[self.define(tensor.name, scope)] = numpy_helper.to_array(tensor)
        for node in proto.node:
            self.node(node, scope)

    def node(self, proto: onnx.NodeProto, scope: Scope) -> None:
        label = self.unique(f"node:{proto.name or next(iter(proto.output), proto.op_type)}").removeprefix("node:")
        self.check_arity(proto, label)
        if proto.op_type == "Constant" and proto.domain in ("", "ai.onnx"):
            self.constants[self.define(proto.output[0], scope)] = _constant(proto)
            return
        where = f"node {label!r} ({proto.op_type})"
        inputs = tuple(self.lookup(t, scope, where) if t else "" for t in proto.input)
        if proto.op_type == "If" and proto.domain in ("", "ai.onnx"):
            self.branches(proto, label, inputs[0], scope)
            return
        if sequences.read(self, proto, label, inputs, scope):
            return
        if proto.op_type in loop_frontend.READ and proto.domain in ("", "ai.onnx", "sod2"):
            loop_frontend.READ[proto.op_type](self, proto, label, inputs, scope)
            return
        outputs = tuple(self.define(t, scope) for t in proto.output)
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        scope.nodes.append(Node(label, proto.op_type, _trim(inputs), outputs, attributes(proto), scope.guard, domain))

    def inside(self, outer: Scope, iteration: str) -> Scope:
        """The scope of a loop's body."""
        return Scope({}, [], (*outer.guard, (iteration, True)), set(), outer)

    def define(self, name: str, scope: Scope) -> str:
        """The graph's name of a tensor that is new in this scope; ModelError when it is not."""
        if not name:
            return ""
        if name in scope.defined:
            raise ModelError(f"tensor {name!r} is defined twice in one graph")
        scope.defined.add(name)
        scope.names[name] = fresh = name if scope.outer is None else self.unique(name)
        return fresh

    def check_arity(self, proto: onnx.NodeProto, label: str) -> None:
        """ModelError when a node of ONNX's own domain has too few or too many inputs or outputs."""
        if proto.domain not in ("", "ai.onnx") or not onnx.defs.has(proto.op_type, self.opset):
            return
        schema = onnx.defs.get_schema(proto.op_type, self.opset)
        sides = (
            ("inputs", len(proto.input), schema.min_input, schema.max_input),
            ("outputs", len(proto.output), schema.min_output, schema.max_output),
        )
        for side, count, least, most in sides:
            if not least <= count <= most:
                raise ModelError(f"node {label!r} ({proto.op_type}) has {count} {side}; it takes {least} to {most}")

    def lookup(self, name: str, scope: Scope, reader: str) -> str:
        """The graph's name of a tensor, through Switches where it is captured from outside a branch."""
        if name in scope.names:
            return scope.names[name]
        if scope.outer is None:
            raise ModelError(f"{reader} reads tensor {name!r}, which nothing before it defines")
        captured = self.lookup(name, scope.outer, reader)
        if scope.predicate and captured in self.sequences:
            captured = sequences.switched(self, captured, scope)
        elif scope.predicate and captured and captured not in self.constants:
            captured = self.switch(captured, scope)
        scope.names[name] = captured
        return captured

    def tensor(self, name: str, where: str) -> str:
        """A name that was looked up, of a tensor; UnsupportedError for a sequence or an optional without element."""
        if name in self.sequences or not name:
            raise UnsupportedError(f"{where} is {name!r}, a sequence or an absent tensor; tensors are supported")
        return name

    def switch(self, tensor: str, scope: Scope) -> str:
        """The output of Switch(predicate, tensor) that belongs to this branch."""
        assert scope.outer is not None
        key = tensor, scope.predicate, scope.outer.guard
        if key not in self.switches:
            outputs = self.unique(f"{tensor}@then"), self.unique(f"{tensor}@else")
            label = self.unique(f"node:Switch/{tensor}/{scope.predicate}").removeprefix("node:")
            switch = Node(label, "Switch", (scope.predicate, tensor), outputs, {}, scope.outer.guard)
            scope.outer.nodes.append(switch)
            self.switches[key] = outputs
        return self.switches[key][0 if scope.branch else 1]

    def branches(self, proto: onnx.NodeProto, label: str, predicate: str, scope: Scope) -> None:
        graphs = {a.name: a.g for a in proto.attribute}
        switched = self.control == "switch"
        results = []
        for attribute, branch in (("then_branch", True), ("else_branch", False)):
            guard = (*scope.guard, (predicate, branch)) if switched else scope.guard
            inner = Scope({}, scope.nodes, guard, set(), scope, predicate if switched else "", branch)
            self.body(graphs[attribute], inner)
            results.append([self.lookup(o.name, inner, f"{attribute} of {label!r}") for o in graphs[attribute].output])
        for name, a, b in zip(proto.output, *results, strict=True):
            self.join("Combine" if switched else "Where", (predicate, a, b), self.define(name, scope), scope)

    def join(self, op: str, operands: tuple[str, str, str], output: str, scope: Scope) -> None:
        """The result of one branch or the other, `operands` behind the predicate; of a sequence each of its tensors."""
        predicate, a, b = operands
        if not self.sequences.keys().isdisjoint((a, b)) or not a or not b:
            found = []
            for k, pair in enumerate(sequences.pairs(self, a, b, repr(output))):
                found.append(self.unique(f"{output}[{k}]"))
                self.join(op, (predicate, *pair), found[-1], scope)
            self.sequences[output] = tuple(found)
            return
        node = self.unique(f"node:{op}/{output}").removeprefix("node:")
        scope.nodes.append(Node(node, op, operands, (output,), {}, scope.guard))


def _trim(tensors: Sequence[str]) -> tuple[str, ...]:
    """Without trailing absent tensors."""
    kept = list(tensors)
    while kept and not kept[-1]:
        kept.pop()
    return tuple(kept)


def without_dead(graph: Graph, keep: Iterable[str] = ()) -> Graph:
    """The graph without nodes, outputs of nodes and constants that no output of the graph needs."""
    needed = _needed(graph, (*graph.outputs, *keep))
    loops = {node.name: loop for loop in graph.loops.values() for node in (loop.begin, loop.end)}
    live = []
    for node in graph.nodes:
        if node.name in loops and loops[node.name].iteration in needed:
            live.append(loop_frontend.pruned(node, loops[node.name], needed))
        elif needed.intersection(node.outputs):
            live.append(replace(node, outputs=tuple(t if t in needed else "" for t in node.outputs)))
    constants: Mapping[str, Array] = {k: v for k, v in graph.constants.items() if k in needed}
    return replace(graph, nodes=tuple(live), constants=constants)


def _needed(graph: Graph, wanted: Sequence[str]) -> set[str]:
    """All tensors that lead to those wanted."""
    loops = {t: loop for loop in graph.loops.values() for n in (loop.begin, loop.end) for t in n.outputs}
    needed = {""}
    pending = list(wanted)
    while pending:
        tensor = pending.pop()
        if tensor in needed:
            continue
        needed.add(tensor)
        node = graph.producer.get(tensor)
        if node is not None:
            pending += loops[tensor].sources(tensor) if tensor in loops else node.inputs
            pending += (name for name, _ in node.guard)
    return needed - {""}

"""Sequences and optionals are resolved while a model is read: none of them exists when it runs.

A sequence is the tensors that it holds, or the chunks that SplitToSequence cuts from one tensor, whose number may be
an expression over the inputs. An optional is what it holds, or an absent tensor (the empty name); an input that is an
optional tensor has to be given.

Limits: a sequence of chunks can be indexed, counted and joined again, and only chunks of length 1 by a position that is
computed (outside of them it reads the nearest, as in Gather); other positions and sizes are constants. Both branches of
an If give as many tensors. Inputs and outputs of the model, and what a loop carries, are no sequences.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx

from sod2.errors import ModelError, UnsupportedError
from sod2.graph import Node

if TYPE_CHECKING:
    from sod2.frontend import Reader, Scope


@dataclass(frozen=True)
class Chunks:
    """Consecutive parts of a tensor, each of `size` along an axis but for the last; without that dim if not `kept`."""

    tensor: str
    axis: int
    size: int
    kept: bool


Elements = tuple[str, ...] | Chunks


def declared(value: onnx.ValueInfoProto) -> onnx.TypeProto.Tensor:
    """The tensor that an input of a model is; UnsupportedError for a sequence."""
    kind = value.type.optional_type.elem_type if value.type.HasField("optional_type") else value.type
    if not kind.HasField("tensor_type"):
        raise UnsupportedError(f"input {value.name!r} is a sequence or map; tensors and optional tensors are supported")
    return kind.tensor_type


@dataclass
class _Call:
    """A node that makes or takes a sequence or an optional, while it is read."""

    reader: "Reader"
    proto: onnx.NodeProto
    label: str
    inputs: Sequence[str]
    scope: "Scope"

    def attribute(self, name: str, default: int) -> int:
        return next((int(a.i) for a in self.proto.attribute if a.name == name), default)

    def operand(self, k: int) -> str:
        """An input's name; empty where it is left out."""
        return self.inputs[k] if k < len(self.inputs) else ""

    def refuse(self, why: str) -> UnsupportedError:
        return UnsupportedError(f"{self.proto.op_type} (node {self.label!r}) {why}")

    def elements(self) -> Elements:
        """What the first input holds."""
        if self.inputs[0] not in self.reader.sequences:
            raise ModelError(
                f"{self.proto.op_type} (node {self.label!r}) takes {self.inputs[0]!r}, which is no sequence"
            )
        return self.reader.sequences[self.inputs[0]]

    def tensors(self) -> list[str]:
        """What the first input holds, one by one."""
        found = self.elements()
        if isinstance(found, Chunks):
            raise self.refuse(f"takes the chunks of {found.tensor!r}, whose number is not known; tensors are supported")
        return list(found)

    def tensor(self, name: str) -> str:
        """An input that may not be a sequence."""
        return self.reader.tensor(name, f"{self.proto.op_type} (node {self.label!r})")

    def integer(self, k: int, what: str) -> int:
        """The value of an input that has to be a constant."""
        if self.operand(k) not in self.reader.constants:
            raise self.refuse(f"has a {what} that is computed; constants are supported")
        return int(self.reader.constants[self.operand(k)].item())

    def position(self, k: int, least: int, most: int, default: int) -> int:
        """A constant position in these bounds, as Python's lists take it."""
        given = self.integer(k, "position") if self.operand(k) else default
        if not least <= given <= most:
            raise ModelError(
                f"{self.proto.op_type} (node {self.label!r}) has position {given}; {least} to {most} are accepted"
            )
        return given

    def constant(self, name: str, value: object) -> str:
        fresh = self.reader.unique(f"{self.label}:{name}")
        self.reader.constants[fresh] = np.asarray(value, np.int64)
        return fresh

    def add(self, op: str, inputs: Sequence[str], output: str = "", domain: str = "", **attrs: object) -> str:
        """Append a node of one output, which is new unless it is given; the output's name."""
        output = output or self.reader.unique(f"{self.label}:{op}")
        label = self.reader.unique(f"node:{op}/{output}").removeprefix("node:")
        self.scope.nodes.append(Node(label, op, tuple(inputs), (output,), attrs, self.scope.guard, domain))
        return output

    def define(self) -> str:
        return self.reader.define(self.proto.output[0], self.scope)

    def gives(self, found: Elements) -> None:
        """The output is a sequence."""
        self.reader.sequences[self.define()] = found

    def hands_on(self, name: str) -> None:
        """The output is a tensor, sequence or absent tensor that is there already."""
        if name and name not in self.reader.sequences:
            self.add("Identity", [name], self.define())
        else:
            self.define()
            self.scope.names[self.proto.output[0]] = name


# ---- sequences -------------------------------------------------------------------------------------------------------


def _construct(call: _Call) -> None:
    call.gives(tuple(map(call.tensor, call.inputs)))


def _at(call: _Call) -> None:
    found = call.elements()
    if not isinstance(found, Chunks):
        call.hands_on(found[call.position(1, -len(found), len(found) - 1, 0)])
    elif found.size > 1 or call.inputs[1] in call.reader.constants:
        attrs = {"axis": found.axis, "size": found.size, "position": call.integer(1, "position")}
        if found.kept:
            call.add("Chunk", [found.tensor], call.define(), "sod2", **attrs)
        else:
            row = call.add("Chunk", [found.tensor], "", "sod2", **attrs)
            call.add("Squeeze", [row, call.constant("axis", [found.axis])], call.define())
    elif found.kept:
        row = call.add("Gather", [found.tensor, call.inputs[1]], axis=found.axis)
        call.add("Unsqueeze", [row, call.constant("axis", [found.axis])], call.define())
    else:
        call.add("Gather", [found.tensor, call.inputs[1]], call.define(), axis=found.axis)


def _length(call: _Call) -> None:
    found = call.elements()
    if not isinstance(found, Chunks):
        call.reader.constants[call.define()] = np.array(len(found), np.int64)
        return
    dims = call.add("Shape", [found.tensor])
    rows = call.add("Gather", [dims, call.constant("axis", found.axis)], axis=0)
    rounded = call.add("Add", [rows, call.constant("rest", found.size - 1)])
    call.add("Div", [rounded, call.constant("size", found.size)], call.define())


def _insert(call: _Call) -> None:
    found = call.tensors()
    count = len(found)
    found.insert(call.position(2, -count, count, count), call.tensor(call.inputs[1]))
    call.gives(tuple(found))


def _erase(call: _Call) -> None:
    found = call.tensors()
    del found[call.position(1, -len(found), len(found) - 1, -1)]
    call.gives(tuple(found))


def _split(call: _Call) -> None:
    axis, sizes = call.attribute("axis", 0), call.operand(1)
    if not sizes:
        call.gives(Chunks(call.inputs[0], axis, 1, bool(call.attribute("keepdims", 1))))
        return
    if sizes not in call.reader.constants:
        raise call.refuse("has sizes that are computed; constants are supported")
    if call.reader.constants[sizes].ndim == 0:
        if (size := call.integer(1, "size")) < 1:
            raise ModelError(f"SplitToSequence (node {call.label!r}) has size {size}; sizes from 1 on are accepted")
        call.gives(Chunks(call.inputs[0], axis, size, kept=True))
        return
    name = call.define()
    parts = tuple(call.reader.unique(f"{name}[{k}]") for k in range(call.reader.constants[sizes].size))
    label = call.reader.unique(f"node:Split/{name}").removeprefix("node:")
    operands = (call.inputs[0], call.constant("sizes", call.reader.constants[sizes]))
    call.scope.nodes.append(Node(label, "Split", operands, parts, {"axis": axis}, call.scope.guard))
    call.reader.sequences[name] = parts


def _concat(call: _Call) -> None:
    found, axis = call.elements(), call.attribute("axis", 0)
    stacks = bool(call.attribute("new_axis", 0))
    if isinstance(found, Chunks):
        if axis != found.axis or stacks == found.kept:
            raise call.refuse(f"joins chunks of axis {found.axis} along another one, {axis}")
        call.hands_on(found.tensor)
        return
    if not found:
        raise ModelError(f"ConcatFromSequence (node {call.label!r}) takes a sequence of no tensors")
    parts = [call.add("Unsqueeze", [t, call.constant("axis", [axis])]) for t in found] if stacks else found
    call.add("Concat", parts, call.define(), axis=axis)


# ---- optionals -------------------------------------------------------------------------------------------------------


def _optional(call: _Call) -> None:
    call.hands_on(call.operand(0))


def _has_element(call: _Call) -> None:
    call.reader.constants[call.define()] = np.array(bool(call.operand(0)))


def _get_element(call: _Call) -> None:
    if not call.operand(0):
        raise call.refuse("takes the element of an optional that has none")
    call.hands_on(call.operand(0))


_READ: Mapping[str, Callable[[_Call], None]] = {
    "SequenceConstruct": _construct,
    "SequenceEmpty": _construct,
    "SequenceAt": _at,
    "SequenceLength": _length,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SplitToSequence": _split,
    "ConcatFromSequence": _concat,
    "Optional": _optional,
    "OptionalHasElement": _has_element,
    "OptionalGetElement": _get_element,
}


def read(reader: "Reader", proto: onnx.NodeProto, label: str, inputs: Sequence[str], scope: "Scope") -> bool:
    """Read a node of one of these operators; False for another one, for which a sequence is an UnsupportedError."""
    call = _Call(reader, proto, label, inputs, scope)
    held = [t for t in inputs if t in reader.sequences]
    if proto.domain in ("", "ai.onnx") and proto.op_type in _READ:
        _READ[proto.op_type](call)
        return True
    if held and proto.op_type == "Identity":
        call.hands_on(held[0])
        return True
    for name in held:
        call.tensor(name)
    return False


def switched(reader: "Reader", sequence: str, scope: "Scope") -> str:
    """The sequence as a branch sees it: what it holds comes through Switches."""
    found = reader.sequences[sequence]

    def inside(tensor: str) -> str:
        return tensor if tensor in reader.constants else reader.switch(tensor, scope)

    fresh = reader.unique(sequence)
    if isinstance(found, Chunks):
        reader.sequences[fresh] = replace(found, tensor=inside(found.tensor))
    else:
        reader.sequences[fresh] = tuple(map(inside, found))
    return fresh


def pairs(reader: "Reader", a: str, b: str, where: str) -> list[tuple[str, str]]:
    """The tensors of two sequences, one for each branch."""
    left, right = (reader.sequences.get(name) for name in (a, b))
    if not isinstance(left, tuple) or not isinstance(right, tuple) or len(left) != len(right):
        raise UnsupportedError(f"the branches of {where} do not both give a tensor, nor as many tensors in a sequence")
    return list(zip(left, right, strict=True))

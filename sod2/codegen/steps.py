"""C of the steps of an execution plan: what each one calls, and what it decides when a shape is bound.

A step is a function of the run-time state. Sizes appear in it as expressions over the bound symbols; tensors as
addresses of inputs, weights or arena buffers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sod2.codegen import loops
from sod2.codegen.elements import c_string, literal
from sod2.codegen.nest import Kernel, element_kernel, epilogue_kernel
from sod2.codegen.target import Target
from sod2.codegen.weights import Weights
from sod2.dtypes import element_type
from sod2.errors import UnsupportedError
from sod2.fusion import Group
from sod2.graph import Array, Node
from sod2.minting import Mint, Minted
from sod2.ops import OPS
from sod2.ops.anchor import Anchor
from sod2.ops.op import Facts
from sod2.packing import Tile
from sod2.rdp import Analysis
from sod2.storage import Carry, Copy, Hold, Materialize, Place, Storage, byte_size
from sod2.symbolic import Dim, as_dim, to_c

_INT32 = range(-(2**31), 2**31)
_ALL = "const int64_t *sym = s->sym, *plan = s->plan; sod2_pool *pool = s->pool;"


@dataclass(frozen=True)
class Decision:
    """What a step decides when its sizes are known: by which function, and the places of what it reads and fills."""

    decider: str
    number: int
    choice: int
    scratch: int
    choices: int
    scratches: int


@dataclass
class Emission:
    """Everything that the steps add up to, while they are being written."""

    analysis: Analysis
    storage: Storage
    target: Target
    versions: Mapping[str, tuple[str, ...]]
    weights: Weights = field(default_factory=Weights)
    scratch_budget: int = 0  # bytes by which scratch may raise the peak
    kernels: dict[str, str] = field(default_factory=dict)  # source with @name@ -> name
    functions: list[str] = field(default_factory=list)
    deciders: dict[str, str] = field(default_factory=dict)  # body of a function that decides at bind -> its name
    numbers: dict[tuple[int, ...], int] = field(default_factory=dict)  # of a decision -> their place among all
    decisions: dict[int, Decision] = field(default_factory=dict)  # by step
    choices: int = 0
    expressions: dict[Dim, int] = field(default_factory=dict)  # sizes, in the order of their first use
    scratch: list[tuple[str, int]] = field(default_factory=list)  # (name, step) of each scratch buffer

    def __post_init__(self) -> None:
        mints = [step for step in self.storage.steps if isinstance(step, Mint)]
        self.minted: list[Minted] = [m for mint in mints for m in mint.minted]
        names = [*self.analysis.symbols, *(m.name for m in self.minted)]
        self.symbols = {name: k for k, name in enumerate(names)}
        self.stages = {m.name: k for k, mint in enumerate(mints, 1) for m in mint.minted}

    def stage(self, *dims: Dim) -> int:
        """From which stage on dims are known: 0 is where a shape is bound, then every mint begins one."""
        return max((self.stages.get(name, 0) for d in dims for name in d.symbols()), default=0)

    def stage_of_step(self, number: int) -> int:
        """The stage at which all sizes of a step are known."""
        step, minting = self.storage.steps[number], self.analysis.minting
        if isinstance(step, Group):
            nodes = (*(step.lead.nodes if step.lead else ()), *step.nodes)
            mints = [mint for node in nodes for mint in minting.awaited(node)]
        else:
            mints = list(minting.before(step)) if isinstance(step, Mint) else []
        return max((self.stages[m.name] for mint in mints for m in mint.minted), default=0)

    def size(self, dim: Dim | int) -> str:
        """C of a dim: a constant, a symbol, or an entry of `plan`, where expressions are put when a shape is bound."""
        dim = as_dim(dim)
        text = self.formula(dim)
        if dim.is_constant or dim.is_symbol:
            return text
        return f"plan[CHOICES + {self.expressions.setdefault(dim, len(self.expressions))}]"

    def formula(self, dim: Dim, share: Callable[[str], str] = str) -> str:
        """C expression of a dim over `sym`, its operations given to `share`; overflow is reported through `o`."""
        try:
            return to_c(dim, self.symbol, share)
        except OverflowError as error:
            raise UnsupportedError(f"a size of the model does not fit: {error}") from None

    def symbol(self, name: str) -> str:
        if name not in self.symbols:
            raise UnsupportedError(f"size {name!r} exists only after execution; generated code needs it at the entry")
        return f"sym[{self.symbols[name]}]"

    def kernel(self, source: str) -> str:
        """Name of a kernel; equal sources are one kernel."""
        return self.kernels.setdefault(source, f"k{len(self.kernels)}")

    def address(self, tensor: str) -> str:
        """C expression (void *) of a tensor's bytes."""
        place: Place = self.storage.places[tensor]
        if place.kind == "constant":
            value = np.asarray(self.analysis[place.name].known_value)
            base = f"(s->weights + {self.weights.add(place.name, 'raw', lambda: value)})"
        elif place.kind == "input":
            base = f"s->input[{place.number}]"
        elif place.kind == "block":
            base = f"s->block[{place.number}].data"
        else:
            base = f"s->buffer[{place.number}]"
        offsets = [] if place.offset == 0 else [self.size(place.offset)]
        offsets += [f"{self.scalar(iteration)} * {self.size(stride)}" for iteration, stride in place.rows]
        return f"(void *)((char *){base} + {' + '.join(offsets)})" if offsets else f"(void *){base}"

    def scalar(self, tensor: str) -> str:
        """C expression of the only element of an int64 or boolean tensor."""
        fact = self.analysis[tensor]
        known = self.analysis.known(tensor)
        if known is not None:
            return self.size(known.item())
        return f"*(const {element_type(fact.dtype).memory} *){self.address(tensor)}"

    def operands(self, kernel: Kernel) -> str:
        """Declaration of the `p` and `n` that a kernel reads."""
        pointers = ", ".join(self.address(t) for t in kernel.tensors) or "NULL"
        dims = ", ".join(self.size(d) for d in kernel.dims) or "0"
        return f"void *const p[] = {{{pointers}}};\nconst int64_t n[] = {{{dims}}};"

    def function(self, number: int, lines: Sequence[str]) -> None:
        """The function of a step; that of a mint returns NULL, or the sentence with which it ends the run."""
        learns = isinstance(self.storage.steps[number], Mint | Carry | Hold)
        kind, end = ("const char *", "  return NULL;\n") if learns else ("void ", "")
        text = "\n".join(f"  {line}" for block in lines for line in block.split("\n"))
        self.functions.append(
            f"static {kind}step_{number}(const sod2_state *s) {{\n  {_ALL}\n"
            f"  (void)sym, (void)plan, (void)pool;\n{text}\n{end}}}\n"
        )

    def copy(self, number: int, step: Copy) -> None:
        size = self.size(byte_size(self.analysis, step.like or step.source))
        offset = "" if step.offset == 0 else f" + {self.size(step.offset)}"
        target = f"(char *){self.address(step.target)}{offset}" if offset else self.address(step.target)
        call = f"sod2_copy({target}, {self.address(step.source)}, {size}, pool);"
        self.function(number, [call])

    def materialize(self, number: int, step: Materialize) -> None:
        fact = self.analysis[step.tensor]
        value, kind = np.asarray(fact.known_value), element_type(fact.dtype)
        lines = [f"{kind.memory} *v = {self.address(step.tensor)};"]
        for k, element in enumerate(value.flat):
            known = isinstance(element, Dim)
            text = f"({kind.value}){self.size(element) if known else literal(element, fact.dtype)}"
            lines.append(f"v[{k}] = {kind.store.format(text)};")
        self.function(number, lines)

    def mint(self, number: int, step: Mint) -> None:
        """Learn the symbols of a mint: read elements, or let an operator count. The stage begins behind the step."""
        if step.minted[0].kind == "carried":
            self.function(number, loops.learned(self, step))
        elif step.node is not None:
            self.kernel_step(number, step.node, OPS(step.node).count)
        else:
            (tensor,) = step.inputs
            memory = element_type(self.analysis[tensor].dtype).memory
            reads = [f"{self.lvalue(m)} = (int64_t)v[{m.index}];" for m in step.minted]
            self.function(number, [f"const {memory} *v = {self.address(tensor)};", *reads])

    def lvalue(self, minted: Minted) -> str:
        """Where a mint stores a symbol."""
        return f"s->minted[{self.minted.index(minted)}]"

    def elements(self, number: int, group: Group) -> None:
        missing = next((n for n in group.nodes if not OPS(n).has_at), None)
        if missing is not None:
            raise UnsupportedError(
                f"operator {missing.op} (node {missing.name!r}) has no kernel and no element expression"
            )
        kernel = element_kernel(group.nodes, group.outputs, self.analysis)
        *outer, inner = kernel.extents
        rows = as_dim(1)
        for extent in outer:
            rows = rows * extent
        cost = sum(OPS(n).cost for n in group.nodes)
        run = f"sod2_nest_run({self.kernel(kernel.source)}, p, n, {self.size(rows)}, {self.size(inner)}, {cost}, pool);"
        self.function(number, [self.operands(kernel), run])

    def anchor(self, number: int, group: Group, node: Node, rule: "Rule | None" = None) -> None:
        """A kernel with its epilogue, called by the operator's own rule where no other is given."""
        end = _own_end(group, node)
        epilogue = self.epilogue(group, node) if end is None else None
        self.kernel_step(number, node, rule or OPS(node).call, epilogue, end)

    def kernel_step(
        self,
        number: int,
        node: Node,
        rule: "Rule",
        epilogue: Kernel | None = None,
        end: Node | None = None,
    ) -> None:
        """A step whose C an operator writes (`Op.call` or `Op.count`), and what it decides when its sizes are known."""
        x, y = self.analysis.of(node.inputs), self.analysis.of(node.outputs)
        lines = [self.operands(epilogue), "const sod2_operands epilogue_operands = {p, n};"] if epilogue else []
        running = StepCall(self, number, node, epilogue, binding=False, end=end)
        statements = rule(node, running, x, y)
        self.function(number, [*lines, *running.lines, statements])
        binding = StepCall(self, number, node, epilogue, binding=True, end=end)
        rule(node, binding, x, y)
        if binding.decides:
            self.decide(number, binding, binding.lines, scratch=running.scratch_count)

    def decide(self, number: int, binding: "StepCall", blocks: Sequence[str], scratch: int) -> None:
        """Let a step decide at bind, by the text of a binding call; its scratch was reserved last.

        Decisions that differ in numbers alone are one function over a table of them: code that runs once for each new
        shape comes from memory, and a table comes faster.
        """
        body = "\n".join(f"  {line}" for block in blocks for line in block.split("\n"))
        decider = self.deciders.setdefault(body, f"decide_{len(self.deciders)}")
        first_number = self.numbers.setdefault(tuple(binding.numbers), sum(map(len, self.numbers)))
        first_scratch = len(self.storage.buffers) + len(self.scratch) - scratch
        places = first_number, self.choices, first_scratch
        self.decisions[number] = Decision(decider, *places, binding.choice_count, scratch)
        self.choices += binding.choice_count

    def reserve(self, name: str, step: int) -> int:
        """Number of a new scratch buffer that lives during one step."""
        self.scratch.append((name, step))
        return len(self.storage.buffers) + len(self.scratch) - 1

    def epilogue(self, group: Group, node: Node, analysis: Analysis | None = None) -> Kernel | None:
        """The epilogue of an anchor's group, under the step's own analysis where one is given; None without one."""
        analysis = analysis or self.analysis
        op = OPS(node)
        x, y = analysis.of(node.inputs), analysis.of(node.outputs)
        bias = op.bias(node, x) if isinstance(op, Anchor) else None
        fused = [n for n in group.nodes if n is not node]
        if not fused and bias is None:
            return None
        space = op.space(node, x, y)
        if space is None:
            raise UnsupportedError(f"{node.op} (node {node.name!r}) takes no epilogue, but one was fused to it")
        addend = (node.inputs[bias.operand], bias.dims, bias.scale) if bias is not None else None
        return epilogue_kernel(fused, group.outputs, analysis, node.outputs[0], space, addend=addend)


def _own_end(group: Group, node: Node) -> Node | None:
    """The last node of a group that the anchor's kernel computes as a whole: itself with its bias, or a Relu behind."""
    op, last = OPS(node), group.nodes[-1]
    whole = group.nodes in ((node,), (node, last)) and group.outputs == (last.outputs[0],)
    rectified = last.op == "Relu" and last.inputs[0] == node.outputs[0]
    return last if isinstance(op, Anchor) and op.rectifies and whole and (last is node or rectified) else None


@dataclass
class StepCall:
    """The Call of one anchor. With `binding` its text is evaluated when a shape is bound, where tensors are NULL and
    numbers stand in a table beside the text."""

    emission: Emission
    step: int
    node: Node
    fused: Kernel | None  # the epilogue
    binding: bool
    end: Node | None = None
    lines: list[str] = field(default_factory=list)  # declarations and, when binding, decisions, in order
    numbers: list[int] = field(default_factory=list)  # when binding: constants, and which sizes are read
    choice_count: int = 0
    scratch_count: int = 0

    @property
    def tile(self) -> Tile:
        return self.emission.target.tile

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions of the node's kernel that are kept; the general one where no choice was planned."""
        return self.emission.versions.get(self.node.name, ("panel",))

    @property
    def decides(self) -> bool:
        """Whether anything is left to decide when a shape is bound."""
        return bool(self.choice_count or self.scratch_count)

    def _typed(self, tensor: str, const: str) -> str:
        if self.binding or tensor not in self.emission.storage.places:
            return "NULL"
        memory = element_type(self.emission.analysis[tensor].dtype).memory
        return f"({const}{memory} *){self.emission.address(tensor)}"

    def pointer(self, operand: int) -> str:
        return self._typed(self.node.inputs[operand], "const ")

    def result(self, output: int = 0) -> str:
        return self._typed((self.end or self.node).outputs[output], "")

    def c(self, value: Dim | int) -> str:
        dim = as_dim(value)
        text = self.emission.size(dim)
        if not self.binding or dim.is_symbol or (dim.is_constant and int(dim) not in _INT32):
            return text
        self.numbers.append(int(dim) if dim.is_constant else self.emission.expressions[dim])
        entry = f"number[{len(self.numbers) - 1}]"
        return entry if dim.is_constant else f"plan[CHOICES + {entry}]"

    def packed(self, operand: int, layout: str, pack: Callable[[], Array]) -> str:
        offset = self.emission.weights.add(self.node.inputs[operand], layout, pack)
        return "(const float *)weights" if self.binding else f"(const float *)(s->weights + {offset})"

    def scratch(self, text: str) -> str:
        number = self.scratch_count
        self.scratch_count += 1
        if not self.binding:
            name = f"scratch {number} of step {self.step}"
            return f"(void *)s->buffer[{self.emission.reserve(name, self.step)}]"
        self.lines.append(f"scratch[{number}] = {text};")
        return "NULL"

    def choice(self, text: str) -> str:
        number = self.choice_count
        self.choice_count += 1
        if not self.binding:
            return f"plan[{self.emission.choices + number}]"
        self.lines.append(f"choice[{number}] = {text};")
        return f"choice[{number}]"

    def epilogue(self) -> tuple[str, str]:
        if self.fused is None:
            return "NULL", "NULL"
        return (self.emission.kernel(self.fused.source), "NULL" if self.binding else "&epilogue_operands")

    def touched(self) -> str:
        result, facts, places = (self.end or self.node).outputs[0], self.emission.analysis, self.emission.storage.places
        tensors = self.fused.tensors if self.fused else (result,)
        floats = [t for t in tensors if t in places and facts[t].dtype == np.float32]
        alike = [t for t in floats if facts[t].dims == facts[result].dims]
        pointers = dict.fromkeys(self._typed(t, "const ") for t in alike if places[t].kind == "buffer")
        return f"{{{', '.join([*pointers, 'NULL'][:2])}}}"

    def minted(self, output: int, axis: int) -> str:
        tensor, emission = self.node.outputs[output], self.emission
        return next(emission.lvalue(m) for m in emission.minted if (m.tensor, m.index, m.kind) == (tensor, axis, "dim"))

    def refuse(self, text: str) -> str:
        return f"return {c_string(f'{text} (node {self.node.name})')};"

    def setup(self, text: str) -> None:
        self.lines.append(text)


Rule = Callable[[Node, StepCall, Facts, Facts], str]  # declares what a kernel needs, and returns the C that calls it

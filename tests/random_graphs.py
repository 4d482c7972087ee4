"""Random ONNX graphs that are valid at every value of their symbols, a seed each.

A tensor's dims are Python expressions over the symbols, equal when their text is. `A` is a dim that is either 1 or
equal to `N`: what tells a broadcast that takes a side from one that doesn't. Branches of `If` are graphs of the same
kind that capture outer tensors.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx

from tests.graphs import model

UNARY = ("Relu", "Neg", "Tanh", "Sigmoid", "Abs", "Erf", "Identity", "Softplus", "Ceil", "HardSwish", "Sign")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
INPUTS = {
    "x": ("N", "M"), "r": ("M",), "c": ("N", "1"), "a": ("A", "M"), "t": ("N", "4", "M"), "u": ("A", "4", "1"),
    "f": ("N", "4"), "s": (), "i": ("1", "4", "H", "W"),
}  # fmt: skip
SIZES = {"N": (0, 1, 2, 3, 17), "M": (0, 1, 2, 5, 33), "H": (1, 2, 7), "W": (1, 3, 8)}


@dataclass(frozen=True)
class Tensor:
    """A float tensor under construction."""

    name: str
    dims: tuple[str, ...]


def declared(tensor: Tensor, named: bool) -> str:
    """ONNX's text for a float tensor; its dims are unknown unless `named`."""
    dims = ", ".join(tensor.dims if named else "?" * len(tensor.dims))
    return f"float[{dims}] {tensor.name}" if tensor.dims else f"float {tensor.name}"


def generator(seed: int) -> random.Random:
    """The source of chance of a seed."""
    return random.Random(seed)


def environments(rng: random.Random, count: int) -> Iterator[dict[str, int]]:
    """Values of the symbols."""
    for _ in range(count):
        env = {name: rng.choice(sizes) for name, sizes in SIZES.items()}
        yield {**env, "A": rng.choice((1, env["N"]))}


def shape(dims: tuple[str, ...], env: dict[str, int]) -> tuple[int, ...]:
    return tuple(eval(d, {"max": max}, env) for d in dims)


def arrays(env: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """Inputs at these sizes."""
    rng = np.random.default_rng(seed)
    feeds = {name: rng.standard_normal(shape(dims, env)).astype(np.float32) for name, dims in INPUTS.items()}
    return {**feeds, "p": np.array(rng.random() < 0.5), "q": np.array(rng.random() < 0.5)}


@dataclass
class Builder:
    """Appends random nodes to one (sub-)graph."""

    rng: random.Random
    tensors: list[Tensor]
    names: Iterator[int]
    depth: int = 0
    lines: list[str] = field(default_factory=list)

    def node(self, op: str, operands: str, dims: tuple[str, ...], attrs: str = "") -> None:
        name = f"t{next(self.names)}"
        self.lines.append(f"{name} = {op}{f' <{attrs}>' if attrs else ''} ({operands})")
        self.tensors.append(Tensor(name, dims))

    def constant(self, values: list[int]) -> str:
        name = f"k{next(self.names)}"
        self.lines.append(f"{name} = Constant <value_ints = [{', '.join(map(str, values))}]> ()")
        return name

    def any(self, fits: Callable[[Tensor], bool] = lambda _: True) -> Tensor | None:
        """A random tensor that fits, a late one more likely."""
        found = [t for t in self.tensors if fits(t)]
        return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))] if found else None

    def step(self) -> None:
        moves = [
            self.unary,
            self.unary,
            self.binary,
            self.binary,
            self.binary,
            self.where,
            self.transpose,
            self.reshape,
        ]
        moves += [self.slice, self.concat, self.pad, self.gather, self.reduce, self.matmul, self.softmax, self.norm]
        moves += [self.conv, self.expand, self.split, self.unsqueeze, self.cast, self.bounded, self.tile]
        self.rng.choice([*moves, self.branch, self.branch] if self.depth < 2 else moves)()

    def unary(self) -> None:
        t = self.any()
        self.node(self.rng.choice(UNARY), t.name, t.dims)

    def broadcast(self, a: Tensor, b: Tensor) -> tuple[str, ...] | None:
        rank = max(len(a.dims), len(b.dims))
        out = []
        for p, q in zip(*(("1",) * (rank - len(t.dims)) + t.dims for t in (a, b)), strict=True):
            if p != q and "1" not in (p, q) and {p, q} != {"A", "N"}:
                return None
            both = "(N)" if {p, q} == {"A", "N"} else p  # N, but a branch that has it isn't interchangeable with N
            out.append(q if p == "1" else both)
        return tuple(out)

    def binary(self) -> None:
        a = self.any()
        b = self.any(lambda t: self.broadcast(a, t) is not None)
        self.node(self.rng.choice(BINARY), f"{a.name}, {b.name}", self.broadcast(a, b))

    def where(self) -> None:
        a = self.any()
        b = self.any(lambda t: self.broadcast(a, t) is not None)
        test = f"b{next(self.names)}"
        self.lines.append(f"{test} = {self.rng.choice(('Less', 'GreaterOrEqual'))} ({a.name}, {b.name})")
        self.node("Where", f"{test}, {a.name}, {b.name}", self.broadcast(a, b))

    def transpose(self) -> None:
        t = self.any(lambda t: len(t.dims) > 1)
        order = self.rng.sample(range(len(t.dims)), len(t.dims))
        self.node("Transpose", t.name, tuple(t.dims[k] for k in order), f"perm = {order}")

    def reshape(self) -> None:
        t = self.any(lambda t: len(t.dims) > 1)
        axis = self.rng.randrange(len(t.dims) - 1)
        joined = f"({t.dims[axis]})*({t.dims[axis + 1]})"
        dims = (*t.dims[:axis], joined, *t.dims[axis + 2 :])
        name, parts = f"h{next(self.names)}", []
        self.lines.append(f"{name} = Shape ({t.name})")
        for k in range(len(dims)):
            parts.append(f"g{next(self.names)}")
            source = [k] if k < axis else [axis, axis + 1] if k == axis else [k + 1]
            pieces = [f"e{next(self.names)}" for _ in source]
            self.lines += [f"{e} = Gather ({name}, {self.constant([j])})" for e, j in zip(pieces, source, strict=True)]
            self.lines.append(f"{parts[-1]} = {'Mul' if len(pieces) > 1 else 'Identity'} ({', '.join(pieces)})")
        target = f"h{next(self.names)}"
        self.lines.append(f"{target} = Concat <axis = 0> ({', '.join(parts)})")
        self.node("Reshape", f"{t.name}, {target}", dims, "allowzero = 1")

    def slice(self) -> None:
        t = self.any(lambda t: len(t.dims) > 0)
        axis = self.rng.randrange(len(t.dims))
        d = f"({t.dims[axis]})"
        start, end, step, out = self.rng.choice([
            (1, 2**31 - 1, 1, f"max({d}-1,0)"), (0, -1, 1, f"max({d}-1,0)"), (-2, 2**31 - 1, 1, f"{d}-max({d}-2,0)"),
            (0, 2**31 - 1, 2, f"({d}+1)//2"), (-1, -(2**31), -1, d),
        ])  # fmt: skip
        ends = [self.constant([v]) for v in (start, end, axis, step)]
        self.node("Slice", ", ".join([t.name, *ends]), (*t.dims[:axis], out, *t.dims[axis + 1 :]))

    def concat(self) -> None:
        t = self.any(lambda t: len(t.dims) > 0)
        axis = self.rng.randrange(len(t.dims))
        others = [d for k, d in enumerate(t.dims) if k != axis]
        o = self.any(lambda o: len(o.dims) == len(t.dims) and [d for k, d in enumerate(o.dims) if k != axis] == others)
        joined = f"({t.dims[axis]})+({o.dims[axis]})"
        self.node("Concat", f"{t.name}, {o.name}", (*t.dims[:axis], joined, *t.dims[axis + 1 :]), f"axis = {axis}")

    def pad(self) -> None:
        t = self.any(lambda t: len(t.dims) > 0)
        before, after = ([self.rng.randrange(3) for _ in t.dims] for _ in range(2))
        dims = tuple(f"({d})+{b + a}" for d, b, a in zip(t.dims, before, after, strict=True))
        self.node("Pad", f"{t.name}, {self.constant(before + after)}", dims)

    def gather(self) -> None:
        t = self.any(lambda t: "4" in t.dims)
        axis = t.dims.index("4")
        picked = self.constant([self.rng.randrange(-4, 4) for _ in range(self.rng.choice((1, 3)))])
        count = self.lines[-1].count(",") + 1
        self.node("Gather", f"{t.name}, {picked}", (*t.dims[:axis], str(count), *t.dims[axis + 1 :]), f"axis = {axis}")

    def reduce(self) -> None:
        t = self.any(lambda t: len(t.dims) > 0)
        axes = sorted(self.rng.sample(range(len(t.dims)), self.rng.randrange(1, len(t.dims) + 1)))
        keep = self.rng.randrange(2)
        dims = tuple("1" if k in axes else d for k, d in enumerate(t.dims) if keep or k not in axes)
        op = self.rng.choice(("ReduceSum", "ReduceSumSquare", "ReduceL2"))
        self.node(op, f"{t.name}, {self.constant(axes)}", dims, f"keepdims = {keep}")

    def matmul(self) -> None:
        t = self.any(lambda t: len(t.dims) in (2, 3))
        o = self.any(lambda o: len(o.dims) == 2 and o.dims[0] == t.dims[-1])
        if o is not None:
            self.node("MatMul", f"{t.name}, {o.name}", (*t.dims[:-1], o.dims[1]))

    def softmax(self) -> None:
        t = self.any(lambda t: len(t.dims) > 0)
        self.node("Softmax", t.name, t.dims, f"axis = {self.rng.randrange(len(t.dims))}")

    def norm(self) -> None:
        t = self.any(lambda t: t.dims[-1:] == ("4",))
        if t is not None:
            self.node("LayerNormalization", f"{t.name}, scale, bias", t.dims)

    def conv(self) -> None:
        t = self.any(lambda t: len(t.dims) == 4 and t.dims[1] == "4")
        if t is not None:
            self.node("Conv", f"{t.name}, kernel, bias", t.dims, "pads = [1, 1, 1, 1]")

    def expand(self) -> None:
        t = self.any()
        o = self.any(lambda o: self.broadcast(t, o) is not None)
        name = f"h{next(self.names)}"
        self.lines.append(f"{name} = Shape ({o.name})")
        self.node("Expand", f"{t.name}, {name}", self.broadcast(t, o))

    def tile(self) -> None:
        t = self.any(lambda t: 0 < len(t.dims) < 4)
        times = [self.rng.randrange(1, 3) for _ in t.dims]
        self.node(
            "Tile", f"{t.name}, {self.constant(times)}", tuple(f"({d})*{k}" for d, k in zip(t.dims, times, strict=True))
        )

    def split(self) -> None:
        t = self.any(lambda t: "4" in t.dims)
        axis, sizes = t.dims.index("4"), self.constant([1, 3])
        names = [f"t{next(self.names)}" for _ in range(2)]
        self.lines.append(f"{', '.join(names)} = Split <axis = {axis}> ({t.name}, {sizes})")
        for name, size in zip(names, "13", strict=True):
            self.tensors.append(Tensor(name, (*t.dims[:axis], size, *t.dims[axis + 1 :])))

    def unsqueeze(self) -> None:
        t = self.any(lambda t: len(t.dims) < 4)
        axis = self.rng.randrange(len(t.dims) + 1)
        self.node("Unsqueeze", f"{t.name}, {self.constant([axis])}", (*t.dims[:axis], "1", *t.dims[axis:]))

    def cast(self) -> None:
        t = self.any()
        self.node("Cast", t.name, t.dims, "to = 6")
        whole = self.tensors.pop()
        self.node("Cast", whole.name, t.dims, "to = 1")

    def bounded(self) -> None:
        t = self.any()
        self.node("LeakyRelu", t.name, t.dims, "alpha = 0.25")

    def branch(self) -> None:
        inner = []
        t = self.any()
        for _ in range(2):
            body = Builder(self.rng, list(self.tensors), self.names, self.depth + 1)
            for _ in range(self.rng.randrange(4)):
                body.step()
            result = body.any(lambda o: o.dims == t.dims)
            name = f"t{next(self.names)}"
            body.lines.append(f"{name} = {self.rng.choice(('Identity', 'Identity', 'Relu', 'Neg'))} ({result.name})")
            inner.append((declared(Tensor(name, t.dims), named=False), body.lines))
        graphs = (f"g{next(self.names)} () => ({out}) {{ {' '.join(lines)} }}" for out, lines in inner)
        kinds = zip(("then_branch", "else_branch"), graphs, strict=True)
        self.node("If", self.rng.choice("pq"), t.dims, ", ".join(f"{kind} = {text}" for kind, text in kinds))


def build(seed: int, steps: int = 14) -> onnx.ModelProto:
    """A random model with the inputs INPUTS, p and q, and up to five outputs."""
    rng = random.Random(seed)
    builder = Builder(rng, [Tensor(name, dims) for name, dims in INPUTS.items()], iter(range(10**6)))
    for _ in range(steps):
        builder.step()
    made = builder.tensors[len(INPUTS) :]
    outputs = {t.name: t for t in [made[-1], *rng.sample(made, min(4, len(made)))]}
    given = ", ".join(declared(Tensor(*entry), named=True) for entry in INPUTS.items())
    results = ", ".join(declared(t, named=False) for t in outputs.values())
    random_weights = np.random.default_rng(seed)
    stored = {
        "scale": random_weights.standard_normal(4).astype(np.float32),
        "bias": random_weights.standard_normal(4).astype(np.float32),
        "kernel": random_weights.standard_normal((4, 4, 3, 3)).astype(np.float32),
    }
    body = "\n".join(builder.lines)
    return model(f"{given}, bool p, bool q", results, body, stored)

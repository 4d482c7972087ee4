"""Random models of loops: carried vectors that grow, shrink, swap or stay, captures, branches and loops inside.

Every body is valid at every size of its states, so that whatever the trips do the model runs: operators take vectors of
any length, and scalars made of them.
"""

from dataclasses import dataclass

import numpy as np
import onnx

from tests.graphs import model, random

STORED = {
    "big": np.int64([2**63 - 1]),
    "one": np.int64([1]),
    "two": np.int64(2),
    "zero": np.int64(0),
    "none": np.zeros(0, np.float32),
    "pair": np.float32([0.5, -1.5]),
    "half": np.float32(0.5),
}
CAPTURES = ("x", "w", "none", "pair")


@dataclass
class _Writer:
    """Text of a loop body; `names` counts what is defined so far, over all bodies."""

    rng: np.random.Generator
    names: int = 0

    def fresh(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def vector(self, vectors: list[str], depth: int, lines: list[str], number: str) -> str:
        """Append what computes one more vector; returns its name."""
        a, b = (str(self.rng.choice(vectors)) for _ in range(2))
        out, scalar = self.fresh(), self.fresh()
        kind = self.rng.integers(0, 9 if depth < 2 else 7)
        texts = {
            0: f"{out} = Concat <axis = 0> ({a}, {b})",
            1: f"{out} = Slice({a}, one, big)",
            2: f"{out} = Sin({a})",
            3: f"{scalar} = ReduceSum <keepdims = 0> ({b}) {out} = Mul({a}, {scalar})",
            4: f"{out} = Identity({a})",
            5: f"{scalar} = Cast <to = 1> ({number}) {out} = Add({a}, {scalar})",
            6: f"{scalar} = Greater({a}, half) {out} = Compress({a}, {scalar})",
        }
        if kind == 8:
            texts[8] = f"{out} = {self.loop([a], depth + 1, list(vectors), number, False)}"
        if kind == 7:
            texts[7] = f"{scalar} = Mod({number}, two) {self.branch(out, scalar, [*vectors, a, b], depth, number)}"
        lines.append(texts[int(kind)])
        return out

    def branch(self, out: str, scalar: str, vectors: list[str], depth: int, number: str) -> str:
        """An If whose branches are chosen by the number of the trip."""
        even = self.fresh()
        then: list[str] = []
        other: list[str] = []
        p = self.vector(vectors, depth + 1, then, number)
        q = self.vector(vectors, depth + 1, other, number)
        return (
            f"{even} = Equal({scalar}, zero) {out} = If ({even}) "
            f"<then_branch = g{out} () => (float[?] {p}) {{ {' '.join(then)} }}, "
            f"else_branch = h{out} () => (float[?] {q}) {{ {' '.join(other)} }}>"
        )

    def loop(self, inits: list[str], depth: int, vectors: list[str], trips: str, stacks: bool) -> str:
        """A Loop over some vectors; at most three trips inside another loop."""
        number, going, again, inside = self.fresh(), self.fresh(), self.fresh(), self.fresh()
        states = [self.fresh() for _ in inits]
        lines: list[str] = []
        known = [*vectors, *states]
        for _ in range(self.rng.integers(1, 5)):
            known.append(self.vector(known, depth, lines, number))
        given = [str(self.rng.choice(known[-2:] if self.rng.random() < 0.7 else [*states, *CAPTURES])) for _ in states]
        results = [self.fresh() for _ in given]
        lines += [f"{r} = Identity({g})" for r, g in zip(results, given, strict=True)]
        limit = int(self.rng.integers(1, 4))
        counts = self.rng.integers(0, 2)
        lines.append(f"{inside} = Constant <value_int = {limit}> ()")
        lines.append(f"{again} = Identity({going})" if counts else f"{again} = Less({number}, {inside})")
        takes = ", ".join([f"int64 {number}", f"bool {going}", *(f"float[?] {s}" for s in states)])
        gives = ", ".join([f"bool {again}", *(f"float[?] {r}" for r in results)])
        if stacks:
            rows = [self.fresh() for _ in range(2)]
            lines += [f"{rows[0]} = ReduceSum <keepdims = 0> ({known[-1]})", f"{rows[1]} = Identity({number})"]
            gives += f", float {rows[0]}, int64 {rows[1]}"
        limits = trips if depth == 0 or counts or self.rng.integers(0, 2) else ""
        return (
            f"Loop <body = b{number} ({takes}) => ({gives}) {{ {' '.join(lines)} }}> ({limits}, , {', '.join(inits)})"
        )


def build(seed: int) -> onnx.ModelProto:
    """Inputs x, w and t, the largest number of trips; outputs the final states, stacked scalars and trip numbers."""
    rng = np.random.default_rng(seed)
    inits = [str(rng.choice(CAPTURES)) for _ in range(rng.integers(1, 4))]
    finals = [f"y{k}" for k in range(len(inits))]
    text = _Writer(rng).loop(inits, 0, ["x", "w", "none", "pair"], "t", True)
    outputs = ", ".join([*(f"float[?] {f}" for f in finals), "float[?] sums", "int64[?] numbers"])
    body = f"{', '.join(finals)}, sums, numbers = {text}"
    return model("float[N] x, float[M] w, int64 t", outputs, body, STORED)


def runs(seed: int) -> list[dict[str, np.ndarray]]:
    """Inputs at several sizes and trip counts, 0 and 1 among both."""
    sizes = ((3, 2, 2), (0, 1, 3), (1, 4, 1), (2, 0, 0), (3, 3, 3))
    return [
        {"x": random("f4", (n,), seed), "w": random("f4", (m,), seed + 1), "t": np.array(t, np.int64)}
        for n, m, t in sizes
    ]

"""Tiny models with a Loop or a Scan, one a kind, and inputs at which they run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from tests.graphs import model, random

Arrays = Mapping[str, np.ndarray]
I64 = np.int64
X = random("f4", (3,), 1)


@dataclass(frozen=True)
class Case:
    """A model as text, and inputs at which it runs."""

    inputs: str
    outputs: str
    body: str
    runs: Sequence[Arrays]
    stored: Arrays = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        return model(self.inputs, self.outputs, self.body, self.stored)


def body_of(op: str, begin: str, takes: str, gives: str, body: str, *, attributes: str = "") -> str:
    """A node with a body, in ONNX's text form."""
    return f"{op} <body = b ({takes}) => ({gives}) {{ {body} }} {attributes}> ({begin})"


def loop(begin: str, takes: str, gives: str, body: str) -> str:
    """A Loop: `begin` are trip count, condition and states; the body reads them as `takes` behind i and c."""
    return body_of("Loop", begin, f"int64 i, bool c{takes and ', '}{takes}", f"bool d, {gives}", body)


def counted(begin: str, takes: str, gives: str, body: str) -> str:
    """A Loop of t trips."""
    return loop(f"t, , {begin}", takes, gives, f"d = Identity(c) {body}")


def inner(begin: str, takes: str, gives: str, body: str) -> str:
    """A Loop inside another one: its number and conditions are j, e and f."""
    given = f"f = Identity(e) {body}"
    return body_of("Loop", begin, f"int64 j, bool e, {takes}", f"bool f, {gives}", given)


def scan(begin: str, takes: str, gives: str, body: str, count: int, **attributes: list[int]) -> str:
    """A Scan whose last `count` operands are sequences."""
    listed = "".join(f", scan_{name} = {values}" for name, values in attributes.items())
    return body_of("Scan", begin, takes, gives, body, attributes=f", num_scan_inputs = {count}{listed}")


def number(value: int) -> np.ndarray:
    return np.array(value, I64)


def trips(*counts: int, **others: np.ndarray) -> list[Arrays]:
    """Runs at several trip counts."""
    return [{"t": number(count), **others} for count in counts]


def truth(value: bool) -> np.ndarray:
    return np.array(value)


VECTOR, MANY = "float[N] x, int64 t", "float[N] x, float[N] w, int64 t"
ADDED = counted("x", "float[N] s", "float[N] n", "n = Add(s, x)")
UNTIL = "n = Add(s, one) m = ReduceMax <keepdims = 0> (n) d = Less(m, top)"
TOP = {"one": np.float32(1), "top": np.float32(5)}
IN_A_BRANCH = f"""y = If (p) <then_branch = g () => (float[N] a) {{ a = {ADDED} }},
                              else_branch = h () => (float[N] b) {{ b = Neg(x) }}>"""
CHOICE = """n = If (q) <then_branch = g () => (float[?] a) {{ a = {} }},
                        else_branch = h () => (float[?] b) {{ b = {} }}>"""

FIXED = {
    "counted": Case(VECTOR, "float[N] y", f"y = {ADDED}", trips(0, 1, 5, -3, x=X)),
    "while": Case("float[N] x, bool go", "float[N] y", f"y = {loop(', go, x', 'float[N] s', 'float[N] n', UNTIL)}",
                  [{"x": X, "go": truth(go)} for go in (True, False)], TOP),
    "both": Case("float[N] x, int64 t, bool go", "float[N] y",
                 f"y = {loop('t, go, x', 'float[N] s', 'float[N] n', UNTIL)}",
                 [{"go": truth(go), **run} for go in (True, False) for run in trips(0, 2, 99, x=X)], TOP),
    "neither": Case("float[N] x", "float[N] y", f"y = {loop(', , x', 'float[N] s', 'float[N] n', UNTIL)}",
                    [{"x": X}, {"x": X + 9}], TOP),
    "nested": Case(
        "float[N] x, int64 t, int64 u", "float[N] y",
        "y = " + counted("x", "float[N] s", "float[N] n",
                         f"p = {inner('u, , s', 'float[N] r', 'float[N] m', 'm = Mul(r, x)')} n = Sub(p, s)"),
        [{"u": number(u), **run} for u in (0, 1, 2) for run in trips(0, 1, 3, x=X)]),
    "in a branch": Case("float[N] x, int64 t, bool p", "float[N] y", IN_A_BRANCH,
                        [{"p": truth(p), **run} for p in (True, False) for run in trips(0, 2, x=X)]),
    "around a branch": Case(
        "float[N] x, int64 t, int64 k", "float[N] y",
        "y = " + counted("x", "float[N] s", "float[N] n", "q = Equal(i, k) " + CHOICE.format("Add(s, x)", "Mul(s, s)")),
        trips(0, 1, 3, x=X, k=number(1))),
    "captures outer values": Case(
        VECTOR, "float[N] y, float[N] w",
        f"v = Softmax(x) w = Exp(v) y = {counted('x', 'float[N] s', 'float[N] n', 'm = Mul(s, v) n = Add(m, w)')}",
        trips(0, 1, 3, x=X)),
    "captures the state of the outer loop": Case(
        VECTOR, "float[N] y",
        "y = " + counted("x", "float[N] s", "float[N] n",
                         "n = " + inner("t, , x", "float[N] r", "float[N] m", "k = Mul(r, s) m = Sub(k, x)")),
        trips(0, 1, 3, x=X)),
    "stacked": Case(
        "float[2] x, int64 t", "float[2] y, float[?, 2] z, int64[?] k",
        "y, z, k = " + counted("x", "float[2] s", "float[2] n, float[2] o, int64 l",
                               "n = Add(s, x) o = Exp(n) l = Identity(i)"),
        trips(0, 1, 4, x=X[:2])),
    "stacks its state": Case(
        "float[2] x, int64 t", "float[2] y, float[?, 2] z, float[?, 2] v",
        "y, z, v = " + counted("x", "float[2] s", "float[2] n, float[2] o, float[2] p",
                               "n = Add(s, x) o = Identity(s) p = Identity(n)"),
        trips(0, 1, 4, x=X[:2])),
    "states that swap": Case(
        MANY, "float[N] y, float[N] z",
        "y, z = " + counted("x, w", "float[N] a, float[N] b", "float[N] m, float[N] n",
                            "m = Identity(b) n = Identity(a)"),
        trips(0, 1, 2, 5, x=X, w=X * 2)),
    "three states in a circle": Case(
        MANY, "float[N] y, float[N] z, float[N] q",
        "v = Neg(x) y, z, q = " + counted("x, w, v", "float[N] a, float[N] b, float[N] e",
                                          "float[N] m, float[N] n, float[N] o",
                                          "m = Identity(b) n = Identity(e) o = Sub(a, b)"),
        trips(0, 1, 2, 5, x=X, w=X * 2)),
    "fibonacci": Case(
        VECTOR, "float[N] y, float[N] z",
        "y, z = " + counted("x, x", "float[N] a, float[N] b", "float[N] m, float[N] n",
                            "m = Identity(b) n = Add(a, b)"),
        trips(0, 1, 2, 9, x=X)),
    "becomes a captured value": Case(
        VECTOR, "float[N] y, float[N] w",
        f"w = Exp(x) y = {counted('x', 'float[N] s', 'float[N] n', 'n = Identity(w)')}", trips(0, 1, 2, x=X)),
    "becomes a constant": Case(
        "float[3] x, int64 t", "float[3] y", f"y = {counted('x', 'float[3] s', 'float[3] n', 'n = Identity(k)')}",
        trips(0, 1, 2, x=X), {"k": np.float32([7, 8, 9])}),
    "one result for two states": Case(
        VECTOR, "float[N] y, float[N] z",
        f"y, z = {counted('x, x', 'float[N] a, float[N] b', 'float[N] m, float[N] m', 'k = Mul(a, b) m = Add(k, x)')}",
        trips(0, 1, 3, x=X)),
    "state that stays": Case(
        VECTOR, "float[N] y, float[N] z",
        "v = Exp(x) y, z = " + counted("v, x", "float[N] a, float[N] b", "float[N] m, float[N] n",
                                       "m = Identity(a) n = Sub(a, b)"),
        trips(0, 1, 3, x=X)),
    "condition is carried too": Case(
        "float[N] x, bool q", "float[N] y, bool z",
        "y, z = " + loop(", , x, q", "float[N] s, bool r", "float[N] n, bool m",
                         "n = Add(s, s) w = Slice(n, zero, one) k = Squeeze(w, zero) m = Less(k, top) d = Identity(r)"),
        [{"x": np.float32([1, 2]), "q": truth(q)} for q in (True, False)],
        {"zero": I64([0]), "one": I64([1]), "top": np.float32(40)}),
    "matrix power": Case(
        "float[N, N] x, int64 t", "float[N, N] y",
        f"y = {counted('x', 'float[N, N] s', 'float[N, N] n', 'n = MatMul(s, x)')}",
        [run for n in (1, 4, 0) for run in trips(0, 1, 3, x=random("f4", (n, n)))]),
    "needs what holds in a trip only": Case(
        "float[N] x, float[2] v, int64 t", "float[2] y, float[N] z",
        f"z = Neg(x) y = {counted('v', 'float[2] s', 'float[2] n', 'm = MatMul(x, k) n = Add(s, m)')}",
        [*trips(0, 2, x=random("f4", (4,)), v=X[:2]), *trips(0, x=X, v=X[:2])], {"k": random("f4", (4, 2))}),
    "rows of a matrix": Case(
        "float[N, 4] x", "float[?, 4] y, float[4] z",
        "k = Shape <start = 0, end = 1> (x) l = Squeeze(k) z, y = "
        + loop("l, , w", "float[4] s", "float[4] n, float[4] o",
               "d = Identity(c) r = Gather(x, i) n = Add(s, r) o = Softmax(n)"),
        [{"x": random("f4", (n, 4))} for n in (0, 1, 5)], {"w": np.zeros(4, np.float32)}),
    "number of the trip as a vector": Case(
        "float[N] x, int64[1] t, bool[1] go", "float[N] y",
        "y = " + body_of("Loop", "t, go, x", "int64[1] i, bool[1] c, float[N] s", "bool[1] d, float[N] n",
                         "d = Identity(c) f = Cast <to = 1> (i) n = Add(s, f)"),
        [{"x": X, "t": I64([t]), "go": np.array([g])} for t in (0, 4) for g in (True, False)]),
    "results not asked for": Case(
        VECTOR, "float[N] z",
        "y, z, q = " + counted("x, x", "float[N] a, float[N] b", "float[N] m, float[N] n, float[N] o",
                               "m = Exp(a) n = Add(b, x) o = Neg(m)"),
        trips(0, 3, x=X)),
    "integers and booleans": Case(
        "int64[N] x, int64 t", "int64[N] y, bool[N] z",
        "q = Less(x, zero) y, z = " + counted("x, q", "int64[N] a, bool[N] b", "int64[N] m, bool[N] n",
                                              "m = Add(a, i) k = Equal(m, a) n = Xor(k, b)"),
        trips(0, 3, x=I64([3, -1, 0, 2, 5])), {"zero": number(0)}),
    "trip count from values": Case(
        "float[N] x, int64[K] l", "float[N] y",
        f"t = ReduceMax <keepdims = 0> (l) y = {counted('x', 'float[N] s', 'float[N] n', 'n = Sub(x, s)')}",
        [{"x": X, "l": I64(counts)} for counts in ([0], [4, 1], [2, 3, 3])]),
    "rows written into its state": Case(
        "float[N, 4] x, int64 t", "float[N, 4] y, float[?, 1, 4] z",
        "y, z = " + counted("x", "float[N, 4] s", "float[N, 4] n, float[1, 4] o",
                            """j = Unsqueeze(i, zero) k = Unsqueeze(j, zero) r = Gather(s, j) e = Exp(r)
                               n = ScatterND(s, k, e) o = Softmax(e)"""),
        trips(1, 3, x=random("f4", (3, 4))), {"zero": I64([0])}),
}  # fmt: skip

GROWING = counted("x", "float[?] s", "float[?] n", "n = Concat <axis = 0> (s, x)")
ZERO = {"zero": I64([0])}
VARYING = {
    "grows": Case(VECTOR, "float[?] y, float[?] z, int64[1] k", f"y = {GROWING} z = Neg(y) k = Shape(y)",
                  [*trips(0, 1, 5, x=X), *trips(3, x=X[:0])]),
    "shrinks": Case(
        VECTOR, "float[?] y", f"y = {counted('x', 'float[?] s', 'float[?] n', 'e = Exp(s) n = Slice(e, one, big)')}",
        trips(0, 1, 3, 7, x=random("f4", (5,))), {"one": I64([1]), "big": I64([2**63 - 1])}),
    "begins empty": Case(
        VECTOR, "float[?, N] y",
        "e = Expand(nothing, shape) r = Unsqueeze(x, zero) y = "
        + counted("e", "float[?, N] s", "float[?, N] n",
                  "f = Cast <to = 1> (i) q = Mul(r, f) n = Concat <axis = 0> (s, q)"),
        trips(0, 1, 4, x=X), {"nothing": np.zeros((1, 1), np.float32), "shape": I64([0, 3]), **ZERO}),
    "two grow and swap": Case(
        "float[N] x, float[M] w, int64 t", "float[?] y, float[?] z",
        "y, z = " + counted("x, w", "float[?] a, float[?] b", "float[?] m, float[?] n",
                            "m = Concat <axis = 0> (b, x) n = Identity(a)"),
        trips(0, 1, 2, 5, x=X, w=random("f4", (2,)))),
    "grows beside one that stays": Case(
        VECTOR, "float[N] y, float[?] z, float q",
        "y, z = " + counted("x, x", "float[N] a, float[?] b", "float[N] m, float[?] n",
                            "l = ReduceMean <keepdims = 0> (b) m = Add(a, l) n = Concat <axis = 0> (b, a, a)")
        + " q = ReduceSum <keepdims = 0> (z)",
        trips(0, 1, 4, x=X)),
    "doubles until it is long enough": Case(
        "float[N] x", "float[?] y, float[?] z",
        "y = " + loop(", , x", "float[?] s", "float[?] n",
                      "n = Concat <axis = 0> (s, s) l = Shape(n) k = Squeeze(l, zero) d = Less(k, most)")
        + " z = Softmax(y)",
        [{"x": random("f4", (n,))} for n in (1, 3, 9)], {"most": number(20), **ZERO}),
    "stacked as often as it takes": Case(
        "float[2] x", "float[2] y, float[?, 2] z, float[?, 2] q",
        f"y, z = {loop(', , x', 'float[2] s', 'float[2] n, float[2] o', UNTIL + ' o = Exp(s)')} q = Neg(z)",
        [{"x": X[:2]}, {"x": X[:2] - 9}], TOP),
    "stacked rows of a size of the inside": Case(
        VECTOR, "float[?, ?] z",
        f"z = {loop('t, yes', '', 'float[?] o', 'd = Identity(c) p = Greater(x, zero) o = Compress(x, p)')}",
        trips(1, 3, x=X), {"zero": np.float32(0), "yes": truth(True)}),
    "counts inside": Case(
        VECTOR, "float[N] y",
        "y = " + counted("x", "float[N] s", "float[N] n",
                         """p = Greater(s, least) q = Compress(s, p) e = Exp(q) r = ReduceSum <keepdims = 0> (e)
                            n = Sub(s, r)"""),
        trips(0, 1, 3, x=X), {"least": np.float32(-2)}),
    "as long as the number of the trip": Case(
        VECTOR, "float[N] y",
        "y = " + counted("x", "float[N] s", "float[N] n",
                         """k = Unsqueeze(i, zero) o = Expand(one, k) e = Sin(o) r = ReduceSum <keepdims = 0> (e)
                            n = Add(s, r)"""),
        trips(0, 1, 4, x=X), {"one": np.ones(1, np.float32), **ZERO}),
    "growing loop in a growing loop": Case(
        VECTOR, "float[?] y",
        "y = " + counted("x", "float[?] s", "float[?] n",
                         f"l = {inner('i, , s', 'float[?] r', 'float[?] m', 'm = Concat <axis = 0> (r, x)')}"
                         " n = Concat <axis = 0> (l, s)"),
        trips(0, 1, 2, 4, x=X)),
    "stacked in a loop": Case(
        "float[2] x, int64 t, int64 u", "float[2] y, float[?, ?, 2] z",
        "y, z = " + counted("x", "float[2] s", "float[2] n, float[?, 2] o",
                            "n, o = " + inner("u, , s", "float[2] r", "float[2] m, float[2] l",
                                              "m = Sin(r) l = Add(m, x)")),
        [{"u": number(u), **run} for u in (1, 2) for run in trips(1, 3, x=X[:2])]),
    "grows in a branch": Case(
        "float[N] x, int64 t, bool p", "float[?] y",
        IN_A_BRANCH.replace(ADDED, GROWING).replace("float[N]", "float[?]"),
        [{"p": truth(p), **run} for p in (True, False) for run in trips(0, 2, x=X)]),
    "branch decides on the growth": Case(
        "float[N] x, int64 t, int64 k", "float[?] y",
        "y = " + counted("x", "float[?] s", "float[?] n",
                         "q = Less(i, k) " + CHOICE.format("Concat <axis = 0> (s, x)", "Neg(s)")),
        trips(0, 1, 4, x=X, k=number(2))),
}  # fmt: skip

SUM = ("s0, x", "float[2] s, float[2] r", "float[2] n, float[2] o", "n = Add(s, r) o = Identity(n)", 1)
SCANS = {
    "sum": Case("float[2] s0, float[T, 2] x", "float[2] y, float[?, 2] z", f"y, z = {scan(*SUM)}",
                [{"s0": X[:2], "x": random("f4", (t, 2))} for t in (1, 5)]),
    "backwards": Case("float[2] s0, float[T, 2] x", "float[2] y, float[?, 2] z",
                      f"y, z = {scan(*SUM, input_directions=[1], output_directions=[1])}",
                      [{"s0": X[:2], "x": random("f4", (t, 2))} for t in (1, 5)]),
    "other axes": Case("float[2] s0, float[2, T] x", "float[2] y, float[2, ?] z",
                       f"y, z = {scan(*SUM, input_axes=[-1], output_axes=[1])}",
                       [{"s0": X[:2], "x": random("f4", (2, t))} for t in (1, 5)]),
    "several sequences": Case(
        "float[T] x, float[3, T] w", "float[?] y, float[3, ?] z",
        "y, z = " + scan("x, w", "float a, float[3] b", "float o, float[3] p",
                         "k = ReduceSum <keepdims = 0> (b) o = Add(a, k) p = Mul(b, a)", 2,
                         input_axes=[0, 1], input_directions=[0, 1], output_axes=[0, -1]),
        [{"x": random("f4", (t,)), "w": random("f4", (3, t))} for t in (1, 4)]),
}  # fmt: skip
ALL = {**FIXED, **VARYING, **{f"scan: {name}": case for name, case in SCANS.items()}}

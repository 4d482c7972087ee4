"""The rewriting rules, by family of DNNFusion's: associative, distributive, commutative, and identities.

How patterns are read is told in rewrite.py. Every rule is tested from this table: the two sides must agree on random
shapes, and the right one must be cheaper for at least one choice of shapes.
"""

from dataclasses import dataclass

# Element-wise functions that never decrease: they change places with a maximum or minimum.
_MONOTONE = ("Exp", "Sigmoid", "Tanh", "Relu", "Sqrt", "Log", "Erf", "Softplus", "Floor", "Ceil")
# Element-wise functions of one tensor: they change places with whatever moves or repeats elements.
_UNARY = (*_MONOTONE, "Abs", "Neg", "Reciprocal", "Cos", "Sin", "Sign")


@dataclass(frozen=True)
class Rule:
    """`before` becomes `after`; F is one of `operators`, and `nonempty` names a tensor that must have elements."""

    family: str
    before: str
    after: str
    operators: tuple[str, ...] = ()
    nonempty: str = ""

    def __str__(self) -> str:
        return f"{self.before} -> {self.after}"


_ASSOCIATIVE = (
    ("Add(Add(x, c), d)", "Add(x, Add(c, d))"),
    ("Sub(Add(x, c), d)", "Add(x, Sub(c, d))"),
    ("Add(Sub(x, c), d)", "Add(x, Sub(d, c))"),
    ("Sub(Sub(x, c), d)", "Sub(x, Add(c, d))"),
    ("Mul(Mul(x, c), d)", "Mul(x, Mul(c, d))"),
    ("Div(Mul(x, c), d)", "Mul(x, Div(c, d))"),
    ("Mul(Div(x, c), d)", "Mul(x, Div(d, c))"),
    ("Div(Div(x, c), d)", "Div(x, Mul(c, d))"),
    ("Add(Add(x, c), y)", "Add(Add(x, y), c)"),
    ("Mul(Mul(x, c), y)", "Mul(Mul(x, y), c)"),
    ("Mul(Mul(x, z), Mul(y, z))", "Mul(Mul(x, y), Mul(z, z))"),
    ("Add(Add(x, z), Add(y, z))", "Add(Add(x, y), Add(z, z))"),
    ("Mul(Abs(x), Abs(y))", "Abs(Mul(x, y))"),
    ("Mul(Exp(x), Exp(y))", "Exp(Add(x, y))"),
    ("Div(Exp(x), Exp(y))", "Exp(Sub(x, y))"),
    ("Add(Log(x), Log(y))", "Log(Mul(x, y))"),
    ("Mul(Reciprocal(x), Reciprocal(y))", "Reciprocal(Mul(x, y))"),
    ("Mul(x, Reciprocal(y))", "Div(x, y)"),
    ("Div(x, c)", "Mul(x, Div(1, c))"),
    ("MatMul(MatMul(x, c), d)", "MatMul(x, MatMul(c, d))"),
    ("MatMul(Mul(x, s), c)", "MatMul(x, Mul(c, s))"),
    ("MatMul(Div(x, s), c)", "MatMul(x, Div(c, s))"),
    ("Mul(MatMul(x, c), s)", "MatMul(x, Mul(c, s))"),
    ("Div(MatMul(x, c), s)", "MatMul(x, Div(c, s))"),
)
_DISTRIBUTIVE = (
    ("Add(Mul(x, z), Mul(y, z))", "Mul(Add(x, y), z)"),
    ("Sub(Mul(x, z), Mul(y, z))", "Mul(Sub(x, y), z)"),
    ("Add(Div(x, z), Div(y, z))", "Div(Add(x, y), z)"),
    ("Sub(Div(x, z), Div(y, z))", "Div(Sub(x, y), z)"),
    ("Add(x, Mul(x, c))", "Mul(x, Add(c, 1))"),
    ("Sub(x, Mul(x, c))", "Mul(x, Sub(1, c))"),
    ("Add(x, Mul(x, y))", "Mul(x, Add(y, 1))"),
    ("Add(x, Neg(y))", "Sub(x, y)"),
    ("Sub(x, Neg(y))", "Add(x, y)"),
    ("Neg(Sub(x, y))", "Sub(y, x)"),
    ("Mul(Neg(x), Neg(y))", "Mul(x, y)"),
    ("Mul(Neg(x), c)", "Mul(x, Neg(c))"),
    ("Add(MatMul(x, c), MatMul(x, d))", "MatMul(x, Add(c, d))"),
    ("Sub(MatMul(x, c), MatMul(x, d))", "MatMul(x, Sub(c, d))"),
    ("Add(MatMul(x, z), MatMul(y, z))", "MatMul(Add(x, y), z)"),
    ("Sub(MatMul(x, z), MatMul(y, z))", "MatMul(Sub(x, y), z)"),
)
_COMMUTATIVE = (
    ("ReduceSum(Mul(x, s), c)", "Mul(ReduceSum(x, c), s)"),
    ("ReduceSum(Div(x, s), c)", "Div(ReduceSum(x, c), s)"),
    ("ReduceMean(Mul(x, s), c)", "Mul(ReduceMean(x, c), s)"),
    ("ReduceMean(Div(x, s), c)", "Div(ReduceMean(x, c), s)"),
    ("ReduceSum(Neg(x), c)", "Neg(ReduceSum(x, c))"),
    ("ReduceMean(Neg(x), c)", "Neg(ReduceMean(x, c))"),
    ("ReduceProd@r(Exp(x), c)", "Exp(ReduceSum@r(x, c))"),
    ("ReduceProd(Abs(x), c)", "Abs(ReduceProd(x, c))"),
)
_ORDER = (  # the maximum of nothing is -infinity, whatever F makes of that
    ("ReduceMax(F(x), c)", "F(ReduceMax(x, c))"),
    ("ReduceMin(F(x), c)", "F(ReduceMin(x, c))"),
)
_MOVING = (
    ("F(Expand(x, c))", "Expand(F(x), c)"),
    ("F(Tile(x, c))", "Tile(F(x), c)"),
    ("Gather(F(x), y)", "F(Gather(x, y))"),
    ("Slice(F(x), c, d)", "F(Slice(x, c, d))"),
    ("Slice(F(x), c, d, e)", "F(Slice(x, c, d, e))"),
    ("Slice(F(x), c, d, e, f)", "F(Slice(x, c, d, e, f))"),
)
_IDENTITIES = (
    ("Add(x, 0)", "Identity(x)"),
    ("Sub(x, 0)", "Identity(x)"),
    ("Mul(x, 1)", "Identity(x)"),
    ("Div(x, 1)", "Identity(x)"),
    ("Pow(x, 1)", "Identity(x)"),
    ("Pow(x, 2)", "Mul(x, x)"),
    ("Pow(x, 0.5)", "Sqrt(x)"),
    ("Pow(x, -1)", "Reciprocal(x)"),
    ("Neg(Neg(x))", "Identity(x)"),
    ("Abs(Neg(x))", "Abs(x)"),
    ("Abs(Abs(x))", "Abs(x)"),
    ("Relu(Relu(x))", "Relu(x)"),
    ("Sqrt(Mul(x, x))", "Abs(x)"),
    ("Floor(Floor(x))", "Floor(x)"),
    ("Ceil(Ceil(x))", "Ceil(x)"),
)

RULES: tuple[Rule, ...] = (
    *(Rule("associative", *sides) for sides in _ASSOCIATIVE),
    *(Rule("distributive", *sides) for sides in _DISTRIBUTIVE),
    *(Rule("commutative", *sides) for sides in _COMMUTATIVE),
    *(Rule("commutative", *sides, _MONOTONE, nonempty="x") for sides in _ORDER),
    *(Rule("commutative", *sides, _UNARY) for sides in _MOVING),
    *(Rule("identity", *sides) for sides in _IDENTITIES),
)

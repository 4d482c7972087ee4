"""All operators: importing this package fills the registry OPS, one module per family."""

from importlib import import_module

from sod2.ops.op import OPS, Dynamism, Emitter, Fact, Facts, Index, MappingType, Op, Registry, TensorValue, register

FAMILIES = (
    "activation",
    "attention",
    "binary",
    "cast",
    "compare",
    "concat",
    "control",
    "conv",
    "cumsum",
    "einsum",
    "expand",
    "gather",
    "matmul",
    "norm",
    "pad",
    "pool",
    "reduce",
    "reshape",
    "resize",
    "rnn",
    "shape_of",
    "slice",
    "softmax",
    "transpose",
    "unary",
)
for _family in FAMILIES:
    import_module(f"sod2.ops.{_family}")

__all__ = [
    "OPS",
    "Dynamism",
    "Emitter",
    "Fact",
    "Facts",
    "Index",
    "MappingType",
    "Op",
    "Registry",
    "TensorValue",
    "register",
]

"""All operators: importing this package fills the registry OPS, one module per family."""

from importlib import import_module

from sod2.ops.op import OPS, Dynamism, Emitter, Fact, Facts, Index, MappingType, Op, Registry, TensorValue, register

FAMILIES = (
    "activation",
    "affine_grid",
    "attention",
    "binary",
    "bits",
    "cast",
    "causal_conv",
    "compare",
    "concat",
    "control",
    "conv",
    "cumsum",
    "einsum",
    "expand",
    "gather",
    "linear",
    "loop",
    "matmul",
    "lp",
    "nms",
    "nonzero",
    "norm",
    "pad",
    "pool",
    "quantize",
    "recurrent",
    "recurrent_weights",
    "reduce",
    "reshape",
    "resize",
    "rnn",
    "sampling",
    "scale",
    "scatter",
    "selection",
    "shape_of",
    "signal",
    "slice",
    "softmax",
    "topk",
    "tables",
    "training",
    "transpose",
    "unary",
    "unique",
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

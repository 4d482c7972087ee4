"""SoD²: a compiler for neural networks whose shapes and control flow vary.

model = sod2.compile("m.onnx", sod2.Options())
outputs = model.run({"x": array})
facts = sod2.analyze("m.onnx")
facts["tensor"].shape
"""

from sod2.artifact import CompiledModel, load
from sod2.compiler import Options, analyze, compile, plan
from sod2.errors import BudgetError, Error, InputError, ModelError, ToolchainError, UnsupportedError

__all__ = [
    "BudgetError",
    "CompiledModel",
    "Error",
    "InputError",
    "ModelError",
    "Options",
    "ToolchainError",
    "UnsupportedError",
    "analyze",
    "compile",
    "load",
    "plan",
]

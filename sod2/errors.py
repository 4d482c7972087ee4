"""The exceptions a user meets. Each message is one sentence that names the offender, its value and what is accepted."""


class Error(Exception):
    """Base of every error that sod2 raises on purpose."""


class ModelError(Error):
    """The file is missing, corrupt, not ONNX, or contradicts itself."""


class UnsupportedError(Error):
    """The model is valid, but an operator, attribute, dtype or construct in it is not supported."""


class InputError(Error):
    """An input of a run has the wrong name, dtype, rank or shape."""


class BudgetError(Error):
    """A run at these shapes needs more memory than the model's memory budget, whatever is computed twice."""


class ToolchainError(Error):
    """No C compiler was found, or it failed."""

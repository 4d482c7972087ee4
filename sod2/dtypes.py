"""Element types: for each its ONNX number, its C types, and how an element is loaded and stored.

An element has one C type in memory and one that it is computed with. They differ for the 16-bit floats, which are
computed in float and rounded when they are stored or when a Cast asks for it. Types of less than a byte, complex
numbers and strings are no element types here.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from sod2.errors import UnsupportedError


@dataclass(frozen=True)
class ElementType:
    """One row; `load` and `store` are C around the element in memory and the value."""

    number: int  # onnx.TensorProto.DataType
    memory: str
    value: str
    load: str = "{}"
    store: str = "{}"

    @property
    def rounded(self) -> str:
        """C template of a value rounded to what memory holds."""
        return self.load.format(self.store) if self.memory != self.value else "{}"


ELEMENT_TYPES: dict[np.dtype[Any], ElementType] = {
    np.dtype(name): ElementType(number, c, c)
    for name, number, c in (
        ("float32", 1, "float"),
        ("uint8", 2, "uint8_t"),
        ("int8", 3, "int8_t"),
        ("uint16", 4, "uint16_t"),
        ("int16", 5, "int16_t"),
        ("int32", 6, "int32_t"),
        ("int64", 7, "int64_t"),
        ("bool", 9, "uint8_t"),
        ("float64", 11, "double"),
        ("uint32", 12, "uint32_t"),
        ("uint64", 13, "uint64_t"),
    )
} | {
    np.dtype(np.float16): ElementType(10, "sod2_f16", "float", "(float){}", "(sod2_f16)({})"),
    np.dtype(ml_dtypes.bfloat16): ElementType(16, "sod2_bf16", "float", "sod2_from_bf16({})", "sod2_to_bf16({})"),
}
BY_NUMBER = {t.number: dtype for dtype, t in ELEMENT_TYPES.items()}


def element_type(dtype: np.dtype[Any]) -> ElementType:
    """The row of a dtype; UnsupportedError for one that isn't computed with."""
    try:
        return ELEMENT_TYPES[dtype]
    except KeyError:
        accepted = ", ".join(t.name for t in ELEMENT_TYPES)
        raise UnsupportedError(f"element type {dtype.name} is not supported; {accepted} are") from None


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether the elements are floating-point numbers; numpy doesn't count bfloat16 among them."""
    return dtype.kind == "f" or dtype == ml_dtypes.bfloat16

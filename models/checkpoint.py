"""Weights of a real checkpoint: reading a safetensors file, and fitting it to the parameters that a model declares.

The format: an 8-byte little-endian length, a JSON header of that length that gives for each tensor its type, its shape
and the place of its bytes, then the bytes. Numbers of 16 bits are widened to float32. Names are compared as they are,
or without a prefix which all of the model's names share in the file, such as `module.` or `roberta.`.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.parameters import Parameters

HEADER_LIMIT = 100 << 20
TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I64": np.int64, "I32": np.int32}
LISTED = 5  # names in a message


@dataclass(frozen=True)
class Fit:
    """A checkpoint against a model: the tensors that serve it, and the file's names that it has no use for."""

    tensors: dict[str, np.ndarray]
    extra: list[str]

    def report(self) -> str:
        """One line about what was loaded and what was left."""
        line = f"loaded {len(self.tensors)} tensors"
        return f"{line}, left {len(self.extra)} unused: {_some(self.extra)}" if self.extra else line


def read(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file by name, memory-mapped; ValueError when the file is something else."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, HEADER_LIMIT):
            raise ValueError(
                f"weights {str(path)!r} are no safetensors file: its header does not fit into {size} bytes"
            )
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise ValueError(f"weights {str(path)!r} are no safetensors file: its header is no JSON object") from error
    if not isinstance(header, dict):
        raise ValueError(f"weights {str(path)!r} are no safetensors file: its header is no JSON object")
    data = np.memmap(path, np.uint8, "r", offset=8 + length) if size > 8 + length else np.empty(0, np.uint8)
    return {name: _tensor(path, name, entry, data) for name, entry in header.items() if name != "__metadata__"}


def _tensor(path: Path, name: str, entry: Mapping[str, object], data: np.ndarray) -> np.ndarray:
    try:
        kind, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]  # type: ignore[misc]
        dtype = np.dtype(TYPES[kind])  # type: ignore[index]
        values = data[start:end].view(dtype).reshape(shape)  # type: ignore[misc, call-overload]
    except KeyError as error:
        raise ValueError(
            f"tensor {name!r} of {str(path)!r} has no or an unknown {error}: types {', '.join(TYPES)}"
        ) from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"tensor {name!r} of {str(path)!r} does not fit its bytes: {error}") from error
    if kind == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values  # type: ignore[no-any-return]


def fit(p: Parameters, tensors: Mapping[str, np.ndarray]) -> Fit:
    """The tensors that `p` declares, as float32; ValueError that names what is missing or of another shape."""
    wanted = p.upstream | p.buffers
    prefix = _prefix(tensors, wanted)
    missing = sorted(name for name in wanted if prefix + name not in tensors)
    if missing:
        raise ValueError(f"{len(missing)} of {len(wanted)} tensors are missing in the weights: {_some(missing)}")
    for name, shape in wanted.items():
        found = tensors[prefix + name].shape
        if found != tuple(shape):
            raise ValueError(f"tensor {prefix + name!r} has shape {list(found)}: {list(shape)} is wanted")
    used = {prefix + name for name in wanted}
    extra = sorted(name for name in tensors if name not in used and not name.endswith("num_batches_tracked"))
    return Fit({name: tensors[prefix + name].astype(np.float32) for name in wanted}, extra)


def _prefix(tensors: Mapping[str, np.ndarray], wanted: Mapping[str, object]) -> str:
    """What stands before the model's names in the file: the prefix under which the most of them are found."""
    found = Counter(
        name[: -len(end)]
        for name in tensors
        for end in (name.split(".", start)[-1] for start in range(name.count(".") + 1))
        if end in wanted
    )
    return found.most_common(1)[0][0] if found else ""


def _some(names: list[str]) -> str:
    rest = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {rest} more" if rest > 0 else "")

"""weights.bin: every constant that a kernel reads, packed in the layout that the kernel wants.

A blob is stored once under (tensor, layout). The file is a header that names the payload's digest, then the payload
(runtime/program.h). It is mapped read-only at run time, so several processes share one copy.
"""

import hashlib
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sod2.graph import Array

ALIGNMENT = 64
_MAGIC = b"SOD2WTS1"


@dataclass
class Weights:
    """Blobs under construction and their offsets in the payload."""

    offsets: dict[tuple[str, str], int] = field(default_factory=dict)
    blobs: list[tuple[int, Array]] = field(default_factory=list)
    size: int = 0

    def add(self, tensor: str, layout: str, pack: Callable[[], Array]) -> int:
        """Offset of the blob of a tensor in a layout; `pack` is called when it is new."""
        key = tensor, layout
        if key not in self.offsets:
            blob = np.ascontiguousarray(pack())
            self.offsets[key] = self.size
            self.blobs.append((self.size, blob))
            self.size = -(-(self.size + blob.nbytes) // ALIGNMENT) * ALIGNMENT
        return self.offsets[key]

    def digest(self) -> str:
        """First 32 hexadecimal characters of the payload's SHA-256."""
        state, position = hashlib.sha256(), 0
        for offset, blob in [*self.blobs, (self.size, np.empty(0, np.uint8))]:
            state.update(bytes(offset - position))
            state.update(blob.reshape(-1).view(np.uint8).data)
            position = offset + blob.nbytes
        return state.hexdigest()[:32]

    def write(self, path: Path, digest: str) -> None:
        """Write header and payload under a temporary name, then rename."""
        partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        with partial.open("wb") as file:
            file.write(_MAGIC + struct.pack("<q", self.size) + digest.encode() + bytes(16))
            position = 0
            for offset, blob in self.blobs:
                file.write(bytes(offset - position))
                file.write(blob.reshape(-1).view(np.uint8).data)
                position = offset + blob.nbytes
            file.write(bytes(self.size - position))
        partial.rename(path)

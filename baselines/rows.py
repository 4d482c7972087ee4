"""Rows: one JSON line per inference, with everything needed to judge it; tables are pure functions of rows.

A row whose status is not `ok` stands for inferences that gave no number, and carries the reason: `unsupported` and
engine-wide `failed` rows have no sample. Files are written under a temporary name and renamed, so that a file of rows
is complete or absent. `path differs` is a sample on which the engine took another control path than the reference.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STATUSES = ("ok", "unsupported", "failed", "path differs")


@dataclass(frozen=True)
class Row:
    """One inference of one engine; times in nanoseconds, sizes in bytes (rules in engine.py)."""

    device: str
    processor: str
    engine: str
    model: str
    status: str
    reason: str | None = None
    adapter: str = ""
    version: str = ""
    options: dict[str, object] = field(default_factory=dict)
    variant: str = ""
    sample: int | None = None
    shape: list[list[int]] | None = None  # of every input
    path: str | None = None  # branches taken, for models with control flow
    macs: int | None = None  # multiply-adds on that path
    macs_all: int | None = None  # and with every branch
    repeat: int | None = None  # round of the protocol; 0 is the first run
    place: int | None = None  # in the engine's turn of that round; 0 is the first inference after others had theirs
    first: bool | None = None  # first inference of this sample in its process
    latency_ns: int | None = None
    bind_ns: int | None = None
    copy_ns: int | None = None
    phases_ns: dict[str, int] | None = None  # of the change of shape, where the engine tells: of MNN SL, ST, Alloc
    unscheduled: float | None = None  # share of the time in code without a schedule, of engines that can tell
    peak_bytes: int | None = None
    own_bytes: int | None = None  # the engine's own report of its peak, where it has one
    hwm_bytes: int | None = None  # VmHWM, the largest resident size of the whole process: a cross-check, never a ratio
    weight_bytes: int | None = None
    build_ns: int | None = None  # of the bundle, beside other jobs of the workflow
    load_ns: int | None = None
    error: float | None = None  # against the reference, as a share of the output's scale
    threads: int | None = None
    git: str = ""
    protocol: dict[str, object] = field(default_factory=dict)
    started: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # of the device

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status of a row is '{self.status}'; accepted: {', '.join(STATUSES)}")
        if (self.status == "ok") != (self.reason is None):
            raise ValueError(f"a row with status '{self.status}' has reason {self.reason!r}: only failures have one")


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write rows to a file that appears complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("w") as lines:
        lines.writelines(json.dumps(dataclasses.asdict(row), allow_nan=False) + "\n" for row in rows)
    os.replace(part, path)


def read(paths: Iterable[Path]) -> list[Row]:
    """Rows of all the files; ValueError names the file and line that is not a row."""
    rows = []
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                rows.append(Row(**json.loads(line)))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number} is not a row: {error}") from error
    return rows

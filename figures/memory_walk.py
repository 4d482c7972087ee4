"""Memory over a long session: hundreds of random shapes, one after the other, in one process.

What a session holds (the arena that is mapped and the bound plans) may grow to the largest single need and no further.
A process of its own, in which the memory hook counts, walks the shapes (memory_session.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baselines.engine import ROOT, add_hook
from baselines.rows import Row
from devices.device import Device
from figures import own_artifact
from figures.chart import Chart, Panel, Series
from figures.layout import Cell, Column, Notes, Table, number
from figures.versus import DASH
from models import MODELS
from models.inputs import generator, random_sizes
from sod2 import analyze
from sod2.symbolic import evaluate

SHAPES = 200
MIB = 2**20
TITLE = f"Memory over a session of {SHAPES} random shapes."
HEADERS = ("Model", "Largest need (MiB)", "High-water (MiB)", "High-water / need", "Grown behind it (KiB)")
_CAPTION = (
    "Need: the arena at a shape. Held: live heap and anonymous mappings, by the memory hook, over those of the loaded"
    " model, behind a run at each shape in turn. The last column is what the session holds at its end beyond what it"
    " held when the largest shape had run and the cache of bound plans was full. Inputs are zeros. "
)


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line and one panel per model."""
    notes = Notes()
    body, panels = [], []
    for model in config["models"]:
        title = MODELS[model].title
        folder = own_artifact.folder(model, device)
        if folder is None:
            body.append([Cell(title), Cell(DASH, marks=notes.mark(f"{title}: no artifact for this machine."), span=4)])
            continue
        needs, held = walk(folder, _shapes(model), device)
        largest, high = max(needs), max(held)
        settled = held[max(needs.index(largest), min(32, len(held) - 1))]
        cells = [Cell(number(size / MIB), size / MIB) for size in (largest, high)]
        grown = (held[-1] - settled) / 1024
        body.append([Cell(title), *cells, Cell(f"{high / largest:.3f}", high / largest), Cell(f"{grown:.0f}", grown)])
        lines = [Series("Need", [n / MIB for n in needs]), Series("Held", [n / MIB for n in held], subject=True)]
        panels.append(Panel(MODELS[model].short, [float(k) for k in range(len(needs))], lines, "Shape"))
    columns = [Column((header,), numeric=i > 0) for i, header in enumerate(HEADERS)]
    chart = Chart(panels, label="MiB") if panels else None
    return Table(TITLE, columns, body, [], notes.texts, _CAPTION, chart)


def _shapes(model: str) -> list[list[list[int]]]:
    """Shapes of all inputs at random admissible sizes."""
    inputs = analyze(Path(f"results/models/{model}.onnx")).graph.inputs
    rng = generator("memory walk", 0)
    sizes = [random_sizes(MODELS[model].symbols, rng) for _ in range(SHAPES)]
    return [[[evaluate(dim, size) for dim in value.shape or ()] for value in inputs] for size in sizes]


def walk(folder: Path, shapes: Sequence[Sequence[Sequence[int]]], device: Device) -> tuple[list[int], list[int]]:
    """The arena at each shape, and the bytes that the session holds behind its run there."""
    with tempfile.TemporaryDirectory() as scratch, device.lock():
        add_hook(Path(scratch), device)
        # malloc: else the interpreter maps a MiB at once whenever its small objects need a few bytes more.
        environment = ("env", f"LD_PRELOAD={scratch}/libmemhook.so", f"PYTHONPATH={ROOT}", "PYTHONMALLOC=malloc")
        command = [*environment, sys.executable, "-m", "figures.memory_session", str(folder), str(device.threads)]
        result = subprocess.run(command, input=json.dumps(shapes), stdout=subprocess.PIPE, text=True, check=True)
    needs, held = json.loads(result.stdout)
    return needs, held

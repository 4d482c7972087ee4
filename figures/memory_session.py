"""A session that runs an artifact at many shapes: `python -m figures.memory_session ARTIFACT THREADS`, under the hook.

Reads a JSON list of the shapes of all inputs; prints the arena at each, and the bytes that are live behind each run
over those of the loaded model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import numpy as np

from baselines.runner import Hook
from sod2.artifact import CompiledModel


def walk(model: CompiledModel, shapes: Sequence[Sequence[Sequence[int]]]) -> tuple[list[int], list[int]]:
    """Arena bytes and held bytes by shape."""
    hook, inputs = Hook(), model.manifest["inputs"]
    before = hook.settled()
    needs, held = [], []
    for chosen in shapes:
        staged = {
            entry["name"]: np.zeros(shape, np.dtype(entry["dtype"]))
            for entry, shape in zip(inputs, chosen, strict=True)
        }
        model.run(staged)
        needs.append(int(model.stats.arena_bytes))
        del staged
        held.append(hook.settled() - before)
    return needs, held


if __name__ == "__main__":
    print(json.dumps(walk(CompiledModel(sys.argv[1], int(sys.argv[2])), json.load(sys.stdin))))

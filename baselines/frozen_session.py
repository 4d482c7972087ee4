"""The process of a frozen SoD² (sod2_frozen.py), copied into its bundle: `frozen_session.py SAMPLES THREADS`.

Compiles the model for the sample that is asked for, starts the `bench` of that artifact, and hands lines on. There is
one artifact at a time: samples are visited one after the other, and some have half a gigabyte of packed weights.
Gates are computed although nothing depends on them, so that the work is the same: the exits of RANet are half of it.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx

from baselines.tflite_convert import fix
from sod2 import Options
from sod2.codegen.target import host
from sod2.compiler import build

ARTIFACT = Path("artifact")


class Frozen:
    """The artifact of the current sample and its process."""

    def __init__(self, samples: str, threads: str) -> None:
        self.arguments = [samples, threads]
        self.index: list[dict[str, Any]] = json.loads(Path(samples, "samples.json").read_text())
        self.model = onnx.load("model.onnx")
        self.sample: int | None = None
        self.bench: subprocess.Popen[str] | None = None

    def smallest(self) -> int:
        """The sample that the harness begins with."""
        return min(range(len(self.index)), key=lambda i: (sum(map(math.prod, self.index[i]["shapes"])), i))

    def turn_to(self, sample: int) -> str:
        """Compile for a sample and start; returns what the process prints when it is ready."""
        self.stop()
        build(self.frozen(**self.index[sample]), Options(), host(), ARTIFACT)
        command = [str(ARTIFACT / "bench"), *self.arguments]
        self.bench = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.sample = sample
        return self.line()

    def frozen(self, shapes: list[list[int]], path: str | None, **_: object) -> onnx.ModelProto:
        """The model for these shapes and this path; what the gates on it decide is computed."""
        fixed = onnx.ModelProto()
        fixed.CopyFrom(self.model)
        fix(fixed, shapes, path or "")
        return fixed

    def line(self) -> str:
        """The next line of the process; SystemExit with its status when it has ended."""
        assert self.bench is not None and self.bench.stdout is not None
        if line := self.bench.stdout.readline():
            return line
        sys.exit(self.bench.wait())

    def run(self, words: list[str]) -> None:
        """Answer `run SAMPLE COUNT [FOLDER]`."""
        if int(words[1]) != self.sample:
            self.turn_to(int(words[1]))
        assert self.bench is not None and self.bench.stdin is not None
        print(*words, file=self.bench.stdin, flush=True)
        for _ in range(int(words[2])):
            line = self.line()
            for folder in words[3:]:
                self.drop_decisions(Path(folder))
            print(line, end="", flush=True)

    def drop_decisions(self, folder: Path) -> None:
        """Remove the outputs that the model does not have."""
        for file in folder.glob(f"{self.sample}.*.npy"):
            if int(file.name.split(".")[1]) >= len(self.model.graph.output):
                file.unlink()

    def stop(self) -> None:
        if self.bench is not None:
            self.bench.communicate("quit\n")
            self.bench = None


def main() -> None:
    frozen = Frozen(*sys.argv[1:])
    print(frozen.turn_to(frozen.smallest()), end="", flush=True)
    for line in sys.stdin:
        if line.split() == ["quit"]:
            break
        frozen.run(line.split())
    frozen.stop()


if __name__ == "__main__":
    main()

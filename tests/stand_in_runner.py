"""A runner for the tests of the harness: y = 2 x, and one misbehaviour on demand.

Started as `stand_in_runner.py BEHAVIOUR SAMPLES THREADS`; BEHAVIOUR is `good` or what goes wrong at sample 1.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np


def misbehave(behaviour: str) -> None:
    """Fail in the way that is asked for."""
    if behaviour == "crash":
        print("the last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if behaviour == "slow":
        Path("inferring").touch()  # for a test that waits for it
        time.sleep(1)
    if behaviour == "hang":
        time.sleep(60)
    if behaviour == "grow":
        blocks = []
        while True:
            blocks.append(np.ones(1 << 23))
            time.sleep(0.05)
    if behaviour == "error":
        print(json.dumps({"error": "sample 1 is not to my liking"}), flush=True)
        sys.exit(1)
    if behaviour == "garbage":
        print("hello", flush=True)


def main() -> None:
    """Speak the protocol until `quit`."""
    behaviour, samples, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if behaviour == "no start":
        sys.exit(3)
    used = threads + 1 if behaviour == "threads" else threads
    ready = {"ready": True, "engine": "stand-in", "version": "1", "threads": used, "weight_bytes": 8, "load_ns": 9}
    print(json.dumps(ready), flush=True)
    last = None
    for line in sys.stdin:
        words = line.split()
        if words == ["quit"]:
            return
        sample, repeats = int(words[1]), int(words[2])
        if sample == 1:
            misbehave(behaviour)
        y = 2 * np.load(samples / f"{sample}.0.npy")
        if sample == 1 and behaviour in ("wrong", "other path"):
            y = y * 1.5
        if sample == 1 and behaviour == "nan":
            y = y * np.nan
        if sample == 1 and behaviour == "shape":
            y = y[:-1]
        if len(words) > 3:
            np.save(Path(words[3]) / f"{sample}.0.npy", y)
        for repeat in range(repeats):
            first = sample != last
            last = sample
            row = {"sample": sample, "repeat": repeat, "first": first, "latency_ns": 5000 - 1000 * (not first)}
            print(json.dumps(row | {"bind_ns": 1, "copy_ns": 2, "peak_bytes": 64, "own_bytes": None}), flush=True)


if __name__ == "__main__":
    main()

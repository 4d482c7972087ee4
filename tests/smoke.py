"""The smoke workflow in a copy of the repository, on devices of the test's making, and what its rows must be."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from baselines import rows
from baselines.rows import Row

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "results", "docs", "tests", "__pycache__", "*.egg-info", "*.pdf", "table*.csv")
MODELS = ("codebert", "yolov6", "skipnet")
INFERENCES = 9
"""A model and engine: three samples, a first run and two repeats."""


def checkout(folder: Path, devices: Mapping[str, Mapping[str, Any]], engines: Sequence[str]) -> Path:
    """A copy whose configuration measures these engines on devices with these files, and draws tables 5 and 6."""
    copy = Path(shutil.copytree(ROOT, folder / "checkout", ignore=LEFT_OUT))
    for name, file in devices.items():
        (copy / "devices" / f"{name}.yaml").write_text(yaml.safe_dump(dict(file)))
    config = yaml.safe_load((copy / "config" / "config.yaml").read_text())
    known = config["engines"] | yaml.safe_load((copy / "config" / "all-engines.yaml").read_text())["engines"]
    config["engines"] = {name: known[name] for name in engines}
    config |= {"devices": list(devices), "figures": ["table5", "table6"]}
    (copy / "config" / "config.yaml").write_text(yaml.safe_dump(config))
    return copy


def run(copy: Path) -> None:
    """Run the whole workflow on the tiny models."""
    command = [sys.executable, "-m", "snakemake", "all", "--cores", "4", "--configfile", "config/smoke.yaml"]
    done = subprocess.run(command, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert (copy / "figures" / "table6.pdf").read_bytes().startswith(b"%PDF")


def check(copy: Path, device: str, tolerances: Mapping[str, float]) -> list[Row]:
    """The rows of a device: every engine gave every inference, as right as its tolerance says against the host."""
    files = sorted((copy / "results" / "runs" / device).rglob("*.jsonl"))
    assert [file.stem for file in files] == sorted(MODELS)
    for file in files:
        found = rows.read([file])
        assert [(row.engine, row.reason) for row in found if row.status != "ok"] == []
        for engine, tolerance in tolerances.items():
            own = [row for row in found if row.engine == engine]
            assert len(own) == INFERENCES
            assert all(row.error is not None and row.error <= tolerance for row in own)
            assert all(row.peak_bytes and row.latency_ns and len(row.facts["canary_ns"]) == 2 for row in own)
    return rows.read(files)

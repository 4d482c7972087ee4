"""Measuring one model on one device: every engine of the configuration, interleaved, so that rows are comparable.

For every sample, by ascending size, and every round, each engine gets its turn of one inference; who begins rotates.
Slow changes of the machine (heat, frequency, neighbours) then meet all engines alike. Round 0 is the first run at the
sample's shape; its outputs, and those of the last round, are compared with the reference before any latency of the
engine on that sample counts.

A failing engine costs its own rows only: the sample gets one `failed` row, and the next sample a new process. After
two failures in a row the engine is not tried again. Trouble of the device or of the harness is an exception.
"""

from __future__ import annotations

import dataclasses
import datetime
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from baselines.engine import ROOT, Bundle
from baselines.rows import Row
from baselines.samples import Sample, array_files, read_index
from baselines.session import INFERENCE, Answer, EngineFailure, Limits, Session
from devices.device import Device

ATTEMPTS = 2


@dataclass(frozen=True)
class Protocol:
    """How often and within which limits; `samples`, `selection` and `seed` chose the samples and are only recorded."""

    samples: int
    selection: str
    seed: int
    repeats: int
    time_limit_s: float
    memory_limit_gib: float

    @property
    def limits(self) -> Limits:
        return Limits(self.time_limit_s, int(self.memory_limit_gib * 2**30))


@dataclass
class Contender:
    """An engine in a measurement: its bundle, its process while it has one, its rows of the current sample."""

    folder: Path
    bundle: Bundle
    session: Session | None = None
    failures: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    lines: list[Answer] = field(default_factory=list)
    error: float | None = None
    reason: str | None = None


class Measurement:
    """One model on one processor of one device."""

    def __init__(
        self, device: Device, processor: str, *, model: str, variant: str, samples: Path, protocol: Protocol
    ) -> None:
        self.device = device
        self.samples = samples
        self.protocol = protocol
        self.index = sorted(read_index(samples), key=lambda sample: (sample.size, sample.index))
        self.remote = device.push(samples)
        self.outputs = device.scratch()
        self.row = Row(
            device=device.name,
            processor=processor,
            engine="",
            model=model,
            variant=variant,
            status="ok",
            git=revision(),
            protocol=dataclasses.asdict(protocol),
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            facts=device.facts(),
        )

    def rows(self, folders: Sequence[Path]) -> Iterator[Row]:
        """Measure the bundles in these folders; yields their rows sample by sample. The caller holds the device."""
        contenders = []
        for folder in folders:
            contender = Contender(folder, Bundle.read(folder))
            row = self._enter(contender)
            if row is None:
                contenders.append(contender)
            else:
                say(f"{row.model}: {row.engine} {row.status}: {row.reason}")
                yield row
        progress = Progress(self.index, self.protocol.repeats + 1)
        try:
            for sample in self.index:
                yield from self._sample(contenders, sample, progress)
        finally:
            for contender in contenders:
                if contender.session is not None:
                    contender.session.close()
            shutil.rmtree(self.device.pull(self.outputs))

    def _enter(self, contender: Contender) -> Row | None:
        """Start an engine; a row when it takes no part."""
        bundle = contender.bundle
        row = self._row(bundle)
        if bundle.unsupported is not None:
            return dataclasses.replace(row, status="unsupported", reason=bundle.unsupported)
        if bundle.failed is not None:
            return dataclasses.replace(row, status="failed", reason=bundle.failed)
        try:
            self._start(contender)
        except EngineFailure as failure:
            return dataclasses.replace(row, status="failed", reason=f"at its start: {failure}")
        return None

    def _row(self, bundle: Bundle) -> Row:
        return dataclasses.replace(
            self.row, engine=bundle.engine, adapter=bundle.adapter, version=bundle.version, options=bundle.options
        )

    def _start(self, contender: Contender) -> None:
        contender.session = Session(
            self.device,
            contender.folder,
            contender.bundle.command,
            samples=self.remote,
            threads=self.device.threads,
            limits=self.protocol.limits,
        )
        contender.facts = {
            key: contender.session.ready[key] for key in ("version", "threads", "weight_bytes", "load_ns")
        }

    def _sample(self, contenders: Sequence[Contender], sample: Sample, progress: Progress) -> Iterator[Row]:
        """All rounds of one sample."""
        for contender in contenders:
            contender.lines, contender.error, contender.reason = [], None, None
            if contender.failures >= ATTEMPTS:
                contender.reason = f"not tried after {ATTEMPTS} failures in a row"
        for number in range(self.protocol.repeats + 1):
            start = number % max(1, len(contenders))
            for contender in (*contenders[start:], *contenders[:start]):
                if contender.reason is None:
                    self._turn(contender, sample, number)
            progress.report(self.row.model, sample, number, contenders)
        for contender in contenders:
            if contender.failures < ATTEMPTS:
                contender.failures = contender.failures + 1 if contender.reason else 0
            yield from self._finish(contender, sample)

    def _turn(self, contender: Contender, sample: Sample, number: int) -> None:
        """One inference; its line is kept, or the reason why there is none."""
        checked = number in (0, self.protocol.repeats)
        try:
            if contender.session is None:
                self._start(contender)
            assert contender.session is not None
            (line,) = contender.session.run(sample.index, 1, self.outputs if checked else None)
        except EngineFailure as failure:
            contender.session = None
            contender.reason = str(failure)
            return
        contender.lines.append(line)
        if checked:
            self._check(contender, sample)

    def _check(self, contender: Contender, sample: Sample) -> None:
        """Compare the outputs with the reference and remove them."""
        outputs = self.device.pull(self.outputs)
        error, reason = compare(self.samples / "reference", outputs, sample.index, contender.bundle.tolerance)
        if error is not None:
            contender.error = max(error, contender.error or 0.0)
        contender.reason = reason
        for path in array_files(outputs, sample.index):
            path.unlink()

    def _finish(self, contender: Contender, sample: Sample) -> Iterator[Row]:
        """Rows of an engine on a sample: one per inference, or one that failed."""
        row = dataclasses.replace(
            self._row(contender.bundle),
            **contender.facts,
            sample=sample.index,
            shape=[list(shape) for shape in sample.shapes],
            path=sample.path,
            macs=sample.macs,
            macs_all=sample.macs_all,
            error=contender.error,
        )
        if contender.reason is not None:
            yield dataclasses.replace(row, status="failed", reason=contender.reason)
            return
        for number, line in enumerate(contender.lines):
            yield dataclasses.replace(row, repeat=number, **{key: line[key] for key in INFERENCE})


class Progress:
    """Lines on standard error; what is left is estimated by the multiply-adds of the samples still to come."""

    def __init__(self, samples: Sequence[Sample], rounds: int) -> None:
        self._weights = {sample.index: float(sample.macs or sample.size) for sample in samples}
        self._count = len(samples)
        self._rounds = rounds
        self._total = sum(self._weights.values()) * rounds
        self._done = 0.0
        self._position: dict[int, int] = {sample.index: n for n, sample in enumerate(samples, 1)}
        self._start = time.monotonic()

    def report(self, model: str, sample: Sample, number: int, contenders: Sequence[Contender]) -> None:
        """One line for a finished round."""
        self._done += self._weights[sample.index]
        elapsed = time.monotonic() - self._start
        left = elapsed * (self._total / self._done - 1)
        figures = " ".join(f"{c.bundle.engine} {_latest(c)}" for c in contenders)
        say(
            f"{model} sample {self._position[sample.index]}/{self._count} round {number + 1}/{self._rounds}: {figures}"
            f" | {100 * self._done / self._total:.0f} %, {_clock(left)} left"
        )


def compare(reference: Path, outputs: Path, sample: int, tolerance: float) -> tuple[float | None, str | None]:
    """Error of a sample's outputs as a share of the reference's scale, and the reason when they are not acceptable.

    The scale of an output is its largest magnitude (1 when it is all zeros); the error is the largest over outputs.
    """
    expected, actual = array_files(reference, sample), array_files(outputs, sample)
    if len(expected) != len(actual):
        return None, f"wrote {len(actual)} outputs where the reference has {len(expected)}"
    worst = 0.0
    for k, (want_file, got_file) in enumerate(zip(expected, actual, strict=True)):
        want, got = np.load(want_file), np.load(got_file)
        if want.shape != got.shape:
            return None, f"output {k} has shape {list(got.shape)} where the reference has {list(want.shape)}"
        if want.size == 0:
            continue
        if not np.isfinite(got).all():
            return None, f"output {k} has values that are not finite"
        scale = float(np.abs(want).max()) or 1.0
        worst = max(worst, float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max()) / scale)
    if worst > tolerance:
        return worst, f"wrong numbers: error {worst:.2g} of the output's scale, where {tolerance:g} is allowed"
    return worst, None


def write_reference(device: Device, folder: Path, samples: Path, limits: Limits) -> None:
    """Run the bundle of the reference engine on every sample; outputs go to `samples`/reference.

    Raises EngineFailure when it fails: without a reference nothing can be measured.
    """
    command = Bundle.read(folder).command
    session = Session(device, folder, command, samples=device.push(samples), threads=device.threads, limits=limits)
    outputs = device.scratch()
    for sample in read_index(samples):
        session.run(sample.index, 1, outputs)
    session.close()
    shutil.move(device.pull(outputs), samples / "reference")


def revision() -> str:
    """State of the checkout that measures; `unknown` outside a repository."""
    command = ["git", "describe", "--always", "--dirty"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else "unknown"


def say(line: str) -> None:
    """Tell the user, now."""
    print(line, file=sys.stderr, flush=True)


def _latest(contender: Contender) -> str:
    if contender.reason is not None:
        return "failed"
    return f"{contender.lines[-1]['latency_ns'] / 1e6:.1f} ms"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"

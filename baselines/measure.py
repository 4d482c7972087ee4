"""Measuring one model on one device: every engine of the configuration, interleaved, so that rows are comparable.

For every sample, by ascending size (descending in the selection of that name), and every round, each engine gets its
turn of one inference, or of `protocol.inferences` in a row; who begins rotates. Slow changes of the machine (heat,
frequency, neighbours) then meet all engines alike. Round 0 is the first run at the sample's shape, one inference; its
outputs, and those of the last round, are compared with the reference before any latency of the engine on that sample
counts. Outputs that belong to another control path cost the engine that sample, with the status `path differs`: its
time is that of other work.

A failing engine costs its own rows only: the sample gets one `failed` row, and the next sample a new process. An
engine whose process failed twice in a row is not tried again. A sample during which the device was lost, or lost speed
(devices/steady.py), is measured again. Trouble of the device or of the harness is an exception.
"""

from __future__ import annotations

import dataclasses
import datetime
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from baselines import engine, phone_program
from baselines.engine import ROOT, BuildFailed, Bundle
from baselines.paths import other_gate
from baselines.phone_program import PhoneSession
from baselines.progress import Progress, say
from baselines.reference import compare
from baselines.rows import Row
from baselines.samples import Sample, array_files, read_index
from baselines.session import INFERENCE, OPTIONAL, READY, Answer, EngineFailure, Limits, Session
from devices.device import Device
from devices.steady import Steady

ATTEMPTS = 2


@dataclass(frozen=True)
class Protocol:
    """How often and within which limits; `samples`, `selection` and `seed` chose the samples and are only recorded.

    `repeats` are the rounds after a sample's first run, `inferences` those of each turn in them. With `roofline`, what
    the device does at most is measured after the engines' turns of each of them and becomes a fact of their rows. An
    engine whose first inference of a sample took over `slow_s` seconds has one round after it instead of `repeats`.
    """

    samples: int
    selection: str
    seed: int
    repeats: int
    time_limit_s: float
    memory_limit_gib: float
    cores: str = "all"
    roofline: bool = False
    slow_s: float | None = None
    inferences: int = 1

    @property
    def limits(self) -> Limits:
        return Limits(self.time_limit_s, int(self.memory_limit_gib * 2**30))

    def last_round(self, turns: Sequence[Sequence[Answer]]) -> int:
        """The number of an engine's last round of a sample, of which it has had these turns."""
        slow = bool(turns) and self.slow_s is not None and turns[0][0]["latency_ns"] > self.slow_s * 1e9
        return 1 if slow else self.repeats


@dataclass
class Contender:
    """An engine in a measurement: its bundle, its process while it has one, its rows of the current sample."""

    folder: Path
    bundle: Bundle
    session: Session | PhoneSession | None = None
    failures: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    turns: list[list[Answer]] = field(default_factory=list)
    error: float | None = None
    status: str = "ok"
    reason: str | None = None

    def fail(self, reason: str, status: str = "failed") -> None:
        """The current sample gives no number."""
        self.status, self.reason = status, reason

    def drop(self) -> None:
        """End the process; the next turn starts another."""
        if self.session is not None:
            self.session.kill()
            self.session = None


class Measurement:
    """One model on one processor of one device."""

    def __init__(
        self, device: Device, processor: str, *, model: str, variant: str, samples: Path, protocol: Protocol
    ) -> None:
        self.device = device
        self.samples = samples
        self.protocol = protocol
        self.index = sorted(
            read_index(samples),
            key=lambda sample: (sample.size, sample.index),
            reverse=protocol.selection == "descending",
        )
        self.remote = device.files.push(samples)
        self.outputs = device.files.scratch()
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
        contenders: list[Contender] = []
        try:
            for folder in folders:
                contender = Contender(folder, Bundle.read(folder))
                row = self._enter(contender)
                if row is None:
                    contenders.append(contender)
                else:
                    say(f"{row.model}: {row.engine} {row.status}: {row.reason}")
                    yield row
            progress = Progress(self.row.model, self.index, self.protocol.repeats + 1)
            with self.device.steady() as steady:
                for sample in self.index:
                    yield from self._steadily(steady, contenders, sample, progress)
        finally:
            for contender in contenders:
                if contender.session is not None:
                    contender.session.close()
            self.device.files.remove(self.outputs)

    def _enter(self, contender: Contender) -> Row | None:
        """Start an engine; a row when it takes no part."""
        bundle = contender.bundle
        row = self._row(bundle)
        if bundle.unsupported is not None:
            return dataclasses.replace(row, status="unsupported", reason=bundle.unsupported)
        if bundle.failed is not None:
            return dataclasses.replace(row, status="failed", reason=bundle.failed)
        try:
            engine.prepare(bundle, contender.folder, self.samples)
            self.device.repeat(lambda: self._start(contender))
        except (EngineFailure, BuildFailed) as failure:
            return dataclasses.replace(row, status="failed", reason=f"at its start: {failure}")
        return None

    def _row(self, bundle: Bundle) -> Row:
        return dataclasses.replace(
            self.row,
            engine=bundle.engine,
            adapter=bundle.adapter,
            version=bundle.version,
            options=bundle.options,
            build_ns=bundle.build_ns,
        )

    def _start(self, contender: Contender) -> None:
        folder, command = contender.folder, contender.bundle.command
        how: dict[str, Any] = {"threads": self.device.threads, "limits": self.protocol.limits}
        if phone_program.is_program(command):
            contender.session = phone_program.open_session(
                self.device, folder, command, samples=self.samples, outputs=self.outputs, **how
            )
        else:
            contender.session = Session(self.device, folder, command, samples=self.remote, **how)
        ready = contender.session.ready
        contender.facts = {key: ready[key] for key in (*READY, *OPTIONAL) if key in ready and key != "engine"}

    def _steadily(
        self, steady: Steady, contenders: Sequence[Contender], sample: Sample, progress: Progress
    ) -> list[Row]:
        """Rows of one sample, measured again when the device was lost or lost speed; they say where it stayed slow."""

        def renew() -> None:
            for contender in contenders:
                contender.drop()
            steady.hold()

        failures = [contender.failures for contender in contenders]
        for _ in range(steady.attempts):
            for contender, count in zip(contenders, failures, strict=True):
                contender.failures = count
            steady.begin()
            found = self.device.repeat(lambda: list(self._sample(contenders, sample, progress)), renew)
            conditions = steady.end()
            if conditions.get("throttled") is None:
                break
            say(f"{self.row.model} sample {sample.index} on {self.device.name}: {conditions['throttled']}")
        return [dataclasses.replace(row, facts=row.facts | conditions) for row in found]

    def _sample(self, contenders: Sequence[Contender], sample: Sample, progress: Progress) -> Iterator[Row]:
        """All rounds of one sample."""
        for contender in contenders:
            contender.turns, contender.error, contender.status, contender.reason = [], None, "ok", None
            if contender.failures >= ATTEMPTS:
                contender.fail(f"not tried after {ATTEMPTS} failures in a row")
        limits = {}
        for number in range(self.protocol.repeats + 1):
            start = number % max(1, len(contenders))
            for contender in (*contenders[start:], *contenders[:start]):
                if contender.reason is None and number <= self.protocol.last_round(contender.turns):
                    self._turn(contender, sample, number)
            if self.protocol.roofline and number > 0:
                limits[number] = {"limits": self.device.limits()}
            progress.report(sample, number, " ".join(f"{c.bundle.engine} {_latest(c)}" for c in contenders))
        for contender in contenders:
            for row in self._finish(contender, sample):
                yield dataclasses.replace(row, facts=row.facts | limits.get(row.repeat, {}))

    def _turn(self, contender: Contender, sample: Sample, number: int) -> None:
        """The inferences of one round; their lines are kept, or the reason why there are none."""
        checked = number in (0, self.protocol.last_round(contender.turns))
        count = self.protocol.inferences if number > 0 else 1
        try:
            if contender.session is None:
                self._start(contender)
            assert contender.session is not None
            lines = contender.session.run(sample.index, count, self.outputs if checked else None)
        except EngineFailure as failure:
            contender.session = None
            contender.failures += 1
            contender.fail(str(failure))
            return
        contender.failures = 0
        contender.turns.append(lines)
        if checked:
            self._check(contender, sample)

    def _check(self, contender: Contender, sample: Sample) -> None:
        """Compare the outputs with the reference and remove them."""
        assert contender.session is not None
        outputs = contender.session.pull(self.outputs)
        error, reason = compare(self.samples / "reference", outputs, sample.index, contender.bundle.tolerance)
        if reason is not None:
            contender.fail(reason)
        if error is not None:
            contender.error = max(error, contender.error or 0.0)
            if (other := other_gate(self.samples, outputs, sample.index, error)) is not None:
                gate, near = other
                contender.fail(
                    f"gate {gate} was decided otherwise: error {near:.1g} where it is inverted in the reference,"
                    f" {error:.1g} where it is not",
                    "path differs",
                )
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
            yield dataclasses.replace(row, status=contender.status, reason=contender.reason)
            return
        for number, turn in enumerate(contender.turns):
            for place, line in enumerate(turn):
                figures = {key: line[key] for key in (*INFERENCE, *OPTIONAL) if key in line}
                yield dataclasses.replace(row, repeat=number, place=place, **figures)


def revision() -> str:
    """State of the checkout that measures; `unknown` outside a repository."""
    command = ["git", "describe", "--always", "--dirty"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else "unknown"


def _latest(contender: Contender) -> str:
    if contender.reason is not None:
        return contender.status
    return f"{contender.turns[-1][-1]['latency_ns'] / 1e6:.1f} ms"

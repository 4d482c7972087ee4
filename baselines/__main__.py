"""Command line of the harness: `python -m baselines build | reference | measure`; Snakefile's rules call it.

Every result is written under a temporary name and renamed, so that a killed run leaves no half of one. Errors that a
user can cause end in one sentence and status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from baselines import engine, rows, samples
from baselines.measure import Measurement, Protocol
from baselines.paths import write_paths
from baselines.progress import say
from baselines.reference import write_reference
from baselines.session import EngineFailure
from devices import device as devices
from sod2.errors import Error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        options.function(options)
    except (engine.EngineError, devices.DeviceError, EngineFailure, Error, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m baselines", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)

    build = commands.add_parser("build", help="make the bundle of one engine for one model")
    build.add_argument("engine", help="name of the engine in the configuration")
    build.add_argument("model", type=Path, help="ONNX file")
    build.add_argument("out", type=Path, help="folder of the bundle")
    build.add_argument("--adapter", required=True, help="module of baselines/")
    build.add_argument("--options", type=json.loads, default={}, help="the engine's options, as JSON")
    build.add_argument("--device", required=True)
    build.add_argument("--processor", required=True)
    build.add_argument("--cores", default="all", help="set of CPUs that the device's file names")
    build.set_defaults(function=_build)

    reference = commands.add_parser("reference", help="unpack samples and add the reference outputs")
    reference.add_argument("model", type=Path, help="ONNX file")
    reference.add_argument("samples", type=Path, help=".npz file of datasets/sample.py")
    reference.add_argument("out", type=Path, help="folder of samples")
    reference.add_argument("--protocol", type=json.loads, required=True, help="as JSON")
    reference.set_defaults(function=_reference)

    measure = commands.add_parser("measure", help="measure bundles of one model on one device, interleaved")
    measure.add_argument("bundles", type=Path, nargs="+", help="folders of bundles")
    measure.add_argument("--samples", type=Path, required=True, help="folder of samples with reference outputs")
    measure.add_argument("--out", type=Path, required=True, help="file of rows")
    measure.add_argument("--device", required=True)
    measure.add_argument("--processor", required=True)
    measure.add_argument("--model", required=True, help="name of the model")
    measure.add_argument("--variant", required=True, help="variant of the model")
    measure.add_argument("--protocol", type=json.loads, required=True, help="as JSON")
    measure.set_defaults(function=_measure)
    return parser


def _build(options: argparse.Namespace) -> None:
    device = devices.load(options.device, options.cores)
    with _renamed(options.out) as part:
        engine.build(
            part,
            name=options.engine,
            adapter=options.adapter,
            options=options.options,
            model=options.model,
            device=device,
            processor=options.processor,
        )


def _reference(options: argparse.Namespace) -> None:
    """The reference is onnxruntime on the graph as written, run by the same protocol, always on the host.

    The outputs of near-by control paths lie beside it.
    """
    device = devices.load("host")
    settings: engine.Options = {"optimise": False, "arena": False}
    limits = Protocol(**options.protocol).limits
    with _renamed(options.out) as part, tempfile.TemporaryDirectory(dir=options.out.parent) as bundle:
        samples.unpack(options.samples, samples.input_names(options.model), part)
        folder = Path(bundle)
        engine.build(
            folder,
            name="reference",
            adapter="ort",
            options=settings,
            model=options.model,
            device=device,
            processor="cpu",
        )
        write_reference(device, folder, part, limits)
        write_paths(options.model, options.samples, part)


def _measure(options: argparse.Namespace) -> None:
    protocol = Protocol(**options.protocol)
    device = devices.load(options.device, protocol.cores)
    with device.lock():
        device.connect()
        measurement = Measurement(
            device,
            options.processor,
            model=options.model,
            variant=options.variant,
            samples=options.samples,
            protocol=protocol,
        )
        busy = measurement.row.facts["load"]
        if busy is not None and busy > int(measurement.row.facts["cpus"]) / 2:
            say(f"warning: load of {device.name} is {busy} before measuring; figures will be worse than on an idle one")
        rows.write(options.out, measurement.rows(options.bundles))


@contextmanager
def _renamed(out: Path) -> Iterator[Path]:
    """A new folder beside `out` that takes its place when the block succeeds, and vanishes when it does not."""
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        shutil.rmtree(out, ignore_errors=True)
        os.rename(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

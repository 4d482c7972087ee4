"""Command line of the models: `python -m models export NAME OUT.onnx`, `calibrate NAME`, `evidence`, `exported`.

`--weights FILE.safetensors` exports with the weights of a checkpoint in place of random ones; what of it is unused is
reported, and a checkpoint that lacks a tensor or has one of another shape is refused.

`export` writes one .onnx file; weights above 256 MiB go to one further file beside it, `OUT.onnx.data`. Both are
renamed into place when complete, the data first. `calibrate` measures the statistics of a model's random weights anew
(minutes for a full model) and writes them to models/calibration/. `evidence` writes docs/models.md, in which the models
are held against what is published of them (see models/evidence.py), and `exported` docs/exported.md, in which the
graphs are held against PyTorch's exports (see models/exported.py; the only command that needs PyTorch).
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from models import MODELS, PAPER, build, checkpoint, declared, find
from models.parameters import CALIBRATION

INLINE_BYTES = 256 << 20
PAGE = 4096
SINGLE = ("threshold", "gates.spread")  # calibration vectors stored in single precision, the others in half


def save(model: ModelProto, path: Path) -> None:
    """Write the model, with its large weights in `<path>.data` when they exceed 256 MiB. Equal bytes at every call.

    The model itself is left referring to that file.
    """
    total = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    partial = path.with_name(f"{path.name}.partial")
    if total > INLINE_BYTES:
        _move_weights(model, path.with_name(f"{path.name}.data"))
    partial.write_bytes(model.SerializeToString(deterministic=True))
    os.replace(partial, path)


def _move_weights(model: ModelProto, path: Path) -> None:
    """Move the bytes of every initializer of at least a page to `path`, each at a page boundary."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) >= PAGE:
                file.write(bytes(-file.tell() % PAGE))
                entries = {"location": path.name, "offset": file.tell(), "length": len(tensor.raw_data)}
                file.write(tensor.raw_data)
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                for key, value in entries.items():
                    tensor.external_data.add(key=key, value=str(value))
    os.replace(partial, path)


def calibrate(name: str, variant: str) -> Path:
    """Measure a model's calibration and store it; ValueError when the model needs none."""
    from models import calibrate as measuring  # needs onnxruntime, which `export` does without  # noqa: PLC0415

    model = find(name, variant)
    variant = model.same_weights.get(variant, variant)
    if not model.calibration:
        needing = sorted(key for key, other in MODELS.items() if other.calibration)
        raise ValueError(f"model {name!r} needs no calibration: these do: {', '.join(needing)}")
    vectors = measuring.calibrate(model, variant)
    stored = {key: value if key.endswith(SINGLE) else value.astype(np.float16) for key, value in vectors.items()}
    CALIBRATION.mkdir(exist_ok=True)
    path = CALIBRATION / f"{name}-{variant}.npz"
    partial = path.with_suffix(".partial.npz")
    np.savez_compressed(partial, **stored)  # type: ignore[arg-type]
    os.replace(partial, path)
    return path


def prove(options: argparse.Namespace) -> None:
    """Measure the models one after the other and write the page about them, anew after each."""
    from models import evidence  # needs the compiler  # noqa: PLC0415

    names = options.names or list(PAPER)
    for name in names:
        find(name)
    found = []
    for name in names:
        found.append(evidence.measure(name, options.samples, options.seed))
        options.out.write_text(evidence.table(found, options.samples, options.seed), encoding="utf-8")
        print(f"{options.out}: {len(found)} of {len(names)} models")


def compare(out: Path) -> None:
    """Export the published modules, and write the page about them; ValueError without the packages for it."""
    try:
        from models import exported  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ValueError(f"module {error.name!r} is missing: the extra [pytorch] of pyproject.toml has it") from error
    out.write_text("\n".join(exported.lines()) + "\n", encoding="utf-8")


def load(options: argparse.Namespace) -> dict[str, np.ndarray] | None:
    """The tensors of the checkpoint that the command line names, None without one."""
    if options.weights is None:
        return None
    found = checkpoint.fit(declared(options.name, options.variant), checkpoint.read(options.weights))
    print(found.report())
    return found.tensors


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the status is 2, with one sentence on stderr, when its arguments cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m models", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    exporting = commands.add_parser("export", help="write a model as ONNX")
    calibrating = commands.add_parser("calibrate", help="measure a model's calibration anew")
    proving = commands.add_parser("evidence", help="measure what is claimed of the models, some minutes each")
    proving.add_argument("names", nargs="*", metavar="name", help="models, all of the paper's by default")
    proving.add_argument("--samples", type=int, default=50, help="of each kind of contents")
    proving.add_argument("--seed", type=int, default=1)
    proving.add_argument("--out", type=Path, default=Path("docs/models.md"))
    comparing = commands.add_parser("exported", help="hold the graphs against PyTorch's exports, ten minutes")
    comparing.add_argument("--out", type=Path, default=Path("docs/exported.md"))
    for command in (exporting, calibrating):
        command.add_argument("name", help=", ".join(sorted(MODELS)))
    exporting.add_argument("out", type=Path)
    exporting.add_argument("--weights", type=Path, help="safetensors file with the parameters of the checkpoint")
    for command in (exporting, calibrating):
        command.add_argument("--variant", default="full", help="full, tiny, or another one of the model")
    options = parser.parse_args(arguments)
    try:
        if options.command == "export":
            model = build(options.name, options.variant, load(options))
            onnx.checker.check_model(model)
            save(model, options.out)
        elif options.command == "evidence":
            prove(options)
        elif options.command == "exported":
            compare(options.out)
        else:
            print(f"wrote {calibrate(options.name, options.variant)}")
    except (ValueError, OSError) as error:
        print(f"python -m models: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""TFLite and its successor LiteRT on the CPU, with fixed shapes and paths, as the paper ran TFLite.

Each sample gets a model of its own, converted by onnx2tf for the sample's shapes with the branches that it takes: it
computes the gates but decides nothing, and knows all shapes before, which is in its favour. The converter runs on the
host when the sample is first asked for (2 to 60 seconds), is not timed, and its results lie in a folder for each model,
by content (results/tflite/), which all these engines share. TFLite's answer to new shapes is a
re-initialisation, which is in the bind time. On Android the device's file names TFLite's own program
(phone_program.py). Options:

* `runtime`: "litert" is the successor; "tflite" is tflite-runtime 2.14.0, the last of its name.
* `xnnpack`: whether the XNNPACK delegate computes (the default of both runtimes).
* `memory`: "sod2" holds every sample to the peak that SoD² has on it, by rematerialising the graph (tflite_remat.py);
  whether that was enough is for figure 11 to say, from the peaks in the rows. "free" does not.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import onnx

from baselines import bundle, environment, phone_program, tflite_models
from baselines.engine import BuildFailed, Engine, Options, Unsupported
from baselines.samples import read_index
from baselines.sod2 import ENGINE as SOD2
from devices.device import Device

FOLDER = Path(__file__).parent
CONVERTER = tflite_models.CONVERTER
MODULES = (CONVERTER, FOLDER / "tflite_remat.py", FOLDER / "tflite_session.py")
RUNNERS = {"litert": FOLDER / "litert_runner.py", "tflite": FOLDER / "tflite_runner.py"}
MODELS = Path("results/tflite")
"""A folder for each model, with what was converted from it."""


class Tflite(Engine):
    """LiteRT or tflite-runtime from PyPI, each in an environment of its own; the converter in a third."""

    elsewhere = True
    options: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "runtime": tuple(RUNNERS),
        "xnnpack": (True, False),
        "memory": ("free", "sod2"),
    }
    sources = (
        "baselines/tflite_*.py",
        "baselines/litert_runner.py",
        "baselines/phone_program.py",
        *bundle.SOURCES,
        "baselines/sod2.py",
        *SOD2.sources,
    )

    def version(self) -> str:
        return environment.pinned(RUNNERS["litert"], "ai-edge-litert")

    def build(self, model: Path, device: Device, processor: str, options: Options, out: Path) -> list[str]:
        if processor != "cpu":
            raise Unsupported(f"the wheels of TFLite have no delegate for processor '{processor}', only for 'cpu'")
        if device.platform is not None and options.get("memory", "free") != "free":
            raise Unsupported("holding TFLite to a peak takes the converter, whose packages are on this machine alone")
        program = phone_program.choose("tflite", "benchmark_model", device, out)
        if program:
            _check_outputs(model)
        runner = RUNNERS[str(options.get("runtime", "litert"))]
        try:
            converter = environment.python(CONVERTER)
            if device.platform is None:
                environment.python(runner)
        except environment.NoInterpreter as reason:
            raise Unsupported(str(reason)) from reason
        shutil.copyfile(_probe(converter, out), out / "probe.tflite")
        outputs = len(bundle.argument_names(model)["outputs"])
        models = _models(bundle.place_model(model, "switch", out))
        for source in MODULES:
            shutil.copyfile(source, out / source.name)
        words = [bundle.relative(converter, out), CONVERTER.name, bundle.relative(models / "model.onnx", out)]
        settings: dict[str, object] = {
            "xnnpack": options.get("xnnpack", True),
            "models": bundle.relative(models, out),
            "outputs": outputs,
            "converter": words if device.platform is None else None,
            "limit": None,
        }
        if device.platform is not None:
            (out / "models").symlink_to(bundle.relative(models, out))
            settings["models"] = "models"
        if options.get("memory", "free") == "sod2":
            (out / "limit").mkdir()
            settings["limit"] = SOD2.build(model, device, processor, {}, out / "limit")
        (out / "settings.json").write_text(json.dumps(settings) + "\n")
        return program or bundle.place_runner(runner, out, device)

    def prepare(self, folder: Path, samples: Path) -> None:
        settings = json.loads((folder / "settings.json").read_text())
        if settings["converter"] is None:
            tflite_models.convert(folder / settings["models"], read_index(samples))


ENGINE = Tflite()


def _check_outputs(model: Path) -> None:
    """Raise Unsupported for outputs that TFLite's own program writes in another layout than the model's."""
    for value in onnx.load(model, load_external_data=False).graph.output:
        if len(value.type.tensor_type.shape.dim) == 4:
            raise Unsupported(f"output '{value.name}' has four dimensions, which onnx2tf turns to channels last")


def _probe(converter: Path, out: Path) -> Path:
    """The converted model of one convolution, on which runners count threads."""
    source = out / "probe.onnx"
    bundle.write_probe(source)
    folder = _models(source)
    probe = folder / "probe.tflite"
    if not probe.exists():
        request = {"shapes": [[1, 64, 64, 64]], "path": "", "out": str(probe.absolute())}
        bundle.run_script(converter, CONVERTER, [str((folder / source.name).absolute()), json.dumps(request)], out)
        if not probe.exists():
            raise BuildFailed("onnx2tf does not convert even one convolution")
    return probe


def _models(model: Path) -> Path:
    """Move an ONNX file and its weights to the folder for what is converted from it, and return that folder."""
    files = [model, *model.parent.glob("*.onnx.data")]
    state = hashlib.sha256(CONVERTER.read_bytes())
    for file in files:
        state.update(file.read_bytes())
    folder = MODELS / state.hexdigest()[:16]
    MODELS.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=MODELS))
    for file in files:
        shutil.move(file, part)
    try:
        part.rename(folder)
    except OSError:  # it exists
        shutil.rmtree(part)
    return folder

"""TFLite and its successor LiteRT on the CPU, with fixed shapes and paths, as the paper ran TFLite.

Each sample gets a model of its own, converted by onnx2tf for the sample's shapes with the branches that it takes. The
converter runs on the host when the sample is first asked for (seconds to a minute), is not timed, and its results stay
in the bundle. TFLite's answer to new shapes is a re-initialisation, which is in the bind time. Options:

* `runtime`: "litert" is the successor; "tflite" is tflite-runtime 2.14.0, the last of its name.
* `xnnpack`: whether the XNNPACK delegate computes (the default of both runtimes).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import onnx

from baselines import bundle, environment
from baselines.engine import Engine, Options, Unsupported
from devices.device import Device

FOLDER = Path(__file__).parent
CONVERTER = FOLDER / "tflite_convert.py"
SESSION = FOLDER / "tflite_session.py"
RUNNERS = {"litert": FOLDER / "litert_runner.py", "tflite": FOLDER / "tflite_runner.py"}


class Tflite(Engine):
    """LiteRT or tflite-runtime from PyPI, each in an environment of its own; the converter in a third."""

    options: ClassVar[Mapping[str, tuple[object, ...]]] = {"runtime": tuple(RUNNERS), "xnnpack": (True, False)}
    sources = (
        "baselines/tflite_convert.py",
        "baselines/tflite_session.py",
        "baselines/tflite_runner.py",
        "baselines/litert_runner.py",
        *bundle.SOURCES,
    )

    def version(self) -> str:
        return environment.pinned(RUNNERS["litert"], "ai-edge-litert")

    def build(self, model: Path, device: Device, processor: str, options: Options, out: Path) -> list[str]:
        if processor != "cpu":
            raise Unsupported(f"the wheels of TFLite have no delegate for processor '{processor}', only for 'cpu'")
        for value in onnx.load(model, load_external_data=False).graph.output:
            if len(value.type.tensor_type.shape.dim) == 4:
                raise Unsupported(f"output '{value.name}' has four dimensions, which onnx2tf turns to channels last")
        runner = RUNNERS[str(options.get("runtime", "litert"))]
        try:
            converter, _ = environment.python(CONVERTER), environment.python(runner)
        except environment.NoInterpreter as reason:
            raise Unsupported(str(reason)) from reason
        probe = out / "probe.onnx"
        bundle.write_probe(probe)
        bundle.run_script(converter, CONVERTER, [probe.name, "probe.tflite", "[[1, 64, 64, 64]]", ""], out)
        probe.unlink()
        bundle.place_model(model, "switch", out)
        for source in (CONVERTER, SESSION):
            shutil.copyfile(source, out / source.name)
        settings = {
            "xnnpack": options.get("xnnpack", True),
            "converter": [bundle.relative(converter, out), CONVERTER.name],
        }
        (out / "settings.json").write_text(json.dumps(settings) + "\n")
        return bundle.place_runner(runner, out)


ENGINE = Tflite()

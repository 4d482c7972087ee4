"""The TFLite models of samples, converted ahead on this machine for devices that cannot run the converter."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from baselines import bundle, environment
from baselines.samples import Sample

CONVERTER = Path(__file__).with_name("tflite_convert.py")


def file_name(sample: Sample) -> str:
    """What the model of a sample's shapes and path is called; tflite_session.py looks for the same."""
    shapes = "-".join("x".join(map(str, shape)) for shape in sample.shapes)
    return f"{shapes}-{sample.path or ''}.tflite"


def convert(models: Path, samples: Sequence[Sample]) -> None:
    """Make the models of the samples, in the folder that holds model.onnx, where they are not there yet.

    A sample that the converter fails on has none afterwards; raises BuildFailed when the converter does not run at all.
    """
    wanted = {file_name(sample): sample for sample in samples if not (models / file_name(sample)).exists()}
    requests = [
        json.dumps({"shapes": sample.shapes, "path": sample.path or "", "out": str((models / name).absolute())})
        for name, sample in wanted.items()
    ]
    if requests:
        with tempfile.TemporaryDirectory() as work:
            source = str((models / "model.onnx").absolute())
            bundle.run_script(environment.python(CONVERTER), CONVERTER, [source, *requests], Path(work))

"""ONNX to MNN, run by the Python of MNN's environment: `python mnn_convert.py IN.onnx OUT.mnn`.

The wheel's own console scripts wrap the same call in telemetry, which installs a package with whatever pip it finds.
"""

import sys
from pathlib import Path

import _tools  # type: ignore[import-not-found]

if __name__ == "__main__":
    source, target = sys.argv[1:]
    _tools.mnnconvert(
        ["mnnconvert", "-f", "ONNX", "--modelFile", source, "--MNNModel", target, "--bizCode", "benchmark"]
    )
    if not Path(target).exists():  # its own status says nothing
        sys.exit(f"MNN's converter wrote no {target}")

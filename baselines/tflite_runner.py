# /// script
# requires-python = ">=3.11,<3.12"
# dependencies = [
#     "tflite-runtime==2.14.0",
#     "numpy==1.26.4",
# ]
# ///
"""The runner of tflite-runtime, TFLite's last release of its own; it needs numpy 1 and Python 3.11.

env LD_PRELOAD=./libmemhook.so python tflite_runner.py SAMPLES THREADS
"""

from __future__ import annotations

import sys
from importlib.metadata import version

from runner import main  # type: ignore[import-not-found]
from tflite_runtime import interpreter  # type: ignore[import-not-found]
from tflite_session import Tflite  # type: ignore[import-not-found]

if __name__ == "__main__":
    main(lambda: Tflite("tflite", version("tflite-runtime"), interpreter), sys.argv[1:])

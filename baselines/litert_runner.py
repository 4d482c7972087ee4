# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "ai-edge-litert==2.3.0",
#     "backports-strenum==1.3.1",
#     "flatbuffers==25.12.19",
#     "ml-dtypes==0.6.0",
#     "numpy==2.4.6",
#     "protobuf==7.36.2",
#     "tqdm==4.70.1",
#     "typing-extensions==4.16.0",
# ]
# ///
"""The runner of LiteRT, TFLite's successor.

env LD_PRELOAD=./libmemhook.so python litert_runner.py SAMPLES THREADS
"""

from __future__ import annotations

import sys
from importlib.metadata import version

from ai_edge_litert import interpreter  # type: ignore[import-not-found]
from runner import main  # type: ignore[import-not-found]
from tflite_session import Tflite  # type: ignore[import-not-found]

if __name__ == "__main__":
    main(lambda: Tflite("litert", version("ai-edge-litert"), interpreter), sys.argv[1:])

"""A model over protobuf's limit of 2 GB: one weight in a sparse file of external data, analysed, compiled and run.

Slow: it needs 5 GB of memory, and 3 GB on disk while it runs.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import sod2
from tests.graphs import model

COLUMNS = 1024
ROWS = 2**31 // (4 * COLUMNS) + 1  # of float32, just over 2 GB


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the model and for what is built of it, which does not outlive the test."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("SOD2_CACHE", f"{name}/cache")
        yield Path(name)


def saved(folder: Path) -> Path:
    """y = table[k] + k, where row 0 of the table is 1, the last one is 2, and the others are holes in the file."""
    source = model("int64[N] k", "float[?, ?] y", "r = Gather(table, k) f = Cast <to = 1> (k) u = Unsqueeze(f, one)"
                   "y = Add(r, u)", {"one": np.array([1])})  # fmt: skip
    table = onnx.TensorProto(name="table", data_type=onnx.TensorProto.FLOAT, dims=[ROWS, COLUMNS])
    table.data_location = onnx.TensorProto.EXTERNAL
    table.external_data.add(key="location", value="table.bin")
    source.graph.initializer.append(table)
    with (folder / "table.bin").open("wb") as file:
        file.truncate(4 * ROWS * COLUMNS)
        for row, value in ((0, 1), (ROWS - 1, 2)):
            file.seek(4 * row * COLUMNS)
            file.write(np.full(COLUMNS, value, np.float32).tobytes())
    (folder / "m.onnx").write_bytes(source.SerializeToString())
    return folder / "m.onnx"


@pytest.mark.slow
def test_a_model_over_2_gb(folder: Path) -> None:
    path = saved(folder)
    assert sod2.analyze(path).shapes({"k": (3,)})["y"] == (3, COLUMNS)
    compiled = sod2.compile(path)
    for rows in ([0, ROWS - 1, 7], [ROWS - 1], []):
        k = np.array(rows, np.int64)
        wanted = np.select([k == 0, k == ROWS - 1], [1, 2], 0) + k.astype(np.float32)
        np.testing.assert_array_equal(compiled.run({"k": k})["y"], np.tile(wanted[:, None], COLUMNS))

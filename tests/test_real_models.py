"""The report on models inside packages, of a package made here: what it counts, draws, compares and says."""

from pathlib import Path

import onnx
import pytest

from tests.graphs import model
from tests.real_models import found, stripped, table, verdict


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with one installed package, whose model declares a wrong intermediate shape."""
    info, home = tmp_path / "small-1.2.dist-info", tmp_path / "small"
    info.mkdir()
    home.mkdir()
    source = model("float[N, ?] x", "float[?, ?] y", "h = Concat <axis = 0> (x, x) i = Identity(h) y = Relu(i)")
    source.graph.value_info.append(onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [7, 7]))
    onnx.save(source, home / "m.onnx")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: small\nVersion: 1.2\n")
    (info / "RECORD").write_text("small/m.onnx,,\nsmall/other.txt,,\n")
    return tmp_path


def test_report(packages: Path) -> None:
    (package,) = found([str(packages)])
    assert package.name == "small 1.2" and package.file.name == "m.onnx"
    assert not stripped(package.file).graph.value_info
    state = verdict(package)
    assert (state.reason, state.wrong, state.shapes) == ("", 0, 5)
    assert state.tensors == state.over_inputs and state.resolved == 100
    assert state.error == 0 and state.ones.split(", ")[0] == "N"
    assert "| m.onnx | small 1.2 |" in table([state])


def test_a_model_that_cannot_be_read(packages: Path) -> None:
    (packages / "small" / "m.onnx").write_bytes(b"no model")
    assert verdict(found([str(packages)])[0]).reason

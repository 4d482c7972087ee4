"""A further engine is one module and one line of configuration: a stand-in and OpenVINO, through the real workflow."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from baselines import rows

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(
    ".*", "results", "docs", "tests", "__pycache__", "*.egg-info", "table*.pdf", "table*.csv", "table*.md"
)
MODULE = '''
"""onnxruntime by another name."""

from baselines.ort import OnnxRuntime


class Fifth(OnnxRuntime):
    """A further engine."""


ENGINE = Fifth()
'''
LINES = {
    "openvino": {"adapter": "openvino", "title": "OpenVINO", "tables": ["table6"]},
    "fifth": {"adapter": "fifth", "title": "The fifth", "tables": ["table6"]},
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the repository's sources, with the module, and with an overlay of one line for each engine."""
    folder = Path(shutil.copytree(ROOT, tmp_path / "checkout", ignore=LEFT_OUT))
    (folder / "baselines" / "fifth.py").write_text(MODULE)
    overlay = {"models": ["skipnet"], "engines": LINES, "figures": ["table6"]}
    (folder / "config" / "fifth.yaml").write_text(yaml.safe_dump(overlay, default_flow_style=None))
    return folder


def test_one_module_and_one_line(checkout: Path) -> None:
    """Both are built, measured, right, and in the table, beside the engines of the default configuration."""
    target = "figures/table6.pdf"
    overlays = ["--configfile", "config/smoke.yaml", "config/fifth.yaml"]
    command = [sys.executable, "-m", "snakemake", target, "--cores", "2", *overlays]
    run = subprocess.run(
        command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:]
    found = rows.read(list((checkout / "results" / "runs").rglob("skipnet*.jsonl")))
    for engine in LINES:
        own = [row for row in found if row.engine == engine]
        assert own
        assert [row.reason for row in own if row.status != "ok"] == []
    header = (checkout / "figures" / "table6.csv").read_text().splitlines()[0]
    assert all(line["title"] in header for line in LINES.values())


def test_no_other_source_knows_openvino() -> None:
    """OpenVINO's module and its runner are all that there is of it in Python."""
    folders = ("baselines", "datasets", "devices", "figures", "models", "sod2")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    knowing = {path.name for path in (*sources, ROOT / "Snakefile") if "openvino" in path.read_text().lower()}
    assert knowing - {"bundle.py"} == {"openvino.py", "openvino_runner.py"}
    code = (ROOT / "baselines" / "bundle.py").read_text()
    assert "openvino" not in code.lower().replace("onnxruntime and openvino would compute them", "")

"""The workflow for real: style, locks, dry runs, mistakes in targets, the smoke configuration killed and resumed."""

import csv
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from baselines import rows
from devices import device
from figures import matrix

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(
    ".*", "results", "docs", "tests", "__pycache__", "*.egg-info", "table*.pdf", "table*.csv", "table*.md"
)
SMOKE = ("all", "--cores", "8", "--configfile", "config/smoke.yaml")  # the target first: --configfile takes lists
MODELS = ("codebert", "yolov6", "skipnet")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh copy of the repository's sources."""
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("workflow") / "checkout", ignore=LEFT_OUT))


def snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run snakemake to its end; both of its streams are in `stdout`."""
    command = [sys.executable, "-m", "snakemake", *arguments]
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def test_lint_and_format(checkout: Path) -> None:
    lint = snakemake(checkout, "--lint")
    assert lint.returncode == 0, lint.stdout
    tool = Path(sys.executable).with_name("snakefmt")
    subprocess.run([tool, "--check", "Snakefile"], cwd=checkout, check=True)


@pytest.mark.parametrize("figure", matrix.figures())
def test_dry_run_of_every_figure(figure: str, checkout: Path) -> None:
    plan = snakemake(checkout, "-n", "--cores", "8", f"figures/{figure}.pdf")
    assert plan.returncode == 0, plan.stdout
    jobs = dict(re.findall(r"^(\w+) +(\d+)$", plan.stdout, re.MULTILINE))
    assert jobs == {
        "export": "3", "sample": "3", "reference": "3", "build": "12", "measure": "3", "draw": "1", "total": "25"
    }  # fmt: skip


def test_a_measurement_holds_the_device_and_all_cores(checkout: Path) -> None:
    plan = snakemake(checkout, "-n", "--cores", "5", "all")
    measures = [block for block in plan.stdout.split("\n[") if "\nrule measure:" in block]
    assert len(measures) == 3
    for block in measures:
        assert "threads: 5" in block
        assert re.search(r"resources: .*device_host=1", block)


def test_the_device_resource_limits(tmp_path: Path) -> None:
    """The way in which the Snakefile declares its locks serialises jobs in this release of snakemake."""
    (tmp_path / "Snakefile").write_text(
        'workflow.register_resource("device_host", 1)\n'
        "rule all:\n    input: expand('{n}.txt', n=range(3))\n"
        "rule hold:\n    output: '{n}.txt'\n    resources: device_host=1\n"
        "    shell: 'mkdir held && sleep 0.2 && rmdir held && touch {output}'\n"
    )
    run = snakemake(tmp_path, "--cores", "4")
    assert run.returncode == 0, run.stdout


def test_the_device_lock_waits_for_its_holder(capfd: pytest.CaptureFixture[str]) -> None:
    child = (
        "import time; from devices import device\n"
        "with device.load('host').lock(): print('held', flush=True); time.sleep(1)"
    )
    with subprocess.Popen([sys.executable, "-c", child], cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with device.load("host").lock():
            assert holder.wait(timeout=1) == 0
    assert "waiting for device host: another measurement holds" in capfd.readouterr().err


def test_one_workflow_at_a_time(checkout: Path) -> None:
    lock = checkout / matrix.LOCK
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        run = snakemake(checkout, "--cores", "1", "results/models/codebert.onnx")
    assert run.returncode != 0
    assert "another workflow runs in" in run.stdout
    assert not (checkout / "results" / "models").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["figures/table66.pdf"], "No rule to produce figures/table66.pdf"),
        (["results/runs/s21/cpu/codebert.jsonl"], "No rule to produce results/runs/s21/cpu/codebert.jsonl"),
        (["results/models/bert.onnx"], "No rule to produce results/models/bert.onnx"),
        (["--config", "variant=big"], "error: 'variant' in the configuration is \"big\"; accepted: full, tiny"),
    ],
)
def test_mistakes_end_in_a_sentence(arguments: list[str], sentence: str, checkout: Path) -> None:
    run = snakemake(checkout, "-n", *arguments)
    assert run.returncode != 0
    assert sentence in run.stdout
    assert "Traceback" not in run.stdout


def test_smoke_killed_and_resumed(checkout: Path) -> None:
    before, *_ = killed_after_a_measurement(checkout)
    done = before.stat().st_mtime_ns
    assert len(rows.read([before])) > 0  # whole rows only
    run = snakemake(checkout, *SMOKE)
    assert run.returncode == 0, run.stdout[-4000:]
    assert before.stat().st_mtime_ns == done  # finished work is kept
    assert not list(checkout.glob("results/**/*.part"))
    assert re.search(r"sample 3/3 round 3/3: .* 100 %", run.stdout)  # progress is shown
    logs = [path.read_text() for path in checkout.glob("results/logs/measure/host/cpu/*.log")]
    assert all("100 %" in log for log in logs)  # and kept
    check_rows(checkout)
    check_tables(checkout)
    again = snakemake(checkout, *SMOKE)
    assert "Nothing to be done" in again.stdout


def killed_after_a_measurement(checkout: Path) -> list[Path]:
    """Start the smoke run and kill it, children and all, once the first model is measured; the files of rows then."""
    command = [sys.executable, "-m", "snakemake", *SMOKE]
    log = checkout / "first.log"
    with (
        log.open("w") as output,
        subprocess.Popen(command, cwd=checkout, stdout=output, stderr=subprocess.STDOUT, start_new_session=True) as run,
    ):
        while "(Rule: measure)" not in log.read_text():
            assert run.poll() is None, log.read_text()[-4000:]
            time.sleep(0.02)
        os.killpg(run.pid, signal.SIGKILL)
    return list(checkout.glob("results/runs/host/cpu/*.jsonl"))


def check_rows(checkout: Path) -> None:
    """Every engine measured every sample, and was right."""
    for model in MODELS:
        found = rows.read([checkout / "results" / "runs" / "host" / "cpu" / f"{model}.jsonl"])
        assert {row.engine for row in found} == {"sod2", "ort", "ort-lean", "ort-all"}
        assert [row.reason for row in found if row.status != "ok"] == []
        assert {(row.sample, row.repeat) for row in found} == {(s, r) for s in range(3) for r in range(3)}
        assert len(found) == 4 * 9
        assert all(row.first == (row.repeat == 0) for row in found)
        assert max(row.error or 0 for row in found if row.engine == "sod2") <= 1e-4
        assert {row.threads for row in found} == {device.load("host").threads}
        assert all(row.peak_bytes and row.latency_ns and row.weight_bytes for row in found)
        assert {row.path is None for row in found} == {model != "skipnet"}


def check_tables(checkout: Path) -> None:
    """Both tables have a number for each model and a ratio for each engine, in all three forms."""
    for figure in ("table5", "table6"):
        with (checkout / "figures" / f"{figure}.csv").open() as file:
            lines = list(csv.DictReader(file))
        measured = [line for line in lines if line["Model"] in ("CodeBERT", "YOLO-V6", "SkipNet")]
        assert len(measured) == 3
        unit = "MiB" if figure == "table5" else "ms"
        for engine in ("ORT", "SoD²"):
            for line in measured:
                low, high = (float(line[f"CPU ({unit}) / {engine} / {end}"]) for end in ("Min", "Max"))
                assert 0 < low <= high
        ratios = next(line for line in lines if line["Model"] == "Geo-mean over SoD²")
        assert float(ratios[f"CPU ({unit}) / ORT / Min"]) > 0
        assert "tiny variants" in (checkout / "figures" / f"{figure}.md").read_text()
        assert (checkout / "figures" / f"{figure}.pdf").read_bytes().startswith(b"%PDF")

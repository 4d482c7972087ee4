"""The workflow for real: style, locks, dry runs, mistakes in targets, the smoke configuration killed and resumed."""

import base64
import csv
import fcntl
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from baselines import rows
from baselines.engine import Bundle
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


def test_dry_run_of_every_figure(checkout: Path) -> None:
    """One export, sample and so on for each model at each selection, and no more; every engine of every overlay."""
    figures = matrix.figures()
    own = [(figure, matrix.needs(figure)) for figure in figures]
    overlays = sorted({f"config/{needs.overlay or figure}.yaml" for figure, needs in own if needs.engines})
    engines = {"sod2", "ort", "ort-lean", "ort-all"}
    for overlay in overlays:
        engines |= set(yaml.safe_load((ROOT / overlay).read_text())["engines"])
    targets = [f"figures/{figure}.pdf" for figure in figures]
    plan = snakemake(checkout, "-n", "--cores", "8", *targets, "--configfile", *overlays)
    assert plan.returncode == 0, plan.stdout
    pairs = {(model, needs.selection or "quantiles") for _, needs in own for model in needs.models or MODELS}
    models = {model for model, _ in pairs}
    jobs = {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", plan.stdout, re.MULTILINE)}
    assert jobs.pop("total") == sum(jobs.values())
    assert jobs == {
        "export": len(models),
        "build": len(models) * len(engines),
        **dict.fromkeys(("sample", "reference", "measure"), len(pairs)),
        "draw": len(figures),
    }


def test_a_measurement_holds_the_device_and_all_cores(checkout: Path) -> None:
    plan = snakemake(checkout, "-n", "--cores", "5", "all")
    measures = [block for block in plan.stdout.split("\n[") if "\nrule measure:" in block]
    assert len(measures) == 7  # three models by ascending and by descending size, and one of them at percentiles
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
        (["figures/table66.pdf"], "error: unknown figure 'table66' in the target figures/table66.pdf; did you mean "),
        (["figures/figure9.pdf"], "error: figure figure9 needs an engine with adapter sod2 and option control: all"),
        (["--config", "variant=big"], "error: 'variant' in the configuration is \"big\"; accepted: full, tiny"),
    ],
)
def test_mistakes_end_in_a_sentence(arguments: list[str], sentence: str, checkout: Path) -> None:
    run = snakemake(checkout, "-n", *arguments)
    assert run.returncode != 0
    assert sentence in run.stdout
    assert "Traceback" not in run.stdout


def test_smoke_killed_and_resumed(checkout: Path) -> None:
    """Killed at random moments and once after a measurement: nothing finished is lost, nothing half is kept."""
    done: dict[Path, int] = {}
    moments = random.Random(1)
    for _ in range(3):
        killed(checkout, "Finished jobid", moments.randint(1, 5), moments.uniform(0, 1))
        done |= check_finished(checkout, done)
    killed(checkout, "(Rule: measure)")
    done |= check_finished(checkout, done)
    assert any(path.suffix == ".jsonl" for path in done)
    run = snakemake(checkout, *SMOKE)
    assert run.returncode == 0, run.stdout[-4000:]
    check_finished(checkout, done)
    assert not list(checkout.glob("results/**/*.part"))
    assert re.search(r"sample 3/3 round 3/3: .* 100 %", run.stdout)  # progress is shown
    logs = [path.read_text() for path in checkout.glob("results/logs/measure/host/cpu/quantiles/*.log")]
    assert all("100 %" in log for log in logs)  # and kept
    check_rows(checkout)
    check_tables(checkout)
    again = snakemake(checkout, *SMOKE)
    assert "Nothing to be done" in again.stdout


def killed(checkout: Path, at: str, times: int = 1, seconds: float = 0.0) -> None:
    """Start the smoke run and kill it, children and all, so long after its log has said something so many times."""
    command = [sys.executable, "-m", "snakemake", *SMOKE]
    log = checkout / "killed.log"
    with (
        log.open("w") as output,
        subprocess.Popen(command, cwd=checkout, stdout=output, stderr=subprocess.STDOUT, start_new_session=True) as run,
    ):
        while log.read_text().count(at) < times:
            assert run.poll() is None, log.read_text()[-4000:]
            time.sleep(0.02)
        time.sleep(seconds)
        os.killpg(run.pid, signal.SIGKILL)


def check_finished(checkout: Path, before: dict[Path, int]) -> dict[Path, int]:
    """Results of finished jobs with their inodes: each is whole, and those from before are the same files."""
    unfinished = {
        Path(base64.urlsafe_b64decode(path.name).decode())
        for path in checkout.glob(".snakemake/incomplete/*")
        if path.is_file()
    }
    results = [path for path in made(checkout) if path.relative_to(checkout) not in unfinished]
    for path in results:
        if path.suffix == ".jsonl":
            assert len(rows.read([path])) == 4 * 3 * (15 if path.parent.name == "percentiles" else 3)
        elif path.suffix == ".npz":
            with np.load(path) as content:
                assert json.loads(str(content["facts"]))
        elif "bundles" in path.parts:
            assert Bundle.read(path).command
        else:
            assert len(list(path.glob("reference/*.npy"))) >= 3
    found = {path: path.stat().st_ino for path in results}
    assert {path: found.get(path) for path in before} == before
    return found


def made(checkout: Path) -> Iterator[Path]:
    """Results that stand: sample files, unpacked samples, bundles and rows."""
    for pattern in ("samples/*/*", "runs/host/cpu/*/*", "bundles/host/cpu/*/*"):
        yield from (path for path in checkout.glob(f"results/{pattern}") if not path.name.count(".part"))


def check_rows(checkout: Path) -> None:
    """Every engine measured every sample, and was right."""
    for model in MODELS:
        found = rows.read([checkout / "results" / "runs" / "host" / "cpu" / "quantiles" / f"{model}.jsonl"])
        assert {row.engine for row in found} == {"sod2", "ort", "ort-lean", "ort-all"}
        assert [row.reason for row in found if row.status != "ok"] == []
        assert {(row.sample, row.repeat) for row in found} == {(s, r) for s in range(3) for r in range(3)}
        assert len(found) == 4 * 9
        assert all(row.first == (row.repeat == 0) for row in found)
        assert max(row.error or 0 for row in found if row.engine == "sod2") <= 1e-4
        assert {row.threads for row in found} == {device.load("host").threads}
        assert all(row.peak_bytes and row.latency_ns and row.weight_bytes and row.hwm_bytes for row in found)
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

"""Rows and measuring: what a well-behaved engine yields, and that every way of failing costs its own rows only."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from baselines import rows
from baselines.engine import Bundle
from baselines.measure import Measurement, Protocol
from baselines.reference import compare
from baselines.rows import Row
from baselines.samples import read_index, unpack
from devices import device

RUNNER = Path(__file__).with_name("stand_in_runner.py")
PROTOCOL = Protocol(samples=3, selection="quantiles", seed=0, repeats=2, time_limit_s=3, memory_limit_gib=0.25)
SIZES = (4, 2, 6)


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Three samples of y = 2 x; the second is the smallest."""
    folder = tmp_path / "samples"
    (folder / "reference").mkdir(parents=True)
    index = []
    for i, size in enumerate(SIZES):
        x = np.arange(1, size + 1, dtype=np.float32)
        np.save(folder / f"{i}.0.npy", x)
        np.save(folder / "reference" / f"{i}.0.npy", 2 * x)
        index.append({"shapes": [[size]], "path": "10", "macs": size, "macs_all": 2 * size})
    (folder / "samples.json").write_text(json.dumps(index))
    return folder


def bundle(tmp_path: Path, behaviour: str, **fields: str) -> Path:
    """A bundle of the stand-in that behaves so."""
    folder = tmp_path / behaviour.replace(" ", "-")
    folder.mkdir()
    command = [sys.executable, str(RUNNER), behaviour]
    Bundle(behaviour, "stand-in", "1", {}, 1e-4, command, **fields).write(folder)
    return folder


def measured(samples: Path, folders: Sequence[Path], protocol: Protocol = PROTOCOL) -> list[Row]:
    measurement = Measurement(
        device.load("host"), "cpu", model="double", variant="tiny", samples=samples, protocol=protocol
    )
    return list(measurement.rows(folders))


def test_good_engine(samples: Path, tmp_path: Path) -> None:
    found = measured(samples, [bundle(tmp_path, "good")])
    assert [row.sample for row in found] == [1, 1, 1, 0, 0, 0, 2, 2, 2]  # by ascending size
    assert [row.repeat for row in found] == [0, 1, 2] * 3
    assert [row.first for row in found] == [True, False, False] * 3
    assert {row.status for row in found} == {"ok"}
    assert {row.error for row in found} == {0.0}
    descending = measured(samples, [tmp_path / "good"], dataclasses.replace(PROTOCOL, selection="descending"))
    assert [row.sample for row in descending] == [2, 2, 2, 0, 0, 0, 1, 1, 1]
    row = found[3]
    assert (row.engine, row.model, row.shape, row.path, row.macs) == ("good", "double", [[4]], "10", 4)
    assert (row.latency_ns, row.bind_ns, row.copy_ns, row.peak_bytes) == (5000, 1, 2, 64)
    assert (row.weight_bytes, row.load_ns, row.threads) == (8, 9, device.load("host").threads)
    assert row.protocol["repeats"] == 2
    assert row.facts["cpus"]


def test_a_slow_engine_has_one_repeat(samples: Path, tmp_path: Path) -> None:
    """The stand-in says 5 us; the outputs of its last round are those that are checked, as always."""
    slow = dataclasses.replace(PROTOCOL, repeats=5, slow_s=4e-6)
    found = measured(samples, [bundle(tmp_path, "good")], slow)
    assert [row.repeat for row in found] == [0, 1] * 3
    assert {row.error for row in found} == {0.0}
    other = dataclasses.replace(slow, slow_s=6e-6)
    assert len(measured(samples, [tmp_path / "good"], other)) == 6 * 3


def test_turns_of_several_inferences(samples: Path, tmp_path: Path) -> None:
    """Each round after the first run has three in a row, all of them in the rows with their place."""
    found = measured(samples, [bundle(tmp_path, "good")], dataclasses.replace(PROTOCOL, inferences=3))
    assert [(row.repeat, row.place) for row in found] == [(0, 0), *((n, k) for n in (1, 2) for k in range(3))] * 3
    assert [row.first for row in found] == [True, *[False] * 6] * 3
    assert {row.protocol["inferences"] for row in found} == {3}
    assert {row.error for row in found} == {0.0}


def test_what_the_device_does_at_most_is_a_fact_of_each_round(samples: Path, tmp_path: Path) -> None:
    found = measured(samples, [bundle(tmp_path, "good")], dataclasses.replace(PROTOCOL, roofline=True))
    assert ["limits" in row.facts for row in found] == [False, True, True] * 3
    rounds = [row.facts["limits"]["flops"] for row in found if not row.first]
    assert len(set(rounds)) == len(rounds) and min(rounds) > 1e8


FAILURES = {
    "crash": "died of SIGSEGV: the last words",
    "hang": "gave no answer within 3 s",
    "grow": "took more than 0.25 GiB of memory",
    "error": "sample 1 is not to my liking",
    "garbage": "printed 'hello', which is not a line with first, latency_ns, bind_ns, copy_ns, peak_bytes, own_bytes",
    "wrong": "wrong numbers: error 0.5 of the output's scale, where 0.0001 is allowed",
    "nan": "output 0 has values that are not finite",
    "shape": "output 0 has shape [1] where the reference has [2]",
}


@pytest.mark.parametrize("behaviour", FAILURES)
def test_a_failure_costs_one_row_of_its_engine(behaviour: str, samples: Path, tmp_path: Path) -> None:
    found = measured(samples, [bundle(tmp_path, behaviour), bundle(tmp_path, "good")])
    bad = [row for row in found if row.status == "failed"]
    assert [(row.engine, row.sample, row.reason) for row in bad] == [(behaviour, 1, FAILURES[behaviour])]
    assert all(row.latency_ns is None for row in bad)
    good = [row.engine for row in found if row.status == "ok"]
    assert good.count("good") == 9
    assert good.count(behaviour) == 6  # a new process measures the other samples


def test_another_path_is_a_status_of_its_own(samples: Path, tmp_path: Path) -> None:
    """The outputs of sample 1 are those that the reference has where gate 7 is inverted."""
    for gate, factor in ((3, 5.0), (7, 3.00001)):
        (samples / "paths" / str(gate)).mkdir(parents=True)
        np.save(samples / "paths" / str(gate) / "1.0.npy", factor * np.load(samples / "1.0.npy"))
    found = measured(samples, [bundle(tmp_path, "other path"), bundle(tmp_path, "good")])
    (bad,) = [row for row in found if row.status != "ok"]
    assert (bad.engine, bad.sample, bad.status, bad.error) == ("other path", 1, "path differs", 0.5)
    where = "error 3e-06 where it is inverted in the reference, 0.5 where it is not"
    assert bad.reason == f"gate 7 was decided otherwise: {where}"
    assert bad.latency_ns is None
    assert [row.engine for row in found if row.status == "ok"].count("good") == 9


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("no start", "at its start: ended with status 3"),
        ("threads", "at its start: runs with {more} threads where {threads} were asked for"),
    ],
)
def test_an_engine_that_does_not_start(behaviour: str, reason: str, samples: Path, tmp_path: Path) -> None:
    found = measured(samples, [bundle(tmp_path, behaviour), bundle(tmp_path, "good")])
    threads = device.load("host").threads
    assert found[0].reason == reason.format(threads=threads, more=threads + 1)
    assert found[0].sample is None
    assert [row.engine for row in found[1:]] == ["good"] * 9


def test_a_missing_program_is_a_failure(samples: Path, tmp_path: Path) -> None:
    folder = bundle(tmp_path, "good")
    Bundle("lost", "stand-in", "1", {}, 1e-4, ["./nowhere"]).write(folder)
    (row,) = measured(samples, [folder])
    assert (row.status, row.reason) == (
        "failed",
        "at its start: could not be started: No such file or directory: ./nowhere",
    )


def test_unsupported_and_unbuilt_engines_have_one_row(samples: Path, tmp_path: Path) -> None:
    unsupported = bundle(tmp_path, "no", unsupported="no operator Foo")
    failed = bundle(tmp_path, "broken", failed="build failed: out of ideas")
    found = measured(samples, [unsupported, failed])
    assert [(row.status, row.reason) for row in found] == [
        ("unsupported", "no operator Foo"),
        ("failed", "build failed: out of ideas"),
    ]


def test_compare_is_relative_to_the_scale_of_each_output(tmp_path: Path) -> None:
    for name in ("want", "got"):
        (tmp_path / name).mkdir()
    for k, (want, got) in enumerate([([100.0, 1.0], [100.0, 1.1]), ([0.0, 0.0], [0.0, 0.0]), ([], [])]):
        np.save(tmp_path / "want" / f"7.{k}.npy", np.array(want))
        np.save(tmp_path / "got" / f"7.{k}.npy", np.array(got))
    error, reason = compare(tmp_path / "want", tmp_path / "got", 7, 1e-2)
    assert error == pytest.approx(1e-3)
    assert reason is None
    (tmp_path / "got" / "7.2.npy").unlink()
    assert compare(tmp_path / "want", tmp_path / "got", 7, 1e-2) == (None, "wrote 2 outputs where the reference has 3")


def test_unpack_orders_inputs_as_the_model_does(tmp_path: Path) -> None:
    facts = [{"path": None, "macs": 7, "macs_all": 9}]
    arrays = {"0.b": np.ones((1, 0)), "0.a": np.arange(3)}
    np.savez(tmp_path / "s.npz", facts=np.array(json.dumps(facts)), **arrays)
    unpack(tmp_path / "s.npz", ["b", "a"], tmp_path)
    (sample,) = read_index(tmp_path)
    assert sample.shapes == ((1, 0), (3,))
    assert (sample.path, sample.macs, sample.macs_all) == (None, 7, 9)
    np.testing.assert_array_equal(np.load(tmp_path / "0.1.npy"), np.arange(3))


def test_rows_round_trip_and_bad_lines_are_named(tmp_path: Path) -> None:
    row = Row("host", "cpu", "sod2", "m", "ok", sample=1, latency_ns=3, options={"sep": False})
    rows.write(tmp_path / "a.jsonl", [row, row])
    assert rows.read([tmp_path / "a.jsonl"]) == [row, row]
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    (tmp_path / "b.jsonl").write_text('{"device": "host"}\n')
    with pytest.raises(ValueError, match=r"b\.jsonl:1 is not a row"):
        rows.read([tmp_path / "b.jsonl"])


def test_an_interrupted_write_leaves_no_rows(tmp_path: Path) -> None:
    def broken() -> list[Row]:
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        rows.write(tmp_path / "a.jsonl", (row for row in broken()))
    assert not (tmp_path / "a.jsonl").exists()


def test_a_row_with_a_reason_is_not_ok() -> None:
    with pytest.raises(ValueError, match="only failures have one"):
        Row("host", "cpu", "sod2", "m", "ok", reason="late")
    with pytest.raises(ValueError, match="accepted: ok, unsupported, failed"):
        Row("host", "cpu", "sod2", "m", "fine")

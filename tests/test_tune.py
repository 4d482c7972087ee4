"""The tuner: bits do not depend on what it changes, the search finds a hidden best and goes on where it stopped."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import sod2
from sod2 import compiler, tune
from sod2.__main__ import main
from sod2.codegen import target
from tests.graphs import expected, model

LAYERS = model(
    "float[1, 24, H, W] x",
    "float[?, ?, ?, ?] y",
    "a = Conv<pads=[1, 1, 1, 1]>(x, w3) b = Conv(a, w1) c = Conv<strides=[2, 2]>(b, s3)"
    " t = Transpose<perm=[0, 2, 3, 1]>(c) y = MatMul(t, m)",
    {
        "w3": np.random.default_rng(0).standard_normal((40, 24, 3, 3), np.float32),
        "w1": np.random.default_rng(1).standard_normal((72, 40, 1, 1), np.float32),
        "s3": np.random.default_rng(2).standard_normal((300, 72, 3, 3), np.float32),
        "m": np.random.default_rng(3).standard_normal((300, 33), np.float32),
    },
)
INPUTS = {"x": np.random.default_rng(4).standard_normal((1, 24, 37, 29), np.float32)}
SUBJECT: dict[str, object] = {"model": "m"}
SHIPPED = tune.shipped(target.host())


def extremes(last: int) -> dict[str, int]:
    return {name: choices[last] for name, choices in tune.CHOICES.items()}


def hidden(values: tune.Values, rounds: int) -> float:
    """A cost whose best is the largest value of every macro, a tenth below the shipped ones."""
    steps = [tune.CHOICES[name].index(value) / (len(tune.CHOICES[name]) - 1) for name, value in values.items()]
    return 1.1 - 0.3 * sum(steps) / len(steps)


def test_choices_are_those_of_the_header() -> None:
    header = (target.RUNTIME / "tuning.h").read_text()
    defined = re.findall(r"^#define (SOD2_\w+) (\d+)", header, re.MULTILINE)  # some of them for one kind of machine
    assert {name for name, _ in defined} == set(tune.CHOICES)
    for name, value in defined:
        assert int(value) in tune.CHOICES[name]
        assert list(tune.CHOICES[name]) == sorted(tune.CHOICES[name])
        assert any(name in path.read_text() for path in target.RUNTIME.glob("*.c"))


def test_shipped_values_are_those_of_the_target() -> None:
    host = target.host()
    other = replace(host, cflags=(*host.cflags, "-DSOD2_GEMM_ROWS=3"))
    assert tune.shipped(other) == SHIPPED | {"SOD2_GEMM_ROWS": 3}


def test_no_bit_depends_on_them(tmp_path: Path) -> None:
    outputs = []
    for k, values in enumerate([{}, extremes(0), extremes(-1)]):
        chosen = replace(target.host(), tuned=tuple(values.items()))
        folder = compiler.build(LAYERS, sod2.Options(), chosen, tmp_path / str(k))
        assert json.loads((folder / "manifest.json").read_text())["target"]["tuned"] == values
        outputs.append(sod2.load(folder, threads=2).run(INPUTS)["y"])
    np.testing.assert_array_equal(outputs[1], outputs[0])
    np.testing.assert_array_equal(outputs[2], outputs[0])
    wanted = expected(LAYERS, INPUTS)["y"]
    assert np.abs(outputs[0] - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_the_search_finds_a_hidden_best(tmp_path: Path) -> None:
    said: list[str] = []
    best = tune.Search(tmp_path / "t.json", SUBJECT, SHIPPED, hidden).run(80, said.append)
    assert best.cost == hidden(best.values, 1) < 0.9
    assert len(said) == 80 and said[-1].startswith("80/80")
    assert dict(tune.read(tmp_path / "t.json")) == best.values
    known = json.loads((tmp_path / "t.json").read_text())["candidates"]
    assert len({tuple(c["values"].items()) for c in known}) == 80


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """An interruption loses nothing, and a search in two parts is that in one."""
    calls = 0

    def interrupted(values: tune.Values, rounds: int) -> float:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return hidden(values, rounds)

    part, whole = tmp_path / "part.json", tmp_path / "whole.json"
    with pytest.raises(KeyboardInterrupt):
        tune.Search(part, SUBJECT, SHIPPED, interrupted).run(20, lambda _: None)
    assert dict(tune.read(part)) == SHIPPED  # until the search has ended
    tune.Search(part, SUBJECT, SHIPPED, hidden).run(20, lambda _: None)
    tune.Search(whole, SUBJECT, SHIPPED, hidden).run(20, lambda _: None)
    assert part.read_text() == whole.read_text()
    with pytest.raises(sod2.Error, match="give a new file"):
        tune.Search(part, {"model": "another"}, SHIPPED, hidden)


def test_only_macros_of_kernels_that_are_called_are_searched(tmp_path: Path) -> None:
    graph = model("float[1, 4, H] x", "float[?, ?, ?] y", "y = MatMul(x, m)", {"m": np.ones((8, 8), np.float32)})
    code = "\n".join(compiler.emit(graph, sod2.Options(), target.host()).functions)
    assert tune.used(code) == ("SOD2_GEMM_DEPTH", "SOD2_GEMM_ROWS")
    layers = "\n".join(compiler.emit(LAYERS, sod2.Options(), target.host()).functions)
    assert set(tune.used(layers)) == set(tune.CHOICES)
    tune.Search(tmp_path / "t.json", SUBJECT, SHIPPED, hidden, tune.used(code)).run(1000, lambda _: None)
    known = json.loads((tmp_path / "t.json").read_text())["candidates"]
    assert len(known) == len(tune.CHOICES["SOD2_GEMM_DEPTH"]) * len(tune.CHOICES["SOD2_GEMM_ROWS"]) - 1  # all others
    assert all(c["values"] | dict.fromkeys(tune.used(code)) == SHIPPED | dict.fromkeys(tune.used(code)) for c in known)


def test_the_shipped_values_stay_where_nothing_is_better(tmp_path: Path) -> None:
    best = tune.Search(tmp_path / "t.json", SUBJECT, SHIPPED, lambda _, rounds: 0.9 if rounds < 10 else 1.01).run(
        3, lambda _: None
    )
    assert best.values == SHIPPED
    assert dict(tune.read(tmp_path / "t.json")) == SHIPPED


@pytest.mark.parametrize("text", ["", "{}", '{"best": {"SOD2_GEMM_DEPTH": "x"}}', '{"best": {"KC": 3}}', "[]"])
def test_no_tuned_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(sod2.Error, match=r"t\.json.*SOD2_GEMM_DEPTH"):
        tune.read(tmp_path / "t.json")


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tune a model for two candidates, and compile it with what was found."""
    onnx.save(LAYERS, tmp_path / "m.onnx")
    found, out = tmp_path / "tuned" / "host.json", tmp_path / "m.sod2"
    assert main(["tune", str(tmp_path / "m.onnx"), "x=1x24x16x16", "-o", str(found), "--candidates", "2"]) == 0
    assert "2/2" in capsys.readouterr().out
    assert main(["compile", str(tmp_path / "m.onnx"), "-o", str(out), "--tuned", str(found)]) == 0
    tuned = json.loads((out / "manifest.json").read_text())["target"]["tuned"]
    assert tuned == json.loads(found.read_text())["best"]
    assert main(["compile", str(tmp_path / "m.onnx"), "-o", str(out), "--tuned", str(tmp_path / "m.onnx")]) == 1
    assert "m.onnx" in capsys.readouterr().err

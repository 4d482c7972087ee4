"""Samples: sizes and contents as the protocol says, deterministic, with the control path that really runs."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ValueInfoProto

from models import IMAGENET, MODELS, Extent, build
from models.inputs import contents, generator, picture, quantile_sizes, random_sizes, read_dataset

SCRIPT = Path(__file__).parents[1] / "datasets" / "sample.py"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sample", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sample = load_script()


def draw(tmp_path: Path, *arguments: str) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Arrays by name and facts of the samples which the command draws."""
    out = tmp_path / "samples.npz"
    assert sample.main([arguments[0], str(out), *arguments[1:]]) == 0
    with np.load(out) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return arrays, json.loads(arrays.pop("facts").item())


@pytest.mark.parametrize("name", sorted(MODELS))
def test_quantiles_include_smallest_and_largest_and_ascend(name: str) -> None:
    symbols = MODELS[name].symbols
    sizes = quantile_sizes(symbols, np.linspace(0, 1, 10).tolist(), seed=3)
    assert sizes[0] == {symbol: extent.low for symbol, extent in symbols.items()}
    assert sizes[-1] == {symbol: extent.high for symbol, extent in symbols.items()}
    products = [np.prod(list(size.values())) for size in sizes]
    assert products == sorted(products)
    assert len(set(products)) == (10 if symbols else 1)


def test_a_quantile_is_that_of_the_size_distribution() -> None:
    (middle,) = quantile_sizes({"T": Extent(32, 384)}, [0.5], seed=0)
    assert middle["T"] == pytest.approx(208, abs=8)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_random_sizes_are_admissible_and_cover_the_range(name: str) -> None:
    symbols = MODELS[name].symbols
    drawn = [random_sizes(symbols, generator("test", index)) for index in range(300)]
    for symbol, extent in symbols.items():
        values = [size[symbol] for size in drawn]
        assert set(values) <= set(extent.values().tolist())
        assert np.ptp(values) >= 0.9 * (extent.high - extent.low)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_sampling_is_a_function_of_the_seed(name: str, tmp_path: Path) -> None:
    arguments = [name, "--variant", "tiny", "--quantiles", "0,0.1"]
    files = []
    for run, seed in enumerate(("1", "1", "2")):
        path = tmp_path / f"{run}.npz"
        assert sample.main([arguments[0], str(path), *arguments[1:], "--seed", seed]) == 0
        files.append(path.read_bytes())
    assert files[0] == files[1]
    assert files[0] != files[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.npz", "1.npz", "2.npz"]


def test_token_samples(tmp_path: Path) -> None:
    arrays, facts = draw(tmp_path, "codebert", "--variant", "tiny", "--count", "3")
    assert [fact["sizes"]["T"] for fact in facts][::2] == [32, 384]
    for index, fact in enumerate(facts):
        ids, mask = arrays[f"{index}.input_ids"], arrays[f"{index}.attention_mask"]
        assert ids.shape == mask.shape == tuple(fact["shapes"]["input_ids"]) == (1, fact["sizes"]["T"])
        assert ids.dtype == mask.dtype == np.int64
        assert (ids[0, 0], ids[0, -1]) == (0, 2)
        assert ids[0, 1:-1].min() >= 3
        assert ids.max() < 1000
        assert mask.all()
        assert fact["path"] is None
        assert fact["macs"] == fact["macs_all"] > 0


def test_full_codebert_draws_from_its_whole_vocabulary() -> None:
    shapes = {"input_ids": (1, 384), "attention_mask": (1, 384)}
    ids = contents(MODELS["codebert"], "full", shapes, generator("test"))["input_ids"]
    assert 45_000 < ids.max() <= 50_000


def test_pictures_are_8_bit_and_normalised_as_the_model_wants(tmp_path: Path) -> None:
    arrays, _ = draw(tmp_path, "skipnet", "--variant", "tiny", "--quantiles", "0")
    detector, _ = draw(tmp_path, "yolov6", "--variant", "tiny", "--quantiles", "0")
    encoder, _ = draw(tmp_path, "sde", "--variant", "tiny", "--quantiles", "0")
    mean, std = (np.array(v, np.float32)[:, None, None] for v in (IMAGENET.mean, IMAGENET.std))
    assert arrays["0.images"].shape == detector["0.images"].shape == (1, 3, 224, 224)
    assert encoder["0.images"].shape == (1, 3, 64, 64)
    for pixels in (arrays["0.images"] * std + mean, detector["0.images"], (encoder["0.images"] + 1) / 2):
        assert pixels.dtype == np.float32
        levels = pixels * 255
        np.testing.assert_allclose(levels, np.round(levels), atol=1e-3)
        assert levels.min() > -0.01
        assert levels.max() < 255.01


def test_pictures_have_the_spectrum_of_natural_ones() -> None:
    """Most power lies in the lowest tenth of the frequencies, unlike in white noise."""
    description = read_dataset("imagenet") | {"discs": [0, 0]}
    plane = picture(description, 128, 192, generator("test"))[0]
    power = np.abs(np.fft.rfft2(plane - plane.mean())) ** 2
    radius = np.hypot(np.fft.fftfreq(128)[:, None], np.fft.rfftfreq(192)[None])
    assert power[radius < 0.05].sum() > 0.5 * power.sum()


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (2, 2)])
def test_smallest_pictures_are_finite(size: tuple[int, int]) -> None:
    pixels = picture(read_dataset("imagenet"), *size, generator("test"))
    assert pixels.shape == (3, *size)
    assert np.isfinite(pixels).all()


@pytest.mark.parametrize("name", ["skipnet", "convnet_aig", "blockdrop", "dgnet"])
def test_recorded_path_is_the_one_that_runs(name: str, tmp_path: Path) -> None:
    arrays, facts = draw(tmp_path, name, "--variant", "tiny", "--random", "--count", "12")
    model = build(name, "tiny")
    predicates = [node.input[0] for node in model.graph.node if node.op_type == "If"]
    model.graph.output.extend(ValueInfoProto(name=name) for name in predicates)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for index, fact in enumerate(facts):
        taken = session.run(predicates, {"images": arrays[f"{index}.images"]})
        assert fact["path"] == "".join(str(int(value)) for value in taken)
        assert [margin > 0 for margin in fact["margins"]] == [bool(value) for value in taken]
        assert min(map(abs, fact["margins"])) >= 1e-3
        assert fact["macs"] <= fact["macs_all"]
        assert (fact["macs"] == fact["macs_all"]) == ("0" not in fact["path"])
    assert len({fact["path"] for fact in facts}) >= 4


def test_recorded_path_of_nested_exits_ends_where_the_picture_leaves(tmp_path: Path) -> None:
    _, facts = draw(tmp_path, "ranet", "--variant", "tiny", "--random", "--count", "16")
    by_path = {}
    for fact in facts:
        assert fact["path"] in ("1-", "01", "00")
        assert [margin is None for margin in fact["margins"]] == [character == "-" for character in fact["path"]]
        by_path.setdefault(fact["path"], []).append(fact["macs"] / fact["macs_all"])
    assert len(by_path) == 3
    assert max(by_path["1-"]) < min(by_path["01"]) <= max(by_path["01"]) < min(by_path["00"]) == 1


def test_contents_are_drawn_again_when_an_element_of_a_mask_is_close_to_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = sample.Sampler("dgnet", "tiny")
    index, first = next((i, facts) for i in range(20) if "1" in (facts := sampler.sample({}, 0, i)[1])["path"])
    monkeypatch.setattr(sample, "MASK_CLEAR", 1.5)  # no mask is as clear as that: a sample without any is drawn
    _, second = sampler.sample({}, 0, index)
    assert first["redrawn"] < second["redrawn"]
    assert set(second["path"]) == {"0"}


def test_contents_are_drawn_again_when_a_gate_decides_narrowly(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = sample.Sampler("skipnet", "tiny")
    sizes = {"H": 224, "W": 230}
    _, first = sampler.sample(sizes, seed=0, index=0)
    monkeypatch.setattr(sample, "CLEAR", 1.01 * min(map(abs, first["margins"])))
    arrays, second = sampler.sample(sizes, seed=0, index=0)
    assert (first["redrawn"], second["redrawn"] > 0) == (0, True)
    assert arrays["images"].shape == (1, 3, 224, 230)
    monkeypatch.setattr(sample, "CLEAR", 1e9)
    monkeypatch.setattr(sample, "ATTEMPTS", 2)
    with pytest.raises(ValueError, match="SkipNet decides too narrowly"):
        sampler.sample(sizes, seed=0, index=0)


def test_frames_are_normalised_and_vary_in_time_and_along_the_bands(tmp_path: Path) -> None:
    arrays, facts = draw(tmp_path, "conformer", "--variant", "tiny", "--quantiles", "0,1")
    for index, length in enumerate((32, 384)):
        frames = arrays[f"{index}.features"]
        assert frames.shape == tuple(facts[index]["shapes"]["features"]) == (1, length, 80)
        assert frames.dtype == np.float32
        assert arrays[f"{index}.length"] == [length]
        assert (frames.mean(), frames.std()) == (pytest.approx(0, abs=1e-4), pytest.approx(1, abs=1e-4))
    speech = arrays["1.features"][0]
    for axis in (0, 1):  # neighbours are alike, as in speech and unlike in noise
        assert np.abs(np.diff(speech, axis=axis)).mean() < 0.6 * np.abs(speech - np.roll(speech, 40, axis)).mean()


def test_point_lies_in_the_picture(tmp_path: Path) -> None:
    arrays, facts = draw(tmp_path, "sam", "--variant", "tiny", "--random", "--count", "5")
    for index, fact in enumerate(facts):
        height, width = fact["sizes"]["H"], fact["sizes"]["W"]
        assert (height % 16, width % 16) == (0, 0)
        (x, y), padding = arrays[f"{index}.point_coords"][0]
        assert 0 <= x < width
        assert 0 <= y < height
        np.testing.assert_array_equal(padding, [0, 0])
        np.testing.assert_array_equal(arrays[f"{index}.point_labels"], [[1, -1]])


def test_a_model_of_one_size_has_that_size_at_every_quantile(tmp_path: Path) -> None:
    arrays, facts = draw(tmp_path, "dgnet", "--variant", "tiny", "--count", "2")
    assert [fact["sizes"] for fact in facts] == [{}, {}]
    assert arrays["0.images"].shape == arrays["1.images"].shape == (1, 3, 224, 224)
    assert not np.array_equal(arrays["0.images"], arrays["1.images"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet", "x.npz"], "unknown model 'resnet'"),
        (["skipnet", "x.npz", "--variant", "huge"], "unknown variant 'huge'"),
        (["yolov6", "x.npz", "--quantiles", "0,2"], "leave the range 0..1"),
        (["yolov6", "x.npz", "--quantiles", "0,1", "--count", "3"], "--count 3 contradicts the 2 values"),
        (["yolov6", "absent/x.npz"], "folder 'absent'"),
        (["yolov6", "x.npz", "--sizes", "h=7,w=21"], "size w = 21 is not admissible: 7 to 20 is"),
        (["sde", "x.npz", "--sizes", "H=64,W=100"], "size W = 100 is not admissible: 64 to 224 in steps of 8 is"),
        (["sde", "x.npz", "--sizes", "H=64"], "sizes of H are given: those of H, W are wanted"),
        (["dgnet", "x.npz", "--sizes", "H=224,W=224"], "sizes of H, W are given: those of nothing are wanted"),
        (["sde", "x.npz", "--sizes", "H=64,W=72", "--count", "2"], "--count 2 contradicts 1 times --sizes"),
        (["lstm", "x.npz", "--data", "."], "is of no use to LSTM: its word vectors are generated"),
        (["yolov6", "x.npz", "--data", "nowhere"], "data folder 'nowhere' does not exist"),
    ],
)
def test_bad_command_ends_in_one_sentence(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sample.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_script_runs_by_path_from_anywhere(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "codebert", "x.npz", "--variant", "tiny", "--quantiles", "0"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "x.npz").is_file()


def test_named_sizes_are_drawn_in_their_order(tmp_path: Path) -> None:
    sizes = ["--sizes", "H=64,W=80", "--sizes", "W=64,H=72"]
    arrays, facts = draw(tmp_path, "sde", "--variant", "tiny", "--generated", *sizes)
    assert [fact["sizes"] for fact in facts] == [{"H": 64, "W": 80}, {"W": 64, "H": 72}]
    assert [arrays[f"{i}.images"].shape[2:] for i in range(2)] == [(64, 80), (72, 64)]


def test_sizes_that_are_no_numbers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sample.main(["sde", str(tmp_path / "x.npz"), "--sizes", "H=large"])
    assert "invalid list of SYMBOL=VALUE value: 'H=large'" in capsys.readouterr().err


def test_contents_of_packages_can_be_left_out(tmp_path: Path) -> None:
    for flags, source in ((["--generated"], "random tokens for CodeSearchNet, seed 0, sample 0"), ([], "stdlib:")):
        _, facts = draw(tmp_path, "codebert", "--variant", "tiny", "--quantiles", "0", *flags)
        assert facts[0]["source"].startswith(source)

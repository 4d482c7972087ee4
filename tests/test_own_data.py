"""Samples from a folder of one's own: pictures, recordings, code; and clear words about files that do not serve."""

import gzip
import importlib.util
import json
import sys
import sysconfig
import wave
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from models import IMAGENET, MODELS, package_data
from models.inputs import generator
from models.own_data import Files, of_folder
from models.package_data import installed
from models.readers import log_mel, read_picture, read_recording

SCRIPT = Path(__file__).parents[1] / "datasets" / "sample.py"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sample", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def draw(name: str, folder: Path, seed: int = 0, **shapes: tuple[int, ...]) -> tuple[dict[str, np.ndarray], str]:
    return of_folder(folder, MODELS[name], "tiny").draw(shapes, generator("test", seed))


def tone(path: Path, hertz: float, seconds: float, *, rate: int = 16_000, width: int = 2, channels: int = 1) -> Path:
    """A WAV file of one sine on every channel."""
    values = np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate) * 0.5
    samples = {1: (values * 127 + 128).astype(np.uint8), 2: (values * 32767).astype("<i2")}.get(width)
    raw = (values * (2**31 - 1)).astype("<i4") if samples is None else samples
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(np.repeat(raw, channels).tobytes())
    return path


# Pictures.


def test_picture_keeps_its_middle_at_the_drawn_aspect_ratio(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((40, 120, 3), np.uint8)
    pixels[:, 40:80] = (255, 0, 128)  # the square in the middle
    (tmp_path / "val" / "n01").mkdir(parents=True)
    image.fromarray(pixels).save(tmp_path / "val" / "n01" / "a.PNG")
    arrays, origin = draw("skipnet", tmp_path, images=(1, 3, 20, 20))
    assert origin == "val/n01/a.PNG crop 40,0 40x40"
    mean, std = (np.array(values)[:, None, None] for values in (IMAGENET.mean, IMAGENET.std))
    got = arrays["images"][0] * std + mean
    expected = np.broadcast_to(np.array([1, 0, 128 / 255])[:, None, None], (3, 20, 18))
    np.testing.assert_allclose(got[:, :, 1:-1], expected, atol=0.02)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_pictures_of_other_modes_become_rgb(mode: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new(mode, (5, 7)).save(tmp_path / "a.png")
    pixels, box = read_picture(tmp_path / "a.png", 8, 16)
    assert (pixels.shape, pixels.dtype, box) == ((3, 8, 16), np.float32, (0, 2, 5, 4))


def test_varied_parts_are_of_the_wanted_aspect_ratio_inside_the_picture(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((90, 60, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = np.arange(60) * 4, np.arange(90)[:, None] * 2  # a pixel's colour is its place
    image.fromarray(pixels).save(tmp_path / "a.png")
    boxes = set()
    for seed in range(20):
        part, (left, upper, right, lower) = read_picture(tmp_path / "a.png", 20, 40, generator("test", seed))
        assert 0 <= left < right <= 60
        assert 0 <= upper < lower <= 90
        assert (right - left) / (lower - upper) == pytest.approx(2, rel=0.1)
        assert 30 <= right - left <= 60
        assert part[0].mean() * 255 / 4 == pytest.approx((left + right - 1) / 2, abs=0.5)
        assert part[1].mean() * 255 / 2 == pytest.approx((upper + lower - 1) / 2, abs=0.5)
        boxes.add((left, upper, right, lower))
    assert len(boxes) > 15


def test_picture_of_one_pixel_serves(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (1, 1), (255, 0, 0)).save(tmp_path / "a.png")
    pixels, box = read_picture(tmp_path / "a.png", 7, 300, generator("test"))
    assert box == (0, 0, 1, 1)
    np.testing.assert_array_equal(pixels, np.broadcast_to(np.array([1, 0, 0])[:, None, None], (3, 7, 300)))


def test_unreadable_picture_is_named(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"a\.jpg' cannot be read"):
        draw("yolov6", tmp_path, images=(1, 3, 32, 32))


def test_truncated_picture_is_named(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    image.fromarray(noise).save(tmp_path / "a.png")
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"a\.png' cannot be read"):
        draw("yolov6", tmp_path, images=(1, 3, 32, 32))


def test_sam_gets_a_point_with_its_own_picture(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    arrays, _ = draw("sam", tmp_path, images=(1, 3, 64, 80), point_coords=(1, 2, 2), point_labels=(1, 2))
    assert {name: array.shape for name, array in arrays.items()} == {
        "images": (1, 3, 64, 80),
        "point_coords": (1, 2, 2),
        "point_labels": (1, 2),
    }


# Recordings.


@pytest.mark.parametrize(("rate", "width", "channels"), [(16_000, 2, 1), (8_000, 1, 2), (44_100, 4, 1)])
def test_recording_becomes_mono_at_16_khz(rate: int, width: int, channels: int, tmp_path: Path) -> None:
    samples = read_recording(tone(tmp_path / "a.wav", 440, 0.5, rate=rate, width=width, channels=channels))
    assert len(samples) == 8000
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(8000) / 16_000)
    np.testing.assert_allclose(samples[:-10], expected[:-10], atol=0.03)


@pytest.mark.parametrize("hertz", [300, 1000, 5000])
def test_the_loudest_mel_band_is_that_of_the_tone(hertz: float) -> None:
    energies = log_mel(np.sin(2 * np.pi * hertz * np.arange(16_000) / 16_000).astype(np.float32), 80)
    assert energies.shape == ((16_000 - 400) // 160 + 1, 80)
    mel = 2595 * np.log10(1 + hertz / 700)
    band = mel / (2595 * np.log10(1 + 8000 / 700)) * 81 - 1
    assert np.abs(energies.mean(0).argmax() - band) <= 1


@pytest.mark.parametrize("frames", [32, 300])
def test_speech_of_the_drawn_length(frames: int, tmp_path: Path) -> None:
    """The longer stretch is more than the recording has, which is then repeated."""
    tone(tmp_path / "a.wav", 440, 1.0)
    arrays, origin = draw("conformer", tmp_path, features=(1, frames, 80), length=(1,))
    assert origin.startswith("a.wav from frame ")
    assert arrays["features"].shape == (1, frames, 80)
    assert np.isfinite(arrays["features"]).all()
    np.testing.assert_allclose(arrays["features"].mean(1), 0, atol=1e-3)
    assert arrays["length"] == [frames]


def test_recordings_that_do_not_serve_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    with pytest.raises(ValueError, match=r"a\.wav' cannot be read as PCM WAV"):
        read_recording(tmp_path / "a.wav")
    with pytest.raises(ValueError, match="lasts 10 ms: at least 25 ms"):
        read_recording(tone(tmp_path / "b.wav", 440, 0.01))


def test_flac_is_read_like_wav(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    wav = tone(tmp_path / "a.wav", 440, 0.5, channels=2)
    values, rate = soundfile.read(wav)
    (tmp_path / "LibriSpeech" / "84" / "121123").mkdir(parents=True)
    flac = tmp_path / "LibriSpeech" / "84" / "121123" / "84-121123-0000.flac"
    soundfile.write(flac, values, rate)
    np.testing.assert_allclose(read_recording(flac), read_recording(wav), atol=1e-4)
    flac.write_bytes(b"fLaC")
    with pytest.raises(ValueError, match=r"0000\.flac' cannot be read as FLAC"):
        draw("conformer", tmp_path / "LibriSpeech", features=(1, 40, 80), length=(1,))


def test_flac_without_soundfile_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    with pytest.raises(ValueError, match=r"a\.flac' needs soundfile, which is not installed: pip install soundfile"):
        read_recording(tmp_path / "a.flac")


# Code.


def test_code_becomes_tokens_of_the_drawn_number(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(x):\n    return f(x)\n")
    (tmp_path / "notes.txt").write_text("not code")
    shapes = {"input_ids": (1, 40), "attention_mask": (1, 40)}
    arrays, origin = draw("codebert", tmp_path, **shapes)
    ids = arrays["input_ids"]
    assert origin.startswith("a.py from token ")
    assert (ids.shape, ids.dtype, ids[0, 0], ids[0, -1]) == ((1, 40), np.int64, 0, 2)
    assert len(set(ids[0, 1:-1])) == 7  # def f ( x ) : return
    assert 3 <= ids[0, 1:-1].min() <= ids.max() < 1000
    assert arrays["attention_mask"].all()


@pytest.mark.parametrize("name", ["train.jsonl", "python/final/jsonl/test/python_test_0.jsonl.gz"])
def test_code_search_net_lines_are_read(name: str, tmp_path: Path) -> None:
    lines = [{"code": "one = 1", "docstring": "x"}, {"code": "two = 2"}]
    text = "\n".join(map(json.dumps, lines)).encode()
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    shapes = {"input_ids": (1, 32), "attention_mask": (1, 32)}
    drawn = {tuple(sorted(set(draw("codebert", tmp_path, seed, **shapes)[0]["input_ids"][0]))) for seed in range(12)}
    assert len(drawn) == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.py", " \n", "holds no token"),
        ("a.jsonl", '{"text": "x"}', "without the field 'code'"),
        ("a.jsonl", "{", "cannot be read"),
        ("a.jsonl.gz", "{}", "cannot be read"),
        ("a.jsonl", "", "holds no token"),
    ],
)
def test_code_that_does_not_serve_is_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        draw("codebert", tmp_path, input_ids=(1, 32), attention_mask=(1, 32))


# The folder and the command line.


@pytest.mark.parametrize("name", ["sde", "conformer", "codebert"])
def test_folder_without_a_file_that_serves_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("x")
    with pytest.raises(ValueError, match=f"holds no file for {MODELS[name].title}"):
        of_folder(tmp_path, MODELS[name], "tiny")


# Installed packages.


def test_code_comes_from_the_standard_library() -> None:
    files = installed(MODELS["codebert"], "tiny")
    assert files is not None
    arrays, source = files.draw({"input_ids": (1, 60)}, generator("test"))
    name = source.removeprefix("stdlib:").split(" from token ")[0]
    assert (Path(sysconfig.get_path("stdlib")) / name).is_file()
    assert arrays["input_ids"].shape == (1, 60)


def package(folder: Path, name: str, pictures: list[str]) -> None:
    """A package that carries pictures as scikit-image does."""
    image = pytest.importorskip("PIL.Image")
    (folder / name / "data").mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise ImportError('is not to be imported')")
    for picture in pictures:
        image.new("RGB", (40, 30), (0, 99, 0)).save(folder / name / "data" / picture)


def test_pictures_come_from_packages_where_all_of_them_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "pictures_of_one", ["cat.png", "dog.png", "a_drawing.png"])
    monkeypatch.syspath_prepend(str(tmp_path))
    places = {"pictures_of_one": ("data", "cat.png dog.png gone.png")}
    monkeypatch.setattr(package_data, "PHOTOGRAPHS", places)
    files = installed(MODELS["sde"], "tiny")
    assert files is not None
    sources = [files.draw({"images": (1, 3, 64, 72)}, generator("test", i))[1] for i in range(12)]
    assert {source.split(" crop ")[0] for source in sources} == {"pictures_of_one:cat", "pictures_of_one:dog"}
    monkeypatch.setattr(package_data, "PHOTOGRAPHS", places | {"no_such_package": ("data", "cat.png")})
    assert installed(MODELS["sde"], "tiny") is None


def test_speech_comes_from_installed_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_data, "SPEECH", tmp_path)
    assert installed(MODELS["conformer"], "tiny") is None
    tone(tmp_path / "Front_Left.wav", 440, 0.8)
    tone(tmp_path / "Noise.wav", 440, 0.8)
    files = installed(MODELS["conformer"], "tiny")
    assert isinstance(files, Files)
    for seed in range(4):
        _, source = files.draw({"features": (1, 32, 80)}, generator("test", seed))
        assert source.startswith("alsa-utils:Front_Left.wav from frame ")


def test_nothing_serves_word_vectors() -> None:
    assert installed(MODELS["lstm"], "tiny") is None
    assert installed(MODELS["tree_lstm"], "tiny") is None


def test_samples_record_the_file_they_come_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "speech"
    folder.mkdir()
    for hertz in (300, 800):
        tone(folder / f"{hertz}.wav", hertz, 0.7)
    command = ["conformer", str(tmp_path / "s.npz"), "--variant", "tiny", "--random", "--count", "6"]
    script = load_script()
    assert script.main([*command, "--data", str(folder)]) == 0
    with np.load(tmp_path / "s.npz") as stored:
        facts = json.loads(stored["facts"].item())
        assert all(stored[f"{i}.features"].shape[1] == fact["sizes"]["T"] for i, fact in enumerate(facts))
    assert {fact["source"].split(" from frame ")[0] for fact in facts} == {"300.wav", "800.wav"}
    (tmp_path / "empty").mkdir()
    assert (
        script.main(["conformer", str(tmp_path / "t.npz"), "--variant", "tiny", "--data", str(tmp_path / "empty")]) == 2
    )
    assert "holds no file for Conformer" in capsys.readouterr().err
    assert not (tmp_path / "t.npz").exists()


def test_unreadable_picture_ends_the_command_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL.Image")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.jpg").write_bytes(b"\xff\xd8 no picture")
    out = tmp_path / "s.npz"
    assert load_script().main(["yolov6", str(out), "--variant", "tiny", "--data", str(tmp_path / "pictures")]) == 2
    error = capsys.readouterr().err
    assert "a.jpg' cannot be read" in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]

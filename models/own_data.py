"""Contents of samples from a folder of one's own: pictures, recordings, source code.

Folders are searched to any depth, which fits the layouts of ImageNet, COCO and CodeSearchNet. Each sample takes one
file, chosen by its random generator, at the size that was drawn for it:

    pictures  .jpg .jpeg .png .bmp .webp, read with Pillow: the middle part of the drawn aspect ratio, resampled
    speech    .wav (PCM): mono, 16 kHz, a stretch of log-mel frames normalised by band
    code      .py .java .js .go .rb .php .c .h .cpp .rs, or .jsonl with a field `code` per line: tokens by number, the
              id of each a hash of its text, because the encoder's work depends on how many tokens there are only

A recording or a function that is too short is repeated.
"""

import json
import math
import re
import wave
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from models import Frames, Model, Pictures, Tokens
from models.inputs import normalise, point, read_dataset

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
RECORDINGS = (".wav",)
CODE = (".py", ".java", ".js", ".go", ".rb", ".php", ".c", ".h", ".cpp", ".rs", ".jsonl")

RATE = 16_000  # samples per second
WINDOW = 400  # samples: 25 ms
HOP = 160  # samples: 10 ms
TRANSFORM = 512
TOKEN = re.compile(r"\w+|[^\w\s]")


class OwnData:
    """The files of a folder that serve a model; ValueError when there are none."""

    def __init__(self, folder: Path, model: Model, variant: str) -> None:
        self._model = model
        self._variant = variant
        self._folder = folder
        content = model.content
        suffixes = PICTURES if isinstance(content, Pictures) else RECORDINGS if isinstance(content, Frames) else CODE
        if not folder.is_dir():
            raise ValueError(f"data folder {str(folder)!r} does not exist")
        self._files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes and path.is_file())
        if not self._files:
            raise ValueError(
                f"data folder {str(folder)!r} holds no file for {model.title}: one of {' '.join(suffixes)}"
            )

    def draw(
        self, shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator
    ) -> tuple[dict[str, np.ndarray], str]:
        """Input arrays of the given shapes, and the file they come from."""
        path = self._files[rng.integers(len(self._files))]
        origin = path.relative_to(self._folder).as_posix()
        content = self._model.content
        if isinstance(content, Tokens):
            ids = self._ids(path, content, shapes["input_ids"][1], rng)
            return {"input_ids": ids, "attention_mask": np.ones_like(ids)}, origin
        if isinstance(content, Frames):
            _, length, bands = shapes["features"]
            frames = _stretch(log_mel(read_recording(path), bands), length, rng)
            return {"features": _normalised(frames)[None], "length": np.array([length], np.int64)}, origin
        _, _, height, width = shapes["images"]
        arrays = {"images": normalise(read_picture(path, height, width), content)}
        return arrays | (point(height, width, rng) if content.point else {}), origin

    def _ids(self, path: Path, content: Tokens, length: int, rng: np.random.Generator) -> np.ndarray:
        """Token ids (1, length), int64, between the data set's first and last id."""
        description = read_dataset(self._model.dataset)
        low, high = description["ids"]
        count = min(high + 1, content.vocabulary[self._variant]) - low
        words = _stretch(np.array(TOKEN.findall(read_code(path, rng)), object), length - 2, rng)
        ids = [low + zlib.crc32(word.encode()) % count for word in words]
        return np.array([[description["first"], *ids, description["last"]]], np.int64)


def _stretch(values: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """`length` successive values from a random start, the values repeated where there are too few."""
    if len(values) < length:
        values = np.concatenate([values] * math.ceil(length / len(values)))
    start = int(rng.integers(len(values) - length + 1))
    return values[start : start + length]


def read_picture(path: Path, height: int, width: int) -> np.ndarray:
    """The middle part of a picture of the wanted aspect ratio, resampled: (3, height, width) float32 in 0..1."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError  # an optional dependency  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(f"picture {str(path)!r} needs Pillow, which is not installed: pip install pillow") from error
    try:
        with Image.open(path) as image:
            fitted = ImageOps.fit(image.convert("RGB"), (width, height), Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"picture {str(path)!r} cannot be read: {error}") from error
    return (np.asarray(fitted, np.float32) / 255).transpose(2, 0, 1)


def read_recording(path: Path) -> np.ndarray:
    """The samples of a WAV file, mono at 16 kHz, float32 in -1..1."""
    try:
        with wave.open(str(path)) as file:
            channels, width, rate, count = file.getparams()[:4]
            raw = file.readframes(count)
    except (wave.Error, EOFError) as error:
        raise ValueError(f"recording {str(path)!r} cannot be read as PCM WAV: {error}") from error
    kinds = {1: np.uint8, 2: np.int16, 4: np.int32}
    if width not in kinds:
        raise ValueError(f"recording {str(path)!r} has {8 * width}-bit samples: 8, 16 or 32 bits are read")
    values = np.frombuffer(raw, kinds[width]).astype(np.float32).reshape(-1, channels).mean(axis=1)
    values = (values - 128) / 128 if width == 1 else values / float(2 ** (8 * width - 1))
    if len(values) * RATE < WINDOW * rate:
        raise ValueError(f"recording {str(path)!r} lasts {1000 * len(values) / rate:.0f} ms: at least 25 ms are needed")
    times = np.arange(int(len(values) * RATE / rate)) * (rate / RATE)
    return np.interp(times, np.arange(len(values)), values).astype(np.float32)


def log_mel(samples: np.ndarray, bands: int) -> np.ndarray:
    """Log energies (frames, bands) of windows of 25 ms every 10 ms, in triangular bands equally spaced in mel."""
    windows = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP] * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(windows, TRANSFORM, axis=1)) ** 2
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + RATE / 1400), bands + 2) / 2595) - 1)
    bins = np.arange(TRANSFORM // 2 + 1) * (RATE / TRANSFORM)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    filters = np.maximum(0, np.minimum(rising, falling))
    return np.log(power @ filters.T + 1e-10).astype(np.float32)


def _normalised(frames: np.ndarray) -> np.ndarray:
    """Zero mean and unit deviation over the stretch, by band."""
    centred = frames - frames.mean(axis=0, dtype=np.float64)
    return (centred / np.maximum(centred.std(axis=0), 1e-3)).astype(np.float32)


def read_code(path: Path, rng: np.random.Generator) -> str:
    """The text of a source file, or of one line of a .jsonl file; ValueError when it holds no token."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix.lower() == ".jsonl":
            lines = [line for line in text.splitlines() if line.strip()]
            record: dict[str, Any] = json.loads(lines[rng.integers(len(lines))]) if lines else {"code": ""}
            text = record["code"]
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"code {str(path)!r} cannot be read: {error}") from error
    except KeyError as error:
        raise ValueError(f"code {str(path)!r} has a line without the field 'code'") from error
    if not TOKEN.search(text):
        raise ValueError(f"code {str(path)!r} holds no token")
    return text

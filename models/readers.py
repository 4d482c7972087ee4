"""Reading one file of contents: a picture, a recording, source code. A file that does not serve is a ValueError.

pictures  .jpg .jpeg .png .bmp .webp, read with Pillow: a part of the wanted aspect ratio, resampled
speech    .wav (PCM), .flac (read with soundfile, an optional package): mono, 16 kHz
code      .py .java .js .go .rb .php .c .h .cpp .rs, or .jsonl and .jsonl.gz with a field `code` per line
"""

import gzip
import json
import re
import wave
import zlib
from pathlib import Path
from typing import Any

import numpy as np

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
RECORDINGS = (".wav", ".flac")
LINES = (".jsonl", ".jsonl.gz")
CODE = (".py", ".java", ".js", ".go", ".rb", ".php", ".c", ".h", ".cpp", ".rs", *LINES)

RATE = 16_000  # samples per second
WINDOW = 400  # samples: 25 ms
HOP = 160  # samples: 10 ms
TRANSFORM = 512
SMALLEST_PART = 0.5  # of the largest part of the wanted aspect ratio, in each direction
TOKEN = re.compile(r"\w+|[^\w\s]")

Box = tuple[int, int, int, int]  # left, upper, right, lower, in pixels


def read_picture(path: Path, height: int, width: int, rng: np.random.Generator | None = None) -> tuple[np.ndarray, Box]:
    """A part of a picture in the wanted aspect ratio, resampled: (3, height, width) float32 in 0..1; and its box.

    The part is the largest one, in the middle; with a generator one of random size (see SMALLEST_PART) and place.
    """
    try:
        from PIL import Image, UnidentifiedImageError  # an optional dependency  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(f"picture {str(path)!r} needs Pillow, which is not installed: pip install pillow") from error
    try:
        with Image.open(path) as image:
            box = _part(image.width, image.height, width / height, rng)
            fitted = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR, box=box)
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        raise ValueError(f"picture {str(path)!r} cannot be read: {error}") from error
    return (np.asarray(fitted, np.float32) / 255).transpose(2, 0, 1), box


def _part(width: int, height: int, aspect: float, rng: np.random.Generator | None) -> Box:
    """The box of a part whose width is `aspect` times its height, at least one pixel."""
    scale = 1.0 if rng is None else rng.uniform(SMALLEST_PART, 1)
    across = max(1, round(scale * min(width, height * aspect)))
    down = max(1, round(scale * min(height, width / aspect)))
    spare = (width - across, height - down)
    left, upper = (s // 2 if rng is None else int(rng.integers(s + 1)) for s in spare)
    return left, upper, left + across, upper + down


def read_recording(path: Path) -> np.ndarray:
    """The samples of a recording, mono at 16 kHz, float32 in -1..1; at least 25 ms of them."""
    values, rate = _flac(path) if path.suffix.lower() == ".flac" else _wav(path)
    if len(values) * RATE < WINDOW * rate:
        raise ValueError(f"recording {str(path)!r} lasts {1000 * len(values) / rate:.0f} ms: at least 25 ms are needed")
    times = np.arange(int(len(values) * RATE / rate)) * (rate / RATE)
    return np.interp(times, np.arange(len(values)), values).astype(np.float32)


def _wav(path: Path) -> tuple[np.ndarray, int]:
    """Mono samples in -1..1 and their rate."""
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
    return (values - 128) / 128 if width == 1 else values / float(2 ** (8 * width - 1)), rate


def _flac(path: Path) -> tuple[np.ndarray, int]:
    """Mono samples in -1..1 and their rate."""
    try:
        import soundfile  # an optional dependency  # noqa: PLC0415
    except (ImportError, OSError) as error:  # OSError: the package is there, its library is not
        raise ValueError(
            f"recording {str(path)!r} needs soundfile, which is not installed: pip install soundfile"
        ) from error
    try:
        values, rate = soundfile.read(str(path), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"recording {str(path)!r} cannot be read as FLAC: {error}") from error
    return values.mean(axis=1), rate


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


def read_tokens(path: Path, rng: np.random.Generator) -> list[str]:
    """The words and signs of a source file, or of one line of a .jsonl file, in their order; at least one."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix.lower() == ".gz" else raw).decode("utf-8")
        if path.name.lower().endswith(LINES):
            lines = [line for line in text.splitlines() if line.strip()]
            record: dict[str, Any] = json.loads(lines[rng.integers(len(lines))]) if lines else {"code": ""}
            text = record["code"]
    except (UnicodeDecodeError, json.JSONDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"code {str(path)!r} cannot be read: {error}") from error
    except KeyError as error:
        raise ValueError(f"code {str(path)!r} has a line without the field 'code'") from error
    tokens = TOKEN.findall(text)
    if not tokens:
        raise ValueError(f"code {str(path)!r} holds no token")
    return tokens

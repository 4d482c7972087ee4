"""Contents of samples from files: pictures, recordings, source code.

Each sample takes one file, chosen by its random generator, at the size that was drawn for it: a part of a picture,
a stretch of log-mel frames normalised by band, or a stretch of tokens. A token's id is a hash of its text, because the
encoder's work depends on how many tokens there are only. A recording or a function that is too short is repeated.

`of_folder` takes the files of a folder of one's own, searched to any depth, which fits the layouts of ImageNet, COCO,
LibriSpeech and CodeSearchNet; models/package_data.py finds files in installed packages. models/readers.py says which
formats are read.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from models import Frames, Model, Pictures, Sentences, Tokens
from models.inputs import normalise, point, read_dataset
from models.readers import CODE, PICTURES, RECORDINGS, log_mel, read_picture, read_recording, read_tokens


class Files:
    """Files that serve a model, by the name that a sample's source gives them.

    With `varied` a picture gives parts of random size and place, which makes many samples of few pictures; without,
    its largest middle part.
    """

    def __init__(self, files: Sequence[tuple[str, Path]], model: Model, variant: str, varied: bool) -> None:
        self._files = files
        self._model = model
        self._variant = variant
        self._varied = varied

    def draw(
        self, shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator
    ) -> tuple[dict[str, np.ndarray], str]:
        """Input arrays of the given shapes, and their source: the file, and the part of it."""
        name, path = self._files[rng.integers(len(self._files))]
        content = self._model.content
        if isinstance(content, Tokens):
            ids, start = self._ids(path, content, shapes["input_ids"][1], rng)
            return {"input_ids": ids, "attention_mask": np.ones_like(ids)}, f"{name} from token {start}"
        if isinstance(content, Frames):
            _, length, bands = shapes["features"]
            frames, start = _stretch(log_mel(read_recording(path), bands), length, rng)
            arrays = {"features": _normalised(frames)[None], "length": np.array([length], np.int64)}
            return arrays, f"{name} from frame {start}"
        _, _, height, width = shapes["images"]
        pixels, (left, upper, right, lower) = read_picture(path, height, width, rng if self._varied else None)
        arrays = {"images": normalise(pixels, content)} | (point(height, width, rng) if content.point else {})
        return arrays, f"{name} crop {left},{upper} {right - left}x{lower - upper}"

    def _ids(self, path: Path, content: Tokens, length: int, rng: np.random.Generator) -> tuple[np.ndarray, int]:
        """Token ids (1, length), int64, between the data set's first and last id; and the first token's number."""
        description = read_dataset(self._model.dataset)
        low, high = description["ids"]
        count = min(high + 1, content.vocabulary[self._variant]) - low
        words, start = _stretch(np.array(read_tokens(path, rng), object), length - 2, rng)
        ids = [low + zlib.crc32(word.encode()) % count for word in words]
        return np.array([[description["first"], *ids, description["last"]]], np.int64), start


def of_folder(folder: Path, model: Model, variant: str) -> Files:
    """The files of a folder that serve a model; ValueError when there are none."""
    content = model.content
    if isinstance(content, Sentences):
        raise ValueError(f"data folder {str(folder)!r} is of no use to {model.title}: its word vectors are generated")
    suffixes = PICTURES if isinstance(content, Pictures) else RECORDINGS if isinstance(content, Frames) else CODE
    if not folder.is_dir():
        raise ValueError(f"data folder {str(folder)!r} does not exist")
    found = sorted(path for path in folder.rglob("*") if path.name.lower().endswith(suffixes) and path.is_file())
    if not found:
        raise ValueError(f"data folder {str(folder)!r} holds no file for {model.title}: one of {' '.join(suffixes)}")
    return Files([(path.relative_to(folder).as_posix(), path) for path in found], model, variant, varied=False)


def _stretch(values: np.ndarray, length: int, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """`length` successive values and the place of the first, at random; the values repeated where there are too few."""
    if len(values) < length:
        values = np.concatenate([values] * math.ceil(length / len(values)))
    start = int(rng.integers(len(values) - length + 1))
    return values[start : start + length], start


def _normalised(frames: np.ndarray) -> np.ndarray:
    """Zero mean and unit deviation over the stretch, by band."""
    centred = frames - frames.mean(axis=0, dtype=np.float64)
    return (centred / np.maximum(centred.std(axis=0), 1e-3)).astype(np.float32)

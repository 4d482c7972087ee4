"""Real contents that installed packages happen to carry: sample pictures, spoken words, the standard library as code.

Pictures are the photographs among the samples of scikit-image and matplotlib (extra `data` of pyproject.toml), code are
the modules of Python's standard library, speech are the test recordings of Debian's alsa-utils. Where one of them is
absent `installed` says None, and contents are generated. Nothing is imported: the files are only read.
"""

import importlib.util
import sysconfig
from pathlib import Path

from models import Frames, Model, Pictures, Tokens
from models.own_data import Files

PHOTOGRAPHS = {  # by package: the folder in it, and the photographs there
    "skimage": (
        "data",
        "astronaut.png brick.png camera.png cell.png chelsea.png clock_motion.png coffee.png coins.png grass.png"
        " gravel.png hubble_deep_field.jpg ihc.png moon.png motorcycle_left.png motorcycle_right.png retina.jpg"
        " rocket.jpg",
    ),
    "matplotlib": ("mpl-data/sample_data", "grace_hopper.jpg"),
}
SPEECH = Path("/usr/share/sounds/alsa")
SPOKEN = "*_*.wav"  # Front_Left.wav and so on; the others are noise


def installed(model: Model, variant: str) -> Files | None:
    """The files of installed packages that serve a model; None when they are absent."""
    if isinstance(model.content, Tokens):
        files = [(f"stdlib:{path.name}", path) for path in _standard_library()]
    elif isinstance(model.content, Frames):
        files = [(f"alsa-utils:{path.name}", path) for path in sorted(SPEECH.glob(SPOKEN))]
    else:
        files = _photographs() if isinstance(model.content, Pictures) else []
    return Files(files, model, variant, varied=True) if files else None


def _standard_library() -> list[Path]:
    """Its single-file modules that are more than a few names."""
    return sorted(path for path in Path(sysconfig.get_path("stdlib")).glob("*.py") if path.stat().st_size >= 1000)


def _photographs() -> list[tuple[str, Path]]:
    """All of `PHOTOGRAPHS`, or none: too few pictures would make samples that are too much alike."""
    found = []
    for package, (folder, names) in PHOTOGRAPHS.items():
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            return []
        files = [Path(spec.origin).parent / folder / name for name in names.split()]
        found += [(f"{package}:{path.stem}", path) for path in files if path.is_file()]
    return found

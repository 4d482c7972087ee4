"""Fixtures of all tests: a cache of compiled objects that lasts between runs, kernels, and goldens."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import plain_kernels

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the goldens anew instead of comparing")


@pytest.fixture(scope="session", autouse=True)
def build_cache(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Builds are cached by content in pytest's cache folder: a second run compiles only what has changed.

    A folder of $SOD2_CACHE is kept, so that CI can share one; `pytest --cache-clear` empties ours.
    """
    if given := os.environ.get("SOD2_CACHE"):
        yield Path(given)
        return
    folder = request.config.cache.mkdir("sod2")
    os.environ["SOD2_CACHE"] = str(folder)
    yield folder
    del os.environ["SOD2_CACHE"]


@pytest.fixture(scope="session", params=["native", "portable"])
def kernels(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[plain_kernels.Kernels]:
    """The kernels for this machine, and for vectors of 4 floats."""
    machine = ["-march=native"] if request.param == "native" else []
    with plain_kernels.build(tmp_path_factory.mktemp(f"kernels_{request.param}"), machine) as built:
        yield built


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text): the text is that of tests/golden/<name>.txt, or becomes it under --update-golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{text}\n")
        assert path.is_file(), f"{path} is missing: run pytest --update-golden"
        assert f"{text}\n" == path.read_text(), f"{path} differs: run pytest --update-golden if the new text is right"

    return check

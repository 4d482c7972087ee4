"""The committed pictures are what the compiler says today, and say what they should."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from figures.explain import __main__ as explain
from figures.explain import lattice
from sod2.lattice import NAC, UNDEF
from sod2.symbolic import constant, symbol

TEXTS = explain.texts()
NAMESPACE = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", TEXTS)
def test_committed_files_are_up_to_date(name: str, request: pytest.FixtureRequest) -> None:
    """A new operator or a better rule changes them: pytest --update-golden writes them anew."""
    if request.config.getoption("--update-golden"):
        explain.main([])
    assert (explain.DOCS / name).read_text() == TEXTS[name], "run pytest --update-golden, or python -m figures.explain"


def test_the_command_writes_all_of_them(tmp_path: Path) -> None:
    explain.main([str(tmp_path)])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == TEXTS


def words(name: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(TEXTS[name]).iter(f"{NAMESPACE}text")]


def test_the_lattice_has_one_layer_of_constants() -> None:
    assert words("lattice.svg").count("undef") == words("lattice.svg").count("nac") == 1
    lines = list(ET.fromstring(TEXTS["lattice.svg"]).iter(f"{NAMESPACE}line"))
    assert len(lines) == 2 * (len(lattice.ELEMENTS) - 2)  # each constant hangs between the two ends, on nothing else
    assert lattice.above(UNDEF, symbol("H"))
    assert lattice.above(constant(3), NAC)
    assert not lattice.above(constant(3), constant(4))
    assert not lattice.above(NAC, UNDEF)


def test_fusion_needs_the_facts() -> None:
    said = words("fusion.svg")
    assert "static facts (fusion: static): 2 kernels" in said
    assert "facts of RDP (fusion: rdp): 1 kernel" in said
    assert sum(text.startswith("refused: s with t: ") for text in said) == 1


def test_transfer_functions() -> None:
    text = TEXTS["transfer.md"]
    for line in (
        "| `y = Shape(x)` | `float[N, 3, H, W] x` | ISDO | `int64[4] = [N, 3, H, W]` |",
        "| `n = Shape(z) y = Reshape(x, n)` | `float[N, M] x, float[A, B, C] z` | ISDOS | `float32[A, B, C]` |",
        "| `MatMul` | `[N, 8]` | `[K, 8]` | `[N, K]` |",
    ):
        assert line in text

"""Table 2 is derived from the rules: the classes that the paper names, and every live operator in one of them."""

from collections import Counter

import onnx
import pytest

from figures import table2
from sod2.ops import Dynamism


@pytest.fixture(scope="module")
def classes() -> dict[str, str]:
    return table2.classes()


def test_the_operators_that_the_paper_names(classes: dict[str, str]) -> None:
    named = {
        "ISDO": ("Shape", "Size", "EyeLike"),
        "ISDOS": ("Conv", "MatMul", "Add", "Softmax", "Transpose", "Concat", "LSTM", "ScatterND"),
        "ISVDOS": ("Reshape", "Range", "Expand", "Slice", "Resize", "TopK", "Tile", "OneHot"),
        "EDO": ("NonZero", "NonMaxSuppression", "Unique", "If", "Loop"),
    }
    assert {n: classes[n] for names in named.values() for n in names} == {n: k for k, ns in named.items() for n in ns}


def test_every_live_operator_has_a_line(classes: dict[str, str]) -> None:
    live = {s.name for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated}
    assert set(classes) == live
    assert set(classes.values()) <= {*(d.name for d in Dynamism), table2.NO_RULE}
    assert Counter(classes.values())[table2.NO_RULE] < 30


def test_table(classes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One line an operator, and counts that add up."""
    monkeypatch.setattr(table2, "classes", lambda: classes)
    drawn = table2.table({}, [], None)  # type: ignore[arg-type]
    assert len(drawn.body) == len(classes)
    *counts, total = (row[1].value for row in drawn.summary)
    assert sum(counts) == total == len(classes)

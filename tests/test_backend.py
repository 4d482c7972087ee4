"""ONNX's node suite against the list of refusals: a part of it here, all of it with `-m slow`."""

import os

import pytest

from tests import backend_suite
from tests.backend_suite import MODES, Run, cases, refusals, runs, surprises

PARTS = 6  # the first runs always; every case is in one part, in both modes


def _part(number: int) -> list[Run]:
    return [run for run in runs() if sorted(cases()).index(run.name) % PARTS == number]


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, PARTS))], ids=lambda k: f"part {k}"
)
def test_suite(number: int) -> None:
    """What passes passes, and what is listed does not."""
    assert surprises(_part(number)) == []


def test_how_many_pass() -> None:
    """The list is of cases that exist, and leaves enough: onnxruntime 1.32 passes 1,526."""
    known = {str(run) for run in runs()}
    assert {str(run) for run in refusals()} <= known
    for mode in MODES:
        left = len(cases()) - sum(run.mode == mode for run in refusals())
        assert left >= 1560 or len(cases()) < 1669, f"{left} of {len(cases())} pass {mode}"


def test_a_crash_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that ends its process does not end the suite."""
    monkeypatch.setattr(backend_suite, "_check", lambda case, compiled: os._exit(3))
    (text,) = backend_suite.verdicts([Run("test_abs", "fixed")]).values()
    assert text is not None and "status" in text

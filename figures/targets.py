"""The files that the workflow makes, and what is wrong with one that it does not make."""

from __future__ import annotations

import re
from collections.abc import Mapping

from figures import matrix
from models import MODELS, OPERATORS

TARGETS = (
    "figures/{figure}.pdf",
    "figures/{figure}.csv",
    "figures/{figure}.md",
    "results/models/{model}.onnx",
    "results/samples/{selection}/{model}.npz",
    "results/samples/{selection}/{model}",
    "results/bundles/{device}/{processor}/{engine}/{model}",
    "results/runs/{device}/{processor}/{selection}/{model}.jsonl",
)


def names(config: matrix.Config) -> dict[str, tuple[str, ...]]:
    """What each wildcard of the targets may stand for."""
    return {
        "figure": matrix.figures(),
        "model": (*MODELS, *OPERATORS),
        "engine": tuple(config["engines"]),
        "device": tuple(config["devices"]),
        "processor": ("cpu", "gpu"),
        "selection": matrix.SELECTIONS,
    }


def strays(config: matrix.Config) -> str:
    """A regular expression for the paths that no rule makes, but a user may ask for."""
    known = {kind: f"({'|'.join(accepted)})" for kind, accepted in names(config).items()}
    made = "|".join(_pattern(target, known) for target in TARGETS)
    return f"(?!({made})$).+"


def explain(config: matrix.Config, target: str) -> str:
    """Why no rule makes a target, and what would be accepted."""
    anything = {kind: f"(?P<{kind}>[^/]+?)" for kind in names(config)}
    for form in TARGETS:
        if found := re.fullmatch(_pattern(form, anything), target):
            for kind, accepted in names(config).items():
                if (name := found.groupdict().get(kind, accepted[0])) not in accepted:
                    return matrix.unknown(kind, name, f"the target {target}", accepted)
    return f"no rule makes '{target}'; targets are 'all' and {', '.join(TARGETS)}"


def _pattern(target: str, groups: Mapping[str, str]) -> str:
    """A target's form as a regular expression with these groups for its wildcards."""
    return re.sub(r"\\{(\w+)\\}", lambda match: groups[match[1]], re.escape(target))

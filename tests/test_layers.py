"""The shape of the package: imports point down one list, and no module is named after nothing."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "sod2"

# A module may import those above it, and its own folder.
ORDER = (
    "errors",
    "symbolic",
    "dtypes",
    "lattice",
    "graph",
    "packing",
    "ops",
    "peak",
    "admissible",
    "loops",
    "minting",
    "analysis",
    "lower_bounds",
    "rdp",
    "functions",
    "old_scan",
    "loop_frontend",
    "sequences",
    "frontend",
    "contrib",
    "lowering",
    "redundancy",
    "simplify",
    "reference",
    "checking",
    "static_facts",
    "identities",
    "row_moves",
    "rewrite_rules",
    "rewrite",
    "branches",
    "ranks",
    "widening",
    "group_norm",
    "attention",
    "fusion",
    "problem",
    "cuts",
    "search",
    "partition",
    "schedule",
    "memory",
    "conv_cost",
    "parts",
    "storage",
    "work",
    "tensor_class",
    "loop_storage",
    "sharing",
    "depth",
    "streaming",
    "order",
    "rematerialize",
    "versions",
    "codegen",
    "artifact",
    "unranked",
    "roofline",
    "tune",
    "footprint",
    "timeline",
    "compiler",
    "__init__",
    "__main__",
)
NAMES_OF_NOTHING = {"utils", "util", "helpers", "helper", "common", "base", "misc", "manager", "core"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def layer(parts: tuple[str, ...]) -> str:
    """The entry of ORDER that a module of the package belongs to."""
    return parts[0]


def _only_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported(path: Path) -> set[str]:
    """Layers that a module imports, at its top or inside a function; names of types alone do not count."""
    found = set()
    tree = ast.parse(path.read_text())
    typing = {n for block in ast.walk(tree) if _only_types(block) for n in ast.walk(block)}
    for node in (n for n in ast.walk(tree) if n not in typing):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sod2":
            names = [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.split(".")[0] == "sod2"]
        found |= {layer(tuple(name.split(".")[1:])) for name in names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    own = layer(path.relative_to(PACKAGE).with_suffix("").parts)
    assert own in ORDER or own == "runtime", f"{own} has no place in ORDER"
    for other in imported(path) - {own}:
        assert other in ORDER, f"{other} has no place in ORDER"
        assert ORDER.index(other) < ORDER.index(own), f"{own} imports {other}, which stands below it"


def test_no_names_of_nothing() -> None:
    names = {path.stem for path in MODULES} | {path.name for path in PACKAGE.rglob("*") if path.is_dir()}
    assert not names & NAMES_OF_NOTHING


def test_the_package_knows_nothing_of_the_harness() -> None:
    harness = {"models", "baselines", "datasets", "devices", "figures", "snakemake", "onnxruntime"}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {n.split(".")[0] for n in names} & harness, path

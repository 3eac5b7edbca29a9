"""The rules of the house: imports run one way."""
import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "jfluid"
# What a folder must never import, at whatever depth of a function.
FORBIDDEN = {
    "ir": ("jax", "jaxlib", "jfluid.ops", "jfluid.compile", "jfluid.layers", "jfluid.executor"),
    "ops": ("jfluid.compile", "jfluid.layers", "jfluid.executor"),
    "layers": ("jax", "jfluid.ops", "jfluid.compile", "jfluid.executor"),
    "optimizer": ("jax", "jfluid.ops", "jfluid.compile"),
    "parallel": ("jfluid.layers", "jfluid.executor", "jfluid.optimizer"),
    "dataset": ("jfluid.layers", "jfluid.executor", "jfluid.optimizer", "jfluid.compile"),
    "compile": ("jfluid.parallel", "jfluid.layers", "jfluid.executor", "jfluid.optimizer"),
    "distributed": ("jfluid.layers", "jfluid.executor", "jfluid.optimizer", "jfluid.fleet"),
    "ps_server": ("jax", "jfluid.layers", "jfluid.executor", "jfluid.optimizer"),
    "files": ("jax", "jfluid.compile", "jfluid.layers"),
}


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_run_one_way(folder):
    wrong = sorted({f"{path.relative_to(ROOT)}: {name}" for path in (ROOT / folder).rglob("*.py") for name in _imports(path)
                    if any(name == f or name.startswith(f + ".") for f in FORBIDDEN[folder])})
    assert wrong == []


@pytest.mark.parametrize("heavy", ["flax", "matplotlib", "sklearn", "grpc", "numba"])
def test_heavy_libraries_are_imported_where_they_are_used(heavy):
    # Parameter servers and datasets are imported by none of the rest when it is imported (test_import.py sees to it).
    used_by = {"grpc": ("ps_server",), "numba": ("ps_server", "dataset")}.get(heavy, ())
    for path in ROOT.rglob("*.py"):
        if any(path.is_relative_to(ROOT / folder) for folder in used_by):
            continue
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else \
                [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if path.name != f"{heavy}.py":
                assert not any(n.split(".")[0] == heavy for n in names), path

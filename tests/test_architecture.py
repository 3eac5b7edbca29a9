"""The rules of the house: imports run one way, and what pages and docstrings name is there."""

import ast
import re

import pytest

from tests import import_graph, stated_names
from tests.import_graph import LAYERS, PACKAGE, circles, imports, place, upward

# What a folder never imports, though it is no layer above it.
FORBIDDEN = {
    "files": ("jax",),
    "ir": ("jax", "jaxlib"),
    "layers": ("jax", "jfluid.ops", "jfluid.compile"),
    "optimizer": ("jax", "jfluid.ops", "jfluid.compile"),
    "ps_server": ("jax",),
}
# A variable and an operator know their block, a block knows its program and makes both: one thing,
# in four files.
PROGRAM = {"jfluid.ir.block", "jfluid.ir.operator", "jfluid.ir.program", "jfluid.ir.variable"}


@pytest.fixture(scope="module")
def graph():
    return import_graph.read()


def test_modules_do_not_import_each_other_in_circles(graph):
    assert circles(graph) == [PROGRAM]


def test_every_folder_has_one_layer(graph):
    listed = [name for names in LAYERS for name in names]
    assert sorted(listed) == sorted({place(module) for module in graph}), (
        "say where it belongs in tests/import_graph.py"
    )


def test_imports_lead_to_lower_layers(graph):
    assert upward(graph) == []


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_folders_leave_out_what_is_not_theirs(folder):
    wrong = sorted(
        {
            f"{path.relative_to(PACKAGE)}: {name}"
            for path in (PACKAGE / folder).rglob("*.py")
            for source, taken in imports(path)
            for name in (source, f"{source}.{taken}")
            if any(name == f or name.startswith(f + ".") for f in FORBIDDEN[folder])
        }
    )
    assert wrong == []


@pytest.mark.parametrize("heavy", ["flax", "matplotlib", "sklearn", "grpc", "numba", "pydantic"])
def test_heavy_libraries_are_imported_where_they_are_used(heavy):
    # Parameter servers and datasets are imported by none of the rest when it is imported
    # (tests/modules/test_import.py sees to it).
    used_by = {
        "grpc": ("ps_server",),
        "numba": ("caches/compiled_kernels.py", "ps_server", "dataset", "serving"),
        "pydantic": ("environment", "job", "launch", "ps_server"),
    }.get(heavy, ())
    for path in PACKAGE.rglob("*.py"):
        if any(path.is_relative_to(PACKAGE / folder) for folder in used_by):
            continue
        for node in import_graph.syntax(path).body:
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            if path.name != f"{heavy}.py":
                assert not any(n.split(".")[0] == heavy for n in names), path


def test_imports_in_functions_and_for_types_count(tmp_path):
    package = tmp_path / "jfluid"
    files = {
        "__init__.py": "",
        "errors.py": "",
        "ops/__init__.py": "from jfluid import errors\n",
        "ops/a.py": "import os\nif TYPE_CHECKING:\n    from jfluid.ops.b import B\n",
        "ops/b.py": "def f():\n    def g():\n        from jfluid.ops import a\n",
        "ir/__init__.py": "from jfluid.ops.b import f\n",
        "ir/c.py": "import jfluid.errors\nfrom jfluid.ir import ir\n",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    found = import_graph.read(package)
    assert found["jfluid.ops"] == {"jfluid.errors"} and found["jfluid.ir.c"] == {
        "jfluid.errors",
        "jfluid.ir",
    }
    assert circles(found) == [{"jfluid.ops.a", "jfluid.ops.b"}]
    assert upward(found) == ["jfluid.ir: jfluid.ops.b"]


def test_environment_variables_are_read_in_one_place():
    for path in PACKAGE.rglob("*.py"):
        if not any(path.is_relative_to(PACKAGE / folder) for folder in ("environment", "launch", "startup")):
            names = {
                node.attr
                for node in import_graph.nodes(path)
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
            }
            names |= {name for source, name in imports(path) if source == "os"}
            assert not names & {"environ", "environb", "getenv", "putenv"}, path


def test_pages_name_what_is_there():
    assert list(stated_names.stale_in_pages()) == []


def test_docstrings_and_comments_name_what_is_there():
    assert list(stated_names.stale_in_sources()) == []


def test_contributing_lists_every_folder_of_the_package():
    rows = re.findall(r"^\| (`[^|]*`) \|", (stated_names.ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= listed


def test_contributing_lists_every_folder():
    text = (stated_names.ROOT / "CONTRIBUTING.md").read_text()
    tests = {path.parent.name for path in (stated_names.ROOT / "tests").glob("*/__init__.py")}
    for folder in {*stated_names.FOLDERS, *tests} - {"jfluid"}:
        assert re.search(rf"^\|.*`{folder}`.*\|", text, re.MULTILINE), folder


def test_stale_names_are_found():
    # HERE stands for jfluid, so that this file states no names that there are not.
    page = """`HERE/gone.py`, `HERE/no_folder`, `missing.py`, `python -m jfluid.gone`, `fluid.layers.gone(x)`,
        `JFLUID_GONE=1`, `tests/test_architecture.py::test_gone`. There are `HERE/errors.py`, `errors.py`,
        `fluid.layers.fc`,
        `HERE/ops/<family>.py`, `train.py`, `JFLUID_PS_RESTORE=1`,
        `tests/test_architecture.py::test_stale_names_are_found`.
        ```
        `HERE/in_an_example.py`
        ```"""
    stale = stated_names.stale(page.replace("HERE", "jfluid"), {"JFLUID_PS_RESTORE"})
    assert {name.replace("jfluid/", "HERE/") for name in stale} == {
        "HERE/gone.py",
        "HERE/no_folder",
        "missing.py",
        "jfluid.gone",
        "fluid.layers.gone",
        "JFLUID_GONE",
        "tests/test_architecture.py::test_gone",
    }


def test_functions_are_short():
    long = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                if body and body[-1].end_lineno - body[0].lineno >= 60:
                    long.setdefault(str(path.relative_to(PACKAGE)), []).append(node.name)
    assert long == {}


def test_files_are_short():
    for folder, most in ((PACKAGE, 600), (stated_names.ROOT / "tests", 700)):
        lines = {path: len(path.read_text().splitlines()) for path in folder.rglob("*.py")}
        assert {str(path): number for path, number in lines.items() if number > most} == {}

"""`jfluid doctor`: report of problems of Fluid scripts and models, found without running the code.

Scripts, notebooks and packages are read as syntax trees (`parsing`, `names`, `script`, `calls`),
and so are project modules that scripts import (`own_modules`); saved models as program files
(`models`). The index of Fluid's names is fluid_api.json, which `python -m scripts.pages` makes
from the package; knowledge of behaviour is in differences.toml and rules.toml. Nothing here
imports JAX.
"""

import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence

from jfluid.doctor import models, old_python, own_modules, parsing, sources
from jfluid.doctor.findings import Diagnosis, Finding, Severity
from jfluid.doctor.fluid_api import load
from jfluid.doctor.rules import RulesByUse
from jfluid.doctor.script import Script

_DEEPEST = 40_000  # frames: a dozen for each node of trees, which are at most 3,000 deep

_MOST_FILES = 10_000  # that imports are followed to

__all__ = ["Diagnosis", "Finding", "Severity", "examine"]

_DO = {
    "python-2": "let --fix-python2 show what to change",
    "syntax": "correct it; Python 3 cannot read the script",
    "encoding": "save the file as UTF-8, or declare its encoding in the first line: # -*- coding: gbk -*-",
    "binary": "remove it, or get the source again",
    "too-deep": "split them into several",
    "too-large": "split it, or load its data from a file",
    "notebook": "save it anew in Jupyter",
}


def examine(paths: Sequence[str]) -> Diagnosis:
    """Examine scripts, notebooks, models and folders.

    Raises DataError for a path that does not exist, cannot be read, or is none of these.
    """
    diagnosis = Diagnosis()
    found = sources.find(paths)
    waiting: deque[tuple[str, str, Sequence[str]]] = deque((*source, ()) for source in found)
    seen = {os.path.realpath(path) for _, path in found}
    parts: list[list[Finding]] = []
    imports: list[tuple[Script, own_modules.SearchPath]] = []
    while waiting:
        kind, path, above = waiting.popleft()
        if kind == "link":
            happens = "a symbolic link that leads back to where it lies"
            parts.append([Finding(Severity.NOTE, path, 0, "link", path, happens, "it is not followed")])
        elif kind == "model":
            diagnosis.models += 1
            diagnosis.fluid_files += 1
            parts.append(models.examine(path))
        else:
            diagnosis.notebooks += kind == "notebook"
            diagnosis.scripts += kind == "script"
            examined = _examine_source(path, kind, above, parts)
            if examined is None:
                continue
            imports.append(examined)
            script, where = examined
            diagnosis.fluid_files += script.uses_fluid
            for file in _followed(script, path, where, seen):
                waiting.append(("script", file, where.folders))
    local = set(own_modules.names_beside(found))
    for _, where in imports:  # what one script adds to the path holds for those that it imports
        local.update(name for folder in where.folders for name in own_modules.names_in(folder))
    followed = all(where.followed for _, where in imports)
    for script, _ in imports:
        old_python.examine_imports(script, local, followed)
        script.findings.sort(key=lambda f: (f.cell, f.line, f.severity))
    diagnosis.findings = [finding for part in parts for finding in part]
    return diagnosis


def _followed(script: Script, path: str, where: own_modules.SearchPath, seen: set[str]) -> Iterator[str]:
    """Return the project's files that a script imports, each once, as paths like the script's."""
    for _, node, _ in script.imported:
        for file in own_modules.imported_files(node, os.path.abspath(path), where.folders):
            real = os.path.realpath(file)
            if real not in seen and len(seen) < _MOST_FILES:
                seen.add(real)
                yield file if os.path.isabs(path) else os.path.relpath(file)


def _examine_source(
    path: str, kind: str, above: Sequence[str], parts: list[list[Finding]]
) -> tuple[Script, own_modules.SearchPath] | None:
    """Examine a script or a notebook, but for its imports; None where it cannot be read.

    What is found is added to `parts`.
    """
    script = Script(path, load(), RulesByUse.of(load()))
    faults: list[Finding] = []
    parts += [faults, script.findings]
    try:
        with open(path, "rb") as file:
            data = file.read(sources.LARGEST_SCRIPT + 1)
        if kind == "notebook":
            cells = parsing.cells_of(data)
        else:
            text, fault = parsing.text_of(data)
            cells = [(0, text)]
            if fault is not None:
                faults.append(_of_fault(path, 0, fault))
    except parsing.Unreadable as error:
        faults.append(_of_fault(path, 0, error.fault))
        return None
    except OSError as error:
        fault = parsing.Fault("binary", 0, f"the file cannot be read: {error.strerror}")
        faults.append(_of_fault(path, 0, fault))
        return None
    trees = []
    for cell, text in cells:
        try:
            trees.append((cell, parsing.tree_of(text)))
        except parsing.Unreadable as error:
            faults.append(_of_fault(path, cell, error.fault))
            if error.fault is not parsing.TOO_DEEP and (fixed := old_python.readable(text)):
                trees.append((cell, fixed))
    try:
        with _room():
            for cell, tree in trees:
                script.examine(tree, cell)
            old_python.examine(script, trees, "\n".join(text for _, text in cells))
    except RecursionError:
        faults.append(_of_fault(path, 0, parsing.TOO_DEEP))
    script.forget()
    return script, own_modules.search_path(path, [tree for _, tree in trees], above)


@contextlib.contextmanager
def _room() -> Iterator[None]:
    """Raise the recursion limit in a context to the depth of the deepest tree that Python's parser makes."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _of_fault(path: str, cell: int, fault: parsing.Fault) -> Finding:
    severity = Severity.NOTE if fault.kind == "too-large" else Severity.CHANGE
    return Finding(severity, path, fault.line, fault.kind, fault.kind, fault.happens, _DO[fault.kind], cell)

"""`jfluid doctor`: what happens to scripts and models of Fluid here, found without running them.

Scripts, notebooks and packages are read as syntax trees (`parsing`, `names`, `script`, `calls`),
saved models as program files (`models`). What is known of Fluid's names is in fluid_api.json, which
`python -m scripts.pages` makes from the package; what is known of their behaviour in
differences.toml and rules.toml. Nothing here imports JAX.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence

from jfluid.doctor import models, old_python, parsing, sources
from jfluid.doctor.findings import Diagnosis, Finding, Severity
from jfluid.doctor.fluid_api import load
from jfluid.doctor.rules import RulesByUse
from jfluid.doctor.script import Script

_DEEPEST = 40_000  # frames: a dozen for each node of trees, which are at most 3,000 deep

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
    """Examine scripts, notebooks, models and folders of them.

    Raises DataError for a path that does not exist, cannot be read, or is none of these.
    """
    diagnosis = Diagnosis()
    found = sources.find(paths)
    local = old_python.local_modules(found)
    for kind, path in found:
        if kind == "link":
            happens = "a symbolic link that leads back to where it lies"
            diagnosis.findings.append(
                Finding(Severity.NOTE, path, 0, "link", path, happens, "it is not followed")
            )
        elif kind == "model":
            diagnosis.models += 1
            diagnosis.fluid_files += 1
            diagnosis.findings += models.examine(path)
        else:
            diagnosis.notebooks += kind == "notebook"
            diagnosis.scripts += kind == "script"
            _examine_source(path, kind, local, diagnosis)
    return diagnosis


def _examine_source(path: str, kind: str, local: frozenset[str], diagnosis: Diagnosis) -> None:
    """Examine a script or a notebook."""
    script = Script(path, load(), RulesByUse.of(load()))
    try:
        with open(path, "rb") as file:
            data = file.read(sources.LARGEST_SCRIPT + 1)
        if kind == "notebook":
            cells = parsing.cells_of(data)
        else:
            text, fault = parsing.text_of(data)
            cells = [(0, text)]
            if fault is not None:
                diagnosis.findings.append(_of_fault(path, 0, fault))
    except parsing.Unreadable as error:
        diagnosis.findings.append(_of_fault(path, 0, error.fault))
        return
    except OSError as error:
        fault = parsing.Fault("binary", 0, f"the file cannot be read: {error.strerror}")
        diagnosis.findings.append(_of_fault(path, 0, fault))
        return
    trees = []
    for cell, text in cells:
        try:
            trees.append((cell, parsing.tree_of(text)))
        except parsing.Unreadable as error:
            diagnosis.findings.append(_of_fault(path, cell, error.fault))
            if error.fault is not parsing.TOO_DEEP and (fixed := old_python.readable(text)):
                trees.append((cell, fixed))
    try:
        with _room():
            for cell, tree in trees:
                script.examine(tree, cell)
            old_python.examine(script, trees, "\n".join(text for _, text in cells), local)
    except RecursionError:
        diagnosis.findings.append(_of_fault(path, 0, parsing.TOO_DEEP))
    diagnosis.fluid_files += script.uses_fluid
    diagnosis.findings += sorted(script.findings, key=lambda f: (f.cell, f.line, f.severity))


@contextlib.contextmanager
def _room() -> Iterator[None]:
    """A context in which Python's stack may grow as far as the deepest tree that its parser makes needs."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _of_fault(path: str, cell: int, fault: parsing.Fault) -> Finding:
    severity = Severity.NOTE if fault.kind == "too-large" else Severity.CHANGE
    return Finding(
        severity, path, fault.line, fault.kind, fault.kind, fault.happens, _DO[fault.kind], cell
    )

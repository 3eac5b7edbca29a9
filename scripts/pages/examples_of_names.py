"""Examples of Fluid's public names: cells of the files in examples/names.

A cell begins with lines `# %% fluid.NAME ...`. The statements above a file's first cell are shared: an example has the
shared statements whose names it uses. A comment behind `print(...)`, or
below it, is the text that the call prints.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "names"
_HEADING = re.compile(r"^# %% (fluid\.[\w. ]+?)(?: \(not run: (.*)\))?$", re.MULTILINE)
_PRINTED = re.compile(r"^\s*(?:print\(.*)?\)(?:  |\n\s*)# (?P<text>.*)$", re.MULTILINE)


class Example(NamedTuple):
    """The example of one or several names."""

    file: str
    line: int
    names: list[str]
    text: str
    """The whole script, shared statements included."""
    not_run: str
    """The reason why tests do not run the example; empty if they do."""

    def printed(self) -> list[str]:
        """Return the texts that the comments state."""
        return [found["text"] for found in _PRINTED.finditer(self.text)]


def examples() -> Iterator[Example]:
    """Yield the examples of all files."""
    for path in sorted(FOLDER.glob("*.py")):
        yield from _cells(path)


def _cells(path: Path) -> Iterator[Example]:
    source = path.read_text()
    headings = list(_HEADING.finditer(source))
    shared = source[: headings[0].start()]
    ends = [heading.start() for heading in headings[1:]] + [len(source)]
    names: list[str] = []
    for heading, end in zip(headings, ends):
        names += heading[1].split()
        if own := source[heading.end() : end].strip("\n"):
            line = source.count("\n", 0, heading.start()) + 1
            yield Example(path.name, line, names, _with_shared(shared, own), heading[2] or "")
            names = []


def _with_shared(shared: str, own: str) -> str:
    """Return an example behind the shared statements that it needs, in their order."""
    statements = ast.parse(shared).body[1:]  # the docstring is no part of an example
    used, kept = _names_used(ast.parse(own)), []
    for statement in reversed(statements):
        if used & _names_bound(statement):
            kept.insert(0, statement)
            used |= _names_used(statement)
    lines, parts = shared.splitlines(), []
    for statement in kept:
        first = statement.lineno - 1
        while not lines[first - 1]:
            parts.append("")
            first -= 1
        if isinstance(statement, ast.ImportFrom):
            statement.names = [alias for alias in statement.names if (alias.asname or alias.name) in used]
            parts.append(ast.unparse(statement))
        else:
            parts += lines[statement.lineno - 1 : statement.end_lineno]
    between = "\n\n\n" if kept and isinstance(kept[-1], ast.FunctionDef) else "\n\n"
    return "\n".join(parts).strip("\n") + between + own + "\n"


def _names_used(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _names_bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.FunctionDef):
        return {statement.name}
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}

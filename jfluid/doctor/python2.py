"""Conversion of Python 2 scripts to Python 3, as a diff first: `jfluid doctor --fix-python2`.

fissix, which continues lib2to3, does the parsing.
"""

import ast
import difflib
import functools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jfluid import errors
from jfluid.doctor import parsing, sources
from jfluid.files.storage import atomic_write

# Left out: changes of style, and relative imports, which a script that is run has none of.
_LEFT_OUT = {
    "buffer",
    "idioms",
    "import",
    "input",
    "isinstance",
    "future",
    "set_literal",
    "ws_comma",
}
_ONLY_PYTHON_2 = {"print", "exec", "unicode", "dict", "map", "filter", "zip"}  # mean the same in 3
# Names, calls and subscripts that follow each other in one expression: fissix takes their number to the
# third power.
_LONGEST_CHAIN = 32
_DEEPEST = 100  # brackets in brackets: Python 3 takes no more than 200
_TOKEN = re.compile(r"(?P<space>\s+|\\\n|#[^\n]*)|(?P<text>[\w'\"`]+)|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<dot>\.)|.")
# A block whose only statement, an import, was removed: its line has nothing but the indentation.
_EMPTIED = re.compile(
    r"^(?P<space>[ \t]*)(?P<head>\S[^\n]*:[ \t]*(#[^\n]*)?)\n(?P<inner>(?P=space)[ \t]+)\n", re.MULTILINE
)
_ENCODING = re.compile(r"^(\s*)(reload\(sys\)|sys\.setdefaultencoding\(.*\))\s*$", re.MULTILINE)


@dataclass
class Conversion:
    """Result of the conversion of a script.

    Attributes:
        path: where it lies.
        before, after: its text.
        divisions: lines with a division that gives another result for integers, which is left as it is.
        recoded: whether it was in an encoding that it did not declare, and becomes UTF-8.
    """

    path: str
    before: str
    after: str
    encoding: str = "utf-8"
    divisions: list[int] = field(default_factory=list)
    recoded: bool = False

    @property
    def changed(self) -> bool:
        """True if there is a change to write."""
        return self.recoded or self.before != self.after

    def diff(self) -> str:
        """Return the changes as a unified diff."""
        return "".join(
            difflib.unified_diff(
                self.before.splitlines(True),
                [line if line.endswith("\n") else line + "\n" for line in self.after.splitlines(True)],
                self.path,
                f"{self.path} (Python 3)",
            )
        )

    def apply(self) -> str:
        """Write the script; the old one is kept beside it, under the name that is returned.

        Raises DataError where a copy of an earlier time is in the way, and OSError.
        """
        path = os.path.realpath(self.path)
        kept = f"{path}.python2"
        if os.path.lexists(kept):
            raise errors.DataError(f"{kept}: this copy of an earlier time is in the way; move it")
        with open(path, "rb") as file:
            old = file.read()
        with atomic_write(kept) as copy:
            copy.write(old)
        with atomic_write(path) as new:
            new.write(self.after.encode(self.encoding))
        return kept


def conversions(paths: Sequence[str]) -> list[Conversion]:
    """Return the conversions of the scripts of some paths, without unchanged scripts.

    Raises DataError for paths as `sources.find` does, and for a script that cannot be read as
    Python 2 either; UnsupportedError without fissix.
    """
    found = []
    for kind, path in sources.find(paths):
        if kind == "script":
            with open(path, "rb") as file:
                data = file.read(sources.LARGEST_SCRIPT + 1)
            try:
                text, fault = parsing.text_of(data)
            except parsing.Unreadable as error:
                raise errors.DataError(f"{path}: {error.fault.happens}") from None
            after = converted(text, path)
            encoding = "utf-8" if fault else parsing.encoding_of(data)
            conversion = Conversion(path, text, after, encoding, recoded=fault is not None)
            if conversion.changed:
                conversion.divisions = _divisions(after)
                found.append(conversion)
    return found


def converted(text: str, name: str) -> str:
    """Return the text of a script in Python 3; the same where it has nothing of Python 2.

    Raises DataError where it is neither, or has expressions that take too long; UnsupportedError
    without fissix.
    """
    try:
        parsing.tree_of(text)
        python_3 = True
    except parsing.Unreadable:
        python_3 = False
    prepared = _ENCODING.sub(r"\1pass  # \2", text)
    if not python_3:
        prepared = "".join(_without_tabs(line) for line in prepared.splitlines(True))
    tool = _tool(python_3)
    if (line := _line_of_chain(prepared)) is not None:
        raise errors.DataError(
            f"{name}:{line}: more than {_LONGEST_CHAIN} names, calls or subscripts in a row, or {_DEEPEST} "
            "brackets in brackets, which are not converted: assign a part of the expression to a variable"
        )
    try:
        tree = tool.refactor_string(prepared if prepared.endswith("\n") else prepared + "\n", name)
        after = _with_statements(str(tree))
    except Exception as error:  # fissix raises the errors of its parser, its tokenizer, and others
        raise errors.DataError(f"{name}: neither Python 3 nor Python 2: {error}") from error
    return text if after.rstrip("\n") == text.rstrip("\n") else after


def _with_statements(text: str) -> str:
    """Return a text with `pass` in the blocks that have lost all statements."""
    try:
        parsing.tree_of(text)
    except parsing.Unreadable:
        return _EMPTIED.sub(r"\g<space>\g<head>\n\g<inner>pass\n", text)
    return text


def _line_of_chain(text: str) -> int | None:
    """Return the line with a chain or a nesting that is too deep for the converter.

    What stands in strings counts, too: there are few, and nothing has to be right about them here.
    """
    line, lengths, before = 1, [0], ""  # a length for each bracket that is open
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "space":
            line += match.group().count("\n")
            continue
        if kind == "close":
            if len(lengths) > 1:
                lengths.pop()
        elif kind in ("open", "dot") and before in ("text", "close"):
            lengths[-1] += 1
            if lengths[-1] > _LONGEST_CHAIN:
                return line
        elif not (kind == "text" and before == "dot"):
            lengths[-1] = 0
        if kind == "open":
            lengths.append(0)
            if len(lengths) > _DEEPEST:
                return line
        before = kind or ""
    return None


@functools.cache
def _tool(python_3: bool) -> Any:
    try:
        from fissix import refactor
    except ModuleNotFoundError as error:
        raise errors.UnsupportedError(
            "scripts of Python 2 are converted by fissix: pip install 'jfluid[python2]'"
        ) from error
    left_out = _LEFT_OUT | (_ONLY_PYTHON_2 if python_3 else set())
    fixers = [
        name for name in refactor.get_fixers_from_package("fissix.fixes") if name.rpartition(".fix_")[2] not in left_out
    ]
    return refactor.RefactoringTool(fixers, {"print_function": python_3})


def _without_tabs(line: str) -> str:
    """Return a line with its indentation's tabs expanded to spaces, as Python 2 counts tabs."""
    start = len(line) - len(line.lstrip(" \t"))
    return line[:start].expandtabs(8) + line[start:]


def _divisions(text: str) -> list[int]:
    """Return the lines with divisions of possible integers."""
    if "import division" in text:
        return []
    try:
        tree = parsing.tree_of(text)
    except parsing.Unreadable:
        return []
    return sorted(
        {
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.BinOp | ast.AugAssign)
            and isinstance(node.op, ast.Div)
            and not any(isinstance(n, ast.Constant) and isinstance(n.value, float) for n in ast.walk(node))
        }
    )

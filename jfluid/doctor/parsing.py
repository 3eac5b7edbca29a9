"""Source files as syntax trees: encodings, notebooks, and faults that stop Python's parser."""

import ast
import io
import json
import re
import tokenize
import warnings
from typing import NamedTuple

from jfluid.doctor.sources import LARGEST_SCRIPT

# What the compiler says of Python 2, and what that is.
_PYTHON_2 = {
    "Missing parentheses in call to 'print'": "a print statement",
    "Missing parentheses in call to 'exec'": "an exec statement",
    "multiple exception types must be parenthesized": "`except X, e`",
    "leading zeros in decimal integer literals": "an octal number without 0o",
    "inconsistent use of tabs": "tabs and spaces in one block",
    "invalid decimal literal": "a number such as 10L",
}
_STATEMENTS = (
    (re.compile(r"^\s*print(\s+[^\s(=.,]|\s*>>)"), "a print statement"),
    (re.compile(r"^\s*exec\s+[^\s(=]"), "an exec statement"),
    (re.compile(r"^\s*except\s+[\w.()]+\s*,\s*\w+\s*:"), "`except X, e`"),
    (re.compile(r"^\s*raise\s+[\w.]+\s*,"), "`raise X, text`"),
    (re.compile(r"<>"), "the operator <>"),
    (re.compile(r"`[^`]+`"), "backquotes"),
    (re.compile(r"\bur['\"]"), "a string ur''"),
    (re.compile(r"\b0[0-7]+\b"), "an octal number without 0o"),
    (re.compile(r"\b\d+[lL]\b"), "a number such as 10L"),
    (re.compile(r"\blambda\s*\(|\bdef\s+\w+\(.*\([\w, ]+\)\s*[,)]"), "a parameter in parentheses"),
)


class Fault(NamedTuple):
    """Reason why a file cannot be parsed as Python.

    `kind` is "python-2", "syntax", "encoding", "binary", "too-large", "too-deep" or "notebook".
    """

    kind: str
    line: int
    happens: str


TOO_DEEP = Fault("too-deep", 0, "expressions or statements lie deeper in each other than Python's parser goes")


class Unreadable(Exception):
    """A file is no source that Python reads."""

    def __init__(self, fault: Fault):
        super().__init__(fault.happens)
        self.fault = fault


def text_of(data: bytes) -> tuple[str, Fault | None]:
    """Return the text of a source file in its declared encoding, and the fault that Python reports.

    Raises Unreadable for what is no text.
    """
    if len(data) > LARGEST_SCRIPT:
        size = f"{len(data) / (1 << 20):.0f} MiB"
        limit = LARGEST_SCRIPT >> 20
        raise Unreadable(Fault("too-large", 0, f"{size}: no script is that large (limit {limit})"))
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise Unreadable(Fault("binary", line, "a zero byte: this is no source file"))
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding).read(), None
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return _undeclared(data)


def encoding_of(data: bytes) -> str:
    """Return the encoding that a source declares; UTF-8 without a mark where it declares none."""
    return tokenize.detect_encoding(io.BytesIO(data).readline)[0]


def _undeclared(data: bytes) -> tuple[str, Fault]:
    """Return the text of a file with a wrong or missing encoding declaration."""
    line = 1
    for line, text in enumerate(data.split(b"\n"), 1):  # noqa: B007
        try:
            text.decode("utf-8")
        except UnicodeDecodeError:
            break
    for encoding in ("gb18030", "latin-1"):
        try:
            text_ = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        break
    text_ = text_.replace("\r\n", "\n").replace("\r", "\n")
    return text_, Fault("encoding", line, "bytes that are not UTF-8, and no encoding is declared")


def tree_of(text: str) -> ast.Module:
    """Return the syntax tree of a source. Raises Unreadable."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old scripts have "\d" in plain strings
            # A declared encoding means nothing in text.
            return ast.parse(text)
    except SyntaxError as error:
        raise Unreadable(_fault(text, error)) from None
    except ValueError as error:
        raise Unreadable(Fault("syntax", 0, f"the parser gives up: {error}")) from None
    except (RecursionError, MemoryError):
        raise Unreadable(TOO_DEEP) from None


def _fault(text: str, error: SyntaxError) -> Fault:
    """Classify a syntax error: a fault of Python 2, or of any Python."""
    line, message = error.lineno or 0, error.msg or "invalid syntax"
    for start, what in _PYTHON_2.items():
        if message.startswith(start):
            return Fault("python-2", line, f"{what}, which Python 3 does not have")
    lines = text.splitlines()
    shown = lines[line - 1] if 0 < line <= len(lines) else ""
    for pattern, what in _STATEMENTS:
        if pattern.search(shown):
            return Fault("python-2", line, f"{what}, which Python 3 does not have")
    return Fault("syntax", line, f"a syntax error: {message}")


def cells_of(data: bytes) -> list[tuple[int, str]]:
    """Return the cells of code of a notebook, numbered from 1, without lines that are no Python.

    Raises Unreadable for what is no notebook.
    """
    try:
        record = json.loads(data)
        cells = record["cells"] if "cells" in record else record["worksheets"][0]["cells"]
        found = []
        for number, cell in enumerate(cells, 1):
            if cell["cell_type"] == "code":
                source = cell.get("source", cell.get("input", ""))
                found.append((number, _plain("".join(source))))
        return found
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise Unreadable(Fault("notebook", 0, "this is no notebook of Jupyter")) from None


def _plain(source: str) -> str:
    """Return a cell without notebook commands (`!pip install`, `%matplotlib inline`)."""
    if source.lstrip().startswith("%%"):
        return ""
    return "\n".join(
        line[: len(line) - len(line.lstrip())] + "pass" if line.lstrip()[:1] in ("!", "%") else line
        for line in source.splitlines()
    )

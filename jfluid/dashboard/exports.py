"""The page as one file, and a run's numbers as a table."""

import base64
import csv
import functools
import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

from jfluid.dashboard import logs
from jfluid.dashboard.runs import Run, Runs
from jfluid.printable import printable
from jfluid.record import lines

_POINTS = 300_000  # of a page that is kept
_LOG_BYTES = 16 << 10
_FOLDER = Path(__file__).with_name("page")
_LICENCE = _FOLDER / "uPlot.LICENSE"
_STYLE = '<link rel="stylesheet" href="page.css">'
_SCRIPT = '<script type="module" src="page.js"></script>'
_DATA = '<script type="application/json" id="data"></script>'
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
# What a spreadsheet would compute.
_FORMULA = re.compile(r"[=+\-@\t\r]")


@functools.cache
def page() -> str:
    """Return the page with its style and script in it, without data."""
    text = (_FOLDER / "page.html").read_text()
    for tag, filled in ((_STYLE, f"<style>{style()}</style>"), (_SCRIPT, f'<script type="module">{script()}</script>')):
        assert text.count(tag) == 1
        text = text.replace(tag, filled)
    return text


@functools.cache
def style() -> str:
    """Return the page's style, with the style of its plotting library."""
    return (_FOLDER / "uPlot.min.css").read_text() + (_FOLDER / "page.css").read_text()


@functools.cache
def script() -> str:
    """Return the page's plotting library and modules as one module: each module follows its imports.

    A page is one file, which carries the library's licence.
    """
    library = _FOLDER / "uPlot.iife.min.js"
    found = {"licence": f"/*\n{_LICENCE.read_text()}\n*/\n", "library": f"{library.read_text()}\n"}

    def add(name: str) -> None:
        text = (_FOLDER / f"{name}.js").read_text()
        for needed in _IMPORT.findall(text):
            if needed not in found:
                add(needed)
        found[name] = re.sub(r"^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)

    add("page")
    return "".join(found.values())


@functools.cache
def policy() -> str:
    """Return the page's content security policy, which allows the script and style of the page only."""
    return (
        f"default-src 'none'; script-src {_hash(script())}; style-src {_hash(style())}; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def offline(runs: Runs) -> str:
    """Return the page with all that is known in it, which loads nothing."""
    tails = [{name: logs.tail(run.folder, name, _LOG_BYTES) for name in logs.names(run.folder)} for run in runs.runs]
    # in a script nothing but its end means anything to HTML
    text = runs.everything(_POINTS, logs=tails).replace("<", "\\u003c")
    filled = _DATA.replace("></script>", f">{text}</script>")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'
    head, found, rest = page().partition(_DATA)
    assert found
    return head.replace("<head>", f"<head>\n{meta}", 1) + filled + rest


def table(run: Run) -> Iterator[str]:
    """Return the lines of a table (CSV) of all numbers in a record: process, name, step, time, value.

    A name that a spreadsheet would take for a formula stands behind an apostrophe.
    """
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(("process", "name", "step", "time", "value"))
    for path in lines.files(run.place):
        source = _cell(path.name.removesuffix(lines.SUFFIX).replace(".", " "))
        for line in lines.Tail(path).lines():
            for name, value in numbers_of(line).items():
                rows.writerow((source, _cell(name), line.get("step", ""), f"{line['t']:.3f}", value))
            if text.tell() > 1 << 16:
                yield text.getvalue()
                text.seek(0)
                text.truncate()
    yield text.getvalue()


def numbers_of(line: lines.Line) -> dict[str, float]:
    """Return the numbers of a line by name; progress metrics follow the loop's description."""
    if not isinstance(line.get("step", 0), int | None):
        return {}
    if line["kind"] == "scalars":
        return lines.numbers(line.get("scalars"))
    if line["kind"] == "progress":
        title = line.get("description")
        return {f"{title}: {name}": value for name, value in lines.numbers(line.get("metrics")).items()}
    return {}


def _cell(text: str) -> str:
    text = printable(text, lines=False)
    return f"'{text}" if _FORMULA.match(text) else text

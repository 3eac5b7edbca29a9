"""A diagnosis as a table, or as JSON."""

import json
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from jfluid.doctor.findings import Diagnosis, Finding, Severity
from jfluid.printable import printable, printable_json

_HEADINGS = {
    Severity.BLOCKER: "stops it",
    Severity.CHANGE: "change",
    Severity.DIFFERENCE: "differs",
    Severity.NOTE: "note",
}
_COLOURS = {
    Severity.BLOCKER: "red",
    Severity.CHANGE: "yellow",
    Severity.DIFFERENCE: "cyan",
    Severity.NOTE: "bright_black",
}
_MOST_PLACES = 5  # of one finding that occurs at many


def as_json(diagnosis: Diagnosis, run: dict[str, Any] | None = None) -> str:
    """Return the diagnosis as a JSON object.

    Its keys are `verdict`, `exit_code`, `examined` and `findings`, and `run` where the script was run.
    """
    record: dict[str, Any] = {
        "verdict": diagnosis.verdict,
        "exit_code": diagnosis.exit_code,
        "examined": {
            "scripts": diagnosis.scripts,
            "notebooks": diagnosis.notebooks,
            "models": diagnosis.models,
            "files that use Fluid": diagnosis.fluid_files,
        },
        "findings": [finding.record() for finding in diagnosis.findings],
    }
    if run is not None:
        record["run"] = run
    return printable_json(json.dumps(record, indent=1, ensure_ascii=False))


def show(diagnosis: Diagnosis, file: TextIO | None = None) -> None:
    """Print the verdict with the lines that matter most, a table by severity, and a line that sums up."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=file or sys.stdout, soft_wrap=False, highlight=False)
    if not console.is_terminal:
        console = Console(file=file or sys.stdout, width=160, highlight=False)
    if foremost := diagnosis.foremost():  # before the tables, which may be long
        console.print(Text(printable(diagnosis.verdict, lines=False), style="bold"))
        for finding, count in foremost:
            more = f" (and {count - 1} more)" if count > 1 else ""
            line = f"  {finding.place}{more}: {finding.happens}; {finding.do}"
            console.print(Text(printable(line, lines=False)))
    for severity, found in diagnosis.by_severity():
        table = Table(box=box.SIMPLE_HEAD, title_justify="left", expand=False, pad_edge=False)
        table.add_column(_HEADINGS[severity], style=_COLOURS[severity], overflow="fold")
        table.add_column("what happens", overflow="fold")
        table.add_column("what to do", overflow="fold")
        for places, finding in _grouped(found):
            texts = "\n".join(places), printable(finding.happens), printable(finding.do)
            table.add_row(*map(Text, texts))
        console.print(table)
    console.print(Text(_examined(diagnosis)))
    console.print(Text(printable(diagnosis.verdict, lines=False), style="bold"))


def _grouped(found: Sequence[Finding]) -> list[tuple[list[str], Finding]]:
    """Group equal findings, each with the places of the group."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        groups.setdefault((finding.happens, finding.do), []).append(finding)
    return [(_places(group), group[0]) for group in groups.values()]


def _places(group: Sequence[Finding]) -> list[str]:
    places = [printable(finding.place, lines=False) for finding in group]
    more = len(places) - _MOST_PLACES
    return places if more <= 1 else [*places[:_MOST_PLACES], f"and {more} more places"]


def _examined(diagnosis: Diagnosis) -> str:
    counts = {
        "script": diagnosis.scripts,
        "notebook": diagnosis.notebooks,
        "model": diagnosis.models,
    }
    shown = [f"{n} {what}{'s' if n != 1 else ''}" for what, n in counts.items() if n]
    return f"examined {', '.join(shown) or 'nothing'}; {diagnosis.fluid_files} with Fluid"

"""Findings of the doctor, a `Finding` for each place, and their verdict on the scripts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any


class Severity(IntEnum):
    """Severity of a finding for its script, the worst first."""

    BLOCKER = 0  # what the script uses is not here
    CHANGE = 1  # the script stops there until it is edited
    DIFFERENCE = 2  # it runs, and does something else than under Fluid
    NOTE = 3  # it runs; somebody may want to know


@dataclass(frozen=True)
class Finding:
    """Place in a file, and the problem there.

    Attributes:
        severity: what it means for the script.
        file: the path as it was found.
        line: counted from 1; 0 for a file as a whole.
        code: a short name of the kind of finding, for programs that read the list.
        subject: the name, operator or setting that it is about.
        happens: what happens there.
        do: what to do about it; empty where nothing needs to be done.
        cell: of a notebook, the cell that `line` is counted in, from 1; 0 elsewhere.
    """

    severity: Severity
    file: str
    line: int
    code: str
    subject: str
    happens: str
    do: str = ""
    cell: int = 0

    @property
    def place(self) -> str:
        """`file:line`, with the cell of a notebook between."""
        parts = [self.file]
        if self.cell:
            parts.append(f"cell {self.cell}")
        if self.line:
            parts.append(str(self.line))
        return ":".join(parts)

    def record(self) -> dict[str, Any]:
        """Return the finding as JSON has it."""
        return asdict(self) | {"severity": self.severity.name.lower()}


@dataclass
class Diagnosis:
    """Everything that was found in some paths.

    Attributes:
        findings: in the order of the files and lines.
        scripts, notebooks, models: how many of each were read.
        fluid_files: how many of them use Fluid.
    """

    findings: list[Finding] = field(default_factory=list)
    scripts: int = 0
    notebooks: int = 0
    models: int = 0
    fluid_files: int = 0

    def of(self, severity: Severity) -> list[Finding]:
        """Return the findings of one severity."""
        return [f for f in self.findings if f.severity is severity]

    def by_severity(self) -> Iterator[tuple[Severity, list[Finding]]]:
        """Severities with findings, the worst first."""
        for severity in Severity:
            if found := self.of(severity):
                yield severity, found

    @property
    def exit_code(self) -> int:
        """0: runs (differences and notes included); 1: runs after changes; 3: does not run."""
        if self.of(Severity.BLOCKER):
            return 3
        return 1 if self.of(Severity.CHANGE) else 0

    @property
    def verdict(self) -> str:
        """Verdict in a line: whether the scripts and models run here."""
        blockers, changes = self.of(Severity.BLOCKER), self.of(Severity.CHANGE)
        differences = self.of(Severity.DIFFERENCE)
        if blockers:
            return f"does not run: {_reasons(blockers)}"
        if changes:
            later = f", with {_count(differences, 'difference')}" if differences else ""
            return f"runs after {_count(changes, 'change')}{later}"
        if differences:
            return f"runs, with {_count(differences, 'difference')}"
        return "runs as it is" if self.fluid_files else "no use of Fluid found"

    def foremost(self, most: int = 3) -> list[tuple[Finding, int]]:
        """Return the blocking findings, the worst and most frequent first, each with its number of places."""
        stops = self.of(Severity.BLOCKER) + self.of(Severity.CHANGE)
        groups: dict[tuple[Severity, str, str], list[Finding]] = {}
        for finding in stops:
            groups.setdefault((finding.severity, finding.happens, finding.do), []).append(finding)
        ordered = sorted(groups.values(), key=lambda group: (group[0].severity, -len(group)))
        return [(group[0], len(group)) for group in ordered[:most]]


def _count(found: Sequence[Finding], what: str) -> str:
    return f"{len(found)} {what}{'s' if len(found) != 1 else ''}"


def _reasons(found: Iterable[Finding], most: int = 4) -> str:
    """Return the subjects of some findings, the most frequent first."""
    counts = Counter(f.subject for f in found).most_common()
    shown = [f"{name} ({n} places)" if n > 1 else name for name, n in counts[:most]]
    return ", ".join(shown) + (f" and {len(counts) - most} more" if len(counts) > most else "")

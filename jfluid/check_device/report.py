"""Results of the checks: rows of a table, a verdict, JSON."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from jfluid.install_check import Machine

_NAMED = 6  # of what was left out of a section
State = Literal["right", "wrong", "left out"]


@dataclass(frozen=True)
class Row:
    """Result of a check.

    Attributes:
        state: "left out" where it was not made; `about` says why.
        about: what was compared, and what differs.
        figures: by name, with units in the names.
    """

    section: str
    name: str
    state: State
    about: str = ""
    figures: Mapping[str, float | None] = field(default_factory=dict)


def compared(section: str, name: str, apart: float, bound: float, figure: str) -> Row:
    """Return the row of a relative difference with the bound of rounding."""
    right = apart <= bound  # NaN is not
    about = "" if right else f"at most {bound} is rounding"
    return Row(section, name, "right" if right else "wrong", about, {figure: apart})


@dataclass(frozen=True)
class Clock:
    """The time that checks have, in seconds."""

    limit: float
    begin: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Return the seconds until the end of the checks."""
        return self.limit - (time.monotonic() - self.begin)

    def part(self, share: float) -> "Clock":
        """Return the clock of checks that end when this share of the whole time has gone."""
        return Clock(self.limit * share, self.begin)


@dataclass
class Report:
    """All checks of one run.

    Attributes:
        checked: number and kind of the devices.
    """

    machine: Machine
    checked: str
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """True if a check ran and no check failed."""
        states = {row.state for row in self.rows}
        return "wrong" not in states and "right" in states

    def verdict(self) -> str:
        """Return it in one line."""
        number = {s: sum(r.state == s for r in self.rows) for s in ("right", "wrong", "left out")}
        counts = ", ".join(f"{n} {state}" for state, n in number.items() if n)
        how = "works" if self.right else "does not work as it should"
        only = ", as far as it was checked" if self.right and number["left out"] else ""
        found = counts or "nothing was checked"
        said = f"jfluid {how} on {self.checked}{only}: {found}, {self.seconds:.0f} s"
        return "; left out: ".join(filter(None, [said, ", ".join(self._left_out())]))

    def _left_out(self) -> Iterator[str]:
        """Yield skipped checks: names by section, or their number."""
        by_section: dict[str, list[str]] = {}
        for row in self.rows:
            if row.state == "left out":
                by_section.setdefault(row.section, []).append(row.name)
        for section, names in by_section.items():
            few = len(names) <= _NAMED
            yield f"{section} ({', '.join(names) if few else f'{len(names)} of them'})"

    def write(self, path: Path) -> None:
        """Write it as JSON, which has no numbers that are not finite."""
        rows = [asdict(row) for row in self.rows]
        for row in rows:
            row["figures"] = {n: v if _finite(v) else None for n, v in dict(row["figures"]).items()}
        found = {
            "verdict": self.verdict(),
            "right": self.right,
            "seconds": self.seconds,
            "checked": self.checked,
            "machine": asdict(self.machine) | {"place": str(self.machine.place)},
            "rows": rows,
        }
        path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")

    def lines(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the table: section, name, state, and the rest as text."""
        for row in self.rows:
            figures = ", ".join(f"{n} {_short(v)}" for n, v in row.figures.items() if _finite(v))
            yield row.section, row.name, row.state, "; ".join(filter(None, [figures, row.about]))


def _finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def _short(value: float | None) -> str:
    return f"{value:.4g}"

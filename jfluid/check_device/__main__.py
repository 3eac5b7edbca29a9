"""Check this machine's devices for correctness and speed.

    python -m jfluid.check_device                  # ten minutes at most
    python -m jfluid.check_device --quick          # two minutes, less of everything
    python -m jfluid.check_device --json FILE      # the results, to send along with a report

It checks all GPUs, or the CPU where there is none. The exit code is 1 where a check fails.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.table import Table

from jfluid.check_device import collectives, devices, goldens, jobs, operators, speed, structure
from jfluid.check_device.devices import Devices
from jfluid.check_device.report import Clock, Report, Row
from jfluid.install_check import machine

Section = Callable[[Devices], Iterator[Row]]
# Each with the share of the whole time at which it ends, so that all have some: on GPUs, where speed takes long, and
# on CPUs, where programs do.
SECTIONS: Mapping[str, tuple[Section, float, float]] = MappingProxyType(
    {
        operators.SECTION: (operators.check, 0.3, 0.2),
        structure.SECTION: (structure.check, 0.35, 0.25),
        goldens.SECTION: (goldens.check, 0.48, 0.65),
        goldens.EAGER: (goldens.check_eager, 0.56, 0.75),
        collectives.SECTION: (collectives.check, 0.64, 0.8),
        jobs.SERVERS: (jobs.check, 0.77, 0.9),
        speed.SECTION: (speed.check, 1.0, 1.0),
    }
)
MINUTES, QUICK_MINUTES = 10.0, 2.0
_COLOURS = {"right": "green", "wrong": "bold red", "left out": "yellow"}


def arguments_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of the arguments. `name` is the command's name in usage and errors."""
    parser = argparse.ArgumentParser(
        name,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="two minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found as JSON")
    parser.add_argument("--cpu", action="store_true", help="check the CPU, though there are GPUs")
    parser.add_argument(
        "--only",
        choices=list(SECTIONS),
        action="append",
        metavar="SECTION",
        help=", ".join(SECTIONS),
    )
    return parser


def main(arguments: Sequence[str] | None = None, name: str = "python -m jfluid.check_device") -> int:
    """Run the checks and return the exit code. `name` is the command's name in usage and errors."""
    given = arguments_parser(name).parse_args(arguments)
    clock = Clock(60 * (QUICK_MINUTES if given.quick else MINUTES))
    checked = devices.found(given.cpu, given.quick, clock)
    kind = f"{len(checked.places)} x {checked.first.device_kind}"
    report = Report(machine(), kind)
    console = Console(stderr=True)
    for name in given.only or SECTIONS:
        with console.status(name):
            section, on_gpus, on_cpus = SECTIONS[name]
            end = on_gpus if checked.on_gpus else on_cpus
            mine = replace(checked, clock=clock.part(1.0 if given.only else end))
            report.rows += _rows(name, section, mine)
    report.seconds = time.monotonic() - clock.begin
    _print(report)
    if given.json:
        report.write(given.json)
    return 0 if report.right else 1


def _rows(name: str, section: Section, checked: Devices) -> list[Row]:
    """Yield the rows of a section; an exception of the section becomes a row, and the checks continue."""
    if checked.clock.left <= 0:
        return [Row(name, "all", "left out", "no time was left")]
    found = []
    try:
        for row in section(checked):
            found.append(row)  # those before an error count
    except Exception as error:
        traceback.print_exc()
        about = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        found.append(Row(name, "all others", "wrong", about))
    return found


def _print(report: Report) -> None:
    table = Table("", "", "", "", show_header=False)
    for section, name, state, rest in report.lines():
        table.add_row(section, name, f"[{_COLOURS[state]}]{state}[/]", rest)
    console = Console()
    console.print(report.machine.text(), markup=False)
    console.print(table)
    console.print(report.verdict(), markup=False)


if __name__ == "__main__":
    sys.exit(main())

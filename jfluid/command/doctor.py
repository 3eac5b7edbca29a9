"""`jfluid doctor`: its options and exit codes.

0: runs here, maybe with differences; 1: runs after changes; 3: does not run; 2: wrong paths or options.
"""

import argparse
import gc
import sys
from collections.abc import Sequence

from jfluid import errors
from jfluid.doctor import Diagnosis, examine, python2, report, trial
from jfluid.printable import printable


def main(arguments: Sequence[str]) -> int:
    """Examine the paths of the arguments and return the exit code."""
    parser = arguments_parser()
    given = list(arguments)
    cut = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:cut])
    options.arguments = given[cut + 1 :]
    if options.apply and not options.fix_python2:
        parser.error("--apply goes with --fix-python2")
    if options.run and (len(options.paths) != 1 or options.fix_python2):
        parser.error("--run takes one script")
    if min(options.steps, options.seconds, options.memory) <= 0:
        parser.error("--steps, --seconds and --memory: expected numbers above 0")
    try:
        if options.fix_python2:
            return _fix_python2(options.paths, options.apply)
        gc.disable()  # syntax trees have no circles, and are many
        diagnosis = examine(options.paths)
    except (errors.JFluidError, OSError) as error:
        print(printable(f"jfluid doctor: {error}"), file=sys.stderr)
        return 2
    finally:
        gc.enable()
    if not options.run:
        print(report.as_json(diagnosis)) if options.json else report.show(diagnosis)
        return diagnosis.exit_code
    return _run(diagnosis, options)


def _run(diagnosis: Diagnosis, options: argparse.Namespace) -> int:
    """Run the one script, and report both; returns the exit code, 3 where it did not run."""
    limits = trial.TrialLimits(options.steps, options.seconds, options.memory)
    try:
        outcome = trial.run(options.paths[0], options.arguments, limits)
    except errors.DataError as error:
        print(printable(f"jfluid doctor: {error}"), file=sys.stderr)
        return 2
    if options.json:
        print(report.as_json(diagnosis, outcome.record()))
    else:
        report.show(diagnosis)
        print(printable("\n".join(outcome.lines())))
    return diagnosis.exit_code if outcome.runs else 3


def _fix_python2(paths: Sequence[str], apply: bool) -> int:
    """Show or write the conversion of Python 2 scripts; return 1 where a script would change."""
    found = python2.conversions(paths)
    for conversion in found:
        print(printable(conversion.diff()), end="")
        path = printable(conversion.path, lines=False)
        if conversion.recoded:
            print(f"{path}: becomes UTF-8")
        for line in conversion.divisions:
            print(f"{path}:{line}: a division, which Python 2 rounds down for integers: look at it (//)")
        if apply:
            print(f"{path}: written; the old script is {printable(conversion.apply(), lines=False)}")
    if found and not apply:
        print(f"{len(found)} to change; --apply writes the changes")
    return 1 if found and not apply else 0


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(
        prog="jfluid doctor",
        description="Says what happens to scripts, packages, notebooks and saved models of Fluid "
        "here, without running them.",
        epilog="Exit codes: 0 runs (differences and notes included), 1 runs after changes, 3 does "
        "not run, 2 wrong paths or options.",
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file or a folder of them")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--fix-python2",
        action="store_true",
        help="show what scripts of Python 2 become in Python 3, as a diff",
    )
    parser.add_argument(
        "--apply",
        action="store_true",
        help="with --fix-python2: write it, and keep the old scripts",
    )
    limits = trial.TrialLimits()
    parser.add_argument(
        "--run",
        action="store_true",
        help="run the one script, too, in a copy of its folder; arguments for it stand behind --",
    )
    parser.add_argument("--steps", type=int, default=limits.steps, help="with --run: steps (default %(default)s)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=limits.seconds,
        help="with --run: the longest time (default %(default)s)",
    )
    parser.add_argument(
        "--memory",
        type=int,
        default=limits.memory,
        help="with --run: the most memory, in MiB (default %(default)s)",
    )
    return parser

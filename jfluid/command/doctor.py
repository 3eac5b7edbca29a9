"""`jfluid doctor`: its options and exit codes.

0: runs here, maybe with differences; 1: needs changes; 3: cannot run; 2: wrong paths or options.
"""

import argparse
import gc
import sys
from collections.abc import Sequence

from jfluid import errors
from jfluid.doctor import examine, python2, report


def main(arguments: Sequence[str]) -> int:
    """Examine what the arguments name; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.apply and not options.fix_python2:
        parser.error("--apply goes with --fix-python2")
    try:
        if options.fix_python2:
            return _fix_python2(options.paths, options.apply)
        gc.disable()  # syntax trees have no circles, and are many
        diagnosis = examine(options.paths)
    except (errors.JFluidError, OSError) as error:
        print(f"jfluid doctor: {error}", file=sys.stderr)
        return 2
    finally:
        gc.enable()
    if options.json:
        print(report.as_json(diagnosis))
    else:
        report.show(diagnosis)
    return diagnosis.exit_code


def _fix_python2(paths: Sequence[str], apply: bool) -> int:
    """Show, or write, what scripts of Python 2 become in Python 3; 1 where there is something to
    apply.
    """
    found = python2.conversions(paths)
    for conversion in found:
        print(conversion.diff(), end="")
        if conversion.recoded:
            print(f"{conversion.path}: becomes UTF-8")
        for line in conversion.divisions:
            print(
                f"{conversion.path}:{line}: a division, which Python 2 rounds down for integers: look at it (//)"
            )
        if apply:
            print(f"{conversion.path}: written; the old script is {conversion.apply()}")
    if found and not apply:
        print(f"{len(found)} to change; --apply writes them")
    return 1 if found and not apply else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jfluid doctor",
        description="Says what happens to scripts, packages, notebooks and saved models of Fluid "
        "here, without running them.",
        epilog="Exit codes: 0 runs (differences and notes included), 1 needs changes, 3 cannot "
        "run, 2 wrong paths or options.",
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
    return parser

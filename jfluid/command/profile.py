"""`jfluid profile`: some steps of a script, as a trace for Perfetto and a table of the time by operator."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jfluid import errors, flags
from jfluid.compat import scripts
from jfluid.printable import printable
from jfluid.record import profiles, step_traces
from jfluid.record.phases import PHASES

_STEPS = "100:110"
_INTERPRETS = "FLAGS_interpret_first_steps"


def main(arguments: Sequence[str]) -> int:
    """Run a script and profile some steps; return the exit code: 1 where the script ends before these steps."""
    own = list(arguments)
    after = own[own.index("--") + 1 :] if "--" in own else []
    options, others = arguments_parser().parse_known_args(own[: len(own) - len(after) - 1] if "--" in own else own)
    try:
        first, count = profiles.parse_steps(options.steps)
    except errors.DataError as error:
        print(printable(f"jfluid profile: {error}"), file=sys.stderr)
        return 2
    if flags.given(_INTERPRETS) is None:  # interpreted steps have no compiled instructions to measure
        flags.set_flags({_INTERPRETS: False})
    target = Path(options.output)
    profile = profiles.StepProfile(first, count, lambda profile: _write(profile, target, options.sort))
    words = [*(["-m"] if options.as_module else []), options.target, *others, *after]
    try:
        scripts.run(words, "jfluid profile")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise
    finally:
        if profile.started and not profile.end:
            profile.stop()
    if profile.started:
        return 0
    print(
        f"jfluid profile: the script took {PHASES.steps} steps, and none from step {first} on: "
        "choose earlier steps with --steps FIRST:END",
        file=sys.stderr,
    )
    return 1


def _write(profile: profiles.StepProfile, target: Path, sort: str) -> None:
    """Write the trace, and print the table."""
    from jfluid.profiler import print_times

    instructions = profile.instructions()
    events = step_traces.of_phases(profile.phases) + step_traces.of_instructions(instructions)
    step_traces.write(target, {"trainer 0": events})
    print_times(step_traces.times_of(instructions), sort, str(target))


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(
        prog="jfluid profile",
        usage="%(prog)s [options] script.py [options and arguments of the script]",
        allow_abbrev=False,
        description="Runs a script and profiles some of its steps: a trace that https://ui.perfetto.dev opens, and the "
        "time of each operator type. A step is a run of a program with a feed or a fetch, a batch of "
        "train_from_dataset, or in imperative mode a call of minimize. Options that are none of these are the "
        "script's, and all that stands behind --.",
        epilog="Exit codes: the script's; 1 if the script ends before the first step of the profile; 2 for steps that "
        "cannot be profiled.",
    )
    add = parser.add_argument
    add("--steps", default=_STEPS, metavar="FIRST:END", help="the steps from FIRST up to END (default %(default)s)")
    add("--output", default="profile.json.gz", metavar="FILE", help="the trace (default %(default)s)")
    columns = ("total", "calls", "max", "min", "ave")
    add("--sort", default="total", choices=columns, help="the column that the table is sorted by (default %(default)s)")
    add("-m", "--module", action="store_true", dest="as_module", help="the target is a module")
    add("target", help="a Python script, or with -m a module")
    return parser

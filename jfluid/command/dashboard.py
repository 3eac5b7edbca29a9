"""`jfluid dashboard`: the page of jobs that run or have ended."""

import argparse
import contextlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from jfluid import errors
from jfluid.command.numbers import port
from jfluid.command.outputs import reason
from jfluid.dashboard import event_files, exports
from jfluid.dashboard.runs import Runs
from jfluid.printable import printable
from jfluid.security import private_files


def main(arguments: Sequence[str]) -> int:
    """Serve the page until the process is ended, or write it into a file; return the exit code.

    It is 2 where there is no record or the port is taken, 1 where a package is missing.
    """
    options = arguments_parser().parse_args(arguments)
    try:
        runs = Runs(options.log_dirs)
        if options.export is not None:
            runs.look()
            with open(options.export, "w", opener=private_files.create) as file:
                file.write(exports.offline(runs))
        if options.csv is not None:
            with open(options.csv, "w", opener=private_files.create) as file:
                for run in runs.runs:
                    file.writelines(exports.table(run))
        for folder, write in (
            (options.tensorboard, event_files.write),
            (options.visualdl, event_files.write_visualdl),
        ):
            for run in runs.runs if folder is not None else ():
                write(run, folder / (re.sub(r"[^\w-]+", "_", run.name) if len(runs.runs) > 1 else ""))
        if all(wanted is None for wanted in (options.export, options.csv, options.tensorboard, options.visualdl)):
            _serve(runs, options)
    except ImportError as error:
        print(printable(f"jfluid dashboard: {error}"), file=sys.stderr)
        return 1
    except (errors.JFluidError, OSError) as error:
        print(printable(f"jfluid dashboard: {reason(error)}"), file=sys.stderr)
        return 2
    return 0


def _serve(runs: Runs, options: argparse.Namespace) -> None:
    from jfluid.dashboard import address, application
    from jfluid.security import secret

    access = address.access_of(options.host, secret.given() or secret.fresh())
    with (
        address.listen(options.host, options.port) as listening,
        contextlib.suppress(KeyboardInterrupt),  # how a server is ended by hand
    ):
        print(f"the page is at {address.link(listening, access)}", flush=True)
        runs.watch()
        application.server(runs, listening, access).run(sockets=[listening])


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(
        prog="jfluid dashboard",
        description="Shows jobs, live or afterwards, on a page: curves, processes, failures, logs. "
        "Several are compared.",
    )
    add = parser.add_argument
    add(
        "log_dirs",
        nargs="+",
        type=Path,
        metavar="LOG_DIR",
        help="a job's log folder (log_dir, by default mylog), or what FLAGS_record_dir named",
    )
    add("--port", type=port, default=8867, help="default %(default)s; 0: any")
    add(
        "--host",
        default="127.0.0.1",
        help="default %(default)s: this machine only; another address needs the key in the link that is printed",
    )
    add("--export", metavar="FILE", help="write the page as one HTML file, and exit")
    add("--csv", metavar="FILE", help="write all numbers as a table, and exit")
    add(
        "--tensorboard",
        type=Path,
        metavar="DIR",
        help="write event files for TensorBoard, and exit",
    )
    add("--visualdl", type=Path, metavar="DIR", help="write numbers and images for VisualDL, and exit")
    return parser

"""`jfluid-launch`: run a training job.

    jfluid-launch job.yaml [--set args.epochs=3] [--dry-run]
    jfluid-launch [options] script.py [arguments of the script]

The script runs in a process of its own. What it prints is passed through and written to LOG_DIR/workerlog.0,
its progress (`jfluid.progress`) is drawn live, and its exit code is the launcher's (128 + the signal's number
when a signal ended it; 2 when the job itself is wrong).
"""
import argparse
import contextlib
import functools
import io
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, NoReturn, TextIO

from jfluid.job import Job, JobError, read_job, script_job
from jfluid.progress import CHANNEL, BarDisplay, LineDisplay, display_on

# Options for jobs of several processes, which this release does not run.
LATER_OPTIONS = {
    "--gpus": "a process for each of several GPUs",
    "--selected_gpus": "a process for each of several GPUs",
    "--nproc_per_node": "several processes on one machine",
    "--cluster_node_ips": "processes on several machines",
    "--node_ip": "processes on several machines",
    "--started_port": "processes on several machines",
    "--servers": "parameter servers",
    "--server_num": "parameter servers",
    "--workers": "trainers of a parameter-server job",
    "--worker_num": "trainers of a parameter-server job",
}
_SECONDS_TO_END = 10.0
_SECONDS_TO_DRAIN = 2.0
_SECONDS_BETWEEN_LOOKS = 0.05
_LONGEST_LINE = 1 << 16


class _Later(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        name = str(self.option_strings[0])
        parser.error(f"{name} ({LATER_OPTIONS[name]}) is not supported yet; "
                     "this release runs local jobs, in one process")


def _parser(with_target: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jfluid-launch", description="Run a training job: a job file or a script.", allow_abbrev=False,
        usage="%(prog)s [options] job.yaml\n       %(prog)s [options] script.py [arguments of the script]")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
                        help="override one value of the job, such as args.epochs=3 (may be repeated)")
    parser.add_argument("--log_dir", metavar="DIR", help="where the log file goes (default: mylog)")
    parser.add_argument("--dry-run", action="store_true", help="print the job that would run, and exit")
    for name in LATER_OPTIONS:
        parser.add_argument(name, action=_Later, nargs="?", help=argparse.SUPPRESS)
    if with_target:
        parser.add_argument("target", help="a job file (.yaml or .yml), or a Python script")
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    return parser


def parse(arguments: Sequence[str]) -> tuple[Job, bool]:
    """The job that a command line asks for, and whether it is only to be printed. Raises JobError."""
    options = _parser(with_target=True).parse_args(arguments)
    is_job_file = options.target.endswith((".yaml", ".yml"))
    if is_job_file:
        _, unknown = _parser(with_target=False).parse_known_args(options.arguments, options)
        if unknown:
            raise JobError(f"jfluid-launch: {' '.join(unknown)}: not an option of the launcher; "
                           "to change an argument of a job file's script use --set args.NAME=VALUE")
    overrides = list(options.overrides)
    if options.log_dir is not None:
        overrides.append(f"log_dir={json.dumps(options.log_dir)}")
    if is_job_file:
        return read_job(options.target, overrides), options.dry_run
    return script_job(options.target, options.arguments, overrides), options.dry_run


class _Lines:
    """Cuts a stream of bytes into whole lines, so that two streams do not meet within one."""

    def __init__(self) -> None:
        self._rest = b""

    def whole(self, data: bytes) -> bytes:
        """The lines that `data` completes; what follows them is kept, unless it grows too long."""
        data = self.rest() + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end < _LONGEST_LINE:
            data, self._rest = data[:end], data[end:]
        return data

    def rest(self) -> bytes:
        """What was kept."""
        rest, self._rest = self._rest, b""
        return rest


class _Output:
    """Where the script's output and progress go: the launcher's own streams and the log file."""

    def __init__(self, log: BinaryIO, log_text: TextIO):
        self._log = log
        # Taken now: a live bar replaces sys.stdout and sys.stderr while it is shown.
        self._streams = {1: sys.stdout, 2: sys.stderr}
        self._display = display_on(sys.stderr)
        self._progress_log = LineDisplay(log_text)
        self._for_log = {descriptor: _Lines() for descriptor in self._streams}
        self._for_screen = {descriptor: _Lines() for descriptor in self._streams}
        self._reports = b""

    def text(self, descriptor: int, data: bytes) -> None:
        """Pass on what the script wrote to its standard output (1) or error (2)."""
        self._log.write(self._for_log[descriptor].whole(data))
        stream = self._streams[descriptor]
        if isinstance(self._display, BarDisplay) and self._display.live and stream.isatty():
            lines = self._for_screen[descriptor].whole(data)
            if lines:
                self._display.print_above(lines.decode(errors="replace").removesuffix("\n"))
            return
        stream.flush()
        stream.buffer.write(self._for_screen[descriptor].rest() + data)
        stream.buffer.flush()

    def progress(self, data: bytes) -> None:
        """Show the progress reports that the script sent."""
        *lines, self._reports = (self._reports + data).split(b"\n")
        for line in lines:
            report = json.loads(line)
            self._display.show(report)
            self._progress_log.show(report)

    def close(self) -> None:
        self._display.close()
        for descriptor, lines in self._for_log.items():
            self.text(descriptor, b"")
            self._log.write(lines.rest())


class _Signals:
    """Hands the signals that ask the launcher to end on to the script, and ends a script that does not obey."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._received: int | None = None
        self._deadline = float("inf")

    def __enter__(self) -> "_Signals":
        self._before = {number: signal.signal(number, self._forward)
                        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def started(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        if self._received is not None:
            self.send(self._received)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        again = self._received is not None
        self._received = number
        self.send(signal.SIGKILL if again else number)

    def send(self, number: int) -> None:
        """Send a signal to the script and all that it started."""
        if self.process is not None:
            self._deadline = min(self._deadline, time.monotonic() + _SECONDS_TO_END)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def end_if_overdue(self) -> None:
        if time.monotonic() > self._deadline:
            self.send(signal.SIGKILL)


def run(job: Job) -> int:
    """Run the job to its end and return its exit code. Raises JobError when its log cannot be written."""
    path = Path(job.log_dir) / "workerlog.0"
    start = time.monotonic()
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            log = stack.enter_context(open(path, "wb", buffering=0))
        except OSError as error:
            raise JobError(f"{path}: cannot write the log: {error.strerror}") from None
        log_text = io.TextIOWrapper(log, encoding="utf-8", write_through=True)
        output = stack.enter_context(contextlib.closing(_Output(log, log_text)))
        status = _run_script(job, output)
    code = status if status >= 0 else 128 - status
    ending = f"exit code {code}" if status >= 0 else f"signal {signal.Signals(-status).name}"
    outcome = "finished" if code == 0 else f"ended with {ending}"
    print(f"jfluid-launch: {job.name} {outcome} after {time.monotonic() - start:.1f} s; log: {path}", file=sys.stderr)
    return code


def _run_script(job: Job, output: _Output) -> int:
    """The script's return code, as `subprocess` gives it."""
    reports, channel = os.pipe()
    with open(reports, "rb", buffering=0), _Signals() as signals:
        try:
            environment = {"PYTHONUNBUFFERED": "1", CHANNEL: f"{channel}:{os.getpid()}"}
            process = subprocess.Popen(
                job.command(), env=os.environ | job.env | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                pass_fds=(channel,), start_new_session=True)
        finally:
            os.close(channel)
        signals.started(process)
        with process, selectors.DefaultSelector() as selector:
            assert process.stdout and process.stderr  # both are pipes
            selector.register(process.stdout, selectors.EVENT_READ, functools.partial(output.text, 1))
            selector.register(process.stderr, selectors.EVENT_READ, functools.partial(output.text, 2))
            selector.register(reports, selectors.EVENT_READ, output.progress)
            while process.poll() is None:
                _pass_on(selector)
                signals.end_if_overdue()
            # A process that the script left behind may hold the pipes open: read what is there, not to their end.
            deadline = time.monotonic() + _SECONDS_TO_DRAIN
            while selector.get_map() and _pass_on(selector) and time.monotonic() < deadline:
                pass
        if process.returncode < 0:
            signals.send(signal.SIGKILL)
        return process.returncode


def _pass_on(selector: selectors.BaseSelector) -> bool:
    """Hand on what is ready to be read; whether there was anything."""
    if not selector.get_map():
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        return False
    ready = selector.select(timeout=_SECONDS_BETWEEN_LOOKS)
    for key, _ in ready:
        data = os.read(key.fd, 1 << 16)
        if data:
            key.data(data)
        else:
            selector.unregister(key.fileobj)
    return bool(ready)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `jfluid-launch`; returns the exit code."""
    try:
        job, only_print = parse(sys.argv[1:] if arguments is None else arguments)
        if only_print:
            print(job.to_yaml(), end="")
            return 0
        return run(job)
    except JobError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

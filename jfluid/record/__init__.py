"""The record of a run: lines in files, from each process of a job.

    jfluid.log(step, loss=loss, **{"learning rate": rate})

Each process that `jfluid-launch` has started writes `LOG_DIR/record/ROLE.RANK.jsonl`, and the launcher
`launcher.HOST.jsonl`; a script without a launcher writes to the folder `FLAGS_record_dir`. Without
a launcher and the flag, nothing is recorded. `jfluid dashboard LOG_DIR` shows it. A file is bounded: when it
has grown to 4 MiB, points that lie close together are left out.
"""

import logging
import operator
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jfluid import environment, errors, flags, installation, launcher_pipe
from jfluid.record import lines, profiles
from jfluid.record.phases import PHASES
from jfluid.record.writer import Recorder, Taken

if TYPE_CHECKING:
    from jfluid.ir.program import Program

__all__ = ["log", "log_histogram", "log_image"]

FOLDER = "record"
# Numbers that are still being computed, or on a device, are waited for this often at most.
_BURST, _READS_A_SECOND = 100.0, 10.0
_LONGEST_SHAPES = 1000
_MOST_PROGRAMS = 20
_log = logging.getLogger(__name__)


class _State:
    """The recorder of this process, its counters, and its budget of reads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changes = -1  # of flags, when the recorder was looked for
        self.recorder: Recorder | None = None
        self.reads, self.read_at = _BURST, 0.0
        # of each kind of loop the steps of those before the current one, and its own
        self.compilations, self.compiling_s = 0, 0.0
        self.steps: dict[str, tuple[int, int]] = {}
        self.programs: set[str] = set()  # fingerprints of the programs whose graphs are recorded


_state = _State()


def log(step: int, **scalars: Any) -> None:
    """Record numbers of a step, each under its name, for the page and the files of this run.

    Any loop may call it at each step: the numbers are put into the file by a thread, about once a second, and of
    many in a second the last, the lowest and the highest are. Names that are no words are given as
    `**{"train/loss": loss}`. Without a job, and without `FLAGS_record_dir`, this does nothing.

    Args:
        step: the number of the step.
        scalars: numbers, or arrays of one element: what Executor.run returned, or variables of
            imperative mode. Of arrays that are not NumPy's, which have to be waited for, about 10 a
            second are read once 100 were.

    Raises ShapeError for an array of a different size, DtypeError for what is no real number.
    """
    # A step of 1 ms leaves nothing of this code in the processor's caches: each name and call costs up to 1 us.
    recorder = _state.recorder if _state.changes == flags.change_count else current()
    if recorder is not None:
        for name, value in scalars.items():
            if type(value) is not float:
                if _is_array(value) and value.size == 1:
                    scalars[name] = value = value.item()
                if type(value) is not float:
                    scalars = _numbers(scalars)
                    break
        recorder.scalars(step if type(step) is int else operator.index(step), scalars)


def log_image(step: int, **images: Any) -> None:
    """Record images of a step, as PNG of at most 256 pixels a side: of larger ones every nth pixel.

    Args:
        step: the number of the step.
        images: arrays `[H, W]`, `[H, W, C]` or `[C, H, W]` with 1 to 4 channels; uint8, or floating
            from 0 to 1. What lies outside is cut off, and NaN is black.

    Raises ShapeError and DtypeError for others.
    """
    recorder = current()
    if recorder is not None:
        from jfluid.record import pictures

        for name, value in images.items():
            fields = pictures.image(lines.shortened(name, lines.LONGEST_NAME), value)
            recorder.add("image", {"step": operator.index(step), **fields})


def log_histogram(step: int, **values: Any) -> None:
    """Record how the elements of arrays are distributed: 32 counts between the lowest and the highest.

    Args:
        step: the number of the step.
        values: arrays of real numbers. NaN and infinities are counted by themselves.

    Raises DtypeError for others.
    """
    recorder = current()
    if recorder is not None:
        from jfluid.record import pictures

        for name, value in values.items():
            fields = pictures.histogram(lines.shortened(name, lines.LONGEST_NAME), value)
            recorder.add("histogram", {"step": operator.index(step), **fields})


def progress(report: Mapping[str, Any]) -> None:
    """Record a report of `jfluid.progress`, with the numbers in it.

    Of loops of one description, such as one for each epoch, the steps are counted through as well.
    """
    recorder = current()
    if recorder is not None:
        metrics = {
            lines.shortened(name, lines.LONGEST_NAME): lines.written(value) for name, value in report["metrics"].items()
        }
        name = lines.shortened(report["description"], lines.LONGEST_NAME)
        before, last = _state.steps.get(name, (0, 0))
        if report["step"] < last:
            before += last
        _state.steps[name] = before, report["step"]
        steps = {"all_steps": before + report["step"]}
        recorder.add("progress", {**report, **steps, "description": name, "metrics": metrics})


def compiled(seconds: float, differ: Sequence[Any]) -> None:
    """Record that a step, or an operator of imperative mode, was compiled.

    Args:
        differ: shapes and dtypes of those of its arguments that were others when it was compiled
            before.
    """
    recorder = current()
    if recorder is not None:
        with _state.lock:
            _state.compilations += 1
            _state.compiling_s += seconds
            fields = {
                "seconds": round(seconds, 4),
                "count": _state.compilations,
                "total": round(_state.compiling_s, 4),
                "differ": lines.shortened(", ".join(map(_shown, differ)), _LONGEST_SHAPES),
            }
        recorder.add("compile", fields)


def program(compiled: "Program") -> None:
    """Record the folded graph of a program that is compiled; of the same program once."""
    recorder = current()
    if recorder is None or len(_state.programs) >= _MOST_PROGRAMS or compiled.fingerprint in _state.programs:
        return
    from jfluid.record import graphs

    _state.programs.add(compiled.fingerprint)
    tree = graphs.folded(compiled.global_block().ops)
    recorder.add("program", {"fingerprint": compiled.fingerprint[:16], "tree": tree})


def event(name: str, **fields: Any) -> None:
    """Record an event of this process, such as a snapshot, for the timeline."""
    recorder = current()
    if recorder is not None:
        recorder.add("event", {"event": name, **fields}, at_once=True)


def _shown(form: Any) -> str:
    """Return the shapes and dtypes of an argument's form as text."""
    if not isinstance(form, tuple):
        return ""  # how the parts are put together
    if len(form) == 2 and isinstance(form[0], tuple) and all(isinstance(size, int) for size in form[0]):
        return f"{list(form[0])} {form[1]}"
    return " ".join(text for text in map(_shown, form) if text)


def _is_array(value: Any) -> bool:
    """Return True for an array of NumPy, without an import of NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def current() -> Recorder | None:
    """Return the recorder of this process, or None where nothing is recorded."""
    if _state.changes == flags.change_count:
        return _state.recorder
    with _state.lock:
        changes = flags.change_count
        _state.recorder = _found(_state.recorder)
        PHASES.on = _state.recorder is not None or PHASES.on_step is not None
        _state.changes = changes
        return _state.recorder


def file_of(log_dir: str | os.PathLike[str], role: str, rank: int) -> Path:
    """Return the record file of a process of the job with the log folder `log_dir`."""
    return Path(log_dir) / FOLDER / f"{role}.{rank}{lines.SUFFIX}"


def _found(before: Recorder | None) -> Recorder | None:
    launched = launcher_pipe.descriptor() is not None
    folder = environment.text(environment.RECORD_DIR, "") if launched else ""
    own = "" if folder else os.path.expanduser(flags.get("FLAGS_record_dir"))
    if not folder and not own:
        if before is not None:
            before.close()
        return None
    is_server = environment.text("TRAINING_ROLE") == "PSERVER"
    role = "server" if is_server else "trainer"
    number = environment.text("PADDLE_PSERVER_ID" if is_server else "PADDLE_TRAINER_ID", "0")
    rank = int(number) if number.isdecimal() else 0
    path = file_of(folder, role, rank) if folder else Path(own) / f"{role}.{rank}{lines.SUFFIX}"
    if before is not None:
        if before.path == path:
            return before
        before.close()
    lives = environment.text("JFLUID_RESTARTS", "0")
    restarts = int(lives) if lives.isdecimal() else 0
    start = {
        "role": role,
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "restarts": restarts,
        "versions": {"jfluid": installation.VERSION, "python": sys.version.split()[0]},
    }
    try:
        try:
            watcher = profiles.Watcher(path.parent, role, rank, _ahead())
            watcher.look()
            append, ranks = bool(folder) or restarts > 0, launcher_pipe.ranks()
            return Recorder(path, append, start, numbers=lambda: _numbers_now(watcher), ranks=ranks)
        except Taken:  # by the process that has started this one
            beside = path.with_name(f"process.{os.getpid()}{lines.SUFFIX}")
            return Recorder(beside, False, {**start, "role": "process", "rank": os.getpid()})
    except OSError as error:
        if own:
            raise errors.DataError(f"FLAGS_record_dir: {path}: {error.strerror or error}") from error
        _log.warning("the record %s cannot be written (%s); the job goes on without it", path, error)
        return None


def _ahead() -> float:
    """Return how many seconds this host's clock is ahead of host 0's clock."""
    try:
        return float(environment.text(environment.CLOCK_AHEAD, "0"))
    except ValueError:
        return 0.0


def _numbers_now(watcher: profiles.Watcher) -> dict[str, float]:
    """Look for a requested profile, and return the scalars that a write adds."""
    watcher.look()
    return PHASES.numbers()


def _numbers(scalars: Mapping[str, Any]) -> dict[str, float]:
    """Convert scalars to floats; leave out device arrays beyond the budget of reads."""
    found = {}
    for name, value in scalars.items():
        number = value if type(value) is float else _number(name, value)
        if number is not None:
            found[name] = number
    return found


def _number(name: str, value: Any) -> float | None:
    if isinstance(value, int | float):
        return lines.as_float(value)
    if not _is_array(value) and hasattr(value, "shape"):
        if not _may_wait():
            return None
        if callable(getattr(value, "numpy", None)):
            value = value.numpy()
    import numpy as np  # the launcher imports this module, and needs no arrays

    array = np.asarray(value)
    if array.size != 1:
        raise errors.ShapeError(
            f"log: {name}: expected a number, or an array of one element, found shape {list(array.shape)}; "
            "log_histogram takes arrays"
        )
    item = array.item()
    if not isinstance(item, int | float):
        kind = type(item).__name__
        raise errors.DtypeError(f"log: {name}: expected a real number, found {kind}")
    return lines.as_float(item)


def _may_wait() -> bool:
    """Take a read from the budget; return True if there was one left."""
    now = time.monotonic()
    more = (now - _state.read_at) * _READS_A_SECOND
    _state.reads, _state.read_at = min(_state.reads + more, _BURST), now
    if _state.reads < 1:
        return False
    _state.reads -= 1
    return True


def _forget() -> None:
    """Reset the state in a forked process, which must not write the parent's file."""
    global _state
    _state = _State()
    PHASES.forget()


os.register_at_fork(after_in_child=_forget)

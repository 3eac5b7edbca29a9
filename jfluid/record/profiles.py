"""Profiles of some steps: the request of a job, and the part of a process.

A request is a file `profile.json` in the record's folder, which `jfluid-launch --profile 100:110` and the page's
button write. Each process looks for one when it begins to record and about once a second. A trainer profiles the
steps that the request names; a server keeps its calls until the launcher says which time the trainers have profiled.
Each writes its part into a folder `profile-ID` beside the record, and the launcher makes one trace of all parts.
"""

import contextlib
import itertools
import json
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jfluid import errors
from jfluid.record import step_traces
from jfluid.record.phases import PHASES, Event
from jfluid.security import private_files

REQUEST = "profile.json"
MOST_STEPS = 1000
_MOST_CALLS = 200_000
_LONGEST_REQUEST = 4096
_STEPS = re.compile(r"(\d{1,15}):(\d{1,15})")
_log = logging.getLogger("jfluid.record")


class ProfileRequest(NamedTuple):
    """A request for a profile.

    Attributes:
        id: a short name, of letters and digits.
        first: profile from this step on, counted from 0; None for the next one.
        steps: how many.
        begin, end: of the trainers' profiles, by the clock of host 0, once they are known.
    """

    id: str
    first: int | None
    steps: int
    begin: float | None = None
    end: float | None = None


def parse_steps(text: str) -> tuple[int, int]:
    """Return (first, count) of `100:110`: the steps from 100 up to 110. Raises DataError."""
    match = _STEPS.fullmatch(text.strip())
    first, end = (int(match[1]), int(match[2])) if match else (0, 0)
    if not first < end or end - first > MOST_STEPS:
        raise errors.DataError(
            f"steps to profile: expected FIRST:END, such as 100:110, with at most {MOST_STEPS} steps, found {text!r}"
        )
    return first, end - first


def write_request(folder: Path, request: ProfileRequest) -> None:
    """Put a request into a record's folder, in place of the one before. Raises OSError."""
    private_files.make_folder(folder)
    beside = folder / f".{REQUEST}.{os.getpid()}"
    with open(beside, "w", opener=private_files.create) as file:
        json.dump(request._asdict(), file)
    os.replace(beside, folder / REQUEST)


def read_request(folder: Path) -> ProfileRequest | None:
    """Return the request in a record's folder; None without one, or where it is none."""
    try:
        with open(folder / REQUEST, "rb") as file:
            fields = json.loads(file.read(_LONGEST_REQUEST))
        request = ProfileRequest(**fields)
    except (OSError, ValueError, TypeError):
        return None
    times = (request.begin or 0.0, request.end or 0.0)
    whole = type(request.steps) is int and 0 < request.steps <= MOST_STEPS
    if not whole or not isinstance(request.id, str) or not re.fullmatch(r"\w{1,32}", request.id, re.ASCII):
        return None
    if not (request.first is None or type(request.first) is int) or any(type(t) not in (int, float) for t in times):
        return None
    return request


def part_of(folder: Path, id: str, role: str, rank: int) -> Path:
    """Return the file of a process's part of a profile; `folder` is the record's."""
    return folder.parent / f"profile-{id}" / f"{role}.{rank}.json.gz"


class StepProfile:
    """Profile of `steps` steps of this process, from step `first` on.

    `done` gets the profile after the last step. If another JAX trace is running, the profile has phases only.
    """

    def __init__(self, first: int | None, steps: int, done: Callable[["StepProfile"], None]):
        self._first = first if first is not None and first > PHASES.steps else PHASES.steps
        self._end = self._first + steps
        self._done = done
        self._trace: step_traces.Trace | None = None
        self.begin = self.end = 0.0
        self.phases: list[Event] = []
        PHASES.on_step = self._stepped
        PHASES.on = True
        if first is not None and self._first <= PHASES.steps and threading.current_thread() is threading.main_thread():
            self._start()  # before the first step

    @property
    def started(self) -> bool:
        """True once the first of the steps has begun."""
        return self.begin > 0

    def _stepped(self, count: int) -> None:
        if self.begin:
            if count >= self._end:
                self.stop()
        elif count >= self._first:
            self._end += count - self._first
            self._start()

    def _start(self) -> None:
        try:
            self._trace = step_traces.Trace()
        except RuntimeError as error:
            _log.warning("the profile has no instructions of XLA: this process takes a different trace (%s)", error)
        self.begin = time.time()
        PHASES.events = []

    def stop(self) -> None:
        """End the profile, and give it to `done`."""
        PHASES.on_step = None
        self.end = time.time()
        events, PHASES.events = PHASES.events or [], None
        shift = time.time() - time.perf_counter()
        self.phases = [(name, begin + shift, end + shift) for name, begin, end in events]
        if self._trace is not None:
            self._trace.stop()
        self._done(self)

    def instructions(self) -> list[step_traces.Instruction]:
        """Return the instructions that XLA has run; once, after the end."""
        return self._trace.instructions() if self._trace is not None else []


class RecentCalls:
    """The newest calls of a server: for a profile that has been asked for, else none.

    Attributes:
        on: keep calls.
    """

    def __init__(self) -> None:
        self.on = False
        self._kept: deque[tuple[str, float, float, int]] = deque(maxlen=_MOST_CALLS)

    def add(self, name: str, begin: float, end: float) -> None:
        """Keep a call that began and ended at these times of time.perf_counter."""
        self._kept.append((name, begin, end, threading.get_ident()))

    def between(self, begin: float, end: float) -> list[tuple[str, float, float, int]]:
        """Return the calls of a stretch of time, in seconds since the epoch, and keep no more."""
        self.on = False
        shift = time.time() - time.perf_counter()
        kept = [(name, since + shift, until + shift, thread) for name, since, until, thread in [*self._kept]]
        self._kept.clear()
        return [call for call in kept if call[2] >= begin and call[1] <= end]


CALLS = RecentCalls()


class Watcher:
    """Looks for requests in the record's folder, and profiles this process.

    Args:
        folder: the record's.
        ahead: seconds that this host's clock is ahead of that of host 0.
    """

    def __init__(self, folder: Path, role: str, rank: int, ahead: float = 0.0):
        self._folder, self._role, self._rank, self._ahead = folder, role, rank, ahead
        self._seen: tuple[int, int] | None = None
        self._id = self._written = ""
        self._lock = threading.Lock()

    def look(self) -> None:
        """Begin, or end, a profile that is asked for."""
        try:
            about = os.stat(self._folder / REQUEST)
        except OSError:
            return
        with self._lock:
            seen = about.st_mtime_ns, about.st_ino
            request = read_request(self._folder) if seen != self._seen else None
            self._seen = seen
        if request is None:
            return
        if self._role == "server":
            self._serve(request)
        elif request.id != self._id and request.end is None and PHASES.on_step is None:
            self._id = request.id
            StepProfile(request.first, request.steps, lambda profile: self._profiled(request, profile))

    def _profiled(self, request: ProfileRequest, profile: StepProfile) -> None:
        # as a thread of its own: the next step does not wait for the file
        threading.Thread(target=self._write, args=(request, profile), name="jfluid-profile").start()

    def _write(self, request: ProfileRequest, profile: StepProfile) -> None:
        events = step_traces.of_phases(profile.phases) + step_traces.of_instructions(profile.instructions())
        self._put(request, events, profile.begin, profile.end)

    def _serve(self, request: ProfileRequest) -> None:
        if request.begin is None or request.end is None:
            CALLS.on = True
        elif request.id != self._written:
            self._written = request.id
            begin, end = request.begin + self._ahead, request.end + self._ahead
            self._put(request, step_traces.of_calls(CALLS.between(begin, end)), begin, end)

    def _put(self, request: ProfileRequest, events: list[step_traces.Event], begin: float, end: float) -> None:
        """Write the part of this process, by the clock of host 0."""
        path, ahead = part_of(self._folder, request.id, self._role, self._rank), self._ahead
        for event in events:
            if "ts" in event:
                event["ts"] -= ahead * 1e6
        try:
            private_files.make_folder(path.parent)
            step_traces.write_json(path, {"begin": begin - ahead, "end": end - ahead, "events": events})
        except OSError as error:
            _log.warning("the profile %s cannot be written (%s)", path, error.strerror or error)


_numbers = itertools.count()


def fresh_id() -> str:
    """Return the id of a new request: the time, and a number."""
    return f"{time.strftime('%Y%m%d_%H%M%S')}_{next(_numbers)}"


def forget(folder: Path) -> None:
    """Remove the request of an earlier job from a record's folder."""
    with contextlib.suppress(OSError):
        (folder / REQUEST).unlink()


def file_of(folder: Path, id: str) -> Path:
    """Return the file of the whole trace; `folder` is the record's."""
    return folder.parent / f"profile-{id}.json.gz"


def joined(folder: Path, id: str) -> tuple[Path, int]:
    """Make one trace of all parts of a profile, and remove the parts.

    Returns:
        The file, and the number of processes in it.

    Raises OSError.
    """
    parts = folder.parent / f"profile-{id}"
    found: dict[str, Any] = {}
    for path in sorted(parts.glob("*.json.gz"), key=_order):
        part = read_part(path)
        if part is not None:
            found[path.name.removesuffix(".json.gz").replace(".", " ")] = part["events"]
    target = file_of(folder, id)
    step_traces.write(target, found)
    for path in parts.glob("*"):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        parts.rmdir()
    return target, len(found)


def read_part(path: Path) -> dict[str, Any] | None:
    """Return a part: its `begin`, `end` and `events`; None where the file holds none."""
    value = step_traces.read_json(path)
    if not isinstance(value, dict) or not isinstance(value.get("events"), list):
        return None
    if not all(type(value.get(name)) in (int, float) for name in ("begin", "end")):
        return None
    events = [e for e in value["events"] if isinstance(e, dict) and step_traces.is_event(e)]
    return {"begin": value["begin"], "end": value["end"], "events": events}


def _order(path: Path) -> tuple[bool, int, str]:
    """Trainers come before servers, each by their rank."""
    role, _, rest = path.name.partition(".")
    number = rest.partition(".")[0]
    return role != "trainer", int(number) if number.isdecimal() else 0, path.name

"""Phases of a step: the seconds that the main thread spends in the reader, rows, compute, exchange and waiting.

The record writes the milliseconds of each phase a step, about once a second. A profile keeps each phase with its
start, too.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType

# Of these the record has a curve each; the rest of a step is the script's own Python code.
NAMES = ("reader", "rows", "compute", "exchange", "waiting")
REST = "script"
PREFIX = "step time (ms): "
_MOST_EVENTS = 200_000
Event = tuple[str, float, float]  # name, begin and end by time.perf_counter


class Phases:
    """The clock of the phases of a process.

    Phases of the main thread count; a phase inside another is taken from the outer phase's time.

    Attributes:
        on: count phases and steps; a process without a record and without a profile leaves it off.
        steps: finished steps.
        events: the phases of a profile, while one is taken; else None.
        on_step: called with the number of finished steps after each step; None outside of profiles.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, without a record and a profile: in a process that was forked."""
        self.on = False
        self.steps = 0
        self.events: list[Event] | None = None
        self.on_step: Callable[[int], None] | None = None
        self._seconds = dict.fromkeys(NAMES, 0.0)
        self._inner = 0.0
        self._thread = threading.main_thread().ident
        self._told_steps, self._told_at = 0, time.perf_counter()

    def phase(self, name: str) -> "_Timed | _Nothing":
        """Return a context that adds its duration to the phase `name`."""
        return _Timed(self, name) if self.on and threading.get_ident() == self._thread else _NOTHING

    def add(self, name: str, begin: float, end: float) -> None:
        """Count a phase that has ended, inside the current phase."""
        if self.on and threading.get_ident() == self._thread:
            self._add(name, begin, end, 0.0)
            self._inner += end - begin

    def step(self) -> None:
        """Count a finished step."""
        if self.on:
            if not self.steps:  # the script before its first step is no part of a step
                self._told_at = time.perf_counter() - sum(self._seconds.values())
            self.steps += 1
            if self.on_step is not None:
                self.on_step(self.steps)

    def _add(self, name: str, begin: float, end: float, inner: float) -> None:
        self._seconds[name] += end - begin - inner
        if self.events is not None and len(self.events) < _MOST_EVENTS:
            self.events.append((name, begin, end))

    def numbers(self) -> dict[str, float]:
        """Return the milliseconds of each phase a step since the last call; nothing where no step has ended."""
        now, steps = time.perf_counter(), self.steps
        more = steps - self._told_steps
        if not more:
            return {}
        seconds = dict(self._seconds)
        for name in NAMES:
            self._seconds[name] -= seconds[name]
        seconds[REST] = max(now - self._told_at - sum(seconds.values()), 0.0)
        self._told_steps, self._told_at = steps, now
        return {PREFIX + name: round(value * 1e3 / more, 4) for name, value in seconds.items()}


class _Timed:
    """A context that times one phase."""

    __slots__ = ("_begin", "_name", "_of", "_outer")

    def __init__(self, of: Phases, name: str):
        self._of, self._name = of, name

    def __enter__(self) -> None:
        self._outer, self._of._inner = self._of._inner, 0.0
        self._begin = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        of, end = self._of, time.perf_counter()
        of._add(self._name, self._begin, end, of._inner)
        of._inner = self._outer + end - self._begin


class _Nothing:
    """A context that counts nothing."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_NOTHING = _Nothing()
PHASES = Phases()

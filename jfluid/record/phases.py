"""Phases of a step: the seconds that the main thread spends in the reader, rows, compute, exchange and waiting.

The record writes the milliseconds of each phase a step, about once a second. A profile keeps each phase with its
start, too.
"""

import threading
from collections.abc import Callable
from threading import get_ident
from time import perf_counter

# Of these the record has a curve each; the rest of a step is the script's own Python code.
NAMES = ("reader", "rows", "compute", "exchange", "waiting")
REST = "script"
PREFIX = "step time (ms): "
_MOST_EVENTS = 200_000
Event = tuple[str, float, float]  # name, begin and end by time.perf_counter
Begin = tuple[float, float]  # by time.perf_counter, and the seconds of all phases before


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
        self._total = 0.0  # of all phases
        self._thread = threading.main_thread().ident
        self._told_steps, self._told_at, self._told = 0, perf_counter(), dict(self._seconds)

    def phase(self, name: str) -> "_Timed | _Nothing":
        """Return a context that adds its duration to the phase `name`."""
        return _Timed(self, name) if self.on else _NOTHING

    def begin(self) -> Begin:
        """Return the begin of a phase, which `end` takes; for steps of 1 ms, which notice the cost of a context."""
        return perf_counter(), self._total

    def end(self, name: str, begin: Begin, step: bool = False) -> None:
        """Count the phase `name` that began at `begin`, and with `step` a finished step."""
        now = perf_counter()
        if get_ident() == self._thread:
            moment, total = begin
            alone = now - moment - self._total + total  # without the phases inside
            self._seconds[name] += alone
            self._total += alone
            if self.events is not None and len(self.events) < _MOST_EVENTS:
                self.events.append((name, moment, now))
        if step:
            self.steps += 1
            if self.on_step is not None or self.steps == 1:
                self._stepped()

    def add(self, name: str, begin: float, end: float) -> None:
        """Count a phase that has ended, inside the current phase."""
        if self.on and get_ident() == self._thread:
            self._seconds[name] += end - begin
            self._total += end - begin
            if self.events is not None and len(self.events) < _MOST_EVENTS:
                self.events.append((name, begin, end))

    def step(self) -> None:
        """Count a finished step."""
        if self.on:
            self.steps += 1
            self._stepped()

    def _stepped(self) -> None:
        if self.steps == 1:  # the script before its first step is no part of a step
            self._told_at = perf_counter() - self._total
        if self.on_step is not None:
            self.on_step(self.steps)

    def numbers(self) -> dict[str, float]:
        """Return the milliseconds of each phase a step since the last call; nothing where no step has ended."""
        now, steps, seconds = perf_counter(), self.steps, dict(self._seconds)
        more = steps - self._told_steps
        if not more:
            return {}
        found = {name: seconds[name] - self._told[name] for name in NAMES}
        found[REST] = max(now - self._told_at - sum(found.values()), 0.0)
        self._told_steps, self._told_at, self._told = steps, now, seconds
        return {PREFIX + name: round(value * 1e3 / more, 4) for name, value in found.items()}


class _Timed:
    """A context that times one phase."""

    __slots__ = ("_begin", "_name", "_of")

    def __init__(self, of: Phases, name: str):
        self._of, self._name = of, name

    def __enter__(self) -> None:
        self._begin = self._of.begin()

    def __exit__(self, *_: object) -> None:
        self._of.end(self._name, self._begin)


class _Nothing:
    """A context that counts nothing."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_NOTHING = _Nothing()
PHASES = Phases()

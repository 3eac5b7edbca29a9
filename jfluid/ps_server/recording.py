"""Entries of a server in the job's record: tables, and work per second."""

import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from jfluid import record

SECONDS_BETWEEN_LOOKS = 5.0
# What is a number by itself: by the metric, what it is called, and its unit.
_STATES = {
    "jfluid_ps_table_rows": ("rows of {table}", 1.0),
    "jfluid_ps_table_bytes": ("MB of {table}", 1e-6),
    "jfluid_ps_table_waiting": ("ids that wait to enter {table}", 1.0),
    "jfluid_ps_table_made_total": ("rows made of {table}", 1.0),
    "jfluid_ps_table_expired_total": ("rows expired of {table}", 1.0),
    "jfluid_ps_rounds": ("rounds", 1.0),
    "jfluid_ps_lost_calls": ("lost calls", 1.0),
}
# What grows: it is shown by the second, summed over the other labels.
_GROWING = {
    "jfluid_ps_calls_total": ("calls/s: {method}", 1.0),
    "jfluid_ps_bytes_total": ("MB/s: {direction}", 1e-6),
    "jfluid_ps_rows_total": ("rows/s {kind} of {table}", 1.0),
    "jfluid_ps_part_seconds_total": ("busy with: {part}", 1.0),
    "jfluid_ps_wait_seconds_sum": ("waiting for others: {kind}", 1.0),
}
_STALE = "jfluid_ps_staleness_steps"
# Waits of rounds for a trainer, in the order of a line's fields.
_WAITS = ("jfluid_ps_round_waits_total", "jfluid_ps_round_wait_seconds_total", "jfluid_ps_round_pending_seconds")
_MOST_TRAINERS = 50  # of which the waits are recorded: those waited for the longest


class ServerRecord:
    """Records a server's metrics every few seconds, if the job has a record."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic):
        self._registry, self._clock = registry, clock
        self._next, self._at = 0.0, clock()
        self._before: Mapping[str, float] = {}

    def look(self) -> None:
        """Record, if it is time."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + SECONDS_BETWEEN_LOOKS
        recorder = record.current()
        if recorder is not None:
            recorder.scalars(None, self._numbers(now))
            waits = self._waits()
            if waits:
                recorder.add("waits", {"trainers": waits})

    def _waits(self) -> dict[str, list[float]]:
        """Return rounds, seconds and pending seconds by the trainers that rounds have waited for the longest."""
        found: dict[str, list[float]] = {}
        for metric in self._registry.collect():
            for sample in metric.samples:
                if sample.name in _WAITS:
                    values = found.setdefault(sample.labels["trainer"], [0.0] * len(_WAITS))
                    values[_WAITS.index(sample.name)] = round(sample.value, 3)
        longest = sorted(found, key=lambda trainer: found[trainer][1] + found[trainer][2], reverse=True)
        return {trainer: found[trainer] for trainer in longest[:_MOST_TRAINERS]}

    def _numbers(self, now: float) -> dict[str, float]:
        found: dict[str, float] = {}
        growing: dict[str, float] = {}
        for metric in self._registry.collect():
            for sample in metric.samples:
                if sample.name in _STATES:
                    name, unit = _STATES[sample.name]
                    found[name.format(**sample.labels)] = sample.value * unit
                elif sample.name in _GROWING:
                    name, unit = _GROWING[sample.name]
                    name = name.format(**sample.labels)
                    growing[name] = growing.get(name, 0.0) + sample.value * unit
                elif sample.name in (f"{_STALE}_sum", f"{_STALE}_count"):
                    name = sample.name.removeprefix(f"{_STALE}_") + " " + sample.labels["name"]
                    growing[name] = sample.value
        seconds = now - self._at
        grown = {name: value - self._before.get(name, 0.0) for name, value in growing.items()}
        for name, more in grown.items():
            kind, _, own = name.partition(" ")
            if kind == "sum" and (pushes := grown.get(f"count {own}")):
                found[f"staleness of {own}"] = more / pushes
            elif kind not in ("sum", "count") and seconds > 0:
                found[name] = more / seconds
        self._before, self._at = growing, now
        return found

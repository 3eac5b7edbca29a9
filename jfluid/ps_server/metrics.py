"""Metrics of a server for Prometheus."""

import itertools
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from jfluid.printable import printable
from jfluid.ps_server.round_waits import Wait
from jfluid.ps_server.store import Store

_SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)
_STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)


class _Labelled(dict[str | tuple[str, ...], Any]):
    """A metric's parts by their label, or labels: Prometheus itself checks these at each look-up."""

    def __init__(self, metric: Any):
        self._metric = metric

    def __missing__(self, labels: str | tuple[str, ...]) -> Any:
        every = (labels,) if isinstance(labels, str) else labels
        names = [_shown(label) for label in every]
        return self.setdefault(labels, self._metric.labels(*names))


class ServerMetrics:
    """Counters and histograms of one server in a separate registry, in part with labels.

    Attributes:
        waits: returns the waits of synchronous rounds for each trainer.
    """

    def __init__(self, store: Store):
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> _Labelled:
            return _Labelled(Counter(name, text, labels, registry=self.registry))

        def histogram(name: str, text: str, label: str, buckets: Sequence[float]) -> _Labelled:
            return _Labelled(Histogram(name, text, [label], registry=self.registry, buckets=buckets))

        self.calls = counter("jfluid_ps_calls", "Calls that were answered", "method", "status")
        self.seconds = histogram(
            "jfluid_ps_call_seconds", "Seconds from a call's arrival to its answer", "method", _SECONDS
        )
        self.bytes = counter("jfluid_ps_bytes", "Bytes of messages", "method", "direction")
        self.rows = counter("jfluid_ps_rows", "Rows that were read or changed", "table", "kind")
        self.parts = counter(
            "jfluid_ps_part_seconds",
            "Seconds that pulls and pushes spent in one part of a call: parse, apply (with what waits "
            "for other trainers), read, reply",
            "part",
        )
        self.waited = histogram(
            "jfluid_ps_wait_seconds", "Seconds that a call waited for other trainers", "kind", _SECONDS
        )
        self.staleness = Counted(
            "jfluid_ps_staleness_steps",
            "Updates of a table or block by other trainers between a trainer's pull and its push",
            "name",
            _STEPS,
        )
        self.registry.register(self.staleness)
        self.waits: Callable[[], Mapping[int, Wait]] = dict
        self.registry.register(_State(store))
        self.registry.register(_Waits(self))

    def waiting(self, kind: str) -> "_Timed":
        """Return a context that counts its duration as waiting for other trainers."""
        return _Timed(self.waited[kind].observe)

    def part(self, part: str) -> "_Timed":
        """Return a context that counts its duration as this part of a call."""
        return _Timed(self.parts[part].inc)


class _Timed:
    def __init__(self, add: Callable[[float], None]):
        self._add = add

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._add(time.perf_counter() - self._start)


class Counted:
    """Histogram of whole numbers by a label, which counts many numbers at once.

    Each push has a number for each block, and Prometheus's histogram takes microseconds for each.
    """

    def __init__(self, name: str, text: str, label: str, buckets: Sequence[int]):
        self._name, self._text, self._label, self._buckets = name, text, label, buckets
        # by label how many there are in each bucket, and beyond; last their sum
        self._found: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def observe(self, numbers: Iterable[tuple[str, int]]) -> None:
        """Count one number for each of these labels."""
        with self._lock:
            for label, number in numbers:
                found = self._found.get(label)
                if found is None:
                    found = self._found[label] = [0] * (len(self._buckets) + 2)
                found[bisect_left(self._buckets, number)] += 1
                found[-1] += number

    def collect(self) -> Iterator[Metric]:
        metric = HistogramMetricFamily(self._name, self._text, labels=[self._label])
        with self._lock:
            every = {label: [*found] for label, found in self._found.items()}
        ends = [*(str(float(end)) for end in self._buckets), "+Inf"]
        for label, (*found, total) in every.items():
            metric.add_metric([_shown(label)], list(zip(ends, itertools.accumulate(found))), float(total))
        yield metric


def _shown(label: Any) -> str:
    return printable(str(label), lines=False)


class _State:
    """Collector of the store's sizes at the moment of a scrape."""

    def __init__(self, store: Store):
        self._store = store

    def collect(self) -> Iterator[Metric]:
        rows = GaugeMetricFamily("jfluid_ps_table_rows", "Rows of a table", labels=["table"])
        waiting = GaugeMetricFamily(
            "jfluid_ps_table_waiting", "Ids that the entry rule keeps waiting", labels=["table"]
        )
        size = GaugeMetricFamily("jfluid_ps_table_bytes", "Bytes of a table's indexes and pages", labels=["table"])
        made = CounterMetricFamily(
            "jfluid_ps_table_made", "Rows that a table got, with rows of a restored snapshot", labels=["table"]
        )
        expired = CounterMetricFamily("jfluid_ps_table_expired", "Rows that shrink has dropped", labels=["table"])
        for name, table in list(self._store.tables.items()):
            label = [_shown(name)]
            made.add_metric(label, len(table) + table.expired)
            expired.add_metric(label, table.expired)
            rows.add_metric(label, len(table))
            waiting.add_metric(label, table.waiting)
            size.add_metric(label, table.nbytes)
        yield from (rows, waiting, size, made, expired)
        yield GaugeMetricFamily("jfluid_ps_rounds", "Rounds of synchronous training", value=self._store.rounds)
        yield GaugeMetricFamily(
            "jfluid_ps_lost_calls",
            "Acknowledged calls that a restored snapshot did not have",
            value=self._store.ledger.lost,
        )


class _Waits:
    """Collector of the waits of synchronous rounds at the moment of a scrape."""

    def __init__(self, metrics: ServerMetrics):
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        rounds = CounterMetricFamily(
            "jfluid_ps_round_waits", "Rounds that the gradients of this trainer reached last", labels=["trainer"]
        )
        seconds = CounterMetricFamily(
            "jfluid_ps_round_wait_seconds",
            "Seconds between the first gradients of a round and those of this trainer",
            labels=["trainer"],
        )
        pending = GaugeMetricFamily(
            "jfluid_ps_round_pending_seconds",
            "Seconds that the next round has waited for this trainer so far",
            labels=["trainer"],
        )
        for trainer, wait in self._metrics.waits().items():
            label = [str(trainer)]
            rounds.add_metric(label, wait.rounds)
            seconds.add_metric(label, wait.seconds)
            pending.add_metric(label, wait.pending)
        yield from (rounds, seconds, pending)

"""A job's newest numbers for Prometheus, of all its processes at one address."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from jfluid.dashboard.runs import MEMORY, PROCESSOR, Run, Runs
from jfluid.record import lines


class _JobMetrics:
    """Prometheus collector of the newest numbers of runs."""

    def __init__(self, runs: Runs):
        self._runs = runs

    def describe(self) -> Iterator[Metric]:
        return iter(())  # so that nothing is collected when it is registered

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}  # those of several runs under one heading
        with self._runs.lock:
            for metric in (metric for run in self._runs.runs for metric in _of_run(run)):
                merged.setdefault(metric.name, metric)
                if merged[metric.name] is not metric:
                    merged[metric.name].samples.extend(metric.samples)
        return iter(merged.values())


def registry(runs: Runs) -> CollectorRegistry:
    """Return a Prometheus registry with the metrics of runs."""
    found = CollectorRegistry()
    found.register(_JobMetrics(runs))
    return found


def _of_run(run: Run) -> Iterator[Metric]:
    def gauge(name: str, text: str, *labels: str) -> Any:
        return GaugeMetricFamily(f"jfluid_{name}", text, labels=["run", "process", *labels])

    running = gauge("process_running", "1 while a process runs")
    starts = CounterMetricFamily("jfluid_process_starts", "How often a process was started", labels=["run", "process"])
    for process, runs in run.running.items():
        running.add_metric([run.name, process], int(runs))
        starts.add_metric([run.name, process], run.starts[process])
    memory = gauge("process_memory_bytes", "Memory of a process")
    seconds = CounterMetricFamily("jfluid_process_cpu_seconds", "Seconds of the processor", labels=["run", "process"])
    logged = gauge("logged", "The newest number of a name that was logged", "name")
    for (process, name), series in run.series.items():
        value = series.points[-1][2]
        if name == MEMORY:
            memory.add_metric([run.name, process], value * 1e6)
        elif name == PROCESSOR:
            seconds.add_metric([run.name, process], value)
        else:
            logged.add_metric([run.name, process, name], value)
    step = gauge("step", "Finished steps of a loop", "loop")
    rate = gauge("examples_per_second", "Examples, or what else the loop counts, in a second", "loop")
    for (process, loop), report in run.progress.items():
        step.add_metric([run.name, process, loop], report["step"])
        speed = lines.number(report["rate"])
        if speed is not None:
            rate.add_metric([run.name, process, loop], speed)
    waits = CounterMetricFamily(
        "jfluid_round_waits",
        "Rounds of a server that the gradients of this trainer reached last",
        labels=["run", "process", "trainer"],
    )
    waited = CounterMetricFamily(
        "jfluid_round_wait_seconds",
        "Seconds between the first gradients of a server's rounds and those of this trainer",
        labels=["run", "process", "trainer"],
    )
    pending = gauge(
        "round_pending_seconds", "Seconds that a server's next round has waited for this trainer", "trainer"
    )
    for process, held in run.waits.items():
        for trainer, (rounds, seconds_waited, so_far) in held["trainers"].items():
            waits.add_metric([run.name, process, trainer], rounds)
            waited.add_metric([run.name, process, trainer], seconds_waited)
            pending.add_metric([run.name, process, trainer], so_far)
    failures = CounterMetricFamily(
        "jfluid_failures", "Processes, or runs of all processes, that have failed", labels=["run"]
    )
    failures.add_metric([run.name], run.failures)
    dropped = CounterMetricFamily("jfluid_record_lines_missing", "Lines that the record could not take", labels=["run"])
    dropped.add_metric([run.name], run.dropped)
    yield from (running, starts, memory, seconds, logged, step, rate, waits, waited, pending, failures, dropped)

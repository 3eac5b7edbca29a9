"""Live progress of a training loop: steps, examples/s, loss.

    with Progress(total=len(batches) * epochs) as progress:
        for batch in batches:
            loss, = executor.run(...)
            progress.step(examples=len(batch), loss=loss)

On a terminal this is a bar; elsewhere a line every few seconds. Under `jfluid-launch` the launcher
draws it and writes the lines to the log file too. It goes into the record as well (`jfluid.record`).
"""

import functools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from jfluid import launcher_pipe, record
from jfluid.printable import printable

_SECONDS_BETWEEN_UPDATES = 0.1
_MOST_UPDATES_A_SECOND = 250  # of all ranks of a job, which one launcher takes
_LONGEST_BETWEEN_UPDATES = 1.0
_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_OF_RATE = 5.0
# Transfers that end earlier say nothing.
_SECONDS_OF_SMALL_TRANSFERS = 2.0
_MEGABYTE = 10**6


class Display(Protocol):
    """Display of progress reports.

    A report is a dict with description, step, total, rate, metrics and done; with a unit where not examples are
    counted.
    """

    def show(self, report: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


def line_of(report: dict[str, Any]) -> str:
    """Return a progress report as one line of text."""
    total = f"/{report['total']}" if report["total"] else ""
    metrics = "".join(f"  {name} {_text(value)}" for name, value in report["metrics"].items())
    rate = f"{report['rate']:,.0f} {report.get('unit', 'examples')}/s"
    text = f"{report['description']} {report['step']}{total}  {rate}{metrics}"
    return printable(text, lines=False)


def _text(value: float) -> str:
    """Return counts in full, other numbers with four digits."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


class Writable(Protocol):
    """Takes lines of text."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...


class LineDisplay:
    """Progress as lines of text, one every few seconds and one at the end; `prefix` returns the begin of a line."""

    def __init__(self, stream: Writable, prefix: Callable[[], str] = str):
        self._stream, self._prefix = stream, prefix
        self._next = 0.0

    def show(self, report: dict[str, Any]) -> None:
        now = time.monotonic()
        if report["done"] or now >= self._next:
            self._next = now + _SECONDS_BETWEEN_LINES
            print(self._prefix() + line_of(report), file=self._stream, flush=True)

    def close(self) -> None:
        pass


class BarDisplay:
    """Progress as a live bar on a terminal."""

    def __init__(self, stream: TextIO):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        console = Console(file=stream)
        self._bars = RichProgress(
            TextColumn("{task.description}", markup=False),  # names are no markup
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}", markup=False),
            TimeRemainingColumn(),
            console=console,
        )
        self._tasks: dict[str, Any] = {}

    def show(self, report: dict[str, Any]) -> None:
        name = printable(report["description"], lines=False)
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=report["total"], status="")
            self._bars.start()
        status = line_of(report | {"description": "", "step": "", "total": None}).strip()
        self._bars.update(self._tasks[name], completed=report["step"], total=report["total"], status=status)
        if report["done"]:
            self._end(self._tasks.pop(name), report)

    def _end(self, task: Any, report: dict[str, Any]) -> None:
        """Print the last state of a bar above the running bars, once: the next bar is drawn without it."""
        if self._tasks:
            self._bars.remove_task(task)
            self.print_above(line_of(report))
        else:
            self._bars.stop()
            self._bars.remove_task(task)

    @property
    def live(self) -> bool:
        """True if a bar is on the screen."""
        return bool(self._tasks)

    def print_above(self, text: str) -> None:
        """Print lines of text, with their terminal colours, above the bar."""
        from rich.text import Text

        self._bars.console.print(Text.from_ansi(text), soft_wrap=True)

    def close(self) -> None:
        self._bars.stop()
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks.clear()


class _ChannelDisplay:
    """Sends progress to the launcher, one JSON object a line."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor

    def show(self, report: dict[str, Any]) -> None:
        launcher_pipe.send(self._descriptor, report)

    def close(self) -> None:
        pass


def display_on(stream: TextIO) -> Display:
    """Return the display that suits a stream: a bar on a terminal, else lines."""
    return BarDisplay(stream) if stream.isatty() else LineDisplay(stream)


# One for a terminal: a loop's bar is on the screen while a checkpoint of it is uploaded.
_bars_on = functools.lru_cache(1)(BarDisplay)


def _own_display() -> Display:
    pipe = launcher_pipe.descriptor()
    if pipe is not None:
        return _ChannelDisplay(pipe)
    # what stands in its place while a bar is on the screen knows it
    stream = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
    return _bars_on(stream) if stream.isatty() else LineDisplay(stream)


class Progress:
    """The progress of a loop.

    Args:
        total: the number of steps; None when it is not known.
        description: stands in front of the numbers.
    """

    def __init__(self, total: int | None = None, description: str = "train"):
        self.total = total
        self.description = description
        self.steps = 0
        self._metrics: dict[str, float] = {}
        self._recent: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        self._examples = 0
        self._next_update = 0.0
        self._between = min(
            max(_SECONDS_BETWEEN_UPDATES, launcher_pipe.ranks() / _MOST_UPDATES_A_SECOND), _LONGEST_BETWEEN_UPDATES
        )
        self._display = _own_display()

    def step(self, examples: int, **metrics: Any) -> None:
        """Report one finished step over `examples` examples.

        Metrics such as `loss` are numbers or arrays of one element; an array of a different size raises
        ValueError. They are read only when shown, a few times a second, so passing an array that is
        still being computed does not slow the loop.
        """
        self.steps += 1
        self._examples += examples
        now = time.monotonic()
        self._recent.append((now, self._examples))
        while self._recent[0][0] < now - _SECONDS_OF_RATE and len(self._recent) > 2:
            self._recent.popleft()
        if now >= self._next_update:
            self._next_update = now + self._between
            self._show(metrics, done=False)
        else:
            self._metrics = metrics

    def _show(self, metrics: dict[str, Any], done: bool) -> None:
        import numpy as np  # which the launcher, that shows bars too, has no use for

        self._metrics = metrics
        (start, before), (end, after) = self._recent[0], self._recent[-1]
        self._report(
            {
                "description": self.description,
                "step": self.steps,
                "total": self.total,
                "rate": (after - before) / (end - start) if end > start else 0.0,
                "metrics": {name: float(np.asarray(value).item()) for name, value in metrics.items()},
                "done": done,
            }
        )

    def _report(self, report: dict[str, Any]) -> None:
        self._display.show(report)
        record.progress(report)

    def close(self) -> None:
        """Show the last step."""
        self._show(self._metrics, done=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Transfer:
    """The progress of an upload or download, which is shown once it has taken some seconds.

    Args:
        description: stands in front of the numbers.
        total: how many bytes there are.
    """

    def __init__(self, description: str, total: int):
        self._description, self._total = description, total
        self._display = _own_display()
        self._lock = threading.Lock()
        self._begin, self._bytes, self._shown = time.monotonic(), 0, False
        self._next_update = self._begin + _SECONDS_OF_SMALL_TRANSFERS

    def add(self, count: int) -> None:
        """Add `count` transferred bytes; any thread may call it."""
        with self._lock:
            self._bytes += count
            now = time.monotonic()
            if now >= self._next_update:
                self._next_update = now + _SECONDS_BETWEEN_UPDATES
                self._show(now, done=False)

    def close(self) -> None:
        """Show how far it has come at its end."""
        with self._lock:
            if self._shown:
                self._show(time.monotonic(), done=True)

    def _show(self, now: float, done: bool) -> None:
        self._shown = True
        self._display.show(
            {
                "description": self._description,
                "step": self._bytes // _MEGABYTE,
                "total": -(-self._total // _MEGABYTE),
                "rate": self._bytes / _MEGABYTE / max(now - self._begin, 1e-9),
                "unit": "MB",
                "metrics": {},
                "done": done,
            }
        )

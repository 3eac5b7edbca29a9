"""The runs that a page shows: records, read while the files grow.

Contents of a record are not trusted: fields of unexpected types are passed over, and text is shown as text.
"""

import contextlib
import json
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jfluid import errors
from jfluid.dashboard.series import Point, Series, fewer, written
from jfluid.printable import printable
from jfluid.record import FOLDER, lines

_MOST_EVENTS = 5000
_MOST_SERIES = 5000
_MOST_COMPILATIONS = 200
_MOST_WAITS = 100  # trainers that the rounds of a server have waited for
_MOST_PROGRAMS = 50
_DEEPEST, _MOST_CHILDREN = 20, 1000  # of a program's graph
_MOST_HELD, _MOST_OF_ONE = 400_000, 4000  # points of a run, and of one of its names
_MOST_IMAGES, _MOST_HISTOGRAMS = 10, 50  # of each name
_MOST_POINTS = 60_000  # that a page gets when it is loaded
_FEWEST_POINTS = 20
_MOST_UPDATES = 120
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BETWEEN_UPDATES = 0.5
_SECONDS_TO_SEND = 1.0  # above the time between two looks of an open page
_MOST_OF_UPDATE = 400  # points of one name
_SECONDS_OF_SILENCE = 60.0
_TEXTS = (
    "event",
    "label",
    "role",
    "log",
    "reason",
    "excerpt",
    "name",
    "mode",
    "folder",
    "system",
    "host",
)
_TABLES = ("versions", "environment")
_COUNTS = ("rank", "pid", "code", "left", "hosts", "processors", "restarts", "step", "total")
MEMORY, PROCESSOR = "memory (MB)", "processor (s)"
Json = dict[str, Any]
_END: Json = {}


class Run:
    """The state of one run, from its record.

    Args:
        folder: a job's log folder, or the folder FLAGS_record_dir.
        name: the run's name on the page.
    """

    def __init__(self, folder: Path, name: str):
        self.folder, self.name = folder, name
        self.place = folder / FOLDER if (folder / FOLDER).is_dir() else folder
        self._tails: dict[str, lines.Tail] = {}
        self._clear()

    def _clear(self) -> None:
        self.series: dict[tuple[str, str], Series] = {}
        self.events: deque[Json] = deque(maxlen=_MOST_EVENTS)
        self.progress: dict[tuple[str, str], Json] = {}
        self.images: dict[tuple[str, str], deque[Json]] = {}
        self.histograms: dict[tuple[str, str], deque[Json]] = {}
        self.compilations: deque[Json] = deque(maxlen=_MOST_COMPILATIONS)
        self.programs: dict[str, Json] = {}  # by fingerprint
        self.processes: dict[str, Json] = {}
        self.waits: dict[str, Json] = {}  # by server: of its rounds, for trainers
        self.running: dict[str, bool] = {}  # by process, of those that a launcher has started
        self.starts: dict[str, int] = {}
        self.failures = 0
        self.ended = False
        self.job: Json = {}
        self.newest = 0.0
        self.dropped = 0

    def look(self) -> Iterator[Json | None]:
        """Read the new lines of all files; yield the changes after each file.

        A change is for pages with all earlier changes. None tells pages to load the run anew.
        """
        if self.place == self.folder and (self.folder / FOLDER).is_dir():
            self.place = self.folder / FOLDER
        files = {path.name: path for path in lines.files(self.place)}
        tails = {name: self._tails.get(name, lines.Tail(path)) for name, path in files.items()}
        # a file was thinned, or a new job has begun: what is known of all is read again
        if self._tails.keys() - files.keys() or any(tail.is_another() for tail in tails.values()):
            tails = {name: lines.Tail(path) for name, path in files.items()}
            self._clear()
            yield None
        self._tails = tails
        for name, tail in tails.items():
            change: Json = {}
            source = printable(name.removesuffix(lines.SUFFIX).replace(".", " "), lines=False)
            try:
                for line in tail.lines():
                    self._take(source, line, change)
            except OSError:  # it has just gone: the next look begins anew
                continue
            yield change

    def _take(self, source: str, line: lines.Line, change: Json) -> None:
        self.newest = max(self.newest, line["t"])
        take = getattr(self, f"_take_{line['kind']}", None)
        if take is not None:
            take(source, line, change)

    # ---- kinds of lines ------------------------------------------------------------------------------

    def _take_scalars(self, source: str, line: lines.Line, change: Json) -> None:
        step = None if line.get("step") is None else _count(line["step"])
        for name, value in lines.numbers(line.get("scalars")).items():
            self._point(source, name, (line["t"], step, value), change)

    def _take_progress(self, source: str, line: lines.Line, change: Json) -> None:
        title, step = _text(line.get("description")), _count(line.get("step"))
        rate = lines.number(line.get("rate"))
        self.progress[source, title] = change.setdefault("progress", {})[f"{source}\0{title}"] = {
            "source": source,
            "description": title,
            "t": line["t"],
            "step": step,
            "total": None if line.get("total") is None else _count(line["total"]),
            "rate": None if rate is None else lines.written(rate),
            "unit": _text(line.get("unit") or "examples"),
            "metrics": {
                printable(name, lines=False): lines.written(value)
                for name, value in lines.numbers(line.get("metrics")).items()
            },
            "done": line.get("done") is True,
        }
        unit = _text(line.get("unit") or "examples")
        step = _count(line.get("all_steps", step))
        if rate is not None:
            self._point(source, f"{title}: {unit}/s", (line["t"], step, rate), change)
        for name, value in lines.numbers(line.get("metrics")).items():
            self._point(source, f"{title}: {name}", (line["t"], step, value), change)

    def _take_usage(self, source: str, line: lines.Line, change: Json) -> None:
        members = line.get("members")
        for label, usage in members.items() if isinstance(members, dict) else ():
            if isinstance(usage, list) and len(usage) == 2:
                size, seconds = map(lines.number, usage)
                if size is not None and seconds is not None:
                    owner = self._of_label(label)
                    self._point(owner, MEMORY, (line["t"], None, size / 1e6), change)
                    self._point(owner, PROCESSOR, (line["t"], None, seconds), change)

    def _of_label(self, label: str) -> str:
        """Return the process name of a launcher's label: `trainer 0` for `rank 0`."""
        return printable(label.replace("rank ", "trainer ", 1), lines=False)[: lines.LONGEST_NAME]

    def _take_compile(self, source: str, line: lines.Line, change: Json) -> None:
        seconds, total = lines.number(line.get("seconds")), lines.number(line.get("total"))
        if seconds is None or total is None:
            return
        self._point(source, "compilations", (line["t"], None, _count(line.get("count"))), change)
        self._point(source, "compiling (s)", (line["t"], None, total), change)
        compiled = {
            "source": source,
            "t": line["t"],
            "seconds": lines.written(seconds),
            "count": _count(line.get("count")),
            "differ": _text(line.get("differ")),
        }
        self.compilations.append(compiled)
        change.setdefault("compilations", []).append(compiled)

    def _take_program(self, source: str, line: lines.Line, change: Json) -> None:
        key = _text(line.get("fingerprint"))[: lines.LONGEST_NAME]
        if key not in self.programs and len(self.programs) < _MOST_PROGRAMS:
            found = {"source": source, "t": line["t"], "tree": _tree(line.get("tree"), _DEEPEST)}
            self.programs[key] = change.setdefault("programs", {})[key] = found

    def _take_waits(self, source: str, line: lines.Line, change: Json) -> None:
        trainers = line.get("trainers")
        found = {}
        for name, values in [*trainers.items()][:_MOST_WAITS] if isinstance(trainers, dict) else ():
            checked = [lines.number(value) for value in values] if isinstance(values, list) else []
            if name.isdecimal() and len(checked) == 3 and all(v is not None and math.isfinite(v) for v in checked):
                found[name[:20]] = checked
        self.waits[source] = change.setdefault("waits", {})[source] = {"t": line["t"], "trainers": found}

    def _take_image(self, source: str, line: lines.Line, change: Json) -> None:
        png = line.get("png")
        if isinstance(png, str) and png.isascii():
            image = _series_line(source, line) | {
                "png": png,
                "width": _count(line.get("width")),
                "height": _count(line.get("height")),
            }
            self._keep(self.images, image, _MOST_IMAGES)
            change.setdefault("images", []).append(image)

    def _take_histogram(self, source: str, line: lines.Line, change: Json) -> None:
        counts = line.get("counts")
        low, high = lines.number(line.get("low")), lines.number(line.get("high"))
        if isinstance(counts, list) and low is not None and high is not None:
            histogram = _series_line(source, line) | {
                "low": lines.written(low),
                "high": lines.written(high),
                "counts": [_count(count) for count in counts[:1000]],
                "nan": _count(line.get("nan")),
                "infinite": _count(line.get("infinite")),
            }
            self._keep(self.histograms, histogram, _MOST_HISTOGRAMS)
            change.setdefault("histograms", []).append(histogram)

    def _keep(self, kept: dict[tuple[str, str], deque[Json]], line: Json, most: int) -> None:
        key = line["source"], line["name"]
        if key in kept or len(kept) < _MOST_SERIES:
            kept.setdefault(key, deque(maxlen=most)).append(line)

    def _take_dropped(self, source: str, line: lines.Line, change: Json) -> None:
        self.dropped += _count(line.get("lines"))
        change["dropped"] = self.dropped

    def _take_start(self, source: str, line: lines.Line, change: Json) -> None:
        self.processes[source] = change.setdefault("processes", {})[source] = _fields(line)

    def _take_event(self, source: str, line: lines.Line, change: Json) -> None:
        role, _, rank = source.partition(" ")
        own = {} if role == "launcher" or not rank.isdecimal() else {"label": source, "role": role, "rank": int(rank)}
        event = {"t": line["t"], "source": source, **own, **_fields(line)}
        if event.get("event") == "job":
            event["job"] = printable(lines.shortened(str(line.get("job", ""))))
            if not self.job or source == "launcher 0":
                self.job = change["job"] = event
            return
        if isinstance(line.get("again"), bool):
            event["again"] = line["again"]
        self._count(event)
        self.events.append(event)
        change.setdefault("events", []).append(event)

    def _count(self, event: Json) -> None:
        """Track which processes run, and count failures."""
        what = event.get("event")
        if what == "end" and event["source"] == "launcher 0":
            self.ended = True
        if what in ("failure", "restart"):
            self.failures += 1
        if "role" in event and "rank" in event and what in ("start", "exit"):
            process = f"{event['role']} {event['rank']}"
            if process in self.running or len(self.running) < _MOST_SERIES:
                self.running[process] = what == "start"
                self.starts[process] = self.starts.get(process, 0) + (what == "start")

    def _point(self, source: str, name: str, point: Point, change: Json) -> None:
        key = source, printable(name, lines=False)
        if key not in self.series and len(self.series) >= _MOST_SERIES:
            return
        most = min(_MOST_HELD // (len(self.series) + 1), _MOST_OF_ONE)
        self.series.setdefault(key, Series()).add(point, most)
        points = change.setdefault("series", {})
        points.setdefault("\0".join(key), []).append(point)

    # ---- what a page gets ----------------------------------------------------------------------------

    def everything(self, points: int) -> str:
        """Return the state of the run as JSON, with about `points` points of each name."""
        series = ",".join(f"{json.dumps(chr(0).join(key))}:{series.few(points)}" for key, series in self.series.items())
        state = {
            "name": self.name,
            "folder": printable(str(self.folder), lines=False),
            "events": [*self.events],
            "progress": {"\0".join(key): report for key, report in self.progress.items()},
            "images": [image for images in self.images.values() for image in images],
            "histograms": [line for kept in self.histograms.values() for line in kept],
            "compilations": [*self.compilations],
            "programs": self.programs,
            "processes": self.processes,
            "waits": self.waits,
            "job": self.job,
            "newest": self.newest,
            "dropped": self.dropped,
            "launched": self.is_live,
        }
        return f'{json.dumps(state, allow_nan=False)[:-1]},"series":{{{series}}}}}'

    @property
    def is_live(self) -> bool:
        """True if a launcher has begun the job, and has not told its end."""
        return bool(self.job) and not self.ended


class Runs:
    """Runs that a thread reads while the records grow, and the latest changes.

    Raises FileFormatError where a folder has no record, except for a job that has just begun (`live`).
    """

    def __init__(self, folders: Sequence[Path], live: bool = False):
        names = _names(folders)
        self.runs = [Run(folder, name) for folder, name in zip(folders, names)]
        self.lock = threading.Lock()
        self.sequence = 0
        self.reading = True  # for the first time
        self.listeners = 0
        self._looks, self._wake = 0, threading.Event()
        self._updates: deque[tuple[int, str]] = deque(maxlen=_MOST_UPDATES)
        if not live:
            for run in self.runs:
                if not lines.files(run.place):
                    raise errors.FileFormatError(
                        f"{run.folder}: expected a record: the log folder of a job that jfluid-launch has "
                        f"run (with {FOLDER}/*{lines.SUFFIX} in it), or the folder of FLAGS_record_dir"
                    )

    def watch(self) -> None:
        """Look about once a second from now on, in a thread."""
        threading.Thread(target=self._watch, name="jfluid-dashboard", daemon=True).start()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            self.look()
        self.everything()  # the first page finds the thinned points of all series
        while True:
            with contextlib.suppress(OSError):  # for one, no descriptor is left: the next look reads on
                self.look()
            self._looks += 1
            self._wake.wait(_SECONDS_BETWEEN_LOOKS)
            self._wake.clear()

    def tell_the_end(self, seconds: float) -> None:
        """Let the pages that are open see all that was recorded; wait for at most `seconds`, for no page not at all."""
        deadline, seen = time.monotonic() + seconds, self._looks
        # the look that goes on may have passed a file already
        while self.listeners and self._looks < seen + 2 and time.monotonic() < deadline:
            self._wake.set()
            time.sleep(0.02)
        if self.listeners:
            time.sleep(max(min(_SECONDS_TO_SEND, deadline - time.monotonic()), 0.0))

    def look(self) -> None:
        """Read the new lines of all runs, and publish changes about twice a second meanwhile."""
        changes: list[Json] = [{} for _ in self.runs]
        due = time.monotonic() + _SECONDS_BETWEEN_UPDATES
        for place, run in enumerate(self.runs):
            steps = run.look()
            while True:
                with self.lock:
                    change = next(steps, _END)
                    if change is _END:
                        break
                    if change is None:
                        self._tell(None)
                        changes = [{} for _ in self.runs]
                    else:
                        _join(changes[place], change)
                    if time.monotonic() > due:
                        self._tell(changes)
                        changes = [{} for _ in self.runs]
                        due = time.monotonic() + _SECONDS_BETWEEN_UPDATES
        with self.lock:
            if any(changes) or self.reading:
                self.reading = False
                self._tell(changes)

    def _tell(self, changes: Sequence[Json] | None) -> None:
        """Keep an update for pages; None makes pages load the runs anew."""
        self.sequence += 1
        told: Json = {"sequence": self.sequence, "reload": changes is None, "reading": self.reading}
        if changes is not None:
            told["runs"] = [
                {
                    **change,
                    "newest": run.newest,
                    "series": {
                        key: written(fewer(points, _MOST_OF_UPDATE)) for key, points in change.get("series", {}).items()
                    },
                }
                for run, change in zip(self.runs, changes)
            ]
        self._updates.append((self.sequence, json.dumps(told, allow_nan=False)))

    def updates(self, since: int) -> Iterator[str]:
        """Return the updates after number `since`, or an order to load anew if some are gone."""
        with self.lock:
            missed = self.sequence > since and (not self._updates or self._updates[0][0] > since + 1)
            found = [text for number, text in self._updates if number > since]
        if since > self.sequence or missed:
            return iter(['{"reload":true}'])
        return iter(found)

    def everything(self, most: int = _MOST_POINTS, **more: Any) -> str:
        """Return all that is known as JSON, with a number that `updates` takes, and `more` fields."""
        with self.lock:
            count = sum(len(run.series) for run in self.runs)
            points = max(most // max(count, 1), _FEWEST_POINTS)
            state = {
                "sequence": self.sequence,
                "reading": self.reading,
                "now": time.time(),
                "silence": _SECONDS_OF_SILENCE,
                **more,
            }
            runs = ",".join(run.everything(points) for run in self.runs)
        return f'{json.dumps(state, allow_nan=False)[:-1]},"runs":[{runs}]}}'


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that tell the runs apart."""
    parts = [folder.absolute().parts for folder in folders]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return [printable(name, lines=False) for name in names]
    return [f"{printable(str(folder), lines=False)} ({i})" for i, folder in enumerate(folders)]


def _join(told: Json, change: Json) -> None:
    """Merge a change into earlier changes."""
    for name, new in change.items():
        if name == "series":
            series = told.setdefault(name, {})
            for key, points in new.items():
                series.setdefault(key, []).extend(points)
        elif isinstance(new, list):
            told.setdefault(name, []).extend(new)
        elif isinstance(new, dict) and name != "job":
            told.setdefault(name, {}).update(new)
        else:
            told[name] = new


def _text(value: Any) -> str:
    return printable(lines.shortened(value)) if isinstance(value, str) else ""


def _count(value: Any) -> int:
    """Return a whole number that JavaScript represents exactly; 0 for all other values."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and abs(value) < 1 << 53 else 0


def _fields(line: lines.Line) -> Json:
    """Return the fields of an event that a page shows."""
    found: Json = {name: _text(line[name]) for name in _TEXTS if isinstance(line.get(name), str)}
    found |= {name: _count(line[name]) for name in _COUNTS if isinstance(line.get(name), int)}
    for table in _TABLES:
        if isinstance(line.get(table), dict):
            found[table] = {printable(name, lines=False): _text(value) for name, value in line[table].items()}
    return found


def _tree(node: Any, deepest: int) -> Json:
    """Return a checked node of a program's graph, with its children."""
    found = node if isinstance(node, dict) else {}
    children, reads = found.get("children"), found.get("reads")
    return {
        "name": printable(_text(found.get("name"))[: lines.LONGEST_NAME], lines=False),
        "ops": _count(found.get("ops")),
        "reads": [printable(_text(name)[: lines.LONGEST_NAME], lines=False) for name in _list(reads)],
        "children": [_tree(child, deepest - 1) for child in _list(children)] if deepest else [],
    }


def _list(value: Any) -> list[Any]:
    return value[:_MOST_CHILDREN] if isinstance(value, list) else []


def _series_line(source: str, line: lines.Line) -> Json:
    name = printable(_text(line.get("name"))[: lines.LONGEST_NAME], lines=False)
    return {"source": source, "name": name, "t": line["t"], "step": _count(line.get("step"))}

"""Traces of steps in Perfetto's Trace Event format: XLA's work by the names of Fluid's operators."""

import contextlib
import gzip
import json
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jfluid.record import fusion_shares
from jfluid.record.fusion_shares import OTHER, Shares
from jfluid.security import private_files

_CLOCK = "jfluid-clock"
_MODULE = "jit_fluid_"
_MOST_NAMES = 3
_MOST_JSON = 256 << 20
_MODULES, _PHASES, _CALLS, _FIRST_THREAD = 2, 1, 1, 10
Event = dict[str, Any]


class Trace:
    """A trace of this process by JAX's profiler, without Python frames, from now until `end`.

    Raises RuntimeError where a trace is being taken.
    """

    def __init__(self) -> None:
        import jax

        self._folder = tempfile.mkdtemp(prefix="jfluid-profile-")
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        try:
            jax.profiler.start_trace(self._folder, profiler_options=options)
        except RuntimeError:
            shutil.rmtree(self._folder)
            raise
        with jax.profiler.TraceAnnotation(_CLOCK):
            self._clock = time.time_ns()

    def stop(self) -> None:
        """End the trace."""
        import jax

        jax.profiler.stop_trace()

    def instructions(self) -> list["Instruction"]:
        """Return the instructions that XLA has run, and remove the trace's files."""
        try:
            (path,) = Path(self._folder).rglob("*.xplane.pb")
            return [*instructions_of(path, self._clock)]
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


class Instruction:
    """An instruction that XLA has run: name, module, run, thread, begin and duration in seconds, and operators."""

    __slots__ = ("begin", "duration", "module", "name", "run", "shares", "thread")

    def __init__(self, name: str, module: str, run: Any, thread: str, begin: float, duration: float, shares: Shares):
        self.name, self.module, self.run, self.thread = name, module, run, thread
        self.begin, self.duration, self.shares = begin, duration, shares

    @property
    def title(self) -> str:
        """The operators in the instruction, the largest share first."""
        names = sorted(self.shares, key=lambda name: -self.shares[name])
        more = f" + {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return " + ".join(names[:_MOST_NAMES]) + more


def instructions_of(path: Path, clock_ns: int) -> Iterator[Instruction]:
    """Return the instructions of Fluid's modules in a trace file, in seconds since the epoch.

    Args:
        clock_ns: the time at which the trace's clock mark was set; 0 gives seconds of the trace itself.
    """
    import jax

    found: dict[tuple[str, Any], list[tuple[str, Any, str, float, float]]] = defaultdict(list)
    shift = 0.0
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                if event.name == _CLOCK and clock_ns:
                    shift = clock_ns - event.start_ns
                    continue
                stats = dict(event.stats)
                module, instruction = str(stats.get("hlo_module")), stats.get("hlo_op")
                if instruction is not None and module.startswith(_MODULE):
                    thread = line.name if plane.name.startswith("/host") else f"{plane.name} {line.name}"
                    item = (str(instruction), stats.get("run_id"), thread, event.start_ns, event.duration_ns)
                    found[module, stats.get("program_id", 0)].append(item)
    executables = _shares_of_executables()
    for (module, _), events in found.items():
        ran = {event[0] for event in events}
        # A program is compiled for several shapes under one name: take the executable that fits the instructions.
        shares = max(executables.get(module, [{}]), key=lambda known: len(ran & known.keys()))
        for name, run, thread, begin, duration in events:
            of = shares.get(name, {OTHER: 1.0})
            yield Instruction(name, module, run, thread, (begin + shift) / 1e9, duration / 1e9, of)


def _shares_of_executables() -> dict[str, list[dict[str, Shares]]]:
    """Return the operators' shares by instruction, for each live executable of each module."""
    import jax

    found: dict[str, list[dict[str, Shares]]] = defaultdict(list)
    for device in {d.client: d for d in jax.devices()}.values():
        for executable in device.client.live_executables():
            for module in executable.hlo_modules():
                if module.name.startswith(_MODULE):
                    found[module.name].append(fusion_shares.shares_of(module.to_string()))
    return found


def times_of(instructions: Iterable[Instruction]) -> dict[str, list[float]]:
    """Return the milliseconds of instructions by operator type; operators of a fused instruction share its time."""
    times: dict[str, list[float]] = defaultdict(list)
    for instruction in instructions:
        for operator, share in instruction.shares.items():
            times[operator].append(instruction.duration * 1e3 * share)
    return dict(times)


# ---- Perfetto ------------------------------------------------------------------------------------


def of_instructions(instructions: Sequence[Instruction]) -> list[Event]:
    """Return the events of instructions: a row for each thread of XLA, and a row of modules."""
    threads = {name: _FIRST_THREAD + i for i, name in enumerate(sorted({i.thread for i in instructions}))}
    events = [_thread(number, f"XLA: {name.partition('/')[0]}") for name, number in threads.items()]
    runs: dict[tuple[str, Any], tuple[float, float]] = {}
    for i in instructions:
        args = {"instruction": i.name, "module": i.module, **{n: f"{100 * s:.0f}%" for n, s in i.shares.items()}}
        events.append(_slice(i.title, threads[i.thread], i.begin, i.duration, args))
        begin, end = runs.get((i.module, i.run), (i.begin, i.begin))
        runs[i.module, i.run] = min(begin, i.begin), max(end, i.begin + i.duration)
    if runs:
        events.append(_thread(_MODULES, "XLA modules"))
    events += [_slice(module, _MODULES, begin, end - begin) for (module, _), (begin, end) in runs.items()]
    return events


def of_phases(phases: Iterable[tuple[str, float, float]]) -> list[Event]:
    """Return the events of a trainer's phases."""
    return [
        _thread(_PHASES, "phases of a step"),
        *(_slice(name, _PHASES, begin, end - begin) for name, begin, end in phases),
    ]


def of_calls(calls: Iterable[tuple[str, float, float, int]]) -> list[Event]:
    """Return the events of a server's calls: the name of each, its begin and end, its thread."""
    rows: dict[int, int] = {}
    events = []
    for name, begin, end, thread in calls:
        row = rows.setdefault(thread, _CALLS + len(rows))
        events.append(_slice(name, row, begin, end - begin))
    return [*(_thread(row, f"calls, thread {row}") for row in rows.values()), *events]


def _slice(name: str, thread: int, begin: float, duration: float, args: Mapping[str, Any] = {}) -> Event:
    event = {"ph": "X", "name": name, "tid": thread, "ts": begin * 1e6, "dur": max(duration, 0.0) * 1e6}
    return event | ({"args": dict(args)} if args else {})


def _thread(number: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "tid": number, "args": {"name": name}}


def write(path: Path, processes: Mapping[str, Sequence[Event]]) -> None:
    """Write the events of processes as one trace (.json.gz); its time begins with the first event.

    Args:
        processes: events by the name of their process.
    """
    first = min((e["ts"] for events in processes.values() for e in events if "ts" in e), default=0.0)
    found: list[Event] = []
    for number, (name, events) in enumerate(processes.items(), 1):
        found.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
        found.append({"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}})
        found += [
            e | {"pid": number} | ({"ts": round(e["ts"] - first, 3), "dur": round(e["dur"], 3)} if "ts" in e else {})
            for e in events
        ]
    write_json(path, {"displayTimeUnit": "ms", "traceEvents": found})


def write_json(path: Path, value: Any) -> None:
    """Write a compressed JSON file that only its owner can read, as a whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    file = private_files.create(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        with os.fdopen(file, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, compresslevel=3) as packed:
            packed.write(json.dumps(value, separators=(",", ":"), allow_nan=False).encode())
        os.replace(beside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()


def read_json(path: Path) -> Any:
    """Return the value in a compressed JSON file of at most 256 MiB; None where there is none."""
    try:
        with gzip.open(path) as file:
            return json.loads(file.read(_MOST_JSON))
    except (OSError, EOFError, ValueError, RecursionError):
        return None


def is_event(event: Mapping[str, Any]) -> bool:
    """Return True if an event of a part has the fields of a slice or of a name."""
    named = isinstance(event.get("name"), str) and type(event.get("tid")) is int
    numbers = all(type(event.get(name)) in (int, float) for name in ("ts", "dur"))
    return named and (event.get("ph") == "M" or (event.get("ph") == "X" and numbers))

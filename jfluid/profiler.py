"""Profiling: a trace for Perfetto or TensorBoard, and a table of the time that each operator type takes.

XLA fuses operators, so a row of the table is the time of the XLA instructions whose root comes from
operators of that type; what was fused into them counts there, too.
"""

import contextlib
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jfluid import errors
from jfluid.printable import printable
from jfluid.security import private_files

__all__ = ["cuda_profiler", "profiler", "reset_profiler", "start_profiler", "stop_profiler"]

_STATES = ("CPU", "GPU", "All")
_SORTS = (None, "default", "calls", "total", "max", "min", "ave")
_OPTIONS = ("Default", "OpDetail", "AllOpDetail")
_INSTRUCTION = re.compile(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*metadata=\{[^}]*op_name="([^"]+)"', re.MULTILINE)

_PATH = "/tmp/profile"  # Fluid's default

# where the running trace will be written; a process has one trace at a time
_trace_dir: str | None = None


def start_profiler(state: str, tracer_option: str = "Default") -> None:
    """Start to trace all devices. It does nothing when profiling is on already.

    Args:
        state: "CPU", "GPU" or "All"; XLA's trace has every device that works, whichever is named.
        tracer_option: one of Fluid's "Default", "OpDetail", "AllOpDetail"; the trace is the same.

    Raises ProgramError for another state or option.
    """
    global _trace_dir
    if _trace_dir is not None:
        return
    if state not in _STATES:
        raise errors.ProgramError(f"profiler: state {state!r}, expected one of {', '.join(_STATES)}")
    if tracer_option not in _OPTIONS:
        raise errors.ProgramError(f"profiler: tracer_option {tracer_option!r}, expected one of {', '.join(_OPTIONS)}")
    folder = tempfile.mkdtemp(prefix="jfluid-profile-")
    try:
        jax.profiler.start_trace(folder)
    except RuntimeError:
        shutil.rmtree(folder)
        raise
    _trace_dir = folder


def stop_profiler(sorted_key: str | None = None, profile_path: str = _PATH) -> None:
    """Stop the trace, write it and print the table. It does nothing when profiling is off.

    Args:
        sorted_key: the column to sort by, largest first: "calls", "total", "max", "min" or "ave";
            "default" or None keeps the order of first use.
        profile_path: the folder to write the trace into. Where there is a file, as Fluid leaves
            one, the folder is that path with ".trace" behind it; the line below the table names it.
            A new folder is this user's alone.

    Raises ProgramError for another key; profiling then stays on. Raises NotPrivateError where the
    folder is another user's, or everybody's; the error says where the trace is.
    """
    global _trace_dir
    if _trace_dir is None:
        return
    _check_key(sorted_key)
    if Path(profile_path).is_file():
        profile_path += ".trace"
    folder, _trace_dir = _trace_dir, None
    try:
        jax.profiler.stop_trace()
        try:
            private_files.own_folder(profile_path)
        except errors.NotPrivateError as error:
            kept, folder = folder, ""
            raise errors.NotPrivateError(
                f"profiler: {error}. The trace is in {kept}; give a folder of your own as profile_path"
            ) from None
        for part in Path(folder).iterdir():
            shutil.copytree(part, Path(profile_path) / part.name, dirs_exist_ok=True)
        (trace,) = (path for path in Path(folder).rglob("*.xplane.pb"))
        _print(
            operator_times(str(trace)),
            sorted_key,
            str(Path(profile_path) / trace.relative_to(folder)),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_key(sorted_key: str | None) -> None:
    if sorted_key not in _SORTS:
        raise errors.ProgramError(
            f"profiler: sorted_key {sorted_key!r}, expected None or one of " + ", ".join(key for key in _SORTS if key)
        )


@contextlib.contextmanager
def profiler(
    state: str,
    sorted_key: str | None = None,
    profile_path: str = _PATH,
    tracer_option: str = "Default",
) -> Iterator[None]:
    """Profile the work of a context.

    The arguments are the arguments of `start_profiler` and `stop_profiler`.
    """
    _check_key(sorted_key)
    start_profiler(state, tracer_option)
    try:
        yield
    finally:
        stop_profiler(sorted_key, profile_path)


def reset_profiler() -> None:
    """Discard the trace so far, and continue. It does nothing when profiling is off."""
    if _trace_dir is not None:
        jax.profiler.stop_trace()
        shutil.rmtree(_trace_dir)
        jax.profiler.start_trace(_trace_dir)


@contextlib.contextmanager
def cuda_profiler(output_file: str, output_mode: str | None = None, config: list[str] | None = None) -> Iterator[None]:
    """Raises UnsupportedError: nvprof is gone from CUDA.

    Use `profiler("GPU")`, or run the script under Nsight Systems.
    """
    raise errors.UnsupportedError(
        "fluid.profiler.cuda_profiler drove nvprof, which current CUDA does not have: use "
        'fluid.profiler.profiler("GPU"), or run the script under Nsight Systems (nsys profile)'
    )
    yield


def operator_times(trace: str) -> dict[str, list[float]]:
    """Return the milliseconds of each XLA instruction in a trace file, by the type of the operator that it comes from."""
    runs: dict[tuple[str, int], list[tuple[str, float]]] = defaultdict(list)
    for plane in jax.profiler.ProfileData.from_file(trace).planes:
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                module, instruction = str(stats.get("hlo_module")), stats.get("hlo_op")
                if instruction is not None and module.startswith("jit_fluid_"):
                    runs[module, stats.get("program_id", 0)].append((instruction, event.duration_ns / 1e6))
    executables = _operators_of_instructions()
    times: dict[str, list[float]] = defaultdict(list)
    for (module, _), events in runs.items():
        ran = {instruction for instruction, _ in events}
        # A program is compiled once per shapes and fetches, always under its one name: take what
        # fits the instructions.
        types = max(executables.get(module, [{}]), key=lambda known: len(ran & known.keys()))
        for instruction, duration in events:
            times[types.get(instruction, "(XLA)")].append(duration)
    return dict(times)


def _operators_of_instructions() -> dict[str, list[dict[str, str]]]:
    """Return instruction -> operator type, of each executable of a module, for all programs compiled in this process."""
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    for device in {d.client: d for d in jax.devices()}.values():
        for executable in device.client.live_executables():
            for module in executable.hlo_modules():
                if module.name.startswith("jit_fluid_"):
                    instructions = _INSTRUCTION.findall(module.to_string())
                    found[module.name].append({name: _operator_type(path) for name, path in instructions})
    return found


def _operator_type(path: str) -> str:
    """Return the scope in which the lowering ran the operator: the first part of the path after `jit(...)`."""
    parts = [p for p in path.split("/") if p and not p.startswith("jit(")]
    return re.sub(r"^(?:\w+\()*|\)+$", "", parts[0]) if len(parts) > 1 else "(XLA)"


def _print(times: dict[str, list[float]], sorted_by: str | None, trace: str) -> None:
    total = sum(map(sum, times.values())) or 1.0
    rows: list[dict[str, Any]] = [
        {
            "event": name,
            "calls": len(t),
            "total": sum(t),
            "min": min(t),
            "max": max(t),
            "ave": sum(t) / len(t),
            "ratio": sum(t) / total,
        }
        for name, t in times.items()
    ]
    if sorted_by not in (None, "default"):
        rows.sort(key=lambda row: -row[sorted_by])
    table = Table(title="Time by operator type (ms)")
    for column in ("Event", "Calls", "Total", "Min.", "Max.", "Ave.", "Ratio."):
        table.add_column(column, justify="left" if column == "Event" else "right")
    for row in rows:
        table.add_row(
            Text(printable(row["event"], lines=False)),
            str(row["calls"]),
            *(f"{row[k]:.4f}" for k in ("total", "min", "max", "ave", "ratio")),
        )
    console = Console(width=110)
    console.print(table)
    where = Text(printable(f"trace for Perfetto and TensorBoard: {trace}"))
    console.print(where, soft_wrap=True)

"""Profiling: a trace for Perfetto or TensorBoard, and a table of the time each operator type takes.

XLA fuses operators, so a row of the table is the time of the XLA instructions whose root comes from operators of
that type; what was fused into them counts there too.
"""
import contextlib
import glob
import os
import re
from collections import defaultdict
from collections.abc import Iterator

import jax
from rich.console import Console
from rich.table import Table

from jfluid import errors

__all__ = ["cuda_profiler", "profiler", "reset_profiler", "start_profiler", "stop_profiler"]

_STATES = ("CPU", "GPU", "All")
_SORTS = {"default": None, None: None, "calls": "calls", "total": "total", "max": "max", "min": "min", "ave": "ave"}
_OPTIONS = ("Serial", "Default", "OpDetail", "AllOpDetail")
_INSTRUCTION = re.compile(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*metadata=\{[^}]*op_name="([^"]+)"', re.MULTILINE)

_trace_dir: str | None = None  # JAX traces one thing at a time in a process, so this is the process's too


def start_profiler(state: str, tracer_option: str = "Default", profile_path: str = "/tmp/profile") -> None:
    """Start to trace all devices.

    Args:
        state: "CPU", "GPU" or "All"; XLA's trace holds every device that works, whichever is named.
        tracer_option: one of Fluid's "Serial", "Default", "OpDetail", "AllOpDetail"; the trace is the same.
        profile_path: the folder that the trace is written to.

    Raises ProgramError for another state or option, or when profiling is on already.
    """
    global _trace_dir
    if state not in _STATES:
        raise errors.ProgramError(f"profiler: state {state!r}, expected one of {', '.join(_STATES)}")
    if tracer_option not in _OPTIONS:
        raise errors.ProgramError(f"profiler: tracer_option {tracer_option!r}, expected one of {', '.join(_OPTIONS)}")
    if _trace_dir is not None:
        raise errors.ProgramError("profiler: it is on already; stop_profiler() ends it")
    jax.profiler.start_trace(profile_path)
    _trace_dir = profile_path


def stop_profiler(sorted_key: str | None = None, profile_path: str = "/tmp/profile") -> None:
    """Stop the trace and print the table.

    Args:
        sorted_key: "calls", "total", "max", "min" or "ave": the column to sort by, largest first; "default" or None
            keeps the order of first use.
        profile_path: where `start_profiler` was told to write; it is the trace's folder that counts.

    Raises ProgramError for another key, or when profiling is not on.
    """
    global _trace_dir
    if sorted_key not in _SORTS:
        keys = ", ".join(k for k in _SORTS if k)
        raise errors.ProgramError(f"profiler: sorted_key {sorted_key!r}, expected one of {keys} or None")
    if _trace_dir is None:
        raise errors.ProgramError("profiler: it is not on; start_profiler() starts it")
    folder, _trace_dir = _trace_dir, None
    jax.profiler.stop_trace()
    traces = glob.glob(os.path.join(folder, "plugins", "profile", "*", "*.xplane.pb"))
    newest = max(traces, key=os.path.getmtime)
    _print(operator_times(newest), _SORTS[sorted_key], newest)


@contextlib.contextmanager
def profiler(state: str, sorted_key: str | None = None, profile_path: str = "/tmp/profile",
             tracer_option: str = "Default") -> Iterator[None]:
    """Profile what runs within; see `start_profiler` and `stop_profiler` for the arguments."""
    if sorted_key not in _SORTS:
        keys = ", ".join(k for k in _SORTS if k)
        raise errors.ProgramError(f"profiler: sorted_key {sorted_key!r}, expected one of {keys} or None")
    start_profiler(state, tracer_option, profile_path)
    try:
        yield
    finally:
        stop_profiler(sorted_key, profile_path)


def reset_profiler() -> None:
    """Forget what was traced so far, and go on. Nothing to do when profiling is off."""
    if _trace_dir is not None:
        jax.profiler.stop_trace()
        jax.profiler.start_trace(_trace_dir)


@contextlib.contextmanager
def cuda_profiler(output_file: str, output_mode: str | None = None, config: list[str] | None = None) -> Iterator[None]:
    """Raises UnsupportedError: nvprof is gone from CUDA. Use `profiler("GPU")`, or run the script under Nsight Systems."""
    raise errors.UnsupportedError('fluid.profiler.cuda_profiler drove nvprof, which current CUDA does not have: use '
                                  'fluid.profiler.profiler("GPU"), or run the script under Nsight Systems (nsys profile)')
    yield


def operator_times(trace: str) -> dict[str, list[float]]:
    """Milliseconds of each XLA instruction in a trace file, by the type of the operator it comes from."""
    types = _operator_of_instructions()
    times: dict[str, list[float]] = defaultdict(list)
    for plane in jax.profiler.ProfileData.from_file(trace).planes:
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                module, instruction = stats.get("hlo_module"), stats.get("hlo_op")
                if instruction is not None and str(module).startswith("jit_fluid_"):
                    times[types.get((module, instruction), "(XLA)")].append(event.duration_ns / 1e6)
    return dict(times)


def _operator_of_instructions() -> dict[tuple[str, str], str]:
    """(module, instruction) -> operator type, for all programs that are compiled in this process."""
    found = {}
    for device in {d.client: d for d in jax.devices()}.values():
        for executable in device.client.live_executables():
            for module in executable.hlo_modules():
                if module.name.startswith("jit_fluid_"):
                    for instruction, path in _INSTRUCTION.findall(module.to_string()):
                        found[module.name, instruction] = _operator_type(path)
    return found


def _operator_type(path: str) -> str:
    """The scope that the lowering ran the operator under: the first part of the path behind `jit(...)`."""
    parts = [p for p in path.split("/") if p and not p.startswith("jit(")]
    return re.sub(r"^(?:\w+\()*|\)+$", "", parts[0]) if len(parts) > 1 else "(XLA)"


def _print(times: dict[str, list[float]], sorted_by: str | None, trace: str) -> None:
    total = sum(map(sum, times.values())) or 1.0
    rows = [{"event": name, "calls": len(t), "total": sum(t), "min": min(t), "max": max(t), "ave": sum(t) / len(t),
             "ratio": sum(t) / total} for name, t in times.items()]
    if sorted_by is not None:
        rows.sort(key=lambda row: -row[sorted_by])
    table = Table(title="Time by operator type (ms)", caption=f"trace for Perfetto and TensorBoard: {trace}")
    for column in ("Event", "Calls", "Total", "Min.", "Max.", "Ave.", "Ratio."):
        table.add_column(column, justify="left" if column == "Event" else "right")
    for row in rows:
        table.add_row(row["event"], str(row["calls"]), *(f"{row[k]:.4f}" for k in ("total", "min", "max", "ave", "ratio")))
    Console(width=110).print(table)

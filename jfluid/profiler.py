"""Profiling: a trace for Perfetto or TensorBoard, and a table of the time that each operator type takes.

XLA fuses operators. The table gives the time of a fused instruction to the operators in it, by their cost.
"""

import contextlib
import ctypes
import ctypes.util
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jfluid import errors
from jfluid.printable import printable
from jfluid.record import step_traces
from jfluid.security import private_files

__all__ = ["cuda_profiler", "profiler", "reset_profiler", "start_profiler", "stop_profiler"]

_STATES = ("CPU", "GPU", "All")
_SORTS = (None, "default", "calls", "total", "max", "min", "ave")
_OPTIONS = ("Default", "OpDetail", "AllOpDetail")

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
        _start_trace(folder)
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
        print_times(
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
        _start_trace(_trace_dir)


def _start_trace(folder: str) -> None:
    """Start JAX's trace without the frames of Python functions: a step has thousands."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(folder, profiler_options=options)


def _cuda_runtime() -> ctypes.CDLL:
    """Return CUDA's runtime library: of the system, or of NVIDIA's packages that JAX uses."""
    packaged = [path for folder in sys.path for path in sorted(Path(folder).glob("nvidia/*/lib/libcudart.so.*"))]
    for path in [ctypes.util.find_library("cudart"), *map(str, packaged)]:
        if path is not None:
            with contextlib.suppress(OSError):
                return ctypes.CDLL(path)
    raise errors.DependencyError(
        "fluid.profiler.cuda_profiler",
        "CUDA's runtime library (libcudart)",
        "cuda12",
        'or profile with profiler("CPU")',
    )


def _check_cuda(function: str, code: int) -> None:
    if code:
        raise errors.PlaceError(f"fluid.profiler.cuda_profiler: {function} of CUDA's runtime returned error {code}")


@contextlib.contextmanager
def cuda_profiler(output_file: str, output_mode: str | None = None, config: list[str] | None = None) -> Iterator[None]:
    """Profile with CUDA's profiler API the GPU work of the block, for a CUDA profiler that the script runs under.

    CUDA's profilers start and stop with the block, and write their files themselves, such as
    `nsys profile --capture-range=cudaProfilerApi python train.py`. Without such a profiler nothing is profiled;
    `profiler("GPU")` needs none.

    Args:
        output_file: no effect: the profiler names its file.
        output_mode: "csv" (as None) or "kvp", without effect: CUDA has no nvprof any more, which wrote these formats.
        config: no effect, for the same reason.

    Raises:
        ProgramError: another output mode.
        DependencyError: CUDA's runtime library is not installed.
        PlaceError: there is no GPU.
    """
    if output_mode not in (None, "kvp", "csv"):
        raise errors.ProgramError("The output mode must be 'kvp' or 'csv'.")
    runtime = _cuda_runtime()
    _check_cuda("cudaProfilerStart", runtime.cudaProfilerStart())
    try:
        yield
    finally:
        _check_cuda("cudaProfilerStop", runtime.cudaProfilerStop())


def operator_times(trace: str) -> dict[str, list[float]]:
    """Return the milliseconds of XLA instructions in a trace file, by operator type.

    The time of a fused instruction is shared among the operators in it, by their cost (`jfluid.record.fusion_shares`).
    """
    return step_traces.times_of(step_traces.instructions_of(Path(trace), 0))


def print_times(times: Mapping[str, Sequence[float]], sorted_by: str | None, trace: str) -> None:
    """Print the table of the time by operator type, and where the trace is."""
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
    table = Table(title="Time by operator type (ms); the time of a fused kernel is shared among its operators")
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

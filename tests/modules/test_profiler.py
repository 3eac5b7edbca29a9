"""The profiler: a trace on disk and a table by operator type."""

import ctypes.util
import gzip
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, profiler
from jfluid.record import step_traces


def _run(times=2):
    x = fluid.data("x", [None, 64])
    w = fluid.layers.create_parameter([64, 64], "float32")
    loss = fluid.layers.mean(fluid.layers.tanh(fluid.layers.mul(x, w)))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    return lambda: [exe.run(feed={"x": np.ones((64, 64), "float32")}, fetch_list=[loss]) for _ in range(times)]


def test_table_and_trace(tmp_path, capsys):
    step = _run()
    step()
    with profiler.profiler("CPU", "total", str(tmp_path)):
        step()
    text = capsys.readouterr().out
    assert "Time by operator type" in text and "mul" in text and "Ratio." in text
    (trace,) = tmp_path.rglob("*.xplane.pb")
    times = profiler.operator_times(str(trace))
    assert {"mul", "mul_grad"} <= set(times) and all(t >= 0 for row in times.values() for t in row)
    assert len(times["mul"]) % 2 == 0
    (chrome,) = tmp_path.rglob("*.trace.json.gz")
    assert json.loads(gzip.decompress(chrome.read_bytes()))["traceEvents"]


def test_executables_of_one_program_are_told_apart(tmp_path, monkeypatch):
    step = _run()
    step()
    with profiler.profiler("All", None, str(tmp_path)):
        step()
    (trace,) = tmp_path.rglob("*.xplane.pb")
    real = step_traces._shares_of_executables()
    # The same program compiled for other shapes: it shares one instruction's name and has others of
    # its own.
    others = {
        module: [{name: {"other": 1.0} for name in [*list(known)[:1], "else.1", "else.2"]} for known in executables]
        for module, executables in real.items()
    }
    for order in ((others, real), (real, others)):
        both = {module: order[0][module] + order[1][module] for module in real}
        monkeypatch.setattr(step_traces, "_shares_of_executables", lambda both=both: both)
        times = profiler.operator_times(str(trace))
        assert "other" not in times and {"mul", "mul_grad"} <= set(times)


def test_start_reset_stop(tmp_path, capsys):
    step = _run()
    step()
    profiler.start_profiler("All")
    profiler.start_profiler("All")
    profiler.reset_profiler()
    step()
    with pytest.raises(errors.ProgramError, match="sorted_key 'name'"):
        profiler.stop_profiler("name")
    (tmp_path / "here").write_text("what Fluid wrote")
    profiler.stop_profiler("calls", str(tmp_path / "here"))
    text = capsys.readouterr().out
    (trace,) = (tmp_path / "here.trace").rglob("*.xplane.pb")
    assert (tmp_path / "here").read_text() == "what Fluid wrote"
    assert "mul" in text and str(trace) in text.replace("\n", "")
    profiler.stop_profiler()
    profiler.reset_profiler()
    assert not capsys.readouterr().out


def test_rows_are_sorted(capsys):
    profiler.print_times({"a": [1.0, 1.0, 1.0], "b": [5.0], "c": [0.5, 2.0]}, "total", "t")
    profiler.print_times({"a": [1.0, 1.0, 1.0], "b": [5.0], "c": [0.5, 2.0]}, "calls", "t")
    profiler.print_times({"a": [1.0, 1.0, 1.0], "b": [5.0], "c": [0.5, 2.0]}, "default", "t")
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert "".join(row[0] for row in rows) == "bacacbabc"
    assert rows[0] == ["b", "1", "5.0000", "5.0000", "5.0000", "5.0000", "0.4762"]


def test_bad_arguments(tmp_path):
    with pytest.raises(errors.ProgramError, match="state 'TPU', expected one of CPU, GPU, All"):
        profiler.start_profiler("TPU")
    with pytest.raises(errors.ProgramError, match="tracer_option 'Fast'"):
        profiler.start_profiler("CPU", "Fast")
    with (
        pytest.raises(errors.ProgramError, match="sorted_key 'name'"),
        profiler.profiler("CPU", "name", str(tmp_path)),
    ):
        pass
    with pytest.raises(errors.ProgramError, match="must be 'kvp' or 'csv'"), profiler.cuda_profiler("out", "x"):
        pass


@pytest.fixture
def cuda(monkeypatch):
    """CUDA's runtime library: its calls, and the code that they return."""
    calls, code = [], [0]
    library = SimpleNamespace(
        cudaProfilerStart=lambda: calls.append("start") or code[0],
        cudaProfilerStop=lambda: calls.append("stop") or code[0],
    )
    monkeypatch.setattr(ctypes.util, "find_library", {"cudart": "libcudart.so"}.get)
    monkeypatch.setattr(ctypes, "CDLL", {"libcudart.so": library}.get)
    return SimpleNamespace(calls=calls, code=code)


def test_cuda_profiler_encloses_the_block(cuda):
    with pytest.raises(KeyError), profiler.cuda_profiler("out", "csv"):
        assert cuda.calls == ["start"]
        raise KeyError
    assert cuda.calls == ["start", "stop"]


def test_cuda_profiler_without_a_gpu(cuda):
    cuda.code[0] = 100
    with pytest.raises(errors.PlaceError, match="cudaProfilerStart .* error 100"), profiler.cuda_profiler("out"):
        pass


def test_cuda_profiler_without_cuda(monkeypatch):
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(errors.DependencyError, match="libcudart"), profiler.cuda_profiler("out"):
        pass

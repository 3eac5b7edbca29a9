"""Runs with large intermediate results: one block of memory serves all runs, however busy the machine is."""

import platform
import subprocess
import sys
import threading
from types import SimpleNamespace
from weakref import ref

import pytest

from jfluid.compile.runtime import executables, large_runs
from jfluid.compile.runtime.executables import Executable
from jfluid.compile.runtime.large_runs import LargeRun


@pytest.fixture
def given_back(monkeypatch):
    """What large runs ask of the heap."""
    found = []
    monkeypatch.setattr(large_runs.heap, "give_back", lambda: found.append("give back"))
    monkeypatch.setattr(large_runs.heap, "give_back_code", lambda: found.append("code"))
    monkeypatch.setattr(large_runs.heap, "set_apart", lambda: found.append("set apart"))
    monkeypatch.setattr(large_runs.heap, "keeps_blocks", lambda: False)
    monkeypatch.setattr(LargeRun, "_left", 0)
    monkeypatch.setattr(LargeRun, "_last", (0, 0, 0))
    return found


class Made:
    """Stand for an array that a run has yet to make."""

    def __init__(self):
        self.done = threading.Event()

    def block_until_ready(self):
        assert self.done.wait(60)
        return self


def test_a_run_begins_when_the_run_that_made_its_arguments_has_ended(given_back):
    made, began = Made(), threading.Event()
    called = threading.Thread(target=LargeRun(lambda *given: began.set(), large_runs.LARGE), args=((made,),))
    called.start()
    assert not began.wait(0.1)
    made.done.set()
    assert began.wait(60)
    called.join()


def test_the_first_run_gives_free_memory_back(given_back):
    run = LargeRun(lambda x: given_back.append(x), large_runs.LARGE)
    run(1)
    run(2)
    assert given_back == ["give back", "code", "set apart", 1, 2]


def test_a_larger_run_gives_the_smaller_block_back(given_back):
    small, large = (LargeRun(given_back.append, times * large_runs.LARGE) for times in (1, 2))
    small("small")
    large("large")
    del given_back[:]
    for _ in range(2):
        small("small")
        large("large")
    assert given_back == ["small", "large"] * 2
    LargeRun.give_back()
    small("small")
    large("large")
    assert given_back[4:] == ["give back", "small", "give back", "large"]


def test_a_block_that_the_heap_does_not_keep_comes_after_the_kept_block(given_back):
    kept = LargeRun(given_back.append, large_runs.LARGE)
    mapped = LargeRun(given_back.append, large_runs.heap.MOST_KEPT + 1)
    kept("kept")
    mapped("mapped")
    del given_back[:]
    mapped("mapped")
    kept("kept")
    mapped("mapped")
    assert given_back == ["mapped", "kept", "give back", "mapped"]


@pytest.mark.parametrize("temporary", [large_runs.LARGE - 1, large_runs.LARGE])
def test_only_executables_with_large_intermediate_results_wait(temporary):
    def run():
        """Stand for XLA's executable."""

    run.memory_analysis = lambda: SimpleNamespace(temp_size_in_bytes=temporary)
    owner = executables.Executables(lambda: None)
    assert isinstance(Executable(run, (), ref(owner)).run, LargeRun) == (temporary >= large_runs.LARGE)


def test_a_run_waits_until_the_block_of_the_run_before_is_free(given_back, monkeypatch):
    full = 100 + large_runs.LARGE
    used = iter([0, 100, full, 150, 100, full, 150, 150])
    asked = []
    monkeypatch.setattr(large_runs.heap, "keeps_blocks", lambda: True)
    monkeypatch.setattr(large_runs.heap, "used_bytes", lambda: next(used))
    monkeypatch.setattr(large_runs.heap, "holds_free", lambda size: not asked.append(size))
    monkeypatch.setattr(large_runs, "_WAIT", 60)
    other, run = (LargeRun(given_back.append, large_runs.LARGE) for _ in range(2))
    other("first")
    run("first")
    run("second")
    assert next(used, None) is None
    assert asked == [large_runs.LARGE + large_runs._ALIGNING_BYTES]
    assert given_back == ["give back", "code", "set apart", "first"] * 2 + ["second"]


def test_a_run_of_another_block_waits_before_it_gives_the_block_back(given_back, monkeypatch):
    monkeypatch.setattr(large_runs.heap, "keeps_blocks", lambda: True)
    monkeypatch.setattr(large_runs.heap, "used_bytes", lambda: 0)
    kept = LargeRun(given_back.append, large_runs.LARGE)
    mapped = LargeRun(given_back.append, large_runs.heap.MOST_KEPT + 1)
    mapped("mapped")
    kept("kept")
    del given_back[:]
    used = iter([large_runs.LARGE, large_runs.LARGE, 0, 0])
    monkeypatch.setattr(large_runs.heap, "used_bytes", lambda: given_back.append("used") or next(used))
    monkeypatch.setattr(large_runs, "_WAIT", 60)
    mapped("mapped")
    assert given_back == ["used"] * 3 + ["give back", "used", "mapped"]


def test_the_wait_for_a_block_ends_and_is_no_less_the_next_time(given_back, monkeypatch):
    used = iter([0, 1 << 40, 1 << 40, 0, 1 << 40, 1 << 40, 0])
    monkeypatch.setattr(large_runs.heap, "keeps_blocks", lambda: True)
    monkeypatch.setattr(large_runs.heap, "used_bytes", lambda: next(used))
    monkeypatch.setattr(large_runs.heap, "holds_free", lambda size: False)
    monkeypatch.setattr(large_runs, "_WAIT", 0)
    run = LargeRun(given_back.append, large_runs.LARGE)
    for i in range(3):
        run(i)
    assert given_back == ["give back", "code", "set apart", 0, "give back", 1, "give back", 2]


def test_runs_of_several_threads_do_not_wait_for_each_other(given_back, monkeypatch):
    monkeypatch.setattr(large_runs.heap, "keeps_blocks", lambda: True)
    monkeypatch.setattr(large_runs.heap, "used_bytes", lambda: 0)
    runs = [LargeRun(given_back.append, large_runs.LARGE) for _ in range(2)]
    for run in runs:
        run("first")
    other = threading.Thread(target=runs[0], args=("other thread",))
    other.start()
    other.join()
    del given_back[:]
    monkeypatch.setattr(large_runs.heap, "used_bytes", lambda: 1 << 40)
    monkeypatch.setattr(large_runs.heap, "holds_free", lambda size: False)
    monkeypatch.setattr(large_runs, "_WAIT", 60)
    runs[1]("second")
    assert given_back == ["second"]


# Runs that take an aligned block, as XLA does, and leave small values behind.
RUNS = """
import ctypes, threading
from jfluid.compile.runtime.large_runs import LargeRun
from jfluid.host import heap

heap.keep_for_steps()
library = ctypes.CDLL("libc.so.6")
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.aligned_alloc.restype, library.aligned_alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * 2
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
size = 300 << 20


def run(late):
    block = library.aligned_alloc(64, size)
    for _ in range(2000):
        for small in (24, 40, 56, 72, 88):
            library.malloc(small)
    library.memset(block, 1, size)
    threading.Timer(late, library.free, (block,)).start() if late else library.free(block)


def memory(field):
    return int(open("/proc/self/status").read().split(field)[1].split()[0]) << 10


heap.give_back_code()  # as the first large run does
before = memory("VmRSS:")
large = LargeRun(run, size)
for step in range(8):
    large({late})
print((memory("VmHWM:") - before) / size)
"""


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's heap")
@pytest.mark.parametrize("late", [0, 0.02], ids=["the block is cut", "the block is freed late"])
def test_all_runs_take_one_block(late, monkeypatch):
    for name in large_runs.heap._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    script = RUNS.replace("{late}", str(late))
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0.9 < float(found.stdout) < 1.3

"""Runs with large intermediate results: one block of memory serves all runs, however busy the machine is."""

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
    monkeypatch.setattr(large_runs.heap, "set_apart", lambda: found.append("set apart"))
    monkeypatch.setattr(LargeRun, "_left", 0)
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
    assert given_back == ["give back", "set apart", 1, 2]


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

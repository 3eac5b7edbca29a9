"""Which of XLA's threads are bound to which processors."""

import contextlib
import os
from pathlib import Path

import pytest

from jfluid import errors, places
from jfluid.host import cpu_threads

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind threads")


def folder_of(threads: dict[int, str], folder: Path) -> Path:
    for number, name in threads.items():
        (folder / str(number)).mkdir()
        (folder / str(number) / "comm").write_text(name + "\n")
    return folder


@pytest.fixture
def bound(monkeypatch):
    """What is bound, on a machine of which the process may use processors 2 and 5."""
    found = {}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 2})
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, where: found.update({thread: where}))
    return found


def test_each_thread_of_the_pool_gets_a_processor(bound, tmp_path):
    cpu_threads._bind(folder_of({7: "python", 11: "tf_XLAEigen", 9: "tf_XLAEigen", 12: "grpc"}, tmp_path))
    assert bound == {9: {2}, 11: {5}}


def test_more_threads_than_processors_stay_free(bound, tmp_path):
    cpu_threads._bind(folder_of(dict.fromkeys((1, 2, 3), "tf_XLAEigen"), tmp_path))
    assert bound == {}


def test_xla_still_calls_its_threads_so(tmp_path):
    places.CPUPlace().device()
    names = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # one of an earlier test may end just now
            names.add(path.read_text().strip())
    assert cpu_threads._POOL in names


@pytest.mark.parametrize(
    ("variables", "processors", "wanted"),
    [
        ({}, 2, True),
        ({}, 1, False),
        ({}, 8, True),
        ({}, 9, False),
        ({"PADDLE_TRAINER_ID": "0"}, 2, False),
        ({"TRAINING_ROLE": "TRAINER"}, 2, False),
        ({"JFLUID_BIND_THREADS": "1", "PADDLE_TRAINER_ID": "0"}, 64, True),
        ({"JFLUID_BIND_THREADS": "0"}, 2, False),
    ],
)
def test_when_threads_are_bound(monkeypatch, variables, processors, wanted):
    for name in ("TRAINING_ROLE", "PADDLE_TRAINER_ID", "JFLUID_BIND_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cpu_threads._wanted(processors) is wanted


def test_a_wrong_value_is_named(monkeypatch):
    monkeypatch.setenv("JFLUID_BIND_THREADS", "yes")
    with pytest.raises(errors.PlaceError, match="JFLUID_BIND_THREADS: expected 0 or 1"):
        cpu_threads._wanted(2)


def test_a_process_binds_once(monkeypatch):
    monkeypatch.setattr(cpu_threads, "_bound_in", [])
    calls = []
    monkeypatch.setattr(cpu_threads, "_wanted", lambda processors: True)
    monkeypatch.setattr(cpu_threads, "_bind", calls.append)
    cpu_threads.bind()
    cpu_threads.bind()
    assert calls == [Path("/proc/self/task")]

"""The order of test files in a run of several processes."""

import json
import os
import shutil
import subprocess
import sys
from collections import OrderedDict

import pytest

from tests import file_order
from tests.file_order import ROOT, TABLE, Schedule


def started(workers, files, waiting, seconds):
    """The files that workers begin with, and then those that the first worker goes on with."""
    schedule = Schedule.__new__(Schedule)
    schedule._waiting, schedule._seconds = waiting, seconds
    schedule.workqueue = OrderedDict((file, {f"{file}::test": False}) for file in files)
    schedule.assigned_work = {worker: {} for worker in range(workers)}

    def begin(worker):
        file = schedule._next_file(worker)
        schedule.assigned_work[worker] = {file: schedule.workqueue.pop(file)}
        return file

    first = [begin(worker) for worker in range(workers)]
    return first, [begin(0) for _ in range(len(schedule.workqueue))]


def test_long_files_begin_first_and_a_third_of_the_workers_waits():
    seconds = {"p": 9, "q": 8, "r": 7, "c": 6, "d": 5, "e": 4}
    files = ["f", "e", "d", "c", "r", "q", "p"]
    first, rest = started(4, files, {"p", "q", "r"}, seconds)
    assert first == ["p", "q", "c", "d"] and rest == ["r", "e", "f"]
    assert started(5, files, {"p", "q", "r"}, seconds)[0] == ["p", "q", "c", "d", "e"]
    assert started(3, files, {"p", "q", "r"}, seconds)[0] == ["p", "c", "d"]
    assert started(3, ["p", "q", "r"], {"p", "q", "r"}, seconds)[0] == ["p", "q", "r"]
    assert started(1, ["c", "p"], {"p"}, seconds) == (["p"], ["c"])


def test_files_of_the_table_are_there():
    assert [f for files in json.loads(TABLE.read_text()).values() for f in files if not (ROOT / f).exists()] == []


CRASHES = """
import os, pytest
@pytest.mark.parametrize("number", range(4))
def test_number(number):
    if "test_ending" in __file__ and number == 1:
        os._exit(3)
"""
PLUGIN = """
from tests import file_order
def pytest_configure(config):
    config.pluginmanager.register(file_order)
"""


@pytest.mark.process
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.nightly), "2"])
def test_a_crash_fails_one_test(workers, tmp_path):
    """The scheduler of xdist 3.8 would run the test again, or wait for ever."""
    folder = tmp_path / "tests"
    folder.mkdir()
    shutil.copy(file_order.__file__, folder)
    for name, text in (("__init__", ""), ("conftest", PLUGIN), ("test_whole", CRASHES), ("test_ending", CRASHES)):
        (folder / f"{name}.py").write_text(text)
    (folder / TABLE.name).write_text('{"waiting": {}, "computing": {}}')
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        workers,
        "--dist",
        "loadfile",
        "-p",
        "no:cacheprovider",
        "tests",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    ending = "test_ending"
    assert f"crashed while running 'tests/{ending}.py::test_number[1]'" in ended.stdout
    assert "1 failed, 7 passed" in ended.stdout

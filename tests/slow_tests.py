"""Which tests are slow: those of `slow_tests.txt`, which took more than a second of processor time.

Each of them gets the mark `slow`, so that `make quick` leaves it out. The list is made anew from the
report of a run of all tests, in which each test says how much processor time it took:

    make test PYTEST_ARGS=--junitxml=build/tests.xml
    python -m tests.slow_tests build/tests.xml

Tests that start processes are left out by their own mark; where they take minutes, they are marked
`slow` by hand.
"""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.file_order import module_of

LIST = Path(__file__).with_suffix(".txt")
LIMIT_S = 1.0
PROPERTY = "processor_s"
_started = pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = set(listed())
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_started] = _processor_s()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "teardown" and _started in item.stash:
        took = _processor_s() - item.stash[_started]
        item.user_properties.append((PROPERTY, f"{took:.3f}"))


def _processor_s() -> float:
    """Of this process and of those that it has waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


def listed() -> list[str]:
    """The ids of slow tests."""
    return LIST.read_text().splitlines()


def slow_of(report: Path) -> list[str]:
    """The ids of slow tests, after a run of which pytest wrote this report."""
    return sorted(test for test, took in _seconds(report) if took > LIMIT_S)


def _seconds(report: Path) -> Iterator[tuple[str, float]]:
    """The id of each test, and the seconds that it took of the processor."""
    for test in ElementTree.parse(report).iter("testcase"):
        file, classes = module_of(test.attrib["classname"])
        for one in test.iter("property"):
            if one.attrib["name"] == PROPERTY:
                name = "::".join([file, *classes, test.attrib["name"]])
                yield name, float(one.attrib["value"])


def main(report: Path) -> None:
    """Write the list anew."""
    LIST.write_text("".join(f"{test}\n" for test in slow_of(report)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Which tests are slow: those of `slow_tests.txt`, which took more than a quarter of a second of processor
time.

Each of them gets the mark `slow`, so that `make quick` leaves it out. Each test reports the processor time
that it took, and `renewed_tables.py` writes the list.

Tests that start processes are left out by their own mark; where they take minutes, they are marked
`slow` by hand. Tests marked `nightly` repeat at length what a shorter test proves: only a run that asks for
the mark (`make nightly`) has them.
"""

import resource
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

LIST = Path(__file__).with_suffix(".txt")
PROPERTY = "processor_s"
_started = pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = set(listed())
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)
    if "nightly" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_started] = _processor_s()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "teardown" and _started in item.stash:
        took = _processor_s() - item.stash[_started]
        item.user_properties.append((PROPERTY, round(took, 3)))


def _processor_s() -> float:
    """Of this process and of those that it has waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


def nightly_but(kept: Collection[str], values: Iterable[Any]) -> list[Any]:
    """Parameters of a test: only the kept names (of functions, or the values) run before each change."""
    return [
        pytest.param(value, marks=[pytest.mark.nightly] * (getattr(value, "__name__", value) not in kept))
        for value in values
    ]


def listed() -> list[str]:
    """The ids of slow tests."""
    return LIST.read_text().splitlines()

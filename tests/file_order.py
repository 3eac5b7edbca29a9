"""The order of test files in a run of several processes (`pytest -n 4 --dist loadfile`): the longest
begin first, and tests that wait go beside tests that compute.

Files whose tests start processes leave the processor idle while those start, wait for each other and
are killed. At most a third of the workers, rounded up, run such files at one time, so that they last
nearly as long as the others, which keep the processor busy from the first minute to the last.
`file_seconds.json` says how long files take; one that it does not have comes last. To make it anew,
after a run of all tests:

    make test PYTEST_ARGS=--junitxml=build/tests.xml
    python -m tests.file_order build/tests.xml

(`tests/slow_tests.py` makes its list from the same report.)
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("file_seconds.json")
LEAST_S = 5  # shorter files are not in the table


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> "Schedule | None":
    if config.getoption("dist") != "loadfile":
        return None
    return Schedule(config, log, **json.loads(TABLE.read_text()))


class Schedule(LoadFileScheduling):
    """Gives each worker that has nothing to do the file that is to begin next.

    Args:
        waiting, computing: seconds by file, of those that start processes and of the others.
    """

    def __init__(self, config: Any, log: Any, waiting: dict[str, int], computing: dict[str, int]) -> None:
        super().__init__(config, log)
        self._waiting, self._seconds = waiting.keys(), waiting | computing

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(self._next_file(node), last=False)
        super()._assign_work_unit(node)

    def _next_file(self, node: Any) -> str:
        others_waiting = sum(
            any(file in self._waiting and not all(tests.values()) for file, tests in files.items())
            for other, files in self.assigned_work.items()
            if other is not node
        )
        waits = others_waiting < len(self.assigned_work) / 3
        return max(
            self.workqueue,
            key=lambda file: ((file in self._waiting) == waits, self._seconds.get(file, 0)),
        )


def table_of(report: Path) -> dict[str, dict[str, int]]:
    """What `file_seconds.json` is to hold, after a run of which pytest wrote this report."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for test in ElementTree.parse(report).iter("testcase"):
        seconds[module_of(test.attrib["classname"])[0]] += float(test.attrib["time"])
    table: dict[str, dict[str, int]] = {"waiting": {}, "computing": {}}
    for file, took in sorted(seconds.items(), key=lambda item: -item[1]):
        if took >= LEAST_S:
            starts_processes = "mark.process" in (ROOT / file).read_text()
            table["waiting" if starts_processes else "computing"][file] = round(took)
    return table


def module_of(classname: str) -> tuple[str, list[str]]:
    """The file and the classes in it, of `tests.test_launch.TestRuns`."""
    names = classname.split(".")
    end = next(i for i, name in enumerate(names, 1) if name.startswith("test_"))
    return Path(*names[:end]).with_suffix(".py").as_posix(), names[end:]


def main(report: Path) -> None:
    """Write the table anew."""
    TABLE.write_text(json.dumps(table_of(report), indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

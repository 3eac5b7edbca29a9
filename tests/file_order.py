"""The order of test files in a run of several processes (`pytest -n 4 --dist loadfile`): the longest
begin first, and tests that wait go beside tests that compute.

Files whose tests start processes leave the processor idle while those start, wait for each other and
are killed. At most a third of the workers, rounded up, run such files at one time, so that they last
nearly as long as the others, which keep the processor busy from the first minute to the last.
`file_seconds.json` says how long files take (`renewed_tables.py` writes it); a file that it leaves out comes last.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("file_seconds.json")


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

    def remove_node(self, node: Any) -> str | None:
        """Return the test in which a worker crashed, None if it had ended; other workers run the tests that it left.

        The scheduler of xdist 3.8 runs the test again, which crashes the next worker.
        """
        files = self.assigned_work.pop(node)
        left = [test for tests in files.values() for test, ran in tests.items() if not ran]
        for file, tests in files.items():
            if pending := {test: ran for test, ran in tests.items() if test in left[1:]}:
                self.workqueue[file] = pending
        for other in self.assigned_work if left else ():
            self._reschedule(other)
        return left[0] if left else None

    def _reschedule(self, node: Any) -> None:
        super()._reschedule(node)
        if not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._reschedule(node)  # a worker runs a test when it knows which is next, or that none is

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

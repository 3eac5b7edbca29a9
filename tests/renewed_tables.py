"""Renewal of the tables of seconds: `make times` writes `file_seconds.json` and `slow_tests.txt`.

A run of some files renews the entries of these files. Entries of deleted files go.
"""

import json
from collections import defaultdict

import pytest

from tests import file_order, slow_tests

LEAST_S = 5  # shorter files are not in the table of files
SLOW_S = 0.25  # processor time of a slow test: `make quick` runs the others in three minutes on two cores


class Plugin:
    """Adds up the time of files and tests, and writes the tables at the end of a run without a failed test."""

    def __init__(self, config: pytest.Config) -> None:
        if config.option.keyword or config.option.markexpr or any("::" in given for given in config.args):
            raise pytest.UsageError("JFLUID_RENEW measures whole files: run pytest without -k, -m and names of tests")
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._waiting: set[str] = set()
        self._slow: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = _file(report.nodeid)
        self._seconds[file] += report.duration
        if "process" in report.keywords:
            self._waiting.add(file)
        if report.when == "teardown" and dict(report.user_properties).get(slow_tests.PROPERTY, 0) > SLOW_S:
            self._slow.add(report.nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK:
            self.renew()

    def renew(self) -> None:
        """Write both tables: entries of files that did not run stay."""
        table = json.loads(file_order.TABLE.read_text())
        for kind, waits in (("waiting", True), ("computing", False)):
            found = {file: took for file, took in table[kind].items() if self._stays(file)}
            found |= {
                file: round(took)
                for file, took in self._seconds.items()
                if took >= LEAST_S and (file in self._waiting) == waits
            }
            table[kind] = dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
        file_order.TABLE.write_text(json.dumps(table, indent=1) + "\n")
        tests = {test for test in slow_tests.listed() if self._stays(_file(test))} | self._slow
        slow_tests.LIST.write_text("".join(f"{test}\n" for test in sorted(tests)))

    def _stays(self, file: str) -> bool:
        return file not in self._seconds and (file_order.ROOT / file).exists()


def _file(test: str) -> str:
    return test.partition("::")[0]

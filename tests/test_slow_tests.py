"""The mark `slow`, and the list that it comes from."""

import pytest

from tests import slow_tests
from tests.file_order import ROOT

REPORT = """<testsuites><testsuite>
<testcase classname="tests.ops.test_conv" name="test_slow[a-1]" time="9.0">
  <properties><property name="other" value="x"/><property name="processor_s" value="1.2"/></properties>
</testcase>
<testcase classname="tests.test_launch.TestRuns" name="test_slow" time="1.0">
  <properties><property name="processor_s" value="1.001"/></properties>
</testcase>
<testcase classname="tests.test_launch.TestRuns" name="test_waits" time="9.0">
  <properties><property name="processor_s" value="0.1"/></properties>
</testcase>
<testcase classname="tests.test_launch.TestRuns" name="test_skipped" time="9.0"/>
</testsuite></testsuites>
"""
SLOW = ["tests/ops/test_conv.py::test_slow[a-1]", "tests/test_launch.py::TestRuns::test_slow"]


def test_the_list_is_made_from_a_report(tmp_path, monkeypatch):
    report = tmp_path / "tests.xml"
    report.write_text(REPORT)
    monkeypatch.setattr(slow_tests, "LIST", tmp_path / "list.txt")
    slow_tests.main(report)
    assert slow_tests.listed() == SLOW


@pytest.fixture
def a_listed_test(request, tmp_path, monkeypatch):
    monkeypatch.setattr(slow_tests, "LIST", tmp_path / "list.txt")
    slow_tests.LIST.write_text(f"{request.node.nodeid}\n")


def test_listed_tests_are_marked(a_listed_test, request):
    this = request.node
    assert this.get_closest_marker("slow") is None
    slow_tests.pytest_collection_modifyitems([this])
    assert this.get_closest_marker("slow")


def test_a_report_says_how_much_processor_time_a_test_took(request):
    call = pytest.CallInfo(None, None, 0.0, 0.0, 0.0, "teardown", _ispytest=True)
    before = list(request.node.user_properties)
    slow_tests.pytest_runtest_makereport(request.node, call)
    (name, seconds) = request.node.user_properties.pop()
    assert request.node.user_properties == before
    assert name == slow_tests.PROPERTY and 0 <= float(seconds)


def test_files_of_listed_tests_are_there():
    files = {test.partition("::")[0] for test in slow_tests.listed()}
    assert [file for file in files if not (ROOT / file).exists()] == []

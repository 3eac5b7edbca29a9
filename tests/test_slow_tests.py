"""The mark `slow`, and the list that it comes from."""

from types import SimpleNamespace

import pytest

from tests import slow_tests
from tests.file_order import ROOT


@pytest.fixture
def a_listed_test(request, tmp_path, monkeypatch):
    monkeypatch.setattr(slow_tests, "LIST", tmp_path / "list.txt")
    slow_tests.LIST.write_text(f"{request.node.nodeid}\n")


def test_listed_tests_are_marked(a_listed_test, request):
    this = request.node
    assert this.get_closest_marker("slow") is None
    slow_tests.pytest_collection_modifyitems(request.config, [this])
    assert this.get_closest_marker("slow")


@pytest.mark.parametrize(("expression", "runs"), [("", False), ("not slow", False), ("nightly", True)])
def test_nightly_tests_run_where_they_are_asked_for(expression, runs, request):
    this, left_out = request.node, []
    this.add_marker(pytest.mark.nightly)
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    config, items = SimpleNamespace(option=SimpleNamespace(markexpr=expression), hook=hook), [this]
    slow_tests.pytest_collection_modifyitems(config, items)
    assert (items, left_out) == (([this], []) if runs else ([], [this]))


def test_a_report_says_how_much_processor_time_a_test_took(request):
    call = pytest.CallInfo(None, None, 0.0, 0.0, 0.0, "teardown", _ispytest=True)
    before = list(request.node.user_properties)
    slow_tests.pytest_runtest_makereport(request.node, call)
    (name, seconds) = request.node.user_properties.pop()
    assert request.node.user_properties == before
    assert name == slow_tests.PROPERTY and 0 <= float(seconds)


def test_listed_tests_are_there():
    functions = {tuple(test.partition("[")[0].split("::")) for test in slow_tests.listed()}
    gone = [names for names in functions if not (ROOT / names[0]).exists()]
    gone += [n for n in functions if n not in gone and f"def {n[-1]}(" not in (ROOT / n[0]).read_text()]
    assert not gone, "make times"

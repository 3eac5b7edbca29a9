"""Tables of seconds, which a run of the tests writes."""

import json
from types import SimpleNamespace

import pytest

from tests import file_order, renewed_tables, slow_tests
from tests.slow_tests import PROPERTY

CONFIG = SimpleNamespace(option=SimpleNamespace(keyword="", markexpr=""), args=["tests"])


def reported(plugin, test, took, processor_s, process=False):
    for when, part in (("setup", 0.5), ("call", took - 0.5), ("teardown", 0.0)):
        properties = [(PROPERTY, processor_s)] if when == "teardown" else []
        keywords = {"process": 1} if process else {}
        plugin.pytest_runtest_logreport(
            SimpleNamespace(nodeid=test, duration=part, when=when, keywords=keywords, user_properties=properties)
        )


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Both tables, and a root in which four files are."""
    for name in ("launch", "conv", "codec", "stays"):
        (tmp_path / f"test_{name}.py").touch()
    monkeypatch.setattr(file_order, "ROOT", tmp_path)
    monkeypatch.setattr(file_order, "TABLE", tmp_path / "table.json")
    monkeypatch.setattr(slow_tests, "LIST", tmp_path / "list.txt")
    old = {"waiting": {"test_stays.py": 8}, "computing": {"test_gone.py": 9, "test_codec.py": 7, "test_launch.py": 6}}
    file_order.TABLE.write_text(json.dumps(old))
    slow_tests.LIST.write_text("test_codec.py::test_a\ntest_gone.py::test_b\ntest_stays.py::test_c\n")
    return lambda: (json.loads(file_order.TABLE.read_text()), slow_tests.listed())


@pytest.mark.parametrize("exit_code", [pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED])
def test_a_run_renews_the_entries_of_its_files(tables, exit_code):
    plugin, old = renewed_tables.Plugin(CONFIG), tables()
    reported(plugin, "test_launch.py::TestRuns::test_a", 3.2, 0.1, process=True)
    reported(plugin, "test_launch.py::test_b", 4.1, 0.251)
    reported(plugin, "test_conv.py::test_c[a-1]", 5.4, 1.2)
    reported(plugin, "test_codec.py::test_a", 1.0, 0.25)
    plugin.pytest_sessionfinish(exit_code)
    waiting, computing = {"test_stays.py": 8, "test_launch.py": 7}, {"test_conv.py": 5}
    slow = ["test_conv.py::test_c[a-1]", "test_launch.py::test_b", "test_stays.py::test_c"]
    renewed = {"waiting": waiting, "computing": computing}, slow
    assert tables() == (renewed if exit_code == pytest.ExitCode.OK else old)


@pytest.mark.parametrize("given", [{"keyword": "conv"}, {"markexpr": "not slow"}, {"args": ["test_conv.py::test_c"]}])
def test_parts_of_files_are_refused(given):
    option = SimpleNamespace(**(vars(CONFIG.option) | given))
    with pytest.raises(pytest.UsageError, match="whole files"):
        renewed_tables.Plugin(SimpleNamespace(option=option, args=given.get("args", CONFIG.args)))

import json

import pytest

from tests import failed_again


def again(failed, status=0):
    runs, lines = [], []

    def run(arguments):
        runs.append(arguments)
        return status

    return failed_again.run_again(failed, run, lines.append), runs, "\n".join(lines)


def test_those_that_pass_alone_are_named():
    status, (run,), told = again(["a.py::test_b[1]", "c.py::test_d"])
    assert status == 0 and run[:2] == ["a.py::test_b[1]", "c.py::test_d"]
    assert "have to be mended all the same: a.py::test_b[1], c.py::test_d" in told


def test_those_that_fail_again_fail():
    status, runs, told = again(["a.py::test_b"], status=1)
    assert status == 1 and len(runs) == 1 and "mended" not in told


@pytest.mark.parametrize("count", [0, 3])
def test_a_run_that_failed_otherwise_is_not_run_again(count):
    status, runs, told = again(["a.py::test_b"] * count)
    assert status == 1 and not runs and f"{count} tests failed" in told


@pytest.mark.parametrize("passes", [True, False])
def test_the_tests_that_pytest_noted(tmp_path, monkeypatch, capsys, passes):
    monkeypatch.chdir(tmp_path)
    noted = tmp_path / failed_again.FAILED
    noted.parent.mkdir(parents=True)
    noted.write_text(json.dumps({"test_one.py::test_it": True}))
    ran = []
    monkeypatch.setattr(failed_again.pytest, "main", lambda found: ran.extend(found) or not passes)
    assert failed_again.main() == (not passes)
    assert ran[0] == "test_one.py::test_it"
    assert ("passed alone" in capsys.readouterr().err) == passes

"""`jfluid doctor` against scripts with planted problems, and clean ones."""

import json
import re
from pathlib import Path

import pytest

from jfluid.doctor import Severity, examine

HERE = Path(__file__).parent
PLANTED, CLEAN = sorted((HERE / "planted").iterdir()), sorted((HERE / "clean").iterdir())
EXPECTED = re.compile(r"# expect: (\S+)")


def expected(path):
    """(cell, line, code) of every mark in a file."""
    text = path.read_bytes().decode("latin-1")
    cells = [(0, text)]
    if path.suffix == ".ipynb":
        cells = [(n, "".join(c["source"])) for n, c in enumerate(json.loads(text)["cells"], 1)]
    return {
        (cell, line, code)
        for cell, source in cells
        for line, shown in enumerate(source.split("\n"), 1)
        for code in EXPECTED.findall(shown)
    }


def test_there_are_enough_of_both():
    assert sum(len(expected(path)) for path in PLANTED) >= 60 and len(CLEAN) >= 20


@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.name)
def test_planted_problems_are_found_where_they_are(path):
    found = examine([str(path)]).findings
    assert {(f.cell, f.line, _family(f)) for f in found} == expected(path)
    assert all(f.happens and f.file == str(path) for f in found)
    assert all(f.do for f in found if f.severity < Severity.DIFFERENCE)


def _family(finding):
    return "difference" if finding.code == "note" else finding.code


@pytest.mark.parametrize("path", CLEAN, ids=lambda path: path.name)
def test_clean_scripts_give_nothing(path):
    diagnosis = examine([str(path)])
    assert diagnosis.findings == [] and diagnosis.verdict == "runs as it is"


def test_a_refused_value_is_shown_with_its_call():
    found = {f.line: f for f in examine([str(HERE / "planted" / "values.py")]).findings}
    assert found[7].happens == "fluid.layers.pool2d(pool_type='average'): the pool_type is refused"
    assert found[7].do == 'give "max" or "avg"'

"""docs/guarantees.md names tests that there are, and one for each cell."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "guarantees.md").read_text()


def test_every_test_that_is_named_is_there():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)
    assert len(named) > 30
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_every_cell_names_tests():
    text, tests = TEXT.split("## Tests\n")
    numbers = {int(number) for number in re.findall(r"^(\d+)\. ", tests, re.MULTILINE)}
    tables = re.findall(r"^\| fault \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [[line.strip("|").split("|") for line in table.splitlines()] for table in tables]
    assert [len(table) > 5 for table in rows] == [True, True]
    for fault, *cells in (row for table in rows for row in table):
        assert len(cells) >= 2
        for cell in cells:
            assert {int(number) for number in re.findall(r"\[(\d+)\](?!\()", cell)} & numbers, (
                fault,
                cell,
            )

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
    _, tables, tests = re.split(r"^\| fault |^## Tests", TEXT, flags=re.MULTILINE)
    numbers = {int(number) for number in re.findall(r"^(\d+)\. ", tests, re.MULTILINE)}
    rows = [line.strip("|").split("|") for line in tables.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    for fault, *cells in rows:
        assert len(cells) == 3
        for cell in cells:
            assert {int(number) for number in re.findall(r"\[(\d+)\](?!\()", cell)} & numbers, (
                fault,
                cell,
            )

"""Write jfluid/check_device/operators.jsonl: a case of each operator, taken from the tests.

python -m scripts.operator_cases               cases of all tests (minutes)
python -m scripts.operator_cases PATH ...      cases of these test files; the cases of all further operators stay

A recorded case stays if the new case differs from it in its numbers alone: tests that are added to a file change the
random numbers of the tests behind them. The tests' `check` is replaced by a function that records its arguments and
runs nothing. Tests that read the result of `check` fail, which does no harm. Operators that only golden values of the
real Fluid test have the cases of these values.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jfluid import errors
from jfluid.check_device.cases import FILE, Case, Computation, runnable
from jfluid.lod_tensor import LoDTensor, create_lod_tensor
from tests import op_case
from tests.parity import boxes, fused, ops, text_ops

# Where `check` is used.
_TESTS = (
    "tests/ops",
    "tests/layers/test_sequence.py",
    "tests/parallel/test_dgc.py",
    "tests/contrib/test_contrib.py",
    "tests/transpiler/test_parameter_server_programs.py",
)
TARGET = Path(__file__).parents[1] / "jfluid" / "check_device" / FILE


class Recorder:
    """A plugin of pytest that notes the cases of tests."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def pytest_configure(self) -> None:
        op_case.check = self.check  # before test files import it

    def check(
        self,
        op_type: str,
        inputs: dict[str, Any],
        attrs: dict[str, Any] | None = None,
        *,
        expect: dict[str, Any],
        grad: Iterable[str] = (),
        **others: Any,
    ) -> dict[str, list]:
        inputs = {s: [_copied(x) for x in v] if isinstance(v, list) else _copied(v) for s, v in inputs.items()}
        self.cases.append(Case(op_type, inputs, dict(attrs or {}), tuple(expect), tuple(grad)))
        return {s: v if isinstance(v, list) else [v] for s, v in expect.items()}


def _copied(value: Any) -> Any:
    return value if isinstance(value, LoDTensor) else np.array(value)


def of_goldens() -> Iterator[Case]:
    """Yield the cases of the golden values of single operators."""
    for case in (*ops.CASES, *fused.CASES, *text_ops.CASES, *boxes.CASES):
        _, op_type, inputs, outputs, attrs, _, gradients = case
        given = {s: [_entered(x) for x in v] if isinstance(v, list) else _entered(v) for s, v in inputs.items()}
        yield Case(op_type, given, dict(attrs), tuple(outputs), tuple(gradients))


def _entered(value: Any) -> Any:
    rows = isinstance(value, ops.Rows)
    return create_lod_tensor(value.values, value.lengths) if rows else np.array(value)


def chosen(cases: Iterable[Case]) -> dict[str, Case]:
    """By name the case with the most gradients, of those the one that is shortest in writing.
    Operators of the host have none, and cases that an operator refuses are none.
    """
    found: dict[str, Case] = {}
    for case in sorted(runnable(list(cases)), key=_rank):
        if case.name not in found and _runs(case):
            found[case.name] = case
    return found


def _rank(case: Case) -> tuple[int, int]:
    return -len(case.gradients), len(case.to_json())


def _form(case: Case) -> str:
    """Return a case as text without its numbers."""
    return re.sub(r'"data": \[[^]]*\]', "", case.to_json())


def _runs(case: Case) -> bool:
    try:
        Computation(case)
    except (errors.JFluidError, ValueError, TypeError):
        return False
    return True


def main(paths: list[str]) -> int:
    recorder = Recorder()
    pytest.main(["-q", "-p", "no:cacheprovider", "--tb=no", *(paths or _TESTS)], [recorder])
    found = chosen(recorder.cases)
    if paths and TARGET.exists():
        before = {case.name: case for case in map(Case.from_json, TARGET.read_text().splitlines())}
        found = before | {n: c for n, c in found.items() if n not in before or _form(c) != _form(before[n])}
    known = {case.type for case in found.values()}
    found |= chosen(case for case in of_goldens() if case.type not in known)
    TARGET.write_text("".join(f"{found[name].to_json()}\n" for name in sorted(found)))
    print(f"{len(found)} cases of {len({c.type for c in found.values()})} operators")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

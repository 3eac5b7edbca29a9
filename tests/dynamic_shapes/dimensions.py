"""Which dimensions of an operator's inputs may be padded: of every recorded case, forward and gradient.

    python -m tests.dynamic_shapes.dimensions

writes `padded_dimensions.json`, from which docs/coverage.md has its table.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from jfluid.check_device import cases
from jfluid.compile.dynamic_shapes.dims import NoRule
from jfluid.ops.ragged import Ragged
from tests.dynamic_shapes.padding import Place, difference, run_padded, traced

FILE = Path(__file__).parent / "padded_dimensions.json"
PADDED, FIXED = "padded", "fixed"
_MOST_DIFFERENT = 1e-4


def weights(out: Any) -> Any:
    """Weights of the elements of an output, which follow from their places alone."""
    if isinstance(out, list):
        return [weights(o) for o in out]
    rows = out.values if isinstance(out, Ragged) else out
    if rows is None or not jnp.issubdtype(rows.dtype, jnp.floating):
        return None
    angle = jnp.zeros(rows.shape, jnp.float64)
    for axis in range(rows.ndim):
        places = jax.lax.broadcasted_iota(jnp.float64, rows.shape, axis)
        angle = angle + (axis + 1.3) * places
    return (1 + 0.5 * jnp.sin(angle)).astype(rows.dtype)


class Subject:
    """A case as a function of its arrays.

    Attributes:
        names: of its arrays: their slots, with a number for a slot of many.
    """

    def __init__(self, case: cases.Case):
        computation = cases.Computation(case)
        self.arguments, structure = jax.tree.flatten(computation.arguments)
        self.names: list[str] = []
        for slot in computation.definition.reads:
            given = case.inputs.get(slot.name)
            if isinstance(given, list):
                self.names += [f"{slot.name}[{i}]" for i in range(len(given))]
            elif given is not None:
                self.names.append(slot.name)
        assert len(self.names) == len(self.arguments), case.name

        def function(*given: Any) -> list[Any]:
            return jax.tree.leaves(computation(jax.tree.unflatten(structure, given)))

        self.function = function
        self._exact: Any = None

    def alike(self) -> list[list[Place]]:
        """Return places by their size, without those of a size of 1."""
        of_size: dict[int, list[Place]] = {}
        for i, argument in enumerate(self.arguments):
            for axis, size in enumerate(argument.shape):
                if size > 1:
                    of_size.setdefault(size, []).append((i, axis))
        return list(of_size.values())

    def outcome(self, group: list[Place]) -> str:
        """Return what comes of dimensions that vary together. AssertionError for other results than exact ones."""
        try:
            found = traced(self.function, self.arguments, [group])
            results = run_padded(self.function, found, self.arguments)
        except NoRule as error:
            return str(error).partition(":")[0]
        if self._exact is None:
            self._exact = jax.jit(self.function)(*self.arguments)
        assert difference(results, self._exact) <= _MOST_DIFFERENT, group
        return PADDED

    def outcomes(self) -> dict[str, str]:
        """Return by dimension, as "X 0", whether it may be padded, is fixed, or why it has exact sizes.

        Dimensions of one size vary together; where that is not possible, each by itself.
        """
        found: dict[str, str] = {}
        for group in self.alike():
            together = self.outcome(group)
            for place in group:
                alone = together
                if together != PADDED and len(group) > 1:
                    alone = self.outcome([place])
                if alone == FIXED != together:
                    alone = together
                found[f"{self.names[place[0]]} {place[1]}"] = alone
        return dict(sorted(found.items()))


def subjects() -> list[cases.Case]:
    """Return the cases without sequences, which have padding of their own."""
    return [c for c in cases.runnable(cases.recorded()) if "sequences" not in c.name]


def outcomes(several: list[cases.Case]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield names of cases, and what comes of each dimension."""
    with jax.enable_x64(True), mock.patch.object(cases, "_weights", weights):
        for case in several:
            yield case.name, Subject(case).outcomes()


def kept() -> dict[str, dict[str, str]]:
    """Return what was found before."""
    found: dict[str, dict[str, str]] = json.loads(FILE.read_text())
    return found


def main() -> None:
    """Write the file."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(found)}" for name, found in sorted(outcomes(subjects()))
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()

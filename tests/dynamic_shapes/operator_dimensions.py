"""Dimensions of operators' inputs that may be padded, found by running the recorded cases at padded sizes.

`python -m tests.dynamic_shapes.operator_dimensions` renews the file that docs/coverage.md is made from (ten minutes).
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import jax
import numpy as np

from jfluid.check_device import cases
from jfluid.check_device.cases import Computation
from jfluid.compile.dynamic_shapes.dims import NoRule
from tests import recorded_cases
from tests.dynamic_shapes.padding import Place, difference, places_alike, run_padded, traced

TABLE = Path(__file__).with_suffix(".json")
PADDED, FIXED = "", "fixed"
_SAMPLES = re.compile(r"( by a known form)?: [\[(].*[\])]$")  # numbers at the end of a reason
_MOST = 1e-4  # difference from exact results


def arrays_of(computation: Computation) -> list[np.ndarray] | None:
    """Return the arrays of a case, None for a case with sequences."""
    leaves = jax.tree.leaves(computation.arguments)
    if "sequences" in computation.case.name or not all(isinstance(v, np.ndarray) for v in leaves):
        return None
    return leaves


def function_of(computation: Computation):
    """Return a case as a function of arrays."""
    structure = jax.tree.structure(computation.arguments)
    return lambda *given: jax.tree.leaves(computation(jax.tree.unflatten(structure, given)))


def dense(some: Iterable[Computation]) -> list[Computation]:
    """Return the cases of arrays among recorded cases."""
    return [c for c in some if arrays_of(c) is not None]


def names_of(computation: Computation) -> list[str]:
    """Return the name of each array: the slot of the input, with a number in a slot of many."""
    case = computation.case
    given = [(slot.name, case.inputs[slot.name]) for slot in computation.definition.reads if slot.name in case.inputs]
    return [
        f"{name}[{i}]" if isinstance(value, list) else name
        for name, value in given
        for i, _ in enumerate(value if isinstance(value, list) else [value])
    ]


def dimensions(computation: Computation) -> dict[str, list[str | None]]:
    """Return, for each dimension of each input, whether it may be padded: `PADDED`, `FIXED`, or why it is exact.

    `FIXED` dimensions follow from attributes or other inputs. None stands for sizes of 0 and 1, which are constants.
    For code with 64 bits enabled. Raises AssertionError for padded results that differ from the exact ones.
    """
    arrays, function = arrays_of(computation), function_of(computation)
    assert arrays is not None  # the case is dense
    exact = jax.tree.leaves(jax.jit(computation)(computation.arguments))
    found: dict[Place, str] = {}
    for group in places_alike(arrays):
        try:
            worst = difference(run_padded(function, traced(function, arrays, [group]), arrays), exact)
            assert worst <= _MOST, (computation.case.name, group, worst)
            found |= dict.fromkeys(group, PADDED)
        except NoRule as error:
            text = _SAMPLES.sub("", str(error))
            reason = FIXED if text.startswith("fixed: ") else text
            for place in group:
                if found.get(place, FIXED) == FIXED:
                    found[place] = reason
    return {
        name: [found.get((i, axis)) for axis in range(array.ndim)]
        for i, (name, array) in enumerate(zip(names_of(computation), arrays, strict=True))
    }


def table() -> dict[str, dict[str, list[str | None]]]:
    """Return the dimensions of all operators with a case of arrays."""
    return json.loads(TABLE.read_text())


def text(found: dict[str, dict[str, list[str | None]]]) -> str:
    """Return the text of the file: a line for each operator."""
    lines = [f" {json.dumps(name)}: {json.dumps(own)}" for name, own in sorted(found.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    cases._weights = recorded_cases.weights
    with jax.enable_x64(True):
        TABLE.write_text(text({c.case.type: dimensions(c) for c in dense(recorded_cases.computations())}))


if __name__ == "__main__":
    main()

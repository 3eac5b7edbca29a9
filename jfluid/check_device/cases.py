"""Cases of operators: tiny inputs and attributes of each, on which devices are compared.

They are those of the tests, written down by `python -m scripts.operator_cases`: of each operator
the one with the most gradients, and where it takes sequences one with sequences.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid.compile.runtime import padding
from jfluid.lod_tensor import LoDTensor
from jfluid.ops import gradients, ragged_dispatch, registry
from jfluid.ops.ragged import Ragged
from jfluid.ops.schema import normalise

FILE = "operators.jsonl"


@dataclass(frozen=True)
class Case:
    """Operator with inputs.

    Attributes:
        inputs: by slot an array or a LoDTensor, or a list of them for a slot of many.
        outputs: the slots of outputs that are compared.
        gradients: the slots of inputs whose gradients are.
    """

    type: str
    inputs: Mapping[str, Any]
    attrs: Mapping[str, Any]
    outputs: tuple[str, ...]
    gradients: tuple[str, ...]

    @property
    def name(self) -> str:
        """The operator, and whether it gets sequences."""
        ragged = any(isinstance(v, LoDTensor) for given in self.inputs.values() for v in _list(given))
        return f"{self.type} (sequences)" if ragged else self.type

    def to_json(self) -> str:
        """Return it as a line of the file."""
        inputs = {
            slot: [_written(v) for v in given] if isinstance(given, list) else _written(given)
            for slot, given in self.inputs.items()
        }
        return json.dumps(
            {
                "type": self.type,
                "inputs": inputs,
                "attrs": dict(self.attrs),
                "outputs": self.outputs,
                "gradients": self.gradients,
            }
        )

    @classmethod
    def from_json(cls, line: str) -> "Case":
        """Read a line of the file."""
        found = json.loads(line)
        inputs = {
            slot: [_read(v) for v in given] if isinstance(given, list) else _read(given)
            for slot, given in found["inputs"].items()
        }
        return cls(
            found["type"],
            inputs,
            found["attrs"],
            tuple(found["outputs"]),
            tuple(found["gradients"]),
        )


def recorded() -> list[Case]:
    """Return the cases that the package has."""
    text = resources.files("jfluid.check_device").joinpath(FILE).read_text()
    return [Case.from_json(line) for line in text.splitlines()]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _written(value: Any) -> dict[str, Any]:
    array = np.asarray(value.value if isinstance(value, LoDTensor) else value)
    kind = np.float64 if array.dtype.kind not in "biuf" else array.dtype  # bfloat16
    # float32 as short as it can be written
    data = [float(str(v)) if array.dtype.kind == "f" else v.item() for v in array.astype(kind).flat]
    found = {"dtype": str(array.dtype), "shape": array.shape, "data": data}
    return found | {"lod": value.lod()} if isinstance(value, LoDTensor) else found


def _read(given: Mapping[str, Any]) -> Any:
    array = np.array(given["data"], np.float64 if "float" in given["dtype"] else given["dtype"])
    array = array.astype(jnp.dtype(given["dtype"])).reshape(given["shape"])
    return LoDTensor(array, given["lod"]) if "lod" in given else array


# ---- a case as a function ----


class Computation:
    """Case as a pure function of arrays: outputs by slot, and gradients of the outputs' weighted sum by slot.

    Attributes:
        arguments: its arrays.

        Raises the operator's error for a case that the operator refuses.
    """

    def __init__(self, case: Case):
        self.case, self.definition = case, registry.get(case.type)
        kinds = self.definition.attrs
        self._keywords = {n: normalise(v, kinds[n].kind) for n, v in case.attrs.items() if n in kinds}
        with jax.enable_x64(True):
            given = [case.inputs.get(s.name, [] if s.many else None) for s in self.definition.reads]
            self.arguments, self._structure = jax.tree.flatten(
                [[_entered(v) for v in g] if isinstance(g, list) else _entered(g) for g in given]
            )
            jax.eval_shape(self, self.arguments)

    def __call__(self, arguments: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        values = jax.tree.unflatten(self._structure, arguments)
        keywords = dict(self._keywords)
        if self.definition.rng:
            keywords["key"] = jax.random.key(0)
        wanted = [s.name in self.case.gradients for s in self.definition.reads]
        used = [s.name in self.case.outputs for s in self.definition.outs]
        if not any(wanted):
            outs = ragged_dispatch.call(self.definition, values, keywords)
            return self._by_slot(outs), {}
        outs, pull = gradients.vjp(self.definition, values, keywords, wanted, used)
        found = pull([_weights(o) if u else None for o, u in zip(outs, used)])
        slots = zip(self.definition.reads, found)
        return self._by_slot(outs), {s.name: g for s, g in slots if s.name in self.case.gradients}

    def _by_slot(self, outs: Sequence[Any]) -> dict[str, Any]:
        slots = zip(self.definition.outs, outs)
        return {s.name: o for s, o in slots if s.name in self.case.outputs and o is not None}


def _entered(value: Any) -> Any:
    """Return a value as a step takes it: a LoDTensor as `Ragged` without padding."""
    if not isinstance(value, LoDTensor):
        return value
    lod = [np.asarray(level, np.int32) for level in value.lod()]
    return padding.fill(value.value, lod, padding.Size.of(lod), True)


def _weights(out: Any) -> Any:
    """Weights from 0.5 to 1.5 of the elements of an output, as its gradient."""
    if isinstance(out, list):
        return [_weights(o) for o in out]
    rows = out.values if isinstance(out, Ragged) else out
    if rows is None or not jnp.issubdtype(rows.dtype, jnp.floating):
        return None
    spread = np.random.RandomState(7).uniform(0.5, 1.5, rows.shape)
    return jnp.asarray(spread, rows.dtype)


def runnable(cases: Sequence[Case]) -> list[Case]:
    """Return the cases of operators that XLA computes, without operators of the host."""
    return [c for c in cases if not registry.get(c.type).host]


def together(computations: Sequence[Computation]) -> Callable[[Sequence[Any]], list[Any]]:
    """Return one function of the arguments of several, which compiles faster than each alone."""

    def every(arguments: Sequence[Any]) -> list[Any]:
        return [computation(a) for computation, a in zip(computations, arguments)]

    return every


@functools.cache
def computations() -> tuple[Computation, ...]:
    """Return the recorded cases that XLA computes."""
    return tuple(Computation(case) for case in runnable(recorded()))

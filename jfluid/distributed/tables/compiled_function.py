"""Operators of a block as a pure function: compiled, and without a scope."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfluid import errors
from jfluid.compile.lowering import trace
from jfluid.ir.operator import Operator
from jfluid.ops import registry

Array = np.ndarray[Any, Any]


class CompiledFunction:
    """Operators as a function from named values to named values.

    It is compiled once for all values of one shape.

    Args:
        ops: the operators, in order.
        wanted: names of the results.
        device: the device of the function.

    Attributes:
        reads: names of the values that it takes.
        draws: whether it needs a key for random numbers.

    Raises UnsupportedError for an operator that is not registered, or runs on the host.
    """

    def __init__(self, ops: Sequence[Operator], wanted: Sequence[str], device: jax.Device):
        found = [registry.find(op.type) for op in ops]
        wrong = [
            op.type
            for op, definition in zip(ops, found, strict=True)
            if definition is None or definition.absent or definition.on_host(op)
        ]
        if wrong:
            raise errors.UnsupportedError(
                f"{', '.join(dict.fromkeys(wrong))}: no part of a function that a server compiles: "
                "expected operators of tensors"
            )
        self._items = [(i, op, registry.get(op.type)) for i, op in enumerate(ops)]
        self._wanted, self._device = list(wanted), device
        self.draws = any(definition.rng for _, _, definition in self._items)
        self.reads = reads_of(ops)
        self._call = jax.jit(self._traced)

    def __call__(self, values: Mapping[str, Any], key: Array | None = None) -> dict[str, Array]:
        """Return the wanted values, given all values that it `reads`; uint32 [2] is the key."""
        with jax.enable_x64(True), jax.default_device(self._device):
            found = self._call({n: values[n] for n in self.reads}, key)
        return {n: np.asarray(v) for n, v in found.items()}

    def shapes(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results' jax.ShapeDtypeStruct for arguments of such shapes.

        Raises the errors of the operators.
        """
        key = jax.ShapeDtypeStruct((2,), np.uint32) if self.draws else None
        with jax.enable_x64(True):
            return dict(jax.eval_shape(self._traced, {n: values[n] for n in self.reads}, key))

    def _traced(self, values: dict[str, Any], key: Any) -> dict[str, Any]:
        env = trace.lower(self._items, dict(values), trace.random_key(key))
        return {n: env[n] for n in self._wanted}


def reads_of(ops: Sequence[Operator]) -> list[str]:
    """Return names that operators read before a write."""
    made: set[str] = set()
    found: dict[str, None] = {}
    for op in ops:
        found.update((n, None) for n in op.input_arg_names if n not in made)
        made.update(op.output_arg_names)
    return list(found)

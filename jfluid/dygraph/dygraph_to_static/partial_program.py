"""A Program that runs in dygraph mode as one operator, through which gradients flow."""

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jfluid import errors
from jfluid.compile.lowering import trace
from jfluid.compile.lowering.plan import Item, plan
from jfluid.dygraph import released_ops
from jfluid.dygraph.dygraph_to_static.structures import is_array
from jfluid.dygraph.varbase import VarBase, tracer
from jfluid.ir import unique_name
from jfluid.ir.program import Program
from jfluid.ir.types import is_float
from jfluid.ir.variable import Variable
from jfluid.ops import registry, static_values
from jfluid.ops.ragged import Ragged

_numbers = itertools.count()


class NotOneOperator(errors.UnsupportedError):
    """The Program cannot run as one operator."""


class PartialProgramLayer:
    """A Program as a function of eager variables.

    Args:
        main_program: the Program; its state is in `parameters`.
        inputs: its variables that are given at each call.
        outputs: variables of the results.
        parameters: by name, the eager variables that its operators read and write besides.

    A Program with sparse look-ups is called operator by operator, since its gradients are rows.

    Raises NotOneOperator where the Program has operators that run on the host, such as `print`, or
    sparse look-ups beside loops and conditions.
    """

    def __init__(
        self,
        main_program: Program,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        parameters: dict[str, VarBase],
    ):
        self.program, self.parameters = main_program, parameters
        arrays = [v.name for v in outputs if is_array(v)]
        if arrays:
            raise errors.UnsupportedError(
                f"{arrays[0]}: a list that a loop of tensors appends to cannot be returned to dygraph "
                "mode: return its elements, or fluid.layers.tensor_array_to_tensor of it"
            )
        self._inputs, self._outputs = [v.name for v in inputs], [v.name for v in outputs]
        cut = plan(main_program, self._inputs, self._outputs)
        hosts = sorted({op.type for s in cut.segments if s.host for _, op, _ in s.ops})
        if hosts:
            raise NotOneOperator(f"it holds operators that run on the host ({', '.join(hosts)})")
        self._updated = [n for n in cut.updated if n in parameters]
        items = [item for s in cut.segments for item in s.ops]
        self._items = items
        sparse = any(op.attrs.get("is_sparse") for b in main_program.blocks for op in b.ops)
        if sparse and any(definition.fn is None for _, _, definition in items):
            raise NotOneOperator("it has sparse look-ups beside loops or conditions of tensors")
        self._one_by_one = sparse
        names = [*self._inputs, *parameters]
        results = [*self._outputs, *self._updated]
        number, parts = next(_numbers), list(_parted(items))
        # Loops with gradients are lowered differently.
        self._types = {trains: f"run_program:{number}" + (":trains" if trains else "") for trains in (False, True)}
        # Functions of operators hold no PartialProgramLayer: the operators are released when it goes.
        self._definitions = [
            registry.add_local(
                type_,
                _function(parts, names, results, trains, bool(cut.rng)),
                ins=("X*",),
                outs=("Out*",),
                rng=bool(cut.rng),
                grad=trains,
            )
            for trains, type_ in self._types.items()
        ]
        weakref.finalize(self, released_ops.release, list(self._types.values())).atexit = False

    def __call__(self, inputs: Sequence[VarBase]) -> list[VarBase]:
        """Run it; the results are in the order of the outputs. State that it updates is updated.

        Raises `static_values.Unknown` where a shape, or a loop's bound, follows from values.
        """
        if self._one_by_one:
            return self._replay(inputs)
        made = [VarBase(name=unique_name.generate("declared")) for _ in self._outputs]
        updated = [self.parameters[n] for n in self._updated]
        given = [*inputs, *self.parameters.values()]
        trains = tracer().records and not all(v.stop_gradient for v in given)
        tracer().call(self._types[trains], {"X": given}, {"Out": [*made, *updated]})
        return made

    def _replay(self, inputs: Sequence[VarBase]) -> list[VarBase]:
        """Call the operators one after the other."""
        env = dict(zip(self._inputs, inputs)) | self.parameters
        for _, op, definition in self._items:
            given = {s: [env.get(n) for n in names] for s, names in op.inputs.items()}
            made: dict[str, list[VarBase | None]] = {}
            for slot, names in op.outputs.items():
                made[slot] = []
                for name in names:
                    variable = op.block.find_var_recursive(name)
                    if name not in self.parameters:
                        stopped = variable is None or variable.stop_gradient
                        env[name] = VarBase(name=unique_name.generate("declared"), stop_gradient=stopped)
                    made[slot].append(env[name])
            attrs = {n: v for n, v in op.attrs.items() if n in definition.attrs}
            tracer().call(op.type, given, made, attrs)
        return [env[n] for n in self._outputs]


def _function(
    parts: Sequence[tuple[list[Item], list[str]]],
    names: Sequence[str],
    results: Sequence[str],
    trains: bool,
    draws: bool,
) -> Callable[..., Any]:
    """Return the function of an operator; a random operator takes a key."""

    def drawing(values: list[Any], *, key: Any) -> list[Any]:
        return _run(parts, dict(zip(names, values)), results, key, trains)

    def plain(values: list[Any]) -> list[Any]:
        return drawing(values, key=None)

    return drawing if draws else plain


def _run(
    parts: Sequence[tuple[list[Item], list[str]]],
    env: dict[str, Any],
    results: Sequence[str],
    key: Any,
    trains: bool,
) -> list[Any]:
    env = {n: v for n, v in env.items() if v is not None}
    for items, stopped in parts:
        env = trace.lower(items, env, key, reversible=trains)
        for name in stopped:
            if name in env and not is_array(env[name]):
                env[name] = jax.tree.map(jax.lax.stop_gradient, env[name])
    found = [env[n] for n in results]
    if any(isinstance(v, Ragged) for v in found):
        raise errors.UnsupportedError(
            "a result whose number of rows depends on data cannot leave a function that is made a "
            "Program: compute it outside"
        )
    return [jnp.asarray(v) for v in found]


def _parted(items: Iterable[Item]) -> Iterable[tuple[list[Item], list[str]]]:
    """Split operators behind each operator that stops gradients; yields parts and names of stopped outputs."""
    part: list[Item] = []
    for item in items:
        part.append(item)
        op = item[1]
        variables = [op.block.find_var_recursive(n) for n in op.output_arg_names]
        stopped = [
            v.name for v in variables if v is not None and v.stop_gradient and not v.persistable and is_float(v.dtype)
        ]
        if stopped and op.input_arg_names:
            yield part, stopped
            part = []
    if part:
        yield part, []


Unknown = static_values.Unknown

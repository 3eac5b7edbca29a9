"""`fluid.op`: single operators that run on the variables of a scope."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.compat.fluid.framework import OpProtoHolder, get_all_op_protos
from jfluid.compile.lowering import trace
from jfluid.compile.lowering.plan import Segment
from jfluid.compile.runtime import padding, scope_rows
from jfluid.compile.runtime.host import Host
from jfluid.ir.operator import Operator as ProgramOperator
from jfluid.ir.program import Program
from jfluid.lod_tensor import LoDTensor, LoDTensorArray, SelectedRows
from jfluid.ops import registry
from jfluid.scope import Scope

__all__ = ["Operator", "get_all_op_protos"]


class Operator:
    """Operator that `run` applies to variables of a scope.

    Nothing is compiled: it is for tests of operators and for experiments.

    Args:
        type: the operator's type.
        kwargs: for each slot the name of a variable or a list of names, and the attributes.

    Raises ValueError where there is no operator of that type, ProgramError for a slot or attribute
    that it does not have or that is missing.
    """

    def __init__(self, type: str, **kwargs: Any):
        OpProtoHolder.instance().get_op_proto(type)  # refuses what is no operator
        definition = registry.get(type)
        slots = {s.name for s in definition.ins}, {s.name for s in definition.outs}
        ins, outs = ({n: v for n, v in kwargs.items() if n in known} for known in slots)
        attrs = {n: v for n, v in kwargs.items() if n not in slots[0] | slots[1]}
        if definition.fn is None and not definition.host:
            raise errors.UnsupportedError(
                f"operator {type} has blocks of operators inside, or handles arrays: build a Program and run it"
            )
        block = Program().global_block()
        for names in (*ins.values(), *outs.values()):
            for name in [names] if isinstance(names, str) else names:
                block.create_var(name=name)
        self._definition = definition
        self._op = block.adopt_op(ProgramOperator(block, type, ins, outs, attrs))
        self._op.check()

    @staticmethod
    def types() -> list[str]:
        """Return the types of all operators."""
        return registry.registered()

    def type(self) -> str:
        return self._op.type

    def inputs(self) -> dict[str, list[str]]:
        """Return the names of the variables that are read, by slot."""
        return self._op.desc.inputs()

    def outputs(self) -> dict[str, list[str]]:
        """Return the names of the variables that are written, by slot."""
        return self._op.desc.outputs()

    def input_vars(self) -> list[str]:
        """Return the names of the variables that are read."""
        return self._op.input_arg_names

    def output_vars(self) -> list[str]:
        """Return the names of the variables that are written."""
        return self._op.output_arg_names

    def support_gpu(self) -> bool:
        """Return True if the operator can run on GPUs: XLA compiles all but host operators."""
        return not self._definition.host

    def run(self, scope: Scope, place: Any) -> None:
        """Read the inputs from `scope` and write the outputs to it.

        `place` has no effect beyond operators on the host: values stay on JAX's default device. Random
        operators draw other numbers each time, unless their attribute `seed` says which.

        Raises UninitializedError for an input without a value, OpError where the operator fails.
        """
        env = {n: _value(scope, n) for n in dict.fromkeys(self._op.input_arg_names)}
        items = [(0, self._op, self._definition)]
        if self._definition.host:
            Host(_no_blocks, place).run(Segment(items, True), env, None, scope)
        else:
            bits = _fresh_bits() if self._definition.rng else None
            key = trace.random_key(bits)
            with jax.enable_x64(True):
                env = jax.tree.map(jnp.asarray, env)
                trace.lower(items, env, key)
        for name in self._op.output_arg_names:
            if name in env:
                _write(scope, name, padding.trimmed(env[name]), self._op.type)


def _fresh_bits() -> np.ndarray:
    """Return uint32 [2] for a random key that nothing else uses."""
    return np.random.default_rng().integers(0, 2**32, 2, np.uint32)


def _no_blocks(plan: Any) -> Any:
    raise errors.UnsupportedError("an operator with blocks inside does not run alone")


def _value(scope: Scope, name: str) -> Any:
    """Return the value of a variable as operators take it."""
    var = scope.find_var(name)
    if var is None:
        raise errors.UninitializedError(f"variable {name}: the scope has none of this name")
    if var.holds_selected_rows():
        return scope_rows.read(var)
    tensor = var.get_tensor()
    if not tensor._is_initialized():
        raise errors.UninitializedError(f"variable {name}: the scope has no value of it")
    return padding.padded(tensor) if tensor.lod() else np.asarray(tensor)


def _write(scope: Scope, name: str, value: Any, op_type: str) -> None:
    """Store an output of an operator in a variable of the scope, or of an enclosing scope."""
    var = scope.find_var(name) or scope.var(name)
    if isinstance(value, SelectedRows) or (op_type in scope_rows.FILL and var.holds_selected_rows()):
        scope_rows.write(var, value, op_type)
        return
    if isinstance(value, LoDTensorArray):
        raise errors.UnsupportedError(
            f"variable {name}: arrays of tensors are not kept in scopes: build a Program and run it"
        )
    tensor = var.get_tensor()
    tensor.set(np.asarray(value))
    tensor.set_lod(value.lod() if isinstance(value, LoDTensor) else [])

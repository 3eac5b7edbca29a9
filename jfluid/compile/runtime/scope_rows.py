"""SelectedRows that stay in a Scope: operators read them there and write them there, on the host, one by one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.compile.lowering import trace
from jfluid.compile.lowering.plan import Item, keeps_rows
from jfluid.compile.runtime import padding
from jfluid.ir.operator import Operator
from jfluid.lod_tensor import LoDTensor, SelectedRows
from jfluid.ops import selected_rows as ops_rows
from jfluid.scope import Scope, ScopeVariable

# operators that give the values of rows that a variable holds
FILL = ("fill_constant", "uniform_random")


def read(var: ScopeVariable) -> ops_rows.SelectedRows:
    """Return a variable's SelectedRows as operators take them. Raises ProgramError if these do not match."""
    rows = var.get_selected_rows()
    rows.check(var.name)
    return ops_rows.SelectedRows(np.asarray(rows.rows(), np.int64), np.asarray(rows.get_tensor()), rows.height())


def write(var: ScopeVariable, value: Any, op_type: str) -> None:
    """Store an operator's output, `SelectedRows` or the values of the rows, in a variable that holds SelectedRows.

    Raises ProgramError for a dense tensor of an operator that fills no rows.
    """
    held = var.get_selected_rows()
    if isinstance(value, SelectedRows):
        held.set_rows(value.rows())
        held.set_height(value.height())
        held.get_tensor().set(np.asarray(value.get_tensor()))
    elif op_type in FILL:
        values = np.asarray(value)
        held.set_height(len(values))
        held.get_tensor().set(values)
    else:
        raise errors.ProgramError(
            f"operator {op_type} gives a dense tensor for variable {var.name}, which holds SelectedRows: declare the "
            "variable as a LoDTensor"
        )


def run(item: Item, env: dict[str, Any], key: Any, scope: Scope) -> None:
    """Run an operator on values by name and on the SelectedRows of a scope, and store its outputs in both."""
    _, op, definition = item
    values = {n: _input(op, n, env, scope) for n in dict.fromkeys(op.input_arg_names) if n in env or _is_kept(op, n)}
    with jax.enable_x64(True):
        values = jax.tree.map(jnp.asarray, values)
        trace.lower([item], values, trace.random_key(key) if definition.rng else None)
    for name in op.output_arg_names:
        if name not in values:
            continue
        value = padding.trimmed(values[name])
        if _is_kept(op, name):
            write(scope.find_var(name) or scope.var(name), value, op.type)
            env.pop(name, None)  # a fed value
        elif isinstance(value, SelectedRows):
            env[name] = values[name]
        elif isinstance(value, LoDTensor):
            env[name] = padding.padded(value) if value.lod() else np.asarray(value)
        else:
            env[name] = np.asarray(value)


def _is_kept(op: Operator, name: str) -> bool:
    return keeps_rows(op.block.find_var_recursive(name))


def _input(op: Operator, name: str, env: dict[str, Any], scope: Scope) -> Any:
    """Return the value of an input. Raises UninitializedError for SelectedRows that the scope does not hold."""
    if name in env or not _is_kept(op, name):  # fed, or no rows of the scope
        return env[name]
    var = scope.find_var(name)
    if var is None or not var.holds_selected_rows() or not var.get_selected_rows().get_tensor()._is_initialized():
        raise errors.UninitializedError(
            f"{name}: the scope holds no SelectedRows of this name: put them there with "
            f'scope.var("{name}").get_selected_rows(), or load the variable'
        )
    return read(var)

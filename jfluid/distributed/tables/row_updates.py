"""Updates of a table's rows by the operators of a server's program.

| way | when | cost of an update |
|---|---|---|
| `UpdateByRule` | the optimizer has a compiled rule, and its gradient is sparse rows | by the rows with a gradient |
| `UpdateByFunction`, all rows | any other, in a table of consecutive rows | by the height, as in Fluid |
| `UpdateByFunction`, all rows | any other, where the server has consecutive rows | by the height, as in Fluid |
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jfluid import errors
from jfluid.compile.runtime.padding import ladder
from jfluid.distributed.programs.server_program import UpdateBlock
from jfluid.distributed.tables.compiled_function import CompiledFunction, reads_of
from jfluid.ir import schema
from jfluid.ir.operator import Operator
from jfluid.ir.types import VarType
from jfluid.ops import registry
from jfluid.ops.selected_rows import SelectedRows
from jfluid.ps_server import specs
from jfluid.ps_server.optimizers import RULES, OptimizerSpec, RuleDef
from jfluid.ps_server.table import SparseTable

Array = np.ndarray[Any, Any]
_LOG = logging.getLogger(__name__)


@dataclass
class Parts:
    """The variables of a table's update.

    Attributes:
        slots: variables with a row for each row of the parameter.
        numbers: further persistable variables that the update reads.
        written: variables that the update writes.
        spread: True if the table is distributed: this server has rows by ids, and no range of rows.
    """

    update: UpdateBlock
    slots: list[str]
    numbers: list[str]
    written: list[str]
    spread: bool

    @classmethod
    def of(cls, update: UpdateBlock) -> "Parts":
        """Return the names of the values of an update, by their role.

        Raises UnsupportedError for a parameter that is no float32 matrix.
        """
        var = update.block.var_recursive(update.param)
        if len(var.shape) != 2 or var.np_dtype != np.float32:
            raise errors.UnsupportedError(
                f"table {update.param}: tables hold rows of float32, expected a parameter float32 "
                f"[height, width], found {var.np_dtype} {list(var.shape)}"
            )

        def lasting(names: Sequence[str]) -> list[str]:
            return [
                n
                for n in dict.fromkeys(names)
                if n not in (update.param, update.grad)
                and (v := update.block.find_var_recursive(n)) is not None
                and v.persistable
            ]

        used = lasting(reads_of(update.ops) + [n for op in update.ops for n in op.output_arg_names])
        slots = [n for n in used if update.block.var_recursive(n).shape == var.shape]
        written = lasting([n for op in update.ops for n in op.output_arg_names])
        reads = reads_of(update.ops)
        return cls(
            update,
            slots,
            [n for n in used if n not in slots and n in reads],
            [update.param, *written],
            var.type == VarType.SELECTED_ROWS,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.update.block.var_recursive(self.update.param).shape)

    def described(self, name: str) -> Any:
        """Return an abstract array with the shape and dtype of a variable."""
        var = self.update.block.var_recursive(name)
        return jax.ShapeDtypeStruct(var.shape, var.np_dtype)


class UpdateByRule:
    """The table's compiled rule; the operators before the optimizer change the gradient, or make the learning rate.

    Attributes:
        optimizer: the optimizer of the table's spec.
        rate: the variable of the table's learning rate; empty for none.
        alone: True if updates must not run concurrently, since they change variables that all rows share.
    """

    alone = False

    def __init__(self, parts: Parts, optimizer: OptimizerSpec, tensor: Callable[[str], Any], device: Callable[[], Any]):
        self.optimizer, self._parts, self._tensor = optimizer, parts, tensor
        self.rate, self._rate, self._function = "", "", None
        op = next((o for o in parts.update.ops if o.input("Param")), None)
        if op is None:
            return  # trainers send differences
        before = parts.update.ops[:-1]
        made = {n for o in before for n in o.output_arg_names}
        (self._grad,), (rate,) = op.input("Grad"), op.input("LearningRate")
        if rate in made:
            self._rate = rate
        else:
            self.rate = rate
        if wanted := [n for n in (self._grad, rate) if n in made]:
            self._function = CompiledFunction(before, wanted, device())
            _try(parts, self._function, _padded_shapes(parts))

    def check(self, ids: Array, learning_rate: float | None) -> None:
        """Every update of the right shape can be made."""

    def prepare(
        self, table: SparseTable, ids: Array, gradients: Array, learning_rate: float | None
    ) -> Callable[[], Any]:
        """Return the prepared update of (ids int64 [n], each once; gradients float32 [n, width]).

        All computation that may fail is done here.
        """
        if self._function is not None:
            values = {n: np.array(self._tensor(n)) for n in self._parts.numbers if n in self._function.reads}
            if self._parts.update.grad in self._function.reads:
                values[self._parts.update.grad] = _padded(gradients)
            found = self._function(values)
            if self._grad in found:
                gradients = np.ascontiguousarray(found[self._grad][: len(ids)])
            if self._rate and learning_rate is None:
                learning_rate = float(found[self._rate].reshape(()))
        return lambda: table.push(ids, gradients, learning_rate, merged=True)


class UpdateByFunction:
    """The block's operators, compiled as a function of rows.

    For attributes see `UpdateByRule`.
    """

    alone = True
    rate = ""

    def __init__(
        self,
        parts: Parts,
        first_value: Callable[[str], float],
        tensor: Callable[[str], Any],
        seed: int,
        device: Callable[[], Any],
    ):
        self._parts, self._tensor, self._seed = parts, tensor, seed
        self.optimizer: OptimizerSpec = specs.Program(
            learning_rate=0.0, slots=tuple(specs.SlotSpec(name=n, initial=first_value(n)) for n in parts.slots)
        )
        self._function = CompiledFunction(parts.update.ops, parts.written, device())
        self._rows = [parts.update.param, *parts.slots]
        self._zeros = np.zeros((0, 0), np.float32)
        shapes = _padded_shapes(parts)
        if not parts.spread:
            rows = jax.ShapeDtypeStruct((ladder(1),), np.int64)
            shapes = {n: parts.described(n) for n in self._rows} | {
                parts.update.grad: SelectedRows(rows, shapes[parts.update.grad], parts.shape[0], unique=True)
            }
        _try(parts, self._function, shapes)

    def check(self, ids: Array, learning_rate: float | None) -> None:
        """Raise ServerError for an update that cannot be made."""
        name, height = self._parts.update.param, self._parts.shape[0]
        if learning_rate is not None:
            raise errors.ServerError(
                f"table {name}: learning_rate: expected none, since the server's program makes it, found "
                f"{learning_rate}"
            )
        if not self._parts.spread and len(ids) and (ids.min() < 0 or ids.max() >= height):
            raise errors.ServerError(
                f"table {name}: ids: expected some of 0 ... {height - 1}, found {ids.min()} ... {ids.max()}"
            )

    def prepare(
        self, table: SparseTable, ids: Array, gradients: Array, learning_rate: float | None
    ) -> Callable[[], Any]:
        """Return the prepared update of (ids int64 [n], each once; gradients float32 [n, width]).

        Where it fails nothing changes.
        """
        return lambda: (self._touched if self._parts.spread else self._all)(table, ids, gradients)

    def _touched(self, table: SparseTable, ids: Array, gradients: Array) -> None:
        made: dict[str, Array] = {}

        def step(values: Array, slots: list[Array], grads: Array) -> tuple[Any, Sequence[Any]]:
            rows = dict(zip(self._rows, map(_padded, (values, *slots)), strict=True))
            made.update(self._made(table, rows | {self._parts.update.grad: _padded(grads)}))
            new, *state = ((made.get(n, old))[: len(values)] for n, old in rows.items())
            return new, state

        table.update(ids, gradients, step, merged=True)
        self._keep(made)

    def _all(self, table: SparseTable, ids: Array, gradients: Array) -> None:
        height = self._parts.shape[0]
        rows = np.full(ladder(len(ids)), height, np.int64)
        rows[: len(ids)] = ids
        gradient = SelectedRows(rows, _padded(gradients), height, unique=True)
        made: dict[str, Array] = {}

        def step(values: Array, slots: list[Array], _: Array) -> tuple[Any, Sequence[Any]]:
            old = dict(zip(self._rows, (values, *slots), strict=True))
            made.update(self._made(table, old | {self._parts.update.grad: gradient}))
            new, *state = (made.get(n, v) for n, v in old.items())
            return new, state

        if not len(self._zeros):
            self._zeros = np.zeros(self._parts.shape, np.float32)
        table.update(np.arange(height, dtype=np.int64), self._zeros, step, merged=True)
        self._keep(made)

    def _made(self, table: SparseTable, values: dict[str, Any]) -> dict[str, Array]:
        values |= {n: np.array(self._tensor(n)) for n in self._parts.numbers}
        key = np.array([self._seed & 0xFFFFFFFF, table.step & 0xFFFFFFFF], np.uint32) if self._function.draws else None
        return self._function(values, key)

    def _keep(self, made: dict[str, Array]) -> None:
        """Numbers that all rows share."""
        for name in set(made) - set(self._rows):
            self._tensor(name).set(made[name])


RowUpdate = UpdateByRule | UpdateByFunction


def row_update_of(
    update: UpdateBlock,
    first_value: Callable[[str], float],
    tensor: Callable[[str], Any],
    seed: int,
    device: Callable[[], Any],
) -> tuple[RowUpdate, Parts]:
    """Return how a block of a server's program updates its table.

    Args:
        first_value: the initial value of the rows of a slot.
        tensor: a variable of the server's scope.
        seed: of the program's random numbers.
        device: where functions run; asked for when one is needed.

    Raises UnsupportedError for a block that no table can follow.
    """
    parts = Parts.of(update)
    op = next((o for o in update.ops if o.input("Param")), None)
    if op is None:
        return UpdateByRule(parts, specs.Sgd(learning_rate=0.0), tensor, device), parts
    rule = _rule_for(parts, op)
    if rule is not None:
        firsts = {slot.first: first_value(op.input(slot.input)[0]) for slot in rule.slots if slot.first}
        return UpdateByRule(parts, rule.settings_of(op.attr).model_copy(update=firsts), tensor, device), parts
    if parts.spread:
        _check_touched(parts, op)
    return UpdateByFunction(parts, first_value, tensor, seed, device), parts


def _is_sparse(parts: Parts, op: Operator) -> bool:
    """Return True if the optimizer sees sparse rows: weight decay makes rows dense."""
    return bool(parts.update.block.var_recursive(op.input("Grad")[0]).type == VarType.SELECTED_ROWS)


def _rule_for(parts: Parts, op: Operator) -> RuleDef | None:
    """Return the compiled rule that equals a block's operators; None if there is none."""
    rule, before = RULES.get(op.type), parts.update.ops[:-1]
    if rule is None or op is not parts.update.ops[-1] or not (registry.get(op.type).sparse and _is_sparse(parts, op)):
        return None
    if any(op.input(slot) and slot not in rule.inputs for slot in op.input_names):
        return None
    reads = set(reads_of(before)) | {n for o in before for n in o.output_arg_names}
    return None if reads & {parts.update.param, *parts.slots} else rule


def _check_touched(parts: Parts, op: Operator) -> None:
    """Refuse an update that needs the whole parameter; warn that rows without a gradient stay as before."""
    name, types = parts.update.param, ", ".join(o.type for o in parts.update.ops)
    if schema.current().needs_whole(op.type) or _is_sparse(parts, op):
        raise errors.UnsupportedError(
            f"table {name}: its update ({types}) computes with the whole parameter, and of a "
            "distributed table no server has all rows: build the embedding with "
            "is_distributed=False, or take a different optimizer"
        )
    _LOG.warning(
        "table %s is distributed: weight decay (%s) moves the rows of an update that have a gradient; other rows "
        "stay as before",
        name,
        types,
    )


def _padded_shapes(parts: Parts) -> dict[str, Any]:
    rows = jax.ShapeDtypeStruct((ladder(1), *parts.shape[1:]), np.float32)
    return dict.fromkeys([parts.update.param, parts.update.grad, *parts.slots], rows)


def _try(parts: Parts, function: CompiledFunction, rows: dict[str, Any]) -> None:
    """Trace a function, so that unsupported operators are refused before the server serves."""
    values = rows | {n: parts.described(n) for n in parts.numbers}
    name = parts.update.param
    if unknown := [n for n in function.reads if n not in values]:
        raise errors.UnsupportedError(
            f"table {name}: its update reads {', '.join(unknown)}, which this server does not have"
        )
    try:
        found = function.shapes(values)
    except errors.JFluidError as error:
        raise errors.UnsupportedError(
            f"table {name}: its rows cannot be updated by {', '.join(o.type for o in parts.update.ops)}: {error}"
        ) from error
    for made in {name, *parts.slots} & set(found):
        if found[made].shape != rows[made].shape:
            raise errors.UnsupportedError(
                f"table {name}: {made}: expected rows {list(rows[made].shape)} of its update, found "
                f"{list(found[made].shape)}"
            )


def _padded(values: Array) -> Array:
    """Return rows with zeros appended, up to a length from a small set."""
    out = np.zeros((ladder(len(values)), values.shape[1]), np.float32)
    out[: len(values)] = values
    return out

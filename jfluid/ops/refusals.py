"""Value checks of operators: offsets, lengths and labels that do not match rows.

Values are not known while a program is traced. A compiled step evaluates its checks first and raises before
the step itself runs (`jfluid.compile.runtime.refused`). For any values, the offsets that operators compute match
their rows (`ragged.fitted`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jfluid.ops.ragged import Ragged, Value, rows_of

TABLE = "@REFUSED@"  # the variable of a step that holds a row for each rule of each operator
_SHOWN = 12  # numbers of an input that an error shows
WIDTH = 4 + _SHOWN


class Found(NamedTuple):
    """Finding of a rule in the inputs of an operator.

    Attributes:
        wrong: bool [number] or scalar: mask of wrong values.
        values: integers [number] of an input.
        limit: the integer that values are compared with.
    """

    wrong: Any
    values: Any
    limit: Any

    def row(self) -> Array:
        """Encode the finding as int64 [WIDTH]; zeros if all values are right."""
        values = jnp.asarray(self.values).reshape(-1).astype(jnp.int64)
        wrong, number = jnp.asarray(self.wrong).reshape(-1), values.shape[0]
        if not wrong.size:
            return jnp.zeros(WIDTH, jnp.int64)
        start = jnp.clip(jnp.argmax(wrong) - _SHOWN // 2, 0, max(number - _SHOWN, 0))
        shown = lax.dynamic_slice(jnp.pad(values, (0, max(_SHOWN - number, 0))), (start,), (_SHOWN,))
        bad = jnp.any(wrong)
        numbers = [jnp.asarray(n, jnp.int64).reshape(1) for n in (bad, self.limit, number, start)]
        return jnp.where(bad, jnp.concatenate([*numbers, shown]), 0)


class RefusalRule(NamedTuple):
    """Check of an operator's input values.

    Attributes:
        slot: the input whose values are checked; all other inputs give only shape and LoD.
        find: function of inputs by slot and attributes; None if no value can be wrong.
        text: error message, with `{found}` and `{limit}`.
        when: function of an operator: True if the rule applies to it.
    """

    slot: str
    find: Callable[[Mapping[str, Any], Mapping[str, Any]], Found | None]
    text: str
    when: Callable[[Any], bool] = lambda op: True

    def applies(self, op: Any) -> bool:
        """Return True if the rule is for an operator."""
        return bool(op.input(self.slot)) and self.when(op)

    def row(self, inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> Array:
        """Return `Found.row` for the inputs of an operator."""
        found = self.find(inputs, attrs)
        return jnp.zeros(WIDTH, jnp.int64) if found is None else found.row()

    def error(self, row: list[int]) -> str:
        """Return the text for a row of `Found`."""
        _, limit, number, start, *values = row
        shown = ", ".join(map(str, values[: min(number - start, _SHOWN)]))
        before, after = "..., " * (start > 0), ", ..." * (start + _SHOWN < number)
        of = f" ({number} numbers)" if before or after else ""
        return f"{self.slot}: " + self.text.format(found=f"[{before}{shown}{after}]{of}", limit=limit)


def count_of(x: Value) -> Any:
    """Return the number of real rows of a value: an int if known while tracing."""
    return x.count() if isinstance(x, Ragged) else x.shape[0]


def offsets(values: Array, rows: Any) -> Found:
    """Return the mask of invalid offsets [number + 1]: falling, not starting at 0, or not ending at `rows`."""
    wide = values.reshape(-1).astype(jnp.int64)
    wrong = jnp.pad(jnp.diff(wide) < 0, (1, 0)).at[0].set(wide[0] != 0)
    return Found(wrong.at[-1].set(wrong[-1] | (wide[-1] != rows)), wide, rows)


def outside(values: Value, most: Any) -> Found:
    """Return the mask of values in real rows outside of [0, most]."""
    found = at_most(values, most)
    return found._replace(wrong=found.wrong | _of_real_rows(values, found.values < 0))


def lengths(slot: str, of: str, axis: int) -> RefusalRule:
    """Return the rule that lengths are in [0, size of an axis of the input `of`]."""
    return RefusalRule(
        slot,
        lambda ins, attrs: outside(ins[slot], rows_of(ins[of]).shape[axis]),
        f"expected lengths from 0 to the {{limit}} steps of {of}, found {{found}}",
    )


def pictures(channels: str) -> RefusalRule:
    """Return the rule that a sequence of X has `channels` entries for each row of ROW and column of COLUMN.

    `channels` names an attribute.
    """

    def find(ins: Mapping[str, Any], attrs: Mapping[str, Any]) -> Found | None:
        levels = [v.last for v in ins.values() if isinstance(v, Ragged) and v.levels]
        if len(levels) != 3 or len({level.number for level in levels}) > 1:
            return None  # the operator refuses that while it is traced
        x, rows, columns = (level.lengths.astype(jnp.int64) for level in levels)
        return Found(x != attrs[channels] * rows * columns, x, attrs[channels])

    return RefusalRule(
        "X",
        find,
        f"expected sequences of {channels} ({{limit}}) times the rows of ROW times those of COLUMN, found "
        "lengths {found}",
    )


def at_most(values: Value, most: Any) -> Found:
    """Return the mask of values in real rows above a limit."""
    wide = rows_of(values).astype(jnp.int64)
    return Found(_of_real_rows(values, wide > most), wide, most)


def _of_real_rows(values: Value, wrong: Array) -> Array:
    if not isinstance(values, Ragged):
        return wrong
    return wrong & values.mask().reshape(-1, *[1] * (wrong.ndim - 1))

"""Dispatch of operators on ragged rows: the only caller of an operator's function.

`rows` in an operator's definition says why padding rows are harmless:
    "map"       row i of each output depends on row i of the inputs only; the function sees plain arrays.
    "mask"      rows are summed, counted or compared: the function sees plain arrays and gets the keyword
`rows`, a
                `RowMask`, or None where no row is padding. Its outputs are plain, except the slots in
`row_outs`.
    "sequence"  it works by sequences: the function sees and returns `Ragged` values itself.
    a function  `(attributes, inputs by slot) -> one of these | None`, where it depends on an axis
(`row_rules`).
    None        padding is not harmless: a program in which ragged rows reach the operator runs with exact
shapes.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jfluid import errors
from jfluid.ops.definition import OpDef
from jfluid.ops.ragged import Ragged, column, is_counted
from jfluid.ops.selected_rows import SelectedRows
from jfluid.ops.tensor_array import TensorArray


class NeedsExactRows(errors.OpError):
    """Error: an operator that does not support padding got padded rows.

    The step is then compiled again with exact shapes.
    """


# True while a step is traced for a padded number of sequences
_pads_number = ContextVar("pads_number", default=False)


@contextlib.contextmanager
def padded_numbers(pads: bool) -> Iterator[None]:
    """Trace a step; with `pads`, its feeds have padded numbers of sequences, and may have exact numbers instead."""
    token = _pads_number.set(pads)
    try:
        yield
    finally:
        _pads_number.reset(token)


@dataclass(frozen=True)
class RowMask:
    """Mask of the real rows of an operator's ragged inputs.

    Attributes:
        mask: bool [capacity].
        count: int32 scalar.
    """

    mask: Any
    count: Any

    def zero(self, x: Any, fill: Any = 0) -> Any:
        """Return `x` with `fill` in padding rows."""
        return jnp.where(column(self.mask, x.ndim), x, jnp.asarray(fill, x.dtype))

    def refill(self, x: Any) -> Any:
        """Return `x` with copies of the first row in padding rows."""
        return jnp.where(column(self.mask, x.ndim), x, x[:1])


def call(definition: OpDef, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Call the operator's function; returns its outputs, one for each slot, for inputs that may be ragged.

    Raises NeedsExactRows.
    """
    if not definition.sparse:
        _refuse_sparse(definition, inputs)
    if definition.rows == "sequence":
        if not definition.counts and _pads_number.get() and any(map(is_counted, _elements(inputs))):
            raise NeedsExactRows(f"operator {definition.type} needs the exact number of sequences")
        return _tuple(definition.function(*inputs, **kwargs))
    if any(isinstance(v, TensorArray) for v in _elements(inputs)):
        return _over_arrays(definition, inputs, kwargs)
    ragged = [v for v in jax.tree.leaves(list(inputs), is_leaf=_is_ragged) if _is_ragged(v)]
    if not ragged:
        return _tuple(definition.function(*inputs, **kwargs))
    # as in Fluid, the LoD of the first input, even where a later one has more levels
    source = ragged[0]
    plain = [jax.tree.map(_plain, v, is_leaf=_is_ragged) for v in inputs]
    rule = definition.rows
    if callable(rule):
        rule = rule(kwargs, {s.name: v for s, v in zip(definition.ins, inputs)})
    if rule == "sequence":
        return _tuple(definition.function(*inputs, **kwargs))
    if rule is None and not source.exact:
        raise NeedsExactRows(f"operator {definition.type} needs the exact number of rows")
    if any(r.capacity != source.capacity for r in ragged):
        raise errors.ShapeError(
            f"{definition.type}: inputs of different numbers of rows: " + ", ".join(str(list(r.shape)) for r in ragged)
        )
    if definition.wants_rows:
        rows = RowMask(source.mask(), source.count()) if rule == "mask" and not source.exact else None
        kwargs = {**kwargs, "rows": rows}
    outs = _tuple(definition.function(*plain, **kwargs))
    return tuple(
        _wrap(o, source) if rule != "mask" or s.name in definition.row_outs else o
        for s, o in zip(definition.outs, outs)
    )


def _elements(inputs: Sequence[Any]) -> list[Any]:
    return [v for slot in inputs for v in (slot if isinstance(slot, list) else [slot])]


def _over_arrays(definition: OpDef, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Apply an operator to whole tensor arrays (their sum, a copy): to each element, or to the buffer of all."""
    arrays = [v for v in _elements(inputs) if isinstance(v, TensorArray)]
    if len(definition.outs) != 1 or len(arrays) != len([v for v in _elements(inputs) if v is not None]):
        raise errors.UnsupportedError(f"operator {definition.type} does not take arrays of tensors")

    def on(part: Callable[..., Any]) -> Any:
        chosen = [
            [p for v in slot if (p := part(v)) is not None] if isinstance(slot, list) else slot and part(slot)
            for slot in inputs
        ]
        return call(definition, chosen, kwargs)[0] if _elements(chosen) else None

    if any(a.buffer is not None for a in arrays):
        capacity = max(a.capacity for a in arrays)
        lengths = functools.reduce(jnp.maximum, (jnp.asarray(a.size(), jnp.int64) for a in arrays))
        return (TensorArray(buffer=on(lambda a: a.stacked(capacity).buffer), length=lengths),)
    return (
        TensorArray(
            tuple(
                on(lambda a, i=i: a.items[i] if i < len(a.items) else None)
                for i in range(max(a.capacity for a in arrays))
            )
        ),
    )


def _refuse_sparse(definition: OpDef, inputs: Sequence[Any]) -> None:
    for slot, value in zip(definition.ins, inputs):
        if any(isinstance(v, SelectedRows) for v in (value if isinstance(value, list) else [value])):
            raise errors.UnsupportedError(
                f"operator {definition.type} does not take sparse rows (input {slot.name}): build "
                "the embedding with is_sparse=False, or make the rows dense with "
                "layers.get_tensor_from_selected_rows(layers.merge_selected_rows(x))"
            )


def _tuple(outs: Any) -> tuple[Any, ...]:
    return outs if isinstance(outs, tuple) else (outs,)


def _is_ragged(value: Any) -> bool:
    return isinstance(value, Ragged)


def _plain(value: Any) -> Any:
    return value.values if isinstance(value, Ragged) else value


def _wrap(out: Any, source: Ragged) -> Any:
    if isinstance(out, list):
        return [_wrap(o, source) for o in out]
    by_rows = out is not None and getattr(out, "ndim", 0) > 0 and out.shape[0] == source.capacity
    return source.like(out) if by_rows else out

"""Steps of imperative mode with unrolled loops of varying length, traced as loops of XLA.

The outline of a step (see `loop_reroll`) is traced with loops whose lengths are sizes of arguments. Values that each
iteration reads once are stacked along a new first dimension. Steps of all lengths are one stream of shapes (see
`shape_streams`), and the buckets of the stream bound the number of compilations.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.dygraph.calls import Call, frozen
from jfluid.dygraph.compiled_trace import NONE, key_of
from jfluid.dygraph.lazy_values import Aval, aval_of
from jfluid.dygraph.loop_reroll import CallNode, LoopNode, Name, Op, Outline, Row, Stretch
from jfluid.dygraph.trace_trie import TraceNode

_SLICES = frozenset(["slice", "slice_grad"])
_COUNTED = frozenset(["starts", "ends"])
_kinds = LruCache[int](8192)
_numbers = itertools.count()


def ops_of(trace_node: TraceNode) -> list[Op]:
    """Return the calls that lead to a trie node, in the form of `loop_reroll`."""
    found: list[Op] = []
    leaves: list[Aval] = []
    outputs: list[Any] = []
    for own in trace_node.since(None):
        record = own.record
        if record is None:
            continue
        leaves += own.leaf_avals
        inputs = tuple([None if s == NONE else s for s in record.inputs])
        avals = [None if s is None else _aval(outputs[s]) if s >= 0 else leaves[-1 - s] for s in inputs]
        outputs += own.made
        starts = _starts(own.call, avals)
        listed = "sum" if own.call.definition.type == "sum" else ""
        found.append(
            Op(
                _kind(own.call, starts, listed),
                inputs,
                tuple([a and a.number for a in avals]),
                own.first_output,
                len(own.made),
                starts,
                listed,
                record.draw,
            )
        )
    return found


def _aval(made: Any) -> Aval:
    return made if isinstance(made, Aval) else aval_of(made)


def _starts(call: Call, avals: Sequence[Aval | None]) -> tuple[int, ...]:
    """Return the starts of a slice that a loop may count, or an empty tuple."""
    if call.definition.type not in _SLICES or call.constants:
        return ()
    if sum(a is not None for a in avals) != (1 if call.definition.type == "slice" else 2):
        return ()
    shape = avals[0].shape if avals[0] is not None else ()
    axes, starts, ends = (call.attrs.get(name, ()) for name in ("axes", "starts", "ends"))
    if not len(axes) == len(starts) == len(ends):
        return ()
    inside = all(
        -len(shape) <= axis < len(shape) and 0 <= start < end <= shape[axis]
        for axis, start, end in zip(axes, starts, ends)
    )
    return tuple(starts) if inside else ()


def _kind(call: Call, starts: tuple[int, ...], listed: str) -> int:
    """Return the number of a call's kind, which is the same in each iteration."""
    if listed:
        key: Any = (listed, frozen(call.named))
    elif starts:
        sizes = tuple([end - at for at, end in zip(starts, call.attrs["ends"])])
        rest = {name: v for name, v in call.named.items() if name not in _COUNTED}
        key = (call.definition.type, call.given, frozen(rest), sizes)
    else:
        key = call.number
    return _kinds.get_or_make(key, lambda: next(_numbers))


def arguments(outline: Outline, arrays: Sequence[Any], draws: Any) -> tuple[list[str], tuple[Any, ...]]:
    """Return names and values of an outline's arguments.

    Args:
        outline: the outline.
        arrays: inputs of the step.
        draws: [number of draws, 3] of the random numbers of all calls; None for none.
    """
    found: dict[str, Any] = {f"l{i}": arrays[-1 - s] for i, s in enumerate(outline.leaves)}
    for i, own in enumerate(outline.stacks):
        found[f"s{i}"] = np.stack([np.asarray(arrays[at]) for at in own])
    for i, starts in enumerate(outline.starts):
        found[f"n{i}"] = np.array(starts, np.int64)
    for i, places in enumerate(outline.draws):
        found[f"d{i}"] = draws[places]
    for i, count in enumerate(outline.counts):
        found[f"k{i}"] = np.arange(count)
    return list(found), tuple(found.values())


class RerolledStep:
    """Traces the calls of an outline.

    Args:
        outline: the outline.
        calls: calls of the step from which the outline was derived.
    """

    def __init__(self, outline: Outline, calls: Sequence[Call]):
        self._outline, self._calls = outline, calls
        self._stacked = set(_rows_of(outline))
        self._summed = set(_summed_of(outline)) - self._stacked

    def __call__(self, env: dict[str, Any]) -> list[Any]:
        """Return the results, for arguments by name."""
        return _Run(self._outline, self._calls, env, self._stacked, self._summed).results()


def _rows_of(outline: Outline) -> Iterator[Row]:
    """Yield the rows that are read other than by a sum of the whole row."""
    for name in outline.results:
        if name[0] in ("whole", "row"):
            yield name[1]
    for node in outline.nodes:
        names: list[Any] = []
        stretches: list[Stretch] = []
        if isinstance(node, LoopNode):
            names = [*node.same, *(name for _, name in node.carried)]
            stretches = [stretch for row in node.rows for stretch in row]
        elif node.listed:
            stretches = list(node.inputs)
        else:
            names = list(node.inputs)
        names += [stretch[1] for stretch in stretches if stretch[0] == "one"]
        yield from (name[1] for name in names if name is not None and name[0] == "row")
        yield from (s[1] for s in stretches if s[0] == "part" and not _is_whole_sum(node, s))


def _is_whole_sum(node: Any, stretch: Stretch) -> bool:
    plain = isinstance(node, CallNode) and stretch[0] == "part" and stretch[3:] == (0, 0)
    return plain and node.listed == "sum"


def _summed_of(outline: Outline) -> Iterator[Row]:
    for node in outline.nodes:
        if isinstance(node, CallNode) and node.listed:
            yield from (s[1] for s in node.inputs if _is_whole_sum(node, s))


class _Run:
    """A trace of an outline.

    Args:
        outline: the outline.
        calls: calls of the step.
        env: arguments by name.
        stacked: rows that are stored.
        summed: rows of which only the sum is stored.
    """

    def __init__(
        self,
        outline: Outline,
        calls: Sequence[Call],
        env: dict[str, Any],
        stacked: set[Row],
        summed: set[Row],
    ):
        self._outline, self._calls, self._env = outline, calls, env
        self._stacked, self._summed = stacked, summed
        self._values: dict[tuple[int, int], Any] = {}
        self._rows: dict[Row, Any] = {}
        self._sums: dict[Row, Any] = {}
        self._starts, self._draws, self._loops = 0, 0, 0
        for number, node in enumerate(outline.nodes):
            if isinstance(node, LoopNode):
                self._loop(node, outline.places[number])
            else:
                self._call(number, node, outline.places[number])

    def results(self) -> list[Any]:
        return [self._rows[name[1]] if name[0] == "whole" else self._value(name) for name in self._outline.results]

    # ---- values -------------------------------------------------------------------------------------

    def _value(self, name: Name) -> Any:
        if name is None:
            return None
        if name[0] == "leaf":
            return self._env[f"l{name[1]}"]
        if name[0] == "out":
            return self._values[name[1:]]
        row = self._rows[name[1]]
        return lax.index_in_dim(row, name[2] % row.shape[0], 0, keepdims=False)

    def _stretch(self, stretch: Stretch) -> Any:
        if stretch[0] == "one":
            return jnp.asarray(self._value(stretch[1]))[None]
        if stretch[0] == "leaves":
            return self._env[f"s{stretch[1]}"]
        _, row, step, before, behind = stretch
        found = self._rows[row]
        found = lax.slice_in_dim(found, before, found.shape[0] - behind, axis=0)
        return lax.rev(found, (0,)) if step < 0 else found

    def _stack(self, stretches: Sequence[Stretch]) -> Any:
        found = [self._stretch(stretch) for stretch in stretches]
        return found[0] if len(found) == 1 else lax.concatenate(found, 0)

    def _next_starts(self) -> Any:
        self._starts += 1
        return self._env[f"n{self._starts - 1}"]

    def _next_draws(self) -> Any:
        self._draws += 1
        return self._env[f"d{self._draws - 1}"]

    # ---- calls --------------------------------------------------------------------------------------

    def _call(self, number: int, node: CallNode, at: int) -> None:
        call = self._calls[at]
        starts = self._next_starts()[0] if node.starts else None
        seed = self._next_draws()[0] if node.draws else None
        if not node.listed:
            made = _called(call, at, [self._value(name) for name in node.inputs], starts, seed)
            self._values.update({(number, i): v for i, v in enumerate(made)})
            return
        with jax.named_scope(f"{call.definition.type}@{at}"):
            self._values[number, 0] = self._sum(node.inputs)

    def _sum(self, stretches: Sequence[Stretch]) -> Any:
        total: Any = None
        for stretch in stretches:
            if stretch[0] == "one":
                own = self._value(stretch[1])
            elif stretch[0] == "part" and stretch[1] in self._sums:
                own = self._sums[stretch[1]]
            else:
                row = self._stretch(stretch)
                own = jnp.sum(row, 0, dtype=row.dtype)
            total = own if total is None else total + own
        return total

    # ---- loops --------------------------------------------------------------------------------------

    def _loop(self, node: LoopNode, at: int) -> None:
        number = self._loops
        self._loops += 1
        same = [self._value(name) for name in node.same]
        each = [self._stack(stretches) for stretches in node.rows]
        starts = {j: self._next_starts() for j in node.starts}
        draws = {j: self._next_draws() for j in node.draws}
        first = [_strong(self._value(name)) for _, name in node.carried]
        kept: list[int] = []
        sums: list[int] = []
        for rows, found in ((self._stacked, kept), (self._summed, sums)):
            found += sorted(row[2] for row in rows if row[:2] == ("loop", number))

        def iteration(state: Any, own: Any) -> Any:
            before, totals = state
            of_each, of_starts, of_draws, _ = own
            given = {"before": before, "same": same, "each": of_each}
            made: list[Any] = []
            for j, inputs in enumerate(node.inputs):
                values = [None if i is None else made[i[1]] if i[0] == "own" else given[i[0]][i[1]] for i in inputs]
                call = self._calls[at + j]
                made += _called(call, at + j, values, of_starts.get(j), of_draws.get(j))
            after = [_strong(made[q]) for q, _ in node.carried]
            if totals is None:  # to see their shapes
                return after, [made[q] for q in sums]
            totals = [total + made[q] for total, q in zip(totals, sums)]
            return (after, totals), [made[q] for q in kept]

        steps = (each, starts, draws, self._env[f"k{number}"])
        zeros: list[Any] = []
        if sums:

            def once() -> Any:
                return iteration((first, None), jax.tree.map(lambda values: values[0], steps))

            _, shapes = jax.eval_shape(once)
            zeros = [jnp.zeros(s.shape, s.dtype) for s in shapes]
        (_, totals), stacks = lax.scan(iteration, (first, zeros), steps)
        self._rows.update({("loop", number, q): v for q, v in zip(kept, stacks)})
        self._sums.update({("loop", number, q): v for q, v in zip(sums, totals)})


def _strong(value: Any) -> Array:
    """Return an array with a strong type, as loop state requires."""
    return lax.convert_element_type(value, jnp.result_type(value))


def _called(call: Call, at: int, values: Sequence[Any], starts: Any, seed: Any) -> list[Any]:
    """Return the outputs of a call, one after the other.

    Args:
        call: the call.
        at: place of the call, for error messages.
        values: inputs.
        starts: start of a counted slice; None for other calls.
        seed: seed of random numbers.
    """
    with jax.named_scope(f"{call.definition.type}@{at}"):
        key = None if seed is None else key_of(seed)
        made = call(values, key) if starts is None else _sliced(call, list(values), starts)
    found: list[Any] = []
    for out in made:
        found += out if isinstance(out, list) else [out]
    return found


def _sliced(call: Call, values: list[Any], starts: Any) -> tuple[Any, ...]:
    """Return the outputs of a slice, or a slice's gradient, with starts that are arguments."""
    whole, axes = values[0], call.attrs["axes"]
    sizes = [end - at for at, end in zip(call.attrs["starts"], call.attrs["ends"])]
    places: list[Any] = [0] * whole.ndim
    shape = list(whole.shape)
    for i, axis in enumerate(axes):
        places[axis], shape[axis] = starts[i], sizes[i]
    places = [jnp.asarray(place, jnp.int64) for place in places]
    values[0] = lax.dynamic_slice(whole, places, shape)
    attrs = {**call.named, "starts": [0] * len(sizes), "ends": sizes}
    made = call.with_attrs(attrs)(values)
    if call.definition.type == "slice":
        return made
    zeros = jnp.zeros(whole.shape, whole.dtype)
    return tuple([None if v is None else lax.dynamic_update_slice(zeros, v, places) for v in made])

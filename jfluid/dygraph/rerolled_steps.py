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
from jfluid.dygraph.calls import SCALES, Call, frozen
from jfluid.dygraph.compiled_trace import NONE, key_of
from jfluid.dygraph.lazy_values import Aval, aval_of
from jfluid.dygraph.loop_reroll import FEWEST, CallNode, LoopNode, Name, Op, Outline, Row, RowCall, Stretch
from jfluid.dygraph.trace_trie import TraceNode

# Slots of the elements that a call joins, or of the array that a call divides.
_JOINED = {"sum": "X", "stack": "X", "concat": "X", "unstack_grad": "Y@GRAD", "split_grad": "Out@GRAD"}
_DIVIDED = {"unstack": "X", "split": "X", "stack_grad": "Y@GRAD", "concat_grad": "Out@GRAD"}
_ALONG = frozenset(["concat", "concat_grad", "split", "split_grad"])  # parts keep the dimension
_COUNTS = frozenset(["num", "sections"])  # attributes that follow from the length of a row
_Pattern = tuple[tuple[Any, ...], ...]
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
        form = own.form
        if form.parts is None:
            avals = [None if s is None else _aval(outputs[s]) if s >= 0 else leaves[-1 - s] for s in inputs]
            numbers = own.call.numbers(avals)
            row = _row_call(own.call, avals, own.made)
            form.parts = _kind(own.call, numbers), tuple([a and a.number for a in avals]), numbers, row, avals
        outputs += own.made
        kind, forms, numbers, row, _ = form.parts  # the avals live as long as their numbers
        found.append(Op(kind, inputs, forms, own.first_output, len(own.made), numbers, row, record.draw))
    return found


def _aval(made: Any) -> Aval:
    return made if isinstance(made, Aval) else aval_of(made)


def _row_call(call: Call, avals: Sequence[Aval | None], made: Sequence[Any]) -> RowCall | None:
    """Return a call as a call of a whole row, or None for other calls."""
    kind = call.definition.type
    slot = _JOINED.get(kind) or _DIVIDED.get(kind)
    if slot is None or call.constants:
        return None
    at = 0
    for known, n in zip(call.definition.ins, call.layout):
        if known.name == slot:
            break
        at += abs(n)
    places = range(at, at + abs(n))
    if kind in _ALONG and any("Tensor" in s.name and a is not None for s, a in _slots(call, avals)):
        return None  # an axis or sections that are values
    divides = kind in _DIVIDED
    if divides and (len(made) < FEWEST or len({m.number if isinstance(m, Aval) else m for m in made}) > 1):
        return None
    rest = {name: v for name, v in call.named.items() if name not in _COUNTS}
    number = _kinds.get_or_make((kind, frozen(rest)), lambda: next(_numbers))
    return RowCall(kind, number, places, divides)


def _slots(call: Call, values: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the input slot of each value of a call, with the value."""
    it = iter(values)
    for slot, n in zip(call.definition.ins, call.layout):
        for _ in range(abs(n)):
            yield slot, next(it)


def _kind(call: Call, numbers: tuple[float, ...]) -> int:
    """Return the number of a call's kind, which is the same in each iteration."""
    key = ("plain", call.plain.number) if numbers else call.number
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
    for i, numbers in enumerate(outline.numbers):
        whole = isinstance(numbers[0][0], int)
        found[f"n{i}"] = np.array(numbers, np.int64 if whole else np.float64)
    for i, places in enumerate(outline.draws):
        found[f"d{i}"] = draws[places]
    for i, count in enumerate(outline.counts):
        found[f"k{i}"] = np.arange(count)
    for pattern, i in _reads(outline).items():
        found[f"i{i}"] = _places(pattern, outline)
    for (count, place), i in _ends(outline).items():
        found[f"e{i}"] = np.array(outline.counts[count] + place)
    return list(found), tuple(found.values())


def _pattern(stretches: Sequence[Stretch]) -> _Pattern:
    """Return the stretches of a row without their output numbers: equal patterns are read by equal operations."""
    return tuple([(s[0], *s[1:2]) if s[0] == "leaves" else _places_of(s) for s in stretches])


def _places_of(stretch: Stretch) -> tuple[Any, ...]:
    return ("one",) if stretch[0] == "one" else ("part", stretch[1][1], *stretch[2:])


def _is_stack(stretches: Sequence[Stretch]) -> bool:
    """Return True for a row of inputs alone, which is an array."""
    return len(stretches) == 1 and stretches[0][0] == "leaves"


def _reads(outline: Outline) -> dict[_Pattern, int]:
    """Return the number of each pattern of the rows that loops read."""
    rows = [row for node in outline.nodes if isinstance(node, LoopNode) for row in node.rows]
    return {own: i for i, own in enumerate(dict.fromkeys([_pattern(row) for row in rows if not _is_stack(row)]))}


def _places(pattern: _Pattern, outline: Outline) -> np.ndarray:
    """Return int64 [iterations, 2]: the stretch of the element of each iteration, and the element's place."""
    found: list[tuple[int, int]] = []
    for at, (kind, *where) in enumerate(pattern):
        places = range(1)
        if kind == "leaves":
            places = range(len(outline.stacks[where[0]]))
        elif kind == "part":
            count, step, before, behind = where
            places = range(before, outline.counts[count] - behind)[::step]
        found += [(at, place) for place in places]
    return np.array(found, np.int64)


def _ends(outline: Outline) -> dict[tuple[int, int], int]:
    """Return the number of each place before the end of a row that is read by name."""
    names = [name for node in outline.nodes for name in _names_in(node)] + outline.results
    found = [(n[1][1], n[2]) for n in names if n is not None and n[0] == "row" and n[2] < 0]
    return {end: i for i, end in enumerate(dict.fromkeys(found))}


def outline_calls(outline: Outline, calls: Sequence[Call]) -> Iterator[tuple[int, Call]]:
    """Yield place and call of each call of an outline, of a loop those of one iteration.

    A call is the same for all lengths of the loops: it has fixed numbers. Calls with whole rows are left out.
    """
    for node, at in zip(outline.nodes, outline.places, strict=True):
        if isinstance(node, LoopNode):
            yield from ((at + j, c.plain if j in node.numbers else c) for j, c in _body(node, at, calls))
        elif not node.row:
            yield at, calls[at].plain if node.numbers else calls[at]


def _body(node: LoopNode, at: int, calls: Sequence[Call]) -> Iterator[tuple[int, Call]]:
    return enumerate(calls[at : at + len(node.kinds)])


def identity_of(outline: Outline, calls: Sequence[Call]) -> Any:
    """Return values that identify an outline in all processes, beside the operators of `outline_calls`."""
    kinds: dict[int, int] = {}  # numbers of this outline instead of those of the process
    nodes: list[Any] = []
    for node, at in zip(outline.nodes, outline.places, strict=True):
        if isinstance(node, LoopNode):
            nodes.append(node._replace(kinds=tuple([kinds.setdefault(k, len(kinds)) for k in node.kinds])))
        else:
            axis = calls[at].attrs.get("axis") if node.row else None
            nodes.append((node._replace(kind=kinds.setdefault(node.kind, len(kinds))), axis))
    found = []
    for _, call in outline_calls(outline, calls):
        known = [(i, str(v.dtype), v.shape, v.tobytes()) for i, v in sorted(call.constants.items())]
        found.append((call.layout, call.wanted, call.shared, known))
    return nodes, outline.results, len(outline.leaves), len(outline.stacks), found


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
    yield from (name[1] for name in outline.results if name[0] in ("whole", "row"))
    for node in outline.nodes:
        yield from (name[1] for name in _names_in(node) if name is not None and name[0] == "row")
        yield from (s[1] for s in _stretches_in(node) if s[0] == "part" and not _is_whole_sum(node, s))


def _stretches_in(node: Any) -> list[Stretch]:
    if isinstance(node, LoopNode):
        return [stretch for row in node.rows for stretch in row]
    return list(node.inputs) if node.joins else []


def _names_in(node: Any) -> list[Name]:
    """Return the names of the single values that a call or a loop reads."""
    found: list[Name] = [stretch[1] for stretch in _stretches_in(node) if stretch[0] == "one"]
    if isinstance(node, LoopNode):
        return [*found, *node.same, *(name for _, name in node.carried)]
    return found if node.joins else list(node.inputs)


def _is_whole_sum(node: Any, stretch: Stretch) -> bool:
    whole = isinstance(node, CallNode) and stretch[0] == "part" and stretch[3:] == (0, 0)
    return whole and node.row == "sum"


def _summed_of(outline: Outline) -> Iterator[Row]:
    for node in outline.nodes:
        if isinstance(node, CallNode) and node.joins:
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
        self._numbers, self._draws, self._counts = 0, 0, 0
        self._reads, self._ends = _reads(outline), _ends(outline)
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
        _, row, place = name
        at = place if place >= 0 else self._env[f"e{self._ends[row[1], place]}"]
        return _element(self._rows[row], at)

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

    def _next_numbers(self) -> Any:
        self._numbers += 1
        return self._env[f"n{self._numbers - 1}"]

    def _next_count(self) -> tuple[int, Any]:
        """Return the place of the next count, and the numbers from 0 to the count."""
        self._counts += 1
        return self._counts - 1, self._env[f"k{self._counts - 1}"]

    def _next_draws(self) -> Any:
        self._draws += 1
        return self._env[f"d{self._draws - 1}"]

    # ---- calls --------------------------------------------------------------------------------------

    def _call(self, number: int, node: CallNode, at: int) -> None:
        call = self._calls[at]
        if not node.row:
            numbers = self._next_numbers()[0] if node.numbers else None
            seed = self._next_draws()[0] if node.draws else None
            made = _called(call, at, [self._value(name) for name in node.inputs], numbers, seed)
            self._values.update({(number, i): v for i, v in enumerate(made)})
            return
        with jax.named_scope(f"{call.definition.type}@{at}"):
            if node.divides:
                whole = jnp.asarray(self._value(node.inputs[0]))
                count, counted = self._next_count()
                self._rows["parts", count] = _parts(call, whole, counted.shape[0])
            elif node.row == "sum":
                self._values[number, 0] = self._sum(node.inputs)
            else:
                self._values[number, 0] = _joined(call, self._stack(node.inputs))

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

    # ---- rows --------------------------------------------------------------------------------------

    def _row(self, stretches: Sequence[Stretch]) -> Any:
        """Return an array with an element for each iteration: a row of inputs, or the places of elements."""
        if _is_stack(stretches):
            return self._env[f"s{stretches[0][1]}"]
        return self._env[f"i{self._reads[_pattern(stretches)]}"]

    def _read(self, stretches: Sequence[Stretch], own: Any) -> Any:
        """Return the element of a row that an iteration reads, for its element of the array of `_row`."""
        if _is_stack(stretches):
            return own
        found: Any = None
        for at, stretch in enumerate(stretches):
            if stretch[0] == "one":
                value = jnp.asarray(self._value(stretch[1]))
            else:
                row = self._env[f"s{stretch[1]}"] if stretch[0] == "leaves" else self._rows[stretch[1]]
                value = _element(row, own[1])
            found = value if found is None else jnp.where(own[0] == at, value, found)
        return found

        # ---- loops --------------------------------------------------------------------------------------

    def _loop(self, node: LoopNode, at: int) -> None:
        number, counted = self._next_count()
        same = [self._value(name) for name in node.same]
        each = [self._row(stretches) for stretches in node.rows]
        numbers = {j: self._next_numbers() for j in node.numbers}
        draws = {j: self._next_draws() for j in node.draws}
        first = [_strong(self._value(name)) for _, name in node.carried]
        kept: list[int] = []
        sums: list[int] = []
        for rows, found in ((self._stacked, kept), (self._summed, sums)):
            found += sorted(row[2] for row in rows if row[:2] == ("loop", number))

        def calls(given: dict[str, list[Any]], of_numbers: dict[int, Any], of_draws: dict[int, Any]) -> Any:
            made: list[Any] = []
            for j, inputs in enumerate(node.inputs):
                values = [None if i is None else made[i[1]] if i[0] == "own" else given[i[0]][i[1]] for i in inputs]
                call = self._calls[at + j]
                made += _called(call, at + j, values, of_numbers.get(j), of_draws.get(j))
            return [_strong(made[q]) for q, _ in node.carried], [made[q] for q in sums], [made[q] for q in kept]

        called = jax.jit(calls, inline=True)  # traced once, for the shapes of the sums and for the loop

        def results(before: list[Any], own: Any) -> Any:
            of_each, of_numbers, of_draws, _ = own
            read = [self._read(stretches, own) for stretches, own in zip(node.rows, of_each)]
            return called({"before": before, "same": same, "each": read}, of_numbers, of_draws)

        def iteration(state: Any, own: Any) -> Any:
            before, totals = state
            after, added, rows = results(before, own)
            return (after, [total + v for total, v in zip(totals, added)]), rows

        steps = (each, numbers, draws, counted)
        zeros: list[Any] = []
        if sums:
            one = jax.tree.map(lambda values: values[0], steps)
            _, shapes, _ = jax.eval_shape(lambda: results(first, one))
            zeros = [jnp.zeros(s.shape, s.dtype) for s in shapes]
        (_, totals), stacks = lax.scan(iteration, (first, zeros), steps)
        self._rows.update({("loop", number, q): v for q, v in zip(kept, stacks)})
        self._sums.update({("loop", number, q): v for q, v in zip(sums, totals)})


def _element(row: Any, place: Any) -> Any:
    if isinstance(place, int):
        return lax.index_in_dim(row, place, 0, keepdims=False)
    return lax.dynamic_index_in_dim(row, place, 0, keepdims=False, allow_negative_indices=False)


def _strong(value: Any) -> Array:
    """Return an array with a strong type, as loop state requires."""
    return lax.convert_element_type(value, jnp.result_type(value))


def _called(call: Call, at: int, values: list[Any], numbers: Any, seed: Any) -> list[Any]:
    """Return the outputs of a call, one after the other.

    Args:
        call: the call.
        at: place of the call, for error messages.
        values: inputs.
        numbers: numbers of the call that differ between iterations; None for other calls.
        seed: seed of random numbers.
    """
    with jax.named_scope(f"{call.definition.type}@{at}"):
        if numbers is None and seed is None and "Param" in call.reads:
            made = call.traced_once(values)
        elif numbers is None:
            made = call(values, None if seed is None else key_of(seed))
        elif call.definition.type in SCALES:
            made = call.plain([values[0], numbers, *values[2:]])
        else:
            made = _sliced(call, values, numbers)
    found: list[Any] = []
    for out in made:
        found += out if isinstance(out, list) else [out]
    return found


def _sliced(call: Call, values: list[Any], starts: Any) -> tuple[Any, ...]:
    """Return the outputs of a slice, or a slice's gradient, with starts that are arguments."""
    whole, axes = values[0], call.attrs["axes"]
    own = call.plain
    places: list[Any] = [0] * whole.ndim
    shape = list(whole.shape)
    for i, axis in enumerate(axes):
        places[axis], shape[axis] = starts[i], own.attrs["ends"][i]
    places = [jnp.asarray(place, jnp.int64) for place in places]
    part = lax.dynamic_slice(whole, places, shape, allow_negative_indices=False)
    made = own([part, *values[1:]])
    if call.definition.type == "slice":
        return made
    zeros = jnp.zeros(whole.shape, whole.dtype)
    return tuple([None if v is None else _updated(zeros, v, places) for v in made])


def _updated(whole: Any, part: Any, places: Sequence[Any]) -> Array:
    return lax.dynamic_update_slice(whole, part, places, allow_negative_indices=False)


def _joined(call: Call, row: Any) -> Array:
    """Return the elements of a row, which its first dimension counts, as the one array that a call makes of them."""
    along = call.definition.type in _ALONG
    axis = call.attrs.get("axis", 0) % (row.ndim - along)
    found = jnp.moveaxis(row, 0, axis)
    if not along:
        return found
    shape = found.shape
    return found.reshape((*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def _parts(call: Call, whole: Array, count: int) -> Array:
    """Return the row of parts that a call makes of an array."""
    along = call.definition.type in _ALONG
    axis = call.attrs.get("axis", 0) % whole.ndim
    if along:
        shape = whole.shape
        whole = whole.reshape((*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :]))
    return jnp.moveaxis(whole, axis, 0)

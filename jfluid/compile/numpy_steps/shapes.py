"""NumPy rules of operations that arrange elements, and of calls and loops."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jfluid.compile.numpy_steps.idle_iterations import ZERO_ROW, flag_of
from jfluid.compile.numpy_steps.interpreter import FORMS, Listing, bound, cpu_branch, inner, is_key, rule
from jfluid.compile.numpy_steps.loop_buffers import window
from jfluid.ops.dependency import AWAITED

Params = dict[str, Any]


@rule("broadcast_in_dim")
def _broadcast(params: Params, x: Any, *sizes: Any) -> Any:
    shape, places = params["shape"], params["broadcast_dimensions"]
    spread = [1] * len(shape)
    for size, place in zip(x.shape, places):
        spread[place] = size
    x = x.reshape(spread)
    if x.size and x.flags.c_contiguous:  # twice as fast as `broadcast_to`
        steps = [step if own == size else 0 for step, own, size in zip(x.strides, spread, shape)]
        return np.ndarray(shape, x.dtype, x, 0, steps)
    return np.broadcast_to(x, shape)


@rule("reshape")
def _reshape(params: Params, x: Any, *sizes: Any) -> Any:
    if params["dimensions"] is not None:  # the order in which the old dimensions are read
        x = x.transpose(params["dimensions"])
    return x.reshape(params["new_sizes"])


@rule("squeeze", "expand_dims")
def _squeeze(params: Params, x: Any) -> Any:
    result = params["results"][0]
    return x.reshape((*result.shape, x.shape[-1]) if is_key(result) else result.shape)


@rule("transpose")
def _transpose(params: Params, x: Any) -> Any:
    return x.transpose(params["permutation"])


@rule("rev")
def _reverse(params: Params, x: Any) -> Any:
    return np.flip(x, params["dimensions"])


@rule("concatenate")
def _concatenate(params: Params, *values: Any) -> Any:
    return np.concatenate(values, params["dimension"])


@rule("stack")
def _stack(params: Params, *values: Any) -> Any:
    return np.stack(values, params["axis"])


@rule("unstack")
def _unstack(params: Params, x: Any) -> Any:
    return list(np.moveaxis(x, params["axis"], 0))


@rule("split")
def _split(params: Params, x: Any) -> Any:
    return np.split(x, np.cumsum(params["sizes"])[:-1], params["axis"])


@rule("pad")
def _pad(params: Params, x: Any, filling: Any) -> Any:
    return padded(x, filling, params["padding_config"])


def padded(x: Any, filling: Any, config: Sequence[tuple[int, int, int]]) -> Any:
    """Return an array with `filling` before, behind and between its elements; negative numbers cut off.

    Raises NotInterpretable for a result of more than `MOST_BYTES`.
    """
    if not any(map(any, config)):
        return x
    shape = [max(low + high + size + max(size - 1, 0) * holes, 0) for size, (low, high, holes) in zip(x.shape, config)]
    bound(math.prod(shape) * x.dtype.itemsize)
    found = np.full(shape, filling, x.dtype)
    goal, source = [], []
    for size, whole, (low, _, holes) in zip(x.shape, shape, config):
        step = holes + 1
        first = -(min(low, 0) // step) if low < 0 else 0  # the first element that stays
        last = min(size, -(-(whole - low) // step))
        start = low + first * step
        source.append(slice(first, max(last, first)))
        goal.append(slice(start, start + max(last - first - 1, -1) * step + 1, step))
        if last <= first:
            return found
    found[tuple(goal)] = x[tuple(source)]
    return found


@rule("empty", "empty2")
def _empty(params: dict[str, Any], *operands: Any) -> Any:
    """Return zeros for an array without a defined content."""
    (result,) = params["results"]
    return np.zeros(result.shape, result.dtype)


@rule("iota")
def _iota(params: Params, *sizes: Any) -> Any:
    shape, at = params["shape"], params["dimension"]
    spread = [1] * len(shape)
    spread[at] = shape[at]
    return np.broadcast_to(np.arange(shape[at]).astype(params["dtype"]).reshape(spread), shape)


@rule("slice")
def _slice(params: Params, x: Any) -> Any:
    starts, ends = params["start_indices"], params["limit_indices"]
    strides = params["strides"] or (1,) * len(starts)
    return x[tuple(map(slice, starts, ends, strides))]


@rule("dynamic_slice")
def _dynamic_slice(params: Params, x: Any, *starts: Any) -> Any:
    sizes = params["slice_sizes"]
    return x[window(x.shape, sizes, starts)]


@rule("dynamic_update_slice")
def _dynamic_update_slice(params: Params, x: Any, update: Any, *starts: Any) -> Any:
    found = np.array(x)
    found[window(x.shape, update.shape, starts)] = update
    return found


# Calls and loops


def _awaited(params: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return the function of a zero that makes XLA wait for its operand; None for any other call."""
    if params["name"] != AWAITED:
        return None
    zero = np.zeros((), params["jaxpr"].jaxpr.outvars[0].aval.dtype)
    return lambda value: [zero]


FORMS["jit"] = _awaited


@rule("tile")
def _tile(params: Params, x: Any) -> Any:
    return np.tile(x, params["reps"])


@rule("remat", "checkpoint", "remat2")
def _remat(params: Params, *values: Any) -> Any:
    return inner(params["jaxpr"]).run(values)


@rule("platform_index")
def _platform(params: Params) -> Any:
    return np.int32(cpu_branch(params["platforms"]))


@rule("cond")
def _cond(params: Params, index: Any, *values: Any) -> Any:
    branches = params["branches"]
    at = min(max(int(index), 0), len(branches) - 1)
    return inner(branches[at]).run(values)


@rule("while")
def _while(params: Params, *values: Any) -> Any:
    of_test, of_body = params["cond_nconsts"], params["body_nconsts"]
    test = inner(params["cond_jaxpr"]).repeated(values[:of_test])
    state = list(values[of_test + of_body :])
    (first,) = test(state)
    # Batched loops keep the values of a loop that has ended, and write nothing in place.
    carried = None if np.ndim(first) else state
    body = inner(params["body_jaxpr"]).repeated(values[of_test : of_test + of_body], carried)
    while np.any(going := test(state)[0]):
        found = body(state)
        if np.ndim(going):
            found = [
                np.where(np.reshape(going, going.shape + (1,) * (np.ndim(new) - going.ndim)), new, old)
                for new, old in zip(found, state)
            ]
        state = found
    return state


@rule("scan")
def _scan(params: Params, *values: Any) -> Any:
    consts, carried, length = params["num_consts"], params["num_carry"], params["length"]
    state = list(values[consts : consts + carried])
    along = values[consts + carried :]
    rows: list[Any] = [np.empty(a.shape, a.dtype) for a in params["results"][carried:]]
    if not length:
        return [*state, *rows]
    body = inner(params["jaxpr"]).repeated(values[:consts], state)
    # Zeros of a body that was changed for other sizes need not be zeros at the sizes of its jaxpr.
    is_changed, order = isinstance(params["jaxpr"], Listing), list(range(length))
    flag = None if is_changed else flag_of(params["jaxpr"], consts, carried)
    if params["reverse"]:
        order.reverse()
    for done, at in enumerate(order, 1):
        idle = flag is not None and not (state[flag.number] if flag.is_carried else along[flag.number][at]).any()
        if flag is not None and idle and flag.rows is not None:
            for row, number in zip(rows, flag.rows):
                row[at] = 0 if number == ZERO_ROW else state[number]
            continue
        found = body([*state, *[v[at] for v in along]])
        state = found[:carried]
        for row, value in zip(rows, found[carried:]):
            row[at] = value
        if idle and not along:  # all later iterations have the same operands
            for row in rows:
                row[order[done:]] = row[at]
            break
    return [*state, *rows]

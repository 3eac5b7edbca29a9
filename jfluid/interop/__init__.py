"""Programs as pure JAX functions: `to_jax`. `jfluid.interop.flax` wraps one as a Flax module."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.compile.lowering import trace
from jfluid.compile.lowering.plan import Plan, plan
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable
from jfluid.ops.ragged import Ragged
from jfluid.scope import Scope, global_scope

__all__ = ["to_jax"]

Params = dict[str, jax.Array]


def _name(item: Variable | str) -> str:
    return item if isinstance(item, str) else item.name


def to_jax(
    program: Program, feeds: Sequence[Variable | str], fetches: Sequence[Variable | str], scope: Scope | None = None
) -> tuple[Callable[..., Any], Params]:
    """Convert a program to a pure function of parameters and feeds.

    Args:
        program: the program. Operators that the fetches do not need are left out, including updates of
            parameters. `program.clone(for_test=True)` gives the test form of dropout and
            batch_norm.
        feeds: the variables to feed (or their names), in the order of the function's arguments.
        fetches: the variables to return (or their names).
        scope: the Scope with the parameters; the global scope when None.

    Returns:
        `(apply, params)`. `apply(params, *feeds, key=None, with_state=False)` returns the list of
            fetches; it can be jitted, differentiated and vmapped. The feeds are arrays in the order
            of `feeds`, or one dict by name; they are converted to their variables' dtypes. `params`
            maps names to arrays, copies of the scope's. `key` is a JAX random key, which a program
            that draws random numbers needs. With `with_state=True` it returns `(fetches, params)`,
            where `params` includes updates by the program, such as batch_norm's running statistics.

    JAX's mode holds as for any JAX code: in 32-bit mode (its default) int64 is int32 and float64 is
    float32 throughout, `params` included; in 64-bit mode (`jax.enable_x64(True)` around `to_jax`
    and the calls) results equal the Executor's. Ids beyond 32 bits need the 64-bit mode:
    without it a NumPy feed of such ids raises FeedError, unless `jax.jit` has truncated it before.

    Raises:
        UnsupportedError: the program has operators that run on the host.
        UninitializedError: the scope lacks a parameter.
        FeedError: the program reads data that `feeds` lacks. `apply` raises it for a missing feed or a
            wrong rank.
        ProgramError, FetchError: a name is unknown.
    """
    names, wanted = [_name(f) for f in feeds], [_name(f) for f in fetches]
    block = program.global_block()
    for name in names:
        if name not in block.vars:
            raise errors.ProgramError(f"to_jax: the program has no variable {name}" + errors.close_to(name, block.vars))
    pruned = program._prune_with_input(names, wanted)
    cut = plan(pruned, names, wanted)
    hosts = sorted({op.type for s in cut.segments if s.host for _, op, _ in s.ops})
    if hosts:
        raise errors.UnsupportedError(
            f"to_jax: {', '.join(hosts)} run on the host and cannot be part of a JAX function; "
            "fetch variables that do not depend on these operators"
        )
    params = _copy_state(global_scope() if scope is None else scope, cut)
    needed = list(params)
    items = [item for s in cut.segments for item in s.ops]
    variables = [block.var(n) for n in names]

    def apply(params: Mapping[str, Any], *values: Any, key: Any = None, with_state: bool = False) -> Any:
        values = _in_order(names, values)
        missing = [n for n in needed if n not in params]
        if missing:
            raise errors.UninitializedError(f"params lacks {', '.join(missing)}")
        if cut.rng and key is None:
            raise errors.ProgramError(
                "the program draws random numbers: give apply(..., key=jax.random.key(seed)), or use "
                "program.clone(for_test=True)"
            )
        env: dict[str, Any] = {n: jnp.asarray(params[n]) for n in needed}
        env |= {v.name: _brought(v, value) for v, value in zip(variables, values)}
        with warnings.catch_warnings():
            # Where the caller has JAX in 32-bit mode, operators that ask for int64 get int32, as
            # all his code does.
            warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
            trace.lower(items, env, key)
        found = [env[n] if isinstance(env[n], Ragged) else jnp.asarray(env[n]) for n in wanted]
        state = dict(params) | {n: jnp.asarray(env[n]) for n in cut.updated if n in params}
        return (found, state) if with_state else found

    return apply, params


def _in_order(names: Sequence[str], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the feeds in the order of `names`, from positional values or a dict."""
    if len(values) == 1 and isinstance(values[0], Mapping):
        missing, unknown = ([n for n in names if n not in values[0]], [n for n in values[0] if n not in names])
        if missing or unknown:
            raise errors.FeedError(
                f"apply takes the feeds {', '.join(names)}; "
                + "; ".join(
                    f"{what}: {', '.join(map(str, which))}"
                    for what, which in (("missing", missing), ("unknown", unknown))
                    if which
                )
            )
        return tuple(values[0][n] for n in names)
    if len(values) != len(names):
        raise errors.FeedError(f"apply takes {len(names)} feeds ({', '.join(names)}), found {len(values)}")
    return values


def _brought(var: Variable, value: Any) -> jax.Array | Ragged:
    """Convert a feed to the variable's dtype, as far as JAX's mode has the dtype."""
    dtype = jax.dtypes.canonicalize_dtype(var.np_dtype)
    if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if value.min() < limits.min or value.max() > limits.max:
            raise errors.FeedError(
                f"feed {var.name}: values from {value.min()} to {value.max()} exceed {dtype}; "
                "int64 needs jax.enable_x64(True)"
            )
    if isinstance(value, Ragged):
        return value.like(jnp.asarray(value.values, dtype))
    array = jnp.asarray(value, dtype)
    if var._shape is not None and len(var._shape) != array.ndim:
        raise errors.FeedError(
            f"feed {var.name}: expected rank {len(var._shape)} (shape {list(var._shape)}), "
            f"found shape {list(array.shape)}"
        )
    return array


def _copy_state(scope: Scope, cut: Plan) -> Params:
    """Copy the variables that the plan reads from the scope: an Executor may donate the scope's buffers."""
    held = {
        n: v.get_tensor()
        for n in cut.state
        if (v := scope.find_var(n)) is not None and v.get_tensor()._is_initialized()
    }
    # A gradient that nothing computes counts as zero.
    absent = [n for n in cut.state if n not in held and not n.endswith("@GRAD")]
    data = [n for n in absent if (var := cut.block.find_var_recursive(n)) is not None and var.is_data]
    if data:
        raise errors.FeedError(
            f"to_jax: the fetches need {', '.join(data)}, which feeds ({', '.join(cut.feeds)}) lacks"
        )
    if absent:
        raise errors.UninitializedError(
            f"to_jax: the scope has no value for {', '.join(absent)}: run the startup program, "
            "load or feed the parameters"
        )
    return {n: jnp.array(np.array(t)) for n, t in held.items()}

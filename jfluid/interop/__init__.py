"""Programs as pure JAX functions: `to_jax`. `jfluid.interop.flax` wraps one as a Flax module."""
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.compile.lower import Lowering
from jfluid.compile.plan import plan
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable
from jfluid.scope import Scope, global_scope

__all__ = ["to_jax"]

Params = dict[str, jax.Array]


def _name(item: Variable | str) -> str:
    return item if isinstance(item, str) else item.name


def to_jax(program: Program, feeds: Sequence[Variable | str], fetches: Sequence[Variable | str],
           scope: Scope | None = None) -> tuple[Callable[..., Any], Params]:
    """A program as a pure function of its parameters and feeds.

    Args:
        program: what to compute; operators that the fetches do not need are left out, updates of parameters included.
            `program.clone(for_test=True)` gives the test form of dropout and batch_norm.
        feeds: the variables to feed (or their names), in the order of the function's arguments.
        fetches: the variables to return (or their names).
        scope: where the parameters are; the global scope by default.

    Returns:
        `(apply, params)`. `apply(params, *feeds, key=None, with_state=False)` returns the list of fetches; it can be
        jitted, differentiated and vmapped. `params` maps names to arrays, copies of the scope's. Feeds are brought
        to their variables' dtypes; where JAX is in 32-bit mode (its default) int64 is int32 throughout. `key` is a JAX
        random key, needed by a program that draws random numbers. With `with_state=True` it returns
        `(fetches, params)` with what the program itself updates, such as batch_norm's running statistics.

    Raises:
        UnsupportedError: the program has operators that run on the host.
        UninitializedError: the scope lacks a parameter.
        ProgramError, FetchError: a name is unknown.
    """
    names, wanted = [_name(f) for f in feeds], [_name(f) for f in fetches]
    pruned = program._prune_with_input(names, wanted)
    cut = plan(pruned, names, wanted)
    hosts = sorted({op.type for s in cut.segments if s.host for _, op, _ in s.ops})
    if hosts:
        raise errors.UnsupportedError(f"to_jax: {', '.join(hosts)} run on the host and cannot be part of a JAX function; "
                                      "leave them out of what the fetches need")
    params = _copy_state(scope or global_scope(), cut.state)
    items = [item for s in cut.segments for item in s.ops]
    dtypes = {n: program.global_block().var(n).np_dtype for n in names}

    def apply(params: Mapping[str, Any], *values: Any, key: Any = None, with_state: bool = False) -> Any:
        if len(values) != len(names):
            raise errors.FeedError(f"apply takes {len(names)} feeds ({', '.join(names)}), found {len(values)}")
        missing = [n for n in cut.state if n not in params]
        if missing:
            raise errors.UninitializedError(f"params lacks {', '.join(missing)}")
        if cut.rng and key is None:
            raise errors.ProgramError("the program draws random numbers: give apply(..., key=jax.random.key(seed)), or use "
                                      "program.clone(for_test=True)")
        env = {n: jnp.asarray(params[n]) for n in cut.state}
        env |= {n: jnp.asarray(v, jax.dtypes.canonicalize_dtype(dtypes[n])) for n, v in zip(names, values)}
        with warnings.catch_warnings():
            # Where the caller has JAX in 32-bit mode, operators that ask for int64 get int32, as all his code does.
            warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
            Lowering(items, key).run(env)
        found = [jnp.asarray(env[n]) for n in wanted]
        state = dict(params) | {n: jnp.asarray(env[n]) for n in cut.updated if n in params}
        return (found, state) if with_state else found

    return apply, params


def _copy_state(scope: Scope, names: Sequence[str]) -> Params:
    absent = [n for n in names if (v := scope.find_var(n)) is None or not v.get_tensor()._is_initialized()]
    if absent:
        raise errors.UninitializedError(f"to_jax: the scope has no value for {', '.join(absent)}: run the startup program, "
                                        "load the parameters, or feed them")
    with jax.enable_x64(True):
        return {n: jnp.asarray(np.array(scope.find_var(n).get_tensor())) for n in names}

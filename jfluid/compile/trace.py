"""Operators as a pure function of values: the only place that lowers them for XLA."""

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jfluid.compile.lower import Lowering
from jfluid.compile.plan import Item

# A floating output: its operator, its name, whether all of it is finite.
Watched = tuple[Any, str, Any]


def random_key(data: Any) -> Any:
    """The JAX key of a step's uint32 [2]; None for a step that draws nothing."""
    return None if data is None else jax.random.wrap_key_data(data, impl="threefry2x32")


def lower(
    items: Sequence[Item], env: dict[str, Any], key: Any = None, watch: list[Watched] | None = None
) -> dict[str, Any]:
    """Trace operators over values by name, and return the values with the operators' outputs.

    Args:
        key: a JAX key, if one of the operators draws.
        watch: collects every floating output (see FLAGS_check_nan_inf).

    Raises OpError, with the operator's place in the user's script, for one that fails.
    """
    with _without_collector():
        return Lowering(items, key, watch).run(env)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Pause garbage collection: tracing creates very many objects, nearly all of which live until
    its end.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()

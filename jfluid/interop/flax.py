"""Programs as Flax modules, and back."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.interop import to_jax
from jfluid.ir.program import Program
from jfluid.ir.variable import Parameter, Variable
from jfluid.scope import Scope

try:
    from flax import nnx
except ImportError as e:
    raise ImportError("jfluid.interop.flax needs Flax: pip install 'jfluid[flax]'") from e

__all__ = ["FluidModule", "to_scope"]


class FluidModule(nnx.Module):
    """Program as a `flax.nnx.Module`: called with the feeds (in order, or one dict), it returns the fetches.

    Trainable parameters are `nnx.Param`; other variables that outlive a run (running statistics,
    ...) are `nnx.BatchStat`, which a call in training form updates. Names with dots become keys of
    the dicts `params` and `stats`.

    Args:
        program, feeds, fetches, scope: as those of `jfluid.to_jax`.
        rngs: a program that draws random numbers needs them; it uses their "dropout" stream.
    """

    def __init__(
        self,
        program: Program,
        feeds: Sequence[Variable | str],
        fetches: Sequence[Variable | str],
        scope: Scope | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ):
        apply, values = to_jax(program, feeds, fetches, scope)
        block = program.global_block()
        trained = {n for n in values if isinstance(v := block.find_var_recursive(n), Parameter) and v.trainable}
        self.params = nnx.Dict({n: nnx.Param(v) for n, v in values.items() if n in trained})
        self.stats = nnx.Dict({n: nnx.BatchStat(v) for n, v in values.items() if n not in trained})
        self.rngs = rngs
        self._apply = apply
        self._dtypes = tuple((n, block.var(n).np_dtype.name) for n in values)

    def __call__(self, *feeds: Any) -> list[Any]:
        values = {n: v[...] for group in (self.params, self.stats) for n, v in group.items()}
        key = self.rngs.dropout() if self.rngs is not None else None
        fetches, state = self._apply(values, *feeds, key=key, with_state=True)
        for name, stat in self.stats.items():
            stat[...] = state[name]
        return list(fetches)


def to_scope(module: FluidModule, scope: Scope) -> None:
    """Write the module's values into `scope`, under their Fluid names and in their Fluid dtypes.

    Raises TypeError for a different kind of module.
    """
    if not isinstance(module, FluidModule):
        raise TypeError(f"to_scope: expected a FluidModule, found {type(module).__name__}")
    values = {n: np.asarray(v[...]) for group in (module.params, module.stats) for n, v in group.items()}
    odd = [n for n, v in values.items() if v.dtype == object]
    if odd:
        raise errors.ProgramError(f"to_scope: {', '.join(odd)} hold no arrays")
    for name, dtype in module._dtypes:
        scope.var(name).get_tensor().set(values[name].astype(dtype))

"""Operators with blocks inside: how each is lowered."""
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.ir.operator import Operator
from jfluid.ir.prune import outer_names
from jfluid.ops import known

if TYPE_CHECKING:
    from jfluid.compile.lower import Lowering


def conditional_block(lowering: "Lowering", op: Operator, env: dict[str, Any]) -> dict[str, Any]:
    """Run the inner block where the condition holds; else its outputs keep the values they had."""
    block = op.attrs["sub_block"]
    conditions = [env[n] for n in op.inputs.get("Cond", ())]
    writes = sorted(outer_names(block)[1])
    if all(known.is_known(c) and isinstance(c, np.ndarray) for c in conditions):
        if not all(bool(np.all(c)) for c in conditions):
            return {}
        return {n: v for n, v in lowering.block(block, env).items() if n in writes}
    missing = [n for n in writes if n not in env]
    if missing:
        raise errors.OpError(f"{', '.join(missing)} would have no value where the condition does not hold: "
                             "give it one before, for example with layers.fill_constant")
    before = tuple(jnp.asarray(env[n]) for n in writes)
    inner = dict(env)

    def taken(values: tuple) -> tuple:
        after = lowering.block(block, inner | dict(zip(writes, values)))
        return tuple(jnp.asarray(after[n], b.dtype).reshape(b.shape) for n, b in zip(writes, values))

    truth = jnp.all(jnp.stack([jnp.all(c) for c in conditions]))
    return dict(zip(writes, jax.lax.cond(truth, taken, lambda values: values, before)))


# What lowers each operator that is declared without a function (jfluid/ops/structure.py).
STRUCTURES = {"conditional_block": conditional_block}

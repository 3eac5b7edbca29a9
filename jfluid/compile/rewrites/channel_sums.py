"""Sums over images for each channel, as in batch normalization, by machine code that reads channels last."""

from collections.abc import Sequence
from typing import Any

from jax import lax

from jfluid.compile.rewrites.rewrite import Rewrite
from jfluid.compile.rewrites.traced_value import TracedValue, channels_last
from jfluid.ops.norm import CHANNEL_MOMENTS, CHANNEL_PRODUCTS


class ChannelSums(Rewrite):
    """Rewrite of the jitted functions of `jfluid/ops/norm.py` that sum over images for each channel."""

    def apply(self, equation: Any, values: Sequence[TracedValue]) -> Sequence[TracedValue] | None:
        """Return the sums, or None for any other function and for images channels first."""
        name = equation.params.get("name")
        if name not in (CHANNEL_MOMENTS, CHANNEL_PRODUCTS) or len(equation.outvars) != 2:  # JAX's own derivative
            return None
        last = channels_last(equation.invars[0].aval.ndim)
        if all(v.order != last for v in values):
            return None
        from jfluid.machine_code import channel_sums  # LLVM, which few programs need

        images = [v.laid(last) for v, a in zip(values, equation.invars) if a.aval.ndim == len(last)]
        if not channel_sums.suits(images[0]):
            return None
        shape = equation.outvars[0].aval.shape  # [channels] or [groups of rows, channels]
        groups = shape[0] if len(shape) == 2 else 1
        if name == CHANNEL_MOMENTS:
            found = channel_sums.moments(images[0], groups)
        else:
            grad, x = images
            found = channel_sums.products(grad, x, values[-1].given(), groups)
        return [TracedValue(lax.reshape(v, shape)) for v in found]

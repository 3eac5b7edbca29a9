"""Convolution over trees (Mou et al., arXiv:1409.5718)."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops import unrolled
from jfluid.ops.registry import op


@op("tree_conv", ins=("NodesVector", "EdgeSet", "Filter"), outs=("Out",), nograd=("EdgeSet",), rows="map")
def tree_conv(nodes: Array, edges: Array, weight: Array, *, max_depth: int = 2) -> Array:
    """Return the tree-based convolution [N, nodes, output size, filters] of node vectors [N, nodes, features].

    A node's result is the sum over its subtree, less deep than max_depth, of vectors times the filter. The
    filter's left, right and top matrices [features, 3, output size, filters] are mixed by depth and by position
    among siblings.

    Edges [N, edges, 2] lead from parents to children, which are numbered from 1 and have one parent
    each; those from the first (0, 0) on do not count. Rows without a node are zero.
    """
    if nodes.ndim != 3 or edges.ndim != 3 or edges.shape[2] != 2:
        raise errors.ShapeError(
            "tree_conv: expected NodesVector [N, nodes, features] and EdgeSet [N, edges, 2], found "
            f"{list(nodes.shape)} and {list(edges.shape)}"
        )
    if weight.ndim != 4 or weight.shape[:2] != (nodes.shape[2], 3) or max_depth < 2:
        raise errors.ShapeError(
            f"tree_conv: expected Filter [{nodes.shape[2]}, 3, output size, filters] and a "
            f"max_depth of at least 2, found {list(weight.shape)} and {max_depth}"
        )
    share = jax.vmap(lambda e: _shares(e, nodes.shape[1], max_depth, nodes.dtype))(edges)
    return jnp.einsum("nuvk,nvf,fkoc->nuoc", share, nodes, weight)


def _shares(edges: Array, number: int, max_depth: int, dtype: jnp.dtype) -> Array:
    """Return the weights [nodes, nodes, 3] of the left, right and top matrix of node v in the sum of node u."""
    real = jnp.cumprod((edges != 0).all(1)).astype(bool)
    parent, child = edges[:, 0] - 1, edges[:, 1] - 1
    outside = jnp.where(real, 0, number + 1)  # an edge that does not count leads nowhere
    siblings = (parent[:, None] == parent) & real & real[:, None]
    before = jnp.tril(siblings, -1).sum(1)
    others = jnp.maximum(siblings.sum(1) - 1, 1)
    place = jnp.where(siblings.sum(1) == 1, 0.5, before / others).astype(dtype)
    of_node = jnp.full(number, 0.5, dtype).at[child + outside].set(place, mode="drop")
    leads = jnp.zeros((number, number), dtype)
    leads = leads.at[parent + outside, child + outside].set(1, mode="drop")
    there = jnp.arange(number) <= real.sum()

    def step(depth: Any, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        total, reach = sums
        top = jnp.asarray((max_depth - depth) / max_depth, dtype)
        left = (1 - top) * of_node
        shares = jnp.stack([left, (1 - top) * (1 - left), jnp.full(number, top, dtype)], -1)
        return total + reach[:, :, None] * shares, reach @ leads

    start = jnp.zeros((number, number, 3), dtype), jnp.diag(there.astype(dtype))
    return unrolled.repeat(unrolled.times("tree_conv", "max_depth", max_depth), step, start)[0]

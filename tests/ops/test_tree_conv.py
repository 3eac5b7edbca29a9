"""Convolution over trees, held against a walk through each of them."""

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import contrib, errors
from jfluid.ops import registry
from tests.layers.run import run
from tests.op_case import check

RNG = np.random.RandomState(0)
# A tree of six nodes; one of two, after whose end something follows that is no edge; one of a root.
EDGES = np.array(
    [
        [[1, 2], [1, 3], [1, 4], [3, 5], [5, 6]],
        [[1, 2], [0, 0], [2, 3], [0, 0], [0, 0]],
        [[0, 0]] * 5,
    ],
    "int32",
)
NODES = RNG.rand(3, 7, 2).astype("float32")


def convolved(nodes, edges, weight, max_depth):
    out = np.zeros((nodes.shape[0], *weight.shape[2:]))
    children = {}
    for parent, child in edges:
        if not parent or not child:
            break
        children.setdefault(parent, []).append(child)

    def add(root, node, depth, place):
        top = (max_depth - depth) / max_depth
        left = (1 - top) * place
        matrix = left * weight[:, 0] + (1 - top) * (1 - left) * weight[:, 1] + top * weight[:, 2]
        out[root - 1] += np.tensordot(nodes[node - 1], matrix, 1)
        below = children.get(node, [])
        for i, child in enumerate(below if depth + 1 < max_depth else []):
            add(root, child, depth + 1, i / (len(below) - 1) if len(below) > 1 else 0.5)

    for root in {1} | {child for below in children.values() for child in below}:
        add(root, root, 0, 0.5)
    return out


@pytest.mark.parametrize("max_depth", [2, 3])
def test_tree_conv(max_depth):
    weight = RNG.rand(2, 3, 2, 2).astype("float32")
    expect = np.stack([convolved(n, e, weight, max_depth) for n, e in zip(NODES, EDGES)])
    check(
        "tree_conv",
        {"NodesVector": NODES, "EdgeSet": EDGES, "Filter": weight},
        {"max_depth": max_depth},
        expect={"Out": expect},
        grad=("NodesVector", "Filter"),
        rows=("NodesVector", "EdgeSet"),
    )


def test_edges_that_do_not_count_leave_the_last_node_alone():
    """Here the last row is a node, with edges (0, 0) behind those of its tree."""
    nodes, edges = NODES[:1, :6], np.append(EDGES[:1], [[[0, 0]]], 1)
    weight = RNG.rand(2, 3, 2, 2).astype("float32")
    function = jax.jit(registry.get("tree_conv").fn)
    np.testing.assert_allclose(function(nodes, edges, weight)[0], convolved(nodes[0], edges[0], weight, 2), rtol=1e-5)


def test_layer():
    def net(nodes, edges):
        ones = fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))
        out = contrib.layers.tree_conv(nodes, edges, 3, 2, act="tanh", param_attr=ones)
        shapes = [p.shape for p in nodes.block.program.all_parameters()]
        assert shapes == [(2, 3, 3, 2), (7, 3, 2)] and out.shape == (-1, 7, 3, 2)
        return out

    found = run(net, nodes=([-1, 7, 2], NODES), edges=([-1, 5, 2], EDGES))
    expect = np.stack([convolved(n, e, np.ones((2, 3, 3, 2)), 2) for n, e in zip(NODES, EDGES)])
    np.testing.assert_allclose(found, np.tanh(expect), rtol=1e-5)
    with fluid.program_guard(fluid.Program()):
        flat, edges = fluid.data("flat", [-1, 7]), fluid.data("edges", [-1, 5, 2], "int32")
        with pytest.raises(errors.ShapeError, match=r"nodes_vector is \[N, nodes"):
            contrib.layers.tree_conv(flat, edges, 3)
        with pytest.raises(errors.ShapeError, match="at least 2, found .* and 1"):
            contrib.layers.tree_conv(fluid.data("nodes", [-1, 7, 2]), edges, 3, max_depth=1)

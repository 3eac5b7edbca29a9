"""Operators of trees over items: values that NumPy finds by walking the tree, and what holds of every
draw.
"""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from tests.op_case import check

# node: item, layer, parent, children. The item of node 3 is 0: items are numbered from 1 elsewhere.
TREE = np.array(
    [
        [0, 0, 0, 0, 0],
        [0, 0, 0, 2, 3],
        [0, 1, 1, 4, 5],
        [0, 1, 1, 6, 0],
        [11, 2, 2, 0, 0],
        [12, 2, 2, 0, 0],
        [13, 2, 3, 0, 0],
    ],
    "int32",
)
WAYS = np.array([[2, 4], [2, 5], [3, 6], [3, 0]], "int32")  # the last leaf stands one layer higher
NODES = np.array([[2], [3], [4], [5], [6]], "int32")
SAMPLES = {"neg_samples_num_list": [1, 2], "layer_offset_lod": [0, 2, 5]}


@pytest.mark.parametrize(("kind", "number"), [("int32", 2), ("int64", 3)])
def test_children(kind, number):
    ids = np.array([[[0], [1]], [[2], [3]], [[6], [9]]], "int64")
    rows = [[-1, -1] if i == 9 else TREE[i, 3:] * (i > 0) for i in ids.ravel()]
    masks = [[c > 0 and TREE[c, 0] > 0 for c in row] for row in rows]
    expect = {
        "Child": np.array(rows, kind).reshape(3, 2, 1, 2),
        "LeafMask": np.array(masks, kind).reshape(3, 2, 1, 2),
    }
    attrs = {"child_nums": 2, "dtype": number}
    check("tdm_child", {"X": ids, "TreeInfo": TREE}, attrs, expect=expect, rows=("X",))


def test_children_of_sequences_are_sequences():
    lod = [[0, 1, 1, 3]]
    ids = np.array([[1], [2], [0]], "int32")
    expect = {
        "Child": fluid.LoDTensor(np.array([[[2, 3]], [[4, 5]], [[0, 0]]], "int32"), lod),
        "LeafMask": fluid.LoDTensor(np.array([[[0, 0]], [[1, 1]], [[0, 0]]], "int32"), lod),
    }
    inputs = {"X": fluid.LoDTensor(ids, lod), "TreeInfo": TREE}
    check("tdm_child", inputs, {"child_nums": 2}, expect=expect)
    with pytest.raises(errors.ShapeError, match=r"expected a TreeInfo \[nodes, 6\]"):
        check("tdm_child", inputs, {"child_nums": 3}, expect={"Child": None})


def samples(leaves, **attrs):
    inputs = {"X": leaves, "Travel": WAYS, "Layer": NODES}
    expect = {"Out": None, "Labels": None, "Mask": None}
    got = check("tdm_sampler", inputs, SAMPLES | attrs, expect=expect, rows=("X",))
    return [np.asarray(got[slot][0]) for slot in expect]


def test_samples_of_each_layer():
    leaves = np.arange(40).reshape(-1, 1) % 4
    nodes, labels, mask = samples(leaves)
    np.testing.assert_array_equal(nodes[:, [0, 2]], WAYS[leaves[:, 0]])
    np.testing.assert_array_equal(labels, np.tile([1, 0, 1, 0, 0], (40, 1)) * mask)
    np.testing.assert_array_equal(mask, nodes > 0)
    reached = mask[:, 2] > 0
    assert (reached == (leaves[:, 0] != 3)).all() and not nodes[~reached, 2:].any()
    np.testing.assert_array_equal(nodes[:, 1], 5 - nodes[:, 0])  # the other one of two
    # Two negatives of three nodes: all that are not on the way, in both orders.
    np.testing.assert_array_equal(np.sort(nodes[reached, 2:]), [[4, 5, 6]] * 30)
    assert {*(nodes[reached, 3] > nodes[reached, 4])} == {False, True}


def test_samples_without_the_way():
    nodes, labels, mask = samples(np.array([[0], [7]]), output_positive=False)
    np.testing.assert_array_equal(np.sort(nodes), [[3, 5, 6], [-1, -1, -1]])  # no leaf 7
    assert not labels.any() and (mask == [[1], [0]]).all()


def test_samples_of_no_negatives_and_of_sequences():
    attrs = SAMPLES | {"neg_samples_num_list": [0, 0], "dtype": 3}
    ids = fluid.LoDTensor(np.array([[1], [3]]), [[0, 1, 2]])
    expect = {"Out": WAYS[[1, 3]].astype("int64"), "Mask": np.array([[1, 1], [1, 0]])}
    inputs = {"X": ids, "Travel": WAYS, "Layer": NODES}
    got = check("tdm_sampler", inputs, attrs, expect=expect)
    assert not isinstance(got["Out"][0], fluid.LoDTensor) or not got["Out"][0].lod()


@pytest.mark.parametrize("size", [6, 100])
def test_draws_are_even_and_a_seed_repeats_them(size):
    """Two negatives of a layer, of few nodes and of many: each other one as often, in each place."""
    layer = np.arange(1, size + 1, dtype="int32").reshape(-1, 1)
    attrs = {"neg_samples_num_list": [2], "layer_offset_lod": [0, size]}
    program = fluid.Program()
    block = program.global_block()
    feeds = {"x": np.zeros((6000, 1), "int64"), "way": np.array([[3]], "int32"), "layer": layer}
    for name, value in feeds.items():
        block.create_var(name=name, shape=value.shape, dtype=value.dtype, is_data=True)
    inputs = {"X": ["x"], "Travel": ["way"], "Layer": ["layer"]}
    for name, seed in (("a", 0), ("b", 5), ("c", 5)):
        outs = {"Out": [name], "Labels": [f"{name}l"], "Mask": [f"{name}m"]}
        block.append_op("tdm_sampler", inputs, outs, attrs | {"seed": seed})
    exe = fluid.Executor()
    a, b, c = exe.run(program, feed=feeds, fetch_list=["a", "b", "c"])
    again = exe.run(program, feed=feeds, fetch_list=["a", "b", "c"])
    np.testing.assert_array_equal(b, c)
    np.testing.assert_array_equal(b, again[1])
    assert (a != again[0]).any() and (a[:, 1] != a[:, 2]).all()
    often = 6000 / (size - 1)
    for place in (1, 2):
        counts = np.bincount(a[:, place], minlength=size + 1)
        assert counts[0] == counts[3] == 0
        assert (abs(np.delete(counts, [0, 3]) - often) < 6 * often**0.5).all()


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"neg_samples_num_list": [1, 3]}, "layer 1 has 3 nodes, so at most 2 negative samples"),
        ({"neg_samples_num_list": [1]}, "the same number of layers in neg_samples_num_list"),
        ({"layer_offset_lod": [0, 2, 9]}, "Layer has 5 nodes, layer_offset_lod ends at 9"),
    ],
)
def test_layers_that_do_not_fit(attrs, message):
    with pytest.raises(errors.ProgramError, match=message):
        samples(np.array([[0]]), **attrs)

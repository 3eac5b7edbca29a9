"""Layers that match, hash and choose, through programs."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.contrib import layers as contrib
from tests.layers import run
from tests.layers.ragged_net import Net


def ragged(values, lengths):
    return fluid.create_lod_tensor(values, [lengths], None)


def ones(name):
    return fluid.ParamAttr(name=name, initializer=fluid.initializer.Constant(1))


def test_pyramid_of_matches():
    """Two texts are matched, the matches convolved, and the best of each word taken."""
    x, y = np.array([[1, 2], [3, 0]], "float32"), np.array([[1, 0], [0, 1], [2, 2]], "float32")

    def net(x, y):
        matches, projected = contrib.match_matrix_tensor(x, y, 2, param_attr=ones("m"), act="relu")
        seen = contrib.var_conv_2d(
            matches, x, y, input_channel=2, output_channel=3, filter_size=3, param_attr=ones("c")
        )
        best = contrib.sequence_topk_avg_pooling(seen, x, y, topks=[1, 3], channel_num=3)
        return [matches, projected, seen, best]

    net = Net(net, x=ragged(x, [2]), y=ragged(y, [3]))
    assert net.parameters == {"m": (2, 2, 2), "c": (3, 18)}
    matches = np.outer(x.sum(1), y.sum(1))
    np.testing.assert_allclose(net[0][:, 0], np.tile(matches.ravel(), 2))
    np.testing.assert_allclose(net[1][:, 0], np.repeat(x.sum(1), 4))
    total = 2 * np.array([matches[:, :2].sum(), matches.sum(), matches[:, 1:].sum()])
    np.testing.assert_allclose(net[2][:, 0], np.tile(total, 6))
    means = [total.max(), total.mean()]
    np.testing.assert_allclose(net[3], np.tile(means, (2, 3)), rtol=1e-6)


def test_texts_of_other_widths_are_refused():
    with pytest.raises(errors.ShapeError, match="rows of one width"):
        run.build(
            lambda x, y: contrib.match_matrix_tensor(x, y, 2),
            x=np.ones((2, 3), "float32"),
            y=np.ones((2, 2), "float32"),
        )
    with pytest.raises(errors.ShapeError, match=r"input is \[rows, 1\]"):
        run.build(lambda x: contrib.var_conv_2d(x, x, x, 1, 1, 3), x=np.ones((2, 3, 1), "float32"))


def test_hash():
    rows = np.array([[1, 2], [3, 4]], "int32")
    found = run.run(lambda x: layers.hash(x, hash_size=1000, num_hash=4), x=rows)
    np.testing.assert_array_equal(
        found[..., 0], [[722, 407, 337, 395], [603, 590, 386, 901]]
    )  # as Fluid's guide has them


def test_filter_by_instag():
    ins, tags = np.arange(6, dtype="float32").reshape(3, 2), np.array([[0], [1], [3], [1]])
    net = Net(
        lambda ins, tags, wanted: layers.filter_by_instag(ins, tags, wanted, is_lod=False),
        ins=ins,
        tags=ragged(tags, [2, 1, 1]),
        wanted=np.array([1, 7]),
    )
    np.testing.assert_array_equal(net[0], ins[[0, 2]])
    np.testing.assert_array_equal(net[1], [[1], [1]])

"""Layers of `fluid.contrib.layers` through programs."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.contrib import layers
from tests.layers.ragged_net import Net
from tests.layers.run import build, run

RNG = np.random.RandomState(4)
X = RNG.normal(size=(4, 3)).astype("float32")
Y = RNG.normal(size=(4, 3)).astype("float32")
TREE = np.array([[0] * 5, [0, 0, 0, 2, 3], [7, 1, 1, 0, 0], [8, 1, 1, 0, 0]], "int32")
WAYS = np.array([[1, 2], [1, 3]], "int32")


def given(name, value):
    return fluid.ParamAttr(name=name, initializer=fluid.initializer.NumpyArrayInitializer(value))


def test_a_tree_of_items():
    def net(node, leaf):
        children, leaves = layers.tdm_child(node, 4, 2, given("tree", TREE))
        nodes, labels, mask = layers.tdm_sampler(
            leaf,
            [0, 1],
            [1, 2],
            2,
            given("ways", WAYS),
            given("nodes", np.array([[1], [2], [3]], "int32")),
        )
        joined = layers.tdm_sampler(leaf, [0, 1], [1, 2], 2, "ways", "nodes", output_list=False)[0]
        return [children, leaves, *nodes, *labels, *mask, joined]

    found = Net(net, node=np.array([[1], [2]]), leaf=np.array([[0], [1]]))
    assert found.parameters == {"tree": (4, 5), "ways": (2, 2), "nodes": (3, 1)}
    np.testing.assert_array_equal(found[0], [[[2, 3]], [[0, 0]]])
    np.testing.assert_array_equal(found[1], [[[1, 1]], [[0, 0]]])
    np.testing.assert_array_equal(found[2], [[[1]], [[1]]])
    np.testing.assert_array_equal(found[3], [[[2], [3]], [[3], [2]]])
    np.testing.assert_array_equal(found[5], [[[1], [0]]] * 2)
    np.testing.assert_array_equal(found[7], [[[1], [1]]] * 2)
    np.testing.assert_array_equal(found[8], [[1, 2, 3], [1, 3, 2]])
    assert all(v.stop_gradient for v in found.variables)


@pytest.mark.parametrize(
    ("negatives", "sizes", "leaves", "message"),
    [
        ([1], [1, 2], 2, "neg_samples_num_list and layer_node_num_list of one length"),
        ([0, 2], [1, 2], 2, "layer 1 has 2 nodes, so at most 1"),
        ([0, 1], [1, 2], 3, "leaf_node_num must be less than the 3 nodes"),
    ],
)
def test_samples_that_a_tree_does_not_have(negatives, sizes, leaves, message):
    with pytest.raises(ValueError, match=message):
        build(lambda x: layers.tdm_sampler(x, negatives, sizes, leaves), x=np.array([[0]]))
    with pytest.raises(TypeError, match="expected int32 or int64"):
        build(lambda x: layers.tdm_child(x, 4, 2, dtype="float32"), x=np.array([[0]]))


def test_click_layers():
    offset = np.array([[1, 1, 1], [1, 0, 0], [0, 1, 0], [1, 1, 3]], "int32")
    matrix = RNG.normal(size=(3, 2)).astype("float32")

    def net(x, y, offset):
        return [
            layers.partial_concat([x, y], 1, 2),
            layers.partial_sum([x, y], start_index=-1),
            layers.rank_attention(x, offset, [3, 2], given("matrix", matrix), max_rank=1),
            layers.fused_elemwise_activation(x, y, "elementwise_add,relu"),
            layers.shuffle_batch(x, seed=3),
        ]

    joined, added, ranked, fused, mixed = run(net, x=X, y=Y, offset=offset)
    np.testing.assert_array_equal(joined, np.concatenate([X[:, 1:], Y[:, 1:]], 1))
    np.testing.assert_allclose(added, X[:, 2:] + Y[:, 2:], rtol=1e-6)
    shown = np.stack([X[1], 0 * X[0], 0 * X[0], X[3]])
    np.testing.assert_allclose(ranked, shown @ matrix, rtol=1e-5)
    np.testing.assert_allclose(fused, X + np.maximum(Y, 0), rtol=1e-6)
    assert sorted(map(tuple, mixed)) == sorted(map(tuple, X))
    with pytest.raises(errors.ShapeError, match="expected a rank_param_shape of 3 rows"):
        build(lambda x: layers.rank_attention(x, x, [4, 2], None, max_rank=1), x=X)
    with pytest.raises(ValueError, match="expected two operators"):
        build(lambda x: layers.fused_elemwise_activation(x, x, "relu"), x=X)


def test_a_batch_is_shuffled_anew_in_each_step_and_gradients_find_back():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x = fluid.data("x", [None, 3])
        x.stop_gradient = False
        mixed = layers.shuffle_batch(x)
        (grad,) = fluid.gradients(fluid.layers.reduce_sum(fluid.layers.square(mixed)), x)
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(startup, scope=scope)
    x_rows = RNG.normal(size=(50, 3)).astype("float32")
    orders = []
    for _ in range(2):
        found = exe.run(main, feed={"x": x_rows}, fetch_list=[mixed, grad], scope=scope)
        orders.append(found[0])
        np.testing.assert_allclose(found[1], 2 * x_rows, rtol=1e-6)
    assert (orders[0] != orders[1]).any()


def test_pooled_embedding():
    table = RNG.normal(size=(5, 2)).astype("float32")
    ids = fluid.create_lod_tensor(np.array([[1], [4], [2]]), [[2, 0, 1]], fluid.CPUPlace())

    def net(ids):
        return layers.fused_embedding_seq_pool(ids, [5, 2], padding_idx=-1, param_attr=given("table", table))

    np.testing.assert_allclose(Net(net, ids=ids)[0], [table[1], [0, 0], table[2]])


def test_short_runs_of_words_are_hashed():
    words = np.array([[1], [2], [3], [4]], "int32")
    words = fluid.create_lod_tensor(words, [[3, 1]], fluid.CPUPlace())

    def net(words, white=16, names=("table",)):
        constant = fluid.initializer.Constant(0.5)
        return layers.search_pyramid_hash(
            words,
            num_emb=8,
            space_len=50,
            pyramid_layer=3,
            rand_len=4,
            drop_out_percent=0.5,
            is_training=False,
            use_filter=False,
            white_list_len=white,
            black_list_len=16,
            seed=1,
            lr=0.1,
            param_attr=fluid.ParamAttr(name="table", initializer=constant),
            distribute_update_vars=names,
        )

    found = Net(net, words=words)
    # runs of two and three words; what has none gives one row of zeros
    np.testing.assert_array_equal(found[0], np.repeat([[0.25], [0]], [3, 1], 0) * np.ones((4, 8)))
    assert found.values[0].lod() == [[0, 3, 4]] and found.parameters["table"] == (54, 1)
    with pytest.raises(errors.ProgramError, match="white_list_len: expected a positive number"):
        Net(lambda words: net(words, white=0), words=words)
    with pytest.raises(ValueError, match="expected names of .'table'., found 'other'"):
        Net(lambda words: net(words, names=["other"]), words=words)


def test_boxes_that_are_kept_and_which_they_are():
    boxes = np.array([[[0, 0, 4, 4], [0, 0, 4, 5], [8, 8, 9, 9]]], "float32")
    scores = np.array([[[0, 0, 0], [0.6, 0.9, 0.8]]], "float32")

    def net(boxes, scores):
        return layers.multiclass_nms2(boxes, scores, 0.1, 10, 10, return_index=True)

    found = Net(net, boxes=boxes, scores=scores)
    np.testing.assert_array_equal(found[0], np.array([[1, 0.9, 0, 0, 4, 5], [1, 0.8, 8, 8, 9, 9]], "float32"))
    np.testing.assert_array_equal(found[1], [[1], [2]])


def test_click_metrics_add_up_over_batches():
    chance = RNG.uniform(size=(5, 1)).astype("float32")
    clicked = (RNG.uniform(size=(5, 1)) > 0.5).astype("int64")
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        sums = layers.ctr_metric_bundle(fluid.data("p", [None, 1]), fluid.data("c", [None, 1], "int64"))
        with pytest.raises(errors.ShapeError, match="of one shape"):
            layers.ctr_metric_bundle(fluid.data("q", [None, 2]), fluid.data("d", [None, 1]))
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(startup, scope=scope)
    for _ in range(2):
        feed = {"p": chance, "c": clicked}
        found = exe.run(main, feed=feed, fetch_list=list(sums), scope=scope)
    away = chance - clicked
    once = [
        (away**2).sum(),
        abs(away).sum(),
        chance.sum(),
        (1 / (1 + np.exp(-chance))).sum(),
        clicked.sum(),
        5,
    ]
    np.testing.assert_allclose(np.concatenate(found), 2 * np.array(once), rtol=1e-5)


def test_fluids_paths_lead_to_them():
    from jfluid.contrib.layers.nn import tdm_child

    from jfluid.contrib.layers.metric_op import ctr_metric_bundle

    assert fluid.contrib.tdm_child is layers.tdm_child is tdm_child
    assert fluid.contrib.ctr_metric_bundle is ctr_metric_bundle
    assert fluid.contrib.layers.sequence_topk_avg_pooling is fluid.contrib.sequence_topk_avg_pooling

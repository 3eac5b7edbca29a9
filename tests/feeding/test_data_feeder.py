"""DataFeeder: samples to feeds."""

import numpy as np
import pytest

import jfluid as fluid


@pytest.fixture
def variables():
    return (
        fluid.data("image", [None, 1, 2, 2], "float32"),
        fluid.data("label", [None, 1], "int64"),
        fluid.data("words", [None, 1], "int64", lod_level=1),
    )


def feeder(*feed_list):
    return fluid.DataFeeder(feed_list, fluid.CPUPlace())


def shown(feed):
    return {name: np.array(tensor).tolist() for name, tensor in feed.items()}


def test_fields_become_arrays(variables):
    feed = feeder(variables[0], "label").feed([(np.arange(4.0).reshape(1, 2, 2), 3), (np.ones((1, 2, 2)), 4)])
    np.testing.assert_array_equal(feed["image"], [[[[0, 1], [2, 3]]], [[[1, 1], [1, 1]]]])
    np.testing.assert_array_equal(feed["label"], [[3], [4]])
    np.testing.assert_array_equal(feeder("image").feed([([1, 2, 3, 4],)])["image"], [[[[1, 2], [3, 4]]]])
    assert (np.array(feed["image"]).dtype, np.array(feed["label"]).dtype) == (np.float32, np.int64)
    assert feed["image"].lod() == []


def test_generators_and_empty_batches(variables):
    assert shown(feeder("label").feed((i,) for i in range(3))) == {"label": [[0], [1], [2]]}
    assert np.array(feeder("image").feed([])["image"]).shape == (0, 1, 2, 2)


def test_sequences_get_their_lod(variables):
    tensor = feeder("words").feed([([1, 2, 3],), ([4],)])["words"]
    assert (np.array(tensor).tolist(), tensor.lod()) == ([[1], [2], [3], [4]], [[0, 3, 4]])
    fluid.data("texts", [None, 1], "int64", lod_level=2)
    tensor = feeder("texts").feed([([[1, 2], [3]],), ([[4]],)])["texts"]
    assert (np.array(tensor).tolist(), tensor.lod()) == (
        [[1], [2], [3], [4]],
        [[0, 2, 3], [0, 2, 3, 4]],
    )


@pytest.mark.parametrize(
    ("name", "sample", "message"),
    [
        ("label", (1, 2), r"sample 0: expected 1 fields \(label\), found 2 fields"),
        ("label", 7, r"sample 0: expected 1 fields \(label\), found 7"),
        (
            "image",
            ([1, 2, 3],),
            r"feed image: expected 1 fields of shape \[1, 2, 2\] and dtype float32: cannot reshape",
        ),
        (
            "image",
            ([[[1, 2], [3]]],),
            r"feed image: expected 1 fields of shape \[1, 2, 2\] and dtype float32: .*inhomogeneous",
        ),
        ("words", (3,), "feed words: its lod_level is 1, expected a sequence at level 0, found 3"),
        (
            "label",
            ("seven",),
            r"feed label: expected 1 fields of shape \[1\] and dtype int64: invalid literal",
        ),
    ],
)
def test_wrong_samples(variables, name, sample, message):
    with pytest.raises(fluid.errors.FeedError, match=message):
        feeder(name).feed([sample])


def test_shapes_with_open_sizes_are_left_as_they_are():
    fluid.data("rows", [None, None, 2])
    assert np.array(feeder("rows").feed([(np.ones(4),)])["rows"]).shape == (1, 4)
    assert np.array(feeder("rows").feed([(np.ones((3, 2)),)])["rows"]).shape == (1, 3, 2)


def test_wrong_variables(variables):
    with pytest.raises(ValueError, match="nothing"):
        feeder("nothing")
    with pytest.raises(TypeError, match="feed_list must hold Variables or their names, found 3"):
        feeder(3)


def test_several_devices(variables):
    label = feeder("label")
    batches = [[(1,), (2,)], [(3,)], [(4,)]]
    assert [shown(feed) for feed in label.feed_parallel(batches[:2], 2)] == [
        {"label": [[1], [2]]},
        {"label": [[3]]},
    ]
    with pytest.raises(fluid.errors.FeedError, match="expected one mini-batch for each of 3 devices, found 2"):
        label.feed_parallel(batches[:2], 3)
    one_by_one = label.decorate_reader(lambda: iter(batches), multi_devices=False)
    assert [shown(feed) for feed in one_by_one()] == [
        {"label": [[1], [2]]},
        {"label": [[3]]},
        {"label": [[4]]},
    ]
    in_pairs = label.decorate_reader(lambda: iter(batches), multi_devices=True, num_places=2)
    assert [[shown(feed) for feed in feeds] for feeds in in_pairs()] == [[{"label": [[1], [2]]}, {"label": [[3]]}]]
    with pytest.raises(fluid.errors.FeedError, match="the last 1 mini-batches do not suffice for 2 devices"):
        list(label.decorate_reader(lambda: iter(batches), True, num_places=2, drop_last=False)())


def test_an_executor_takes_the_feed(variables):
    image, _, _ = variables
    doubled = fluid.layers.scale(image, 2.0)
    executor = fluid.Executor(fluid.CPUPlace())
    (result,) = executor.run(feed=feeder(image).feed([(np.ones(4),)]), fetch_list=[doubled])
    np.testing.assert_array_equal(result, np.full((1, 1, 2, 2), 2, "float32"))

"""Layers of object detection, each in a program."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from tests.layers.ragged_net import Net


def lod_tensor(array, lengths):
    return fluid.create_lod_tensor(array, [lengths], fluid.CPUPlace())


MAP, IMAGE = np.zeros((1, 2, 2, 3), "float32"), np.zeros((1, 3, 20, 30), "float32")
TRUTH = lod_tensor(np.array([[0.1, 0.1, 0.4, 0.4], [0.5, 0.5, 0.9, 0.9], [0.0, 0.5, 0.3, 1.0]], "float32"), [2, 1])


def test_priors_and_anchors():
    def build(features, image):
        boxes = layers.prior_box(features, image, 4.0, [9.0], [2.0], flip=True, clip=True)
        dense = layers.density_prior_box(
            features, image, [2], [4.0], [1.0, 2.0], flatten_to_2d=True, steps=[10.0, 10.0]
        )
        anchors = layers.anchor_generator(features, 16.0, [0.5, 1.0], stride=[10.0, 10.0])
        found = [*boxes, *dense, *anchors]
        assert all(v.stop_gradient for v in found)
        return found

    net = Net(build, features=MAP, image=IMAGE)
    assert net[0].shape == net[1].shape == (2, 3, 4, 4)
    np.testing.assert_allclose(net[0][0, 0, 0], [3 / 30, 3 / 20, 7 / 30, 7 / 20], rtol=1e-6)  # 4 pixels around (5, 5)
    np.testing.assert_allclose(net[0][0, 0, 3], [2 / 30, 2 / 20, 8 / 30, 8 / 20], rtol=1e-6)  # 6
    assert net[2].shape == net[3].shape == (2 * 3 * 8, 4)
    np.testing.assert_allclose(net[2][0], [0.5 / 30, 0.5 / 20, 4.5 / 30, 4.5 / 20], rtol=1e-5)  # around (2.5, 2.5)
    assert net[4].shape == net[5].shape == (2, 3, 2, 4)
    np.testing.assert_allclose(net[4][0, 0, 1], [-3.0, -3.0, 12.0, 12.0], rtol=1e-6)
    np.testing.assert_allclose(net[5][1, 2, 0], [0.1, 0.1, 0.2, 0.2], rtol=1e-6)


def test_codes_are_decoded_to_the_boxes_that_were_encoded():
    priors = np.array([[0.1, 0.2, 0.4, 0.6], [0.4, 0.4, 0.9, 0.8]], "float32")

    def build(truth, priors, variances):
        codes = layers.box_coder(priors, variances, truth)
        back = layers.box_coder(priors, variances, codes, "decode_center_size")
        codes = layers.box_coder(priors, [0.1, 0.1, 0.2, 0.2], truth, box_normalized=False)
        pixels = layers.box_coder(priors, [0.1, 0.1, 0.2, 0.2], codes, "decode_center_size", box_normalized=False)
        return back, pixels

    net = Net(build, truth=TRUTH, priors=priors, variances=np.full((2, 4), 0.5, "float32"))
    want = np.repeat(np.array(TRUTH)[:, None], 2, axis=1)
    np.testing.assert_allclose(net[0], want, atol=1e-6)
    # in pixels the centre of what is encoded is half a pixel off, in Fluid as well
    np.testing.assert_allclose(net[1], want - 0.5, atol=1e-5)


def test_boxes_are_clipped_to_their_images_and_assigned_to_their_class():
    info = np.array([[20, 30, 2], [10, 10, 1]], "float32")
    far = lod_tensor(np.array(TRUTH) * 100 - 30, [2, 1])
    net = Net(lambda x, info: layers.box_clip(x, info), x=far, info=info)
    most = np.array([[14, 9, 14, 9]] * 2 + [[9, 9, 9, 9]])
    np.testing.assert_allclose(net[0], np.clip(np.array(far), 0, most), rtol=1e-6)

    def build(prior, variances, codes, scores):
        return layers.box_decoder_and_assign(prior, variances, codes, scores, 4.1)

    codes = np.zeros((3, 12), "float32")
    codes[:, 8] = 10.0  # of class 2: one width to the right
    scores = np.array([[0.9, 0.06, 0.04], [0.1, 0.2, 0.7], [0.0, 0.4, 0.6]], "float32")
    ones = np.full(4, 0.1, "float32")
    prior = np.array([[0, 0, 9, 9], [1, 1, 4, 4], [2, 0, 5, 7]], "float32")
    net = Net(build, prior=prior, variances=ones, codes=codes, scores=scores)
    width = np.array([10, 4, 4])[:, None] * np.array([1, 0, 1, 0])
    assert net[0].shape == (3, 12)
    np.testing.assert_allclose(net[0][:, 8:], prior + width, atol=1e-5)
    np.testing.assert_allclose(net[1], prior + width * np.array([[0], [1], [1]]), atol=1e-5)


def test_matches_and_targets():
    labels = lod_tensor(np.array([[3], [5], [7]], "int32"), [2, 1])
    priors = np.array(TRUTH)[[1, 0, 0, 2]]

    def build(truth, priors, labels):
        overlap = layers.iou_similarity(truth, priors)
        match, near = layers.bipartite_match(overlap)
        every, _ = layers.bipartite_match(overlap, "per_prediction", 0.9)
        labels = layers.reshape(labels, [0, -1, 1])
        return overlap, match, near, every, *layers.target_assign(labels, every, mismatch_value=9)

    net = Net(build, truth=TRUTH, priors=priors, labels=labels)
    assert net.values[0].lod() == [[0, 2, 3]]
    np.testing.assert_allclose(net[0][:2], [[0, 1, 1, 0], [1, 0, 0, 0]], atol=1e-6)
    assert net[1].tolist() == [[1, 0, -1, -1], [-1, -1, -1, 0]]
    assert net[2].tolist() == [[1, 1, 0, 0], [0, 0, 0, 1]]
    assert net[3].tolist() == [[1, 0, 0, -1], [-1, -1, -1, 0]]
    assert net[4][..., 0].tolist() == [[5, 3, 3, 9], [9, 9, 9, 7]]
    assert net[5][..., 0].tolist() == [[1, 1, 1, 0], [0, 0, 0, 1]]


def test_corners_of_text():
    net = Net(lambda x: layers.polygon_box_transform(x), x=np.ones((1, 2, 2, 2), "float32"))
    assert net[0].tolist() == [[[[-1, 3], [-1, 3]], [[-1, -1], [3, 3]]]]


def image_and_map(size):
    return fluid.data("image", [-1, 3, 32, 32]), fluid.data("map", [-1, 2, size, size])


def test_a_head_of_one_map_is_given_as_it_comes_from_the_map():
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        image, x = image_and_map(4)
        place, score, box, variance = layers.multi_box_head(
            [x], image, 32, 3, [[2.0]], min_sizes=[8.0], max_sizes=[16.0], steps=[8.0]
        )
        names = [p.name for p in fluid.default_main_program().all_parameters()]
    assert place.shape == (-1, 4 * 4 * 4 * 4) and score.shape == (-1, 4 * 4 * 4 * 3)
    assert box.shape == variance.shape == (4, 4, 4, 4)
    assert names == ["conv2d_0.w_0", "conv2d_0.b_0", "conv2d_1.w_0", "conv2d_1.b_0"]


def test_arguments_of_ssd_that_do_not_fit_are_refused():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        image, x = image_and_map(4)
        for wrong, message in (
            ({"aspect_ratios": [[2.0]], "min_sizes": [4.0] * 2, "max_sizes": [8.0] * 2}, "aspect"),
            ({"aspect_ratios": [[2.0]] * 2}, "min_sizes and max_sizes"),
            ({"aspect_ratios": [[2.0]] * 2, "max_sizes": [8.0] * 2}, "min_sizes"),
        ):
            with pytest.raises(ValueError, match=message):
                layers.multi_box_head([x, x], image, 32, 3, **wrong)
        with pytest.raises(ValueError, match="percent apart"):
            layers.multi_box_head([x] * 4, image, 32, 3, [2.0] * 4, min_ratio=20, max_ratio=21)
        with pytest.raises(ValueError, match="mining_type"):
            layers.ssd_loss(x, x, x, x, x, x, mining_type="hard_example")


def test_what_fluid_leaves_out_of_account_is_said_to_have_no_effect():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        codes, scores = fluid.data("codes", [-1, 5, 4]), fluid.data("scores", [-1, 5, 3])
        prior, variance = fluid.data("prior", [5, 4]), fluid.data("variance", [5, 4])
        with pytest.warns(RuntimeWarning, match="background_label=1"):
            found, index = layers.detection_output(
                codes, scores, prior, variance, background_label=1, return_index=True
            )
        assert found.shape == (-1, 6) and index.shape == (-1, 1) and found.stop_gradient
        label = fluid.data("label", [-1, 5], lod_level=1)
        with pytest.warns(RuntimeWarning, match="background_label=2"):
            assert layers.detection_map(found, label, 3, background_label=2).shape == (1,)


def test_an_image_without_a_box_has_no_loss():
    """Fluid fails on one."""
    rng = np.random.RandomState(5)
    corner = rng.rand(6, 2) * 0.5
    priors = np.concatenate([corner, corner + 0.3], axis=1).astype("float32")
    place, score = rng.randn(2, 6, 4).astype("float32"), rng.randn(2, 6, 3).astype("float32")
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        variables = [
            fluid.data("place", [-1, 6, 4]),
            fluid.data("score", [-1, 6, 3]),
            fluid.data("box", [-1, 4], lod_level=1),
            fluid.data("label", [-1, 1], "int32", lod_level=1),
            fluid.data("prior", [6, 4]),
        ]
        loss = layers.ssd_loss(*variables, [0.1, 0.1, 0.2, 0.2])
    exe = fluid.Executor(fluid.CPUPlace())

    def losses(images, counts):
        number = sum(counts)
        return exe.run(
            main,
            feed={
                "place": place[images],
                "score": score[images],
                "box": lod_tensor(priors[:number] + np.float32(0.02), counts),
                "label": lod_tensor(np.arange(1, number + 1, dtype="int32")[:, None], counts),
                "prior": priors,
            },
            fetch_list=[loss],
        )[0]

    alone = losses([0], [2])
    assert alone.item() > 0.1
    np.testing.assert_allclose(losses([0, 1], [2, 0]), [alone[0], [0.0]], rtol=1e-5)
    assert np.isnan(losses([0, 1], [0, 0])).all()  # divided by the number of matches


def test_boxes_of_integers_are_refused():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x, box = fluid.data("x", [1, 2, 3, 3], "int32"), fluid.data("box", [2, 4], "int64")
        image = fluid.data("image", [1, 3, 9, 9])
        for layer, arguments in (
            (layers.prior_box, (x, image, 4.0)),
            (layers.density_prior_box, (x, image, [1], [4.0], [1.0])),
            (layers.polygon_box_transform, (x,)),
            (layers.iou_similarity, (box, box)),
            (layers.box_coder, (box, [0.1] * 4, box)),
            (layers.box_clip, (box, image)),
            (layers.bipartite_match, (box,)),
        ):
            with pytest.raises(TypeError, match=f"{layer.__name__}, .*found (?i:int)"):
                layer(*arguments)
        box = fluid.data("floats", [2, 4])
        with pytest.raises(TypeError, match="prior_box_var"):
            layers.box_coder(box, None, box)

"""Layers of detectors with proposals that draw at random, in one program. `tests/parity/test_faster_rcnn.py` and
`test_detectors.py` hold the layers of pyramids and of RetinaNet.
"""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers

IMAGES, SIDE, STRIDE = 2, 4, 8


def ragged(values, *lengths, dtype="float32"):
    return fluid.create_lod_tensor(np.array(values, dtype), list(lengths), fluid.CPUPlace())


def feeds():
    rng = np.random.RandomState(3)
    boxes = np.array([[2, 2, 13, 14], [16, 15, 29, 27], [4, 8, 20, 28]])
    corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2)
    return {
        "features": rng.randn(IMAGES, 3, SIDE, SIDE).astype("float32"),
        "info": np.array([[32, 32, 1]] * IMAGES, "float32"),
        "boxes": ragged(boxes, [2, 1]),
        "classes": ragged([[1], [2], [1]], [2, 1], dtype="int32"),
        "crowd": ragged([[0], [0], [0]], [2, 1], dtype="int32"),
        "outlines": ragged(corners, [2, 1], [1, 1, 1], [4, 4, 4]),
    }


def net():
    """What the layers give, by name."""
    x = layers.data("features", [3, SIDE, SIDE])
    info = layers.data("info", [3])
    boxes = layers.data("boxes", [4], lod_level=1)
    classes, crowd = (layers.data(n, [1], dtype="int32", lod_level=1) for n in ("classes", "crowd"))
    outlines = layers.data("outlines", [2], lod_level=3)
    anchors, variances = layers.anchor_generator(
        x, anchor_sizes=[8, 16], aspect_ratios=[1.0], variance=[1.0] * 4, stride=[STRIDE] * 2
    )
    scores, deltas = layers.conv2d(x, 2, 1), layers.conv2d(x, 8, 1)
    proposals, _, ends = layers.generate_proposals(
        layers.sigmoid(scores),
        deltas,
        info,
        anchors,
        variances,
        post_nms_top_n=6,
        return_rois_num=True,
    )
    scores = layers.reshape(layers.transpose(scores, [0, 2, 3, 1]), [0, -1, 1])
    deltas = layers.reshape(layers.transpose(deltas, [0, 2, 3, 1]), [0, -1, 4])
    anchors, variances = layers.reshape(anchors, [-1, 4]), layers.reshape(variances, [-1, 4])
    given = (deltas, scores, anchors, variances, boxes)
    rpn = layers.rpn_target_assign(*given, crowd, info, rpn_batch_size_per_im=8, use_random=True)
    drawn = layers.generate_proposal_labels(
        proposals,
        classes,
        crowd,
        boxes,
        info,
        batch_size_per_im=4,
        fg_fraction=0.5,
        class_nums=3,
        use_random=True,
    )
    masks = layers.generate_mask_labels(info, classes, crowd, outlines, *drawn[:2], 3, 7)
    return {
        "proposals": proposals,
        "ends": ends,
        "scores": rpn[0],
        "deltas": rpn[1],
        "label": rpn[2],
        "rois": drawn[0],
        "labels": drawn[1],
        "masks": masks[2],
    }


@pytest.fixture(autouse=True, scope="module")
def steps_by_numpy():
    """Steps are compiled: NumPy takes longer for the loops of suppression."""


@pytest.fixture(scope="module")
def found():
    """The values of two steps with sampling at random."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        variables = net()
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    exe.run(startup, scope=scope)
    steps = [
        exe.run(main, feed=feeds(), fetch_list=list(variables.values()), scope=scope, return_numpy=False)
        for _ in range(2)
    ]
    return [dict(zip(variables, values)) for values in steps]


def test_rows_are_those_of_the_images(found):
    values = found[0]
    proposals, rois = values["proposals"], values["rois"]
    assert proposals.lod()[0][1:] == np.array(values["ends"]).tolist()
    assert 0 < proposals.lod()[0][1] <= 6
    assert np.array(proposals).min() >= 0 and np.array(proposals).max() <= 31
    assert max(rois.recursive_sequence_lengths()[0]) <= 4
    assert np.array(values["labels"]).shape == (len(np.array(rois)), 1)
    # an image draws 8 anchors: as many scores as labels, objects first
    labels = np.array(values["label"]).ravel()
    assert len(np.array(values["scores"])) == len(labels) == 16
    assert len(np.array(values["deltas"])) >= labels.sum() > 0
    masks = np.array(values["masks"]).reshape(-1, 3, 49)
    assert set(np.unique(masks)) == {-1, 0, 1} and (masks[:, 0] == -1).all()


def test_each_step_draws_others(found):
    first, second = (np.array(values["scores"]) for values in found)
    assert first.shape == second.shape and (first != second).any()


def test_the_number_of_classes_is_needed():
    with (
        fluid.program_guard(fluid.Program()),
        pytest.raises(errors.AttributeTypeError, match="class_nums"),
    ):
        box = layers.data("box", [4], lod_level=1)
        classes = layers.data("classes", [1], dtype="int32", lod_level=1)
        layers.generate_proposal_labels(box, classes, classes, box, box)


@pytest.mark.parametrize("cascade", [False, True])
def test_a_declared_number_of_images_does_not_bind(cascade):
    given = feeds() | {"rois": ragged([[2, 2, 12, 13], [15, 15, 28, 28], [3, 8, 21, 27]], [2, 1])}
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        one = {"append_batch_size": False}
        rois, boxes = (layers.data(n, [1, 4], lod_level=1, **one) for n in ("rois", "boxes"))
        classes, crowd = (layers.data(n, [1, 1], dtype="int32", lod_level=1, **one) for n in ("classes", "crowd"))
        drawn = layers.generate_proposal_labels(
            rois,
            classes,
            crowd,
            boxes,
            layers.data("info", [1, 3], **one),
            batch_size_per_im=8,
            class_nums=3,
            use_random=False,
            is_cascade_rcnn=cascade,
            bg_thresh_hi=0.5,
        )
        main = fluid.default_main_program()
        names = [name for name in given if main.global_block().has_var(name)]
        found = fluid.Executor(fluid.CPUPlace()).run(
            main, feed={name: given[name] for name in names}, fetch_list=list(drawn), return_numpy=False
        )
    rows, classes = (3, [1, 2, 1]) if cascade else (4, [1, 2, 1, 1])  # as the real Fluid gives
    assert [np.array(v).shape for v in found] == [(rows, 4), (rows, 1), *[(rows, 12)] * 3]
    assert np.array(found[1]).ravel().tolist() == classes

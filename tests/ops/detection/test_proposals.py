"""Operators of detectors with proposals against the real Fluid, and where Fluid fails: images
without objects or proposals, numbers that are none.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.lod_tensor import LoDTensor
from jfluid.ops.detection.pixel_boxes import sampled
from tests.op_case import check, not_inferred
from tests.parity import proposal_levels
from tests.parity.proposals import CASES, run

GOLDEN = json.loads((Path(__file__).parent.parent.parent / "golden" / "proposals.json").read_text())


@pytest.mark.usefixtures("interpreted_steps")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_values_and_lods_are_fluids(case):
    with not_inferred():  # `check` below holds inferred shapes of each operator
        found = run(fluid, case)
    assert found.keys() == GOLDEN[case[0]].keys()
    for name, (values, shape, lod) in GOLDEN[case[0]].items():
        ours, our_shape, our_lod = found[name]
        # Fluid leaves the width of a tensor without rows unset
        assert our_shape == shape or our_shape[0] == shape[0] == 0, name
        assert our_lod == lod, name
        np.testing.assert_allclose(ours, values, rtol=1e-4, atol=2e-5, err_msg=name)


def ragged(values, offsets, dtype="float32"):
    array = np.array(values, dtype)
    return LoDTensor(array.reshape(offsets[-1], array.size // offsets[-1]), [offsets])


INFO = np.array([[32, 32, 1], [32, 32, 2]], "float32")
ANCHORS = np.array([[0, 0, 9, 9], [8, 8, 17, 17], [20, 20, 31, 31], [28, 0, 37, 9]], "float32")
# one object in the first image, which the second anchor fits; none in the second image
OBJECT = ragged([[8, 8, 17, 17]], [0, 1, 1])
CROWD, LABEL = ragged([[0]], [0, 1, 1], "int32"), ragged([[3]], [0, 1, 1], "int32")


def test_proposals_leave_out_what_is_no_number_and_what_is_suppressed():
    scores = np.array([[0.9, np.nan, 0.8, 0.7], [0.1, 0.1, np.nan, np.nan]], "float32")
    deltas = np.zeros((2, 4, 1, 4), "float32")
    deltas[0, 0, 0, 3] = np.nan
    anchors = ANCHORS.copy()
    anchors[2] = 0, 0, 9, 8  # overlaps the first
    check(
        "generate_proposals",
        {
            "Scores": scores.reshape(2, 1, 1, 4),
            "BboxDeltas": deltas,
            "ImInfo": INFO,
            "Anchors": anchors.reshape(1, 4, 1, 4),
            "Variances": np.ones((1, 4, 1, 4), "float32"),
        },
        {"pre_nms_topN": 4, "post_nms_topN": 4, "nms_thresh": 0.5, "min_size": 5.5, "eta": 1.0},
        expect={
            # sides of the second image are divided by 2: 9 / 2 + 1 is at least 5.5
            "RpnRois": ragged([[0, 0, 9, 9], [8, 8, 17, 17], [0, 0, 9, 9]], [0, 1, 3]),
            "RpnRoiProbs": ragged([[0.9], [0.1], [0.1]], [0, 1, 3]),
            "RpnRoisLod": np.array([1, 3]),
        },
        rows=(),
    )


def test_an_image_without_objects_is_background():
    counts = {
        "LocationIndex": LoDTensor(np.array([1], "int32"), [[0, 1, 1]]),
        "TargetBBox": ragged(np.zeros(4), [0, 1, 1]),
        "BBoxInsideWeight": ragged(np.ones(4), [0, 1, 1]),
    }
    check(
        "rpn_target_assign",
        {"Anchor": ANCHORS, "GtBoxes": OBJECT, "IsCrowd": CROWD, "ImInfo": INFO},
        {"rpn_batch_size_per_im": 4, "rpn_fg_fraction": 0.5, "use_random": False},
        expect={
            # the last anchor leaves the image
            **counts,
            "ScoreIndex": LoDTensor(np.array([1, 0, 2, 4, 5, 6], "int32"), [[0, 3, 6]]),
            "TargetLabel": ragged([1, 0, 0, 0, 0, 0], [0, 3, 6], "int32"),
        },
        rows=(),
    )
    check(
        "retinanet_target_assign",
        {
            "Anchor": ANCHORS,
            "GtBoxes": OBJECT,
            "GtLabels": LABEL,
            "IsCrowd": CROWD,
            "ImInfo": INFO,
        },
        expect={
            **counts,
            "ScoreIndex": LoDTensor(np.array([1, 0, 2, 3, 4, 5, 6, 7], "int32"), [[0, 4, 8]]),
            "TargetLabel": ragged([3, 0, 0, 0, 0, 0, 0, 0], [0, 4, 8], "int32"),
            "ForegroundNumber": ragged([2, 1], [0, 1, 2], "int32"),
        },
        rows=(),
    )


def test_labels_without_objects_or_proposals():
    rois = ragged([[2, 2, 9, 9], [4, 4, 30, 30], [np.nan] * 4], [0, 0, 3])
    targets = np.zeros((3, 16), "float32")
    weights = targets.copy()
    weights[0, 12:] = 1
    check(
        "generate_proposal_labels",
        {"RpnRois": rois, "GtClasses": LABEL, "IsCrowd": CROWD, "GtBoxes": OBJECT, "ImInfo": INFO},
        {
            "batch_size_per_im": 8,
            "fg_fraction": 0.25,
            "fg_thresh": 0.5,
            "bg_thresh_hi": 0.5,
            "bg_thresh_lo": 0.0,
            "bbox_reg_weights": [0.1, 0.1, 0.2, 0.2],
            "class_nums": 4,
            "use_random": False,
        },
        expect={
            # the object of the first image itself; two proposals of the second, not the one of NaNs
            "Rois": ragged([[8, 8, 17, 17], [2, 2, 9, 9], [4, 4, 30, 30]], [0, 1, 3]),
            "LabelsInt32": ragged([3, 0, 0], [0, 1, 3], "int32"),
            "BboxTargets": ragged(targets, [0, 1, 3]),
            "BboxInsideWeights": ragged(weights, [0, 1, 3]),
            "BboxOutsideWeights": ragged(weights, [0, 1, 3]),
        },
        rows=(),
    )


def test_masks_of_crowds_alone_are_ignored():
    corners = [[8, 8], [18, 8], [18, 18], [8, 18]]
    check(
        "generate_mask_labels",
        {
            "ImInfo": INFO[:1],
            "GtClasses": ragged([[1]], [0, 1], "int32"),
            "IsCrowd": ragged([[1]], [0, 1], "int32"),
            "GtSegms": LoDTensor(np.array(corners, "float32"), [[0, 1], [0, 1], [0, 4]]),
            "Rois": ragged([[8, 8, 17, 17]], [0, 1]),
            "LabelsInt32": ragged([[1]], [0, 1], "int32"),
        },
        {"num_classes": 2, "resolution": 2},
        expect={
            "MaskRois": ragged([[8, 8, 17, 17]], [0, 1]),
            "RoiHasMaskInt32": ragged([[0]], [0, 1], "int32"),
            "MaskInt32": ragged(-np.ones(8), [0, 1], "int32"),
        },
        rows=(),
    )


def test_levels_without_proposals():
    rois = ragged([[0, 0, 31, 31], [np.nan] * 4, [0, 0, 15, 15]], [0, 0, 3])
    levels = {"min_level": 2, "max_level": 4, "refer_level": 3, "refer_scale": 32}
    check(
        "distribute_fpn_proposals",
        {"FpnRois": rois},
        levels,
        expect={
            "MultiFpnRois": [
                ragged([[np.nan] * 4, [0, 0, 15, 15]], [0, 0, 2]),
                ragged([[0, 0, 31, 31]], [0, 0, 1]),
                LoDTensor(np.zeros((0, 4), "float32"), [[0, 0, 0]]),
            ],
            "RestoreIndex": np.array([[2], [0], [1]], "int32"),
        },
    )
    check(
        "collect_fpn_proposals",
        {
            "MultiLevelRois": [rois, ragged([[5, 5, 6, 6]], [0, 1, 1])],
            "MultiLevelScores": [ragged([np.nan, 0.5, 0.2], [0, 0, 3]), ragged([0.1], [0, 1, 1])],
        },
        {"post_nms_topN": 4},
        expect={"FpnRois": ragged([[5, 5, 6, 6], [np.nan] * 4, [0, 0, 15, 15], [0, 0, 31, 31]], [0, 1, 4])},
    )
    with pytest.raises(errors.AttributeTypeError, match="0 < min_level <= max_level"):
        check("distribute_fpn_proposals", {"FpnRois": rois}, {**levels, "min_level": 5}, expect={})


def test_draws_are_even():
    mask = jnp.asarray([True, False, True, True, False, True, True, True])
    draw = jax.jit(jax.vmap(lambda key: sampled(mask, 3, 4, key)))
    drawn = np.asarray(draw(jax.random.split(jax.random.key(0), 2000)))
    assert (drawn.sum(1) == 3).all()
    often = drawn.mean(0)  # each of six with probability 1 / 2; the deviation is 0.011
    np.testing.assert_allclose(often, np.where(mask, 0.5, 0), atol=0.06)
    few = np.asarray(sampled(mask, 7, 8, jax.random.key(1)))  # more than there are
    np.testing.assert_array_equal(few, mask)


def test_boxes_of_integers_are_a_type_error():
    boxes = fluid.data("boxes", [-1, 4], "int32")
    with pytest.raises(TypeError, match="boxes .* of floats are needed, found .* of int32"):
        fluid.layers.distribute_fpn_proposals(boxes, 2, 5, 4, 224)


def test_levels_differ_from_fluid_only_where_scores_are_equal():
    golden = json.loads((Path(__file__).parents[2] / "golden" / "proposal_levels.json").read_text())
    distinct = proposal_levels.proposals(fluid, padded=False)
    np.testing.assert_array_equal([n for n, _ in distinct], [n for n, _ in golden["distinct"]])
    np.testing.assert_allclose([s for _, s in distinct], [s for _, s in golden["distinct"]], rtol=1e-6)
    padded = [n for n, _ in proposal_levels.proposals(fluid, padded=True)]
    np.testing.assert_allclose(padded, [n for n, _ in golden["padded"]], rtol=0.05)

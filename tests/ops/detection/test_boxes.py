"""Anchors, boxes and matches against the real Fluid (tests/golden/boxes.json), and cases that it
does not run.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.lod_tensor import LoDTensor
from jfluid.ops import registry
from tests.op_case import check
from tests.parity.boxes import CASES, VARIANCES
from tests.parity.ops import Rows

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "boxes.json").read_text())


def lod_tensor(value):
    """What `check` takes for a value of a case."""
    if not isinstance(value, Rows):
        return value
    return fluid.create_lod_tensor(value.values, value.lengths, fluid.CPUPlace())


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_values_are_fluids(case):
    name, op_type, inputs, _, attrs, *_ = case
    expect = {}
    for slot, (values, shape, lod) in GOLDEN[name].items():
        array = np.array(values).reshape(shape)
        expect[slot] = LoDTensor(array, lod) if lod else array
    given = {slot: lod_tensor(value) for slot, value in inputs.items()}
    infers = not registry.get(op_type).host
    check(op_type, given, attrs, expect=expect, rtol=1e-5, atol=2e-6, rows=(), infer=infers)


def test_an_image_without_boxes_matches_nothing():
    """Fluid fails on one."""
    distances = np.array([[0.2, 0.9], [0.7, 0.8]], "float32")
    match = np.array([[-1, -1], [1, 0], [-1, -1]], "int32")
    near = np.where(match >= 0, np.array([0.7, 0.9], "float32"), np.float32(0))
    ragged = fluid.create_lod_tensor(distances, [[0, 2, 0]], fluid.CPUPlace())
    expect = {"ColToRowMatchIndices": match, "ColToRowMatchDist": near}
    check("bipartite_match", {"DistMat": ragged}, {}, expect=expect)
    none = fluid.create_lod_tensor(distances[:0], [[0, 0]], fluid.CPUPlace())
    expect = {"ColToRowMatchIndices": match[[0, 2]], "ColToRowMatchDist": near[[0, 2]]}
    check("bipartite_match", {"DistMat": none}, {"match_type": "per_prediction"}, expect=expect)


def test_no_box_at_all_leaves_every_prior_without_a_target():
    none = fluid.create_lod_tensor(np.zeros((0, 2, 4), "float32"), [[0, 0]], fluid.CPUPlace())
    match = np.full((2, 2), -1, "int32")
    expect = {"Out": np.full((2, 2, 4), 7.0), "OutWeight": np.zeros((2, 2, 1))}
    check("target_assign", {"X": none, "MatchIndices": match}, {"mismatch_value": 7}, expect=expect)


def test_nan_among_losses_is_mined_first_and_equal_losses_in_order():
    loss = np.array([[0.5, np.nan, 0.5, 0.5, 0.1], [0.0] * 5], "float32")
    match = np.array([[-1, -1, -1, -1, 0], [0, 1, 2, 3, 4]], "int32")
    distance = np.zeros((2, 5), "float32")
    attrs = {"neg_pos_ratio": 2.0}
    ins = {"ClsLoss": loss, "MatchIndices": match, "MatchDist": distance}
    chosen = LoDTensor(np.array([[0], [1]], "int32"), [[0, 2, 2]])
    expect = {"NegIndices": chosen, "UpdatedMatchIndices": match}
    check("mine_hard_examples", ins, attrs, expect=expect)


PRIORS, FOUR = np.zeros((3, 4), "float32"), {"variances": VARIANCES}
MAP = np.zeros((1, 1, 2, 2), "float32")
WRONG = {
    "max_sizes": (
        "prior_box",
        {"Input": MAP, "Image": MAP},
        {"min_sizes": [4.0], "max_sizes": [3.0], "aspect_ratios": [1.0], **FOUR},
    ),
    "feature map": (
        "prior_box",
        {"Input": MAP[0], "Image": MAP},
        {"min_sizes": [4.0], "aspect_ratios": [1.0], **FOUR},
    ),
    "variances": (
        "anchor_generator",
        {"Input": MAP},
        {"anchor_sizes": [4.0], "aspect_ratios": [1.0], "stride": [2.0, 2.0], "variances": [0.1]},
    ),
    "densities": (
        "density_prior_box",
        {"Input": MAP, "Image": MAP},
        {"densities": [2], "fixed_sizes": [2.0, 3.0], "fixed_ratios": [1.0], **FOUR},
    ),
    "code_type": ("box_coder", {"PriorBox": PRIORS, "TargetBox": PRIORS}, {"code_type": "encode"}),
    "codes for each prior": (
        "box_coder",
        {"PriorBox": PRIORS, "TargetBox": np.zeros((5, 2, 4), "float32")},
        {"code_type": "decode_center_size"},
    ),
    "iou": ("iou_similarity", {"X": PRIORS[:, :3], "Y": PRIORS}, {}),
    "odd": ("polygon_box_transform", {"Input": MAP}, {}),
    "match_type": ("bipartite_match", {"DistMat": PRIORS}, {"match_type": "best"}),
    "hard_example": (
        "mine_hard_examples",
        {"ClsLoss": PRIORS, "MatchIndices": PRIORS.astype("int32"), "MatchDist": PRIORS},
        {"mining_type": "hard_example"},
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused(what):
    op_type, inputs, attrs = WRONG[what]
    outs = [s.name for s in registry.get(op_type).outs]
    with pytest.raises((errors.ShapeError, errors.AttributeTypeError), match=op_type):
        check(op_type, inputs, attrs, expect=dict.fromkeys(outs))

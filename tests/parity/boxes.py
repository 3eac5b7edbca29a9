"""Operators of object detection on anchors, boxes and matches, for any engine that offers the Fluid
API; cases are those of `tests.parity.ops`.
"""

import numpy as np

from tests.parity.ops import Rows

RNG = np.random.RandomState(11)
VARIANCES = [0.1, 0.1, 0.2, 0.2]


def _f(*shape):
    return RNG.rand(*shape).astype("float32")


def boxes(count, size=1.0):
    """Boxes [count, 4] of positive size in an image of `size`."""
    corner, more = RNG.rand(count, 2) * 0.6, 0.1 + RNG.rand(count, 2) * 0.3
    return (np.concatenate([corner, corner + more], 1) * size).astype("float32")


MAP, IMAGE = _f(1, 1, 2, 3), _f(1, 3, 30, 48)
PRIORS, VAR = boxes(6), np.tile(np.array(VARIANCES, "float32"), (6, 1))
TRUTH = Rows(boxes(5), [[3, 0, 2]])
PIXELS = Rows(boxes(5, 40), [[2, 3]])
CODES = (RNG.randn(3, 6, 4) * 0.5).astype("float32")
DISTANCES = Rows(
    [
        [0.1, 0.6, 0.6, 0.0, 0.7],
        [0.3, 0.6, 0.2, 0.0, 0.7],
        [0.2, 0.1, 0.9, 0.0, 0.8],
        [0.0, 1e-7, 0.0, 0.0, 0.0],
        [0.5, 0.4, 0.3, 0.2, 0.1],
        [0.5, 0.4, 0.3, 0.2, np.nan],
    ],
    [[3, 1, 2]],
)
MATCH = np.array([[-1, 0, 2, -1, 1], [-1] * 5, [1, -1, -1, 0, -1]], "int32")
NEGATIVES = Rows([[3], [0], [2], [1], [2]], [[2, 1, 2]], "int32")
LOSSES = np.array([[0.5, 0.1, 0.2, 0.9, 0.3], [0.3, 0.6, 0.1, 0.2, 0.5], [0.2, 0.8, 0.7, 0.4, 0.6]], "float32")
PLACES = LOSSES[:, ::-1].copy()
NEAR = np.array([[0.1, 0.9, 0.8, 0.2, 0.7], [0.0] * 5, [0.9, 0.1, 0.6, 0.8, 0.3]], "float32")
PRIOR = {"variances": VARIANCES, "clip": False, "flip": False, "aspect_ratios": [1.0]}
DENSE = {"variances": VARIANCES, "clip": False, "fixed_ratios": [1.0, 2.0]}
DENSE.update(fixed_sizes=[9.0, 20.0], densities=[3, 2])
ANCHORS = {"variances": VARIANCES, "anchor_sizes": [32.0, 64.0], "aspect_ratios": [0.5, 1.0, 2.0]}


def _case(name, op, inputs, outs, attrs, others=()):
    return (name, op, inputs, list(outs), attrs, list(others), [])


def _anchors():
    ins, outs = {"Input": MAP, "Image": IMAGE}, ("Boxes", "Variances")
    yield _case("prior_box", "prior_box", ins, outs, dict(PRIOR, min_sizes=[4.0]))
    full = {"min_sizes": [4.0, 9.0], "max_sizes": [8.0, 20.0], "clip": True, "flip": True}
    full["aspect_ratios"] = [2.0, 1.0, 3.0, 2.0]
    yield _case("prior_box_full", "prior_box", ins, outs, dict(PRIOR, **full))
    full.update(min_max_aspect_ratios_order=True, step_w=8.0, step_h=5.0, offset=0.25)
    yield _case("prior_box_ordered", "prior_box", ins, outs, dict(PRIOR, **full))
    full.update(step_h=0.0)
    yield _case("prior_box_one_step", "prior_box", ins, outs, dict(PRIOR, **full))
    yield _case("density_prior_box", "density_prior_box", ins, outs, DENSE)
    flat = dict(DENSE, flatten_to_2d=True, clip=True, step_w=7.5, step_h=6.0, offset=0.3)
    yield _case("density_prior_box_flat", "density_prior_box", ins, outs, flat)
    ins, outs = {"Input": MAP}, ("Anchors", "Variances")
    yield _case("anchor_generator", "anchor_generator", ins, outs, dict(ANCHORS, stride=[16.0, 16.0]))
    uneven = dict(ANCHORS, stride=[12.0, 20.0], offset=0.1)
    yield _case("anchor_generator_uneven", "anchor_generator", ins, outs, uneven)


def _coded():
    def case(name, target, attrs, var=VAR, prior=PRIORS):
        ins = {"PriorBox": prior, "TargetBox": target}
        ins.update({} if var is None else {"PriorBoxVar": var})
        return _case("box_coder_" + name, "box_coder", ins, ["OutputBox"], attrs)

    decodes = {"code_type": "decode_center_size"}
    yield case("encode", TRUTH, {})
    yield case("encode_dense", TRUTH.values, {"variance": VARIANCES}, None)
    yield case("encode_pixels", TRUTH, {"box_normalized": False}, None)
    yield case("decode", CODES, decodes)
    yield case("decode_pixels", CODES, dict(decodes, box_normalized=False, variance=VARIANCES), None)
    yield case("decode_rows", CODES, dict(decodes, axis=1), VAR[:3], PRIORS[:3])
    ragged = Rows(RNG.randn(5, 3, 4) * 0.3, [[2, 3]])
    rows = Rows(boxes(5), [[2, 3]])
    yield case("decode_rows_ragged", ragged, dict(decodes, axis=1), None, rows)


def _boxes():
    y = PRIORS.copy()
    y[1, 2:] = y[1, :2]  # of no size
    y[2, 2] = y[2, 0] - 0.1  # of negative size
    for name, attrs in (("", {}), ("_pixels", {"box_normalized": False})):
        yield _case("iou_similarity" + name, "iou_similarity", {"X": TRUTH, "Y": y}, ["Out"], attrs)
    dense = {"X": np.concatenate([TRUTH.values[:2], y[1:3]]), "Y": y}
    yield _case("iou_similarity_dense", "iou_similarity", dense, ["Out"], {})
    info = np.array([[30, 42, 1.5], [61, 50, 2]], "float32")
    low = Rows(PIXELS.values - 8, PIXELS.lengths)
    yield _case("box_clip", "box_clip", {"Input": low, "ImInfo": info}, ["Output"], {})
    several = Rows((RNG.rand(5, 2, 4) - 0.3) * 60, [[2, 3]])
    yield _case("box_clip_several", "box_clip", {"Input": several, "ImInfo": info}, ["Output"], {})
    corners = {"Input": _f(2, 8, 3, 2)}
    yield _case("polygon_box_transform", "polygon_box_transform", corners, ["Output"], {})
    ins = {
        "PriorBox": PIXELS,
        "PriorBoxVar": np.array(VARIANCES, "float32"),
        "TargetBox": Rows(RNG.randn(5, 12) * 3, [[2, 3]]),
        "BoxScore": Rows(RNG.rand(5, 3), [[2, 3]]),
    }
    ins["TargetBox"].values[1, 2] = 40  # cut off at box_clip
    outs = ("DecodeBox", "OutputAssignBox")
    yield _case("box_decoder_and_assign", "box_decoder_and_assign", ins, outs, {"box_clip": 2.0})
    plain = {s: v.values if isinstance(v, Rows) else v for s, v in ins.items()}
    plain["BoxScore"] = plain["BoxScore"] - 2
    plain["BoxScore"][0] = [9, -0.5, -0.5]
    yield _case("box_decoder_and_assign_low", "box_decoder_and_assign", plain, outs, {})
    one = dict(plain, TargetBox=plain["TargetBox"][:, :4], BoxScore=plain["BoxScore"][:, :1])
    yield _case("box_decoder_and_assign_one", "box_decoder_and_assign", one, outs, {})


def _matches():
    outs = ("ColToRowMatchIndices", "ColToRowMatchDist")
    near = {"match_type": "per_prediction", "dist_threshold": 0.45}
    for name, attrs in (("", {}), ("_per_prediction", near)):
        ins = {"DistMat": DISTANCES}
        yield _case("bipartite_match" + name, "bipartite_match", ins, outs, attrs)
    dense = {"DistMat": DISTANCES.values[:3]}
    yield _case("bipartite_match_dense", "bipartite_match", dense, outs, near)
    many = RNG.permutation(np.linspace(0, 1, 135 * 2)).reshape(135, 2)
    ins = {"DistMat": Rows(np.concatenate([many[:131] * 1e-6, many[131:]]), [[131, 4]])}
    yield _case("bipartite_match_many", "bipartite_match", ins, outs, {})
    outs = ("Out", "OutWeight")
    ids = Rows([[[4]], [[7]], [[5]], [[6]], [[9]]], [[3, 0, 2]], "int32")
    ins = {"X": ids, "MatchIndices": MATCH}
    yield _case("target_assign", "target_assign", ins, outs, {"mismatch_value": 3})
    ins = dict(ins, NegIndices=NEGATIVES)
    yield _case("target_assign_negatives", "target_assign", ins, outs, {"mismatch_value": 3})
    ins = {"X": Rows(RNG.rand(5, 5, 2), [[3, 0, 2]]), "MatchIndices": MATCH}
    yield _case("target_assign_by_prior", "target_assign", ins, outs, {})
    outs = ("NegIndices", "UpdatedMatchIndices")
    ins = {"ClsLoss": LOSSES, "MatchIndices": MATCH, "MatchDist": NEAR}
    for ratio, threshold in ((1.0, 0.5), (0.5, 0.5), (3.0, 0.15)):
        attrs = {"neg_pos_ratio": ratio, "neg_dist_threshold": threshold}
        name = "mine_hard_examples_%g_%g" % (ratio, threshold)
        yield _case(name, "mine_hard_examples", ins, outs, attrs)
    hard = {"mining_type": "hard_example", "sample_size": 3}
    yield _case("mine_hard_examples_hard", "mine_hard_examples", ins, outs, hard)
    ins = dict(ins, LocLoss=PLACES)
    yield _case("mine_hard_examples_both", "mine_hard_examples", ins, outs, hard)


LABELLED = Rows(
    [
        [1, 0, 0.1, 0.1, 0.3, 0.3],
        [1, 1, 0.5, 0.5, 0.8, 0.8],  # difficult
        [2, 0, 0.2, 0.6, 0.5, 0.9],
        [2, 0, 0.6, 0.1, 0.9, 0.4],
        [1, 0, 0.0, 0.0, 0.4, 0.5],
        [3, 0, 0.5, 0.5, 0.7, 0.7],  # not found
    ],
    [[3, 3]],
)
DETECTED = Rows(
    [
        [1, 0.9, 0.1, 0.1, 0.31, 0.3],
        [1, 0.8, 0.52, 0.5, 0.8, 0.8],
        [1, 0.7, 0.1, 0.1, 0.28, 0.3],  # found already
        [2, 0.6, 0.2, 0.6, 0.5, 0.88],
        [0, 0.5, 0.1, 0.1, 0.3, 0.3],
        [1, 0.95, -0.1, 0.0, 0.4, 0.5],  # beyond the image
        [2, 0.3, 0.6, 0.1, 0.9, 0.2],
        [2, 0.9, 0.1, 0.1, 0.2, 0.2],
        [4, 0.4, 0.1, 0.1, 0.2, 0.2],
    ],
    [[5, 4]],
)
STATE = {
    "HasState": np.array([1], "int32"),
    "PosCount": np.array([[0], [2], [0], [4], [0]], "int32"),
    "TruePos": Rows([[0.92, 1], [0.4, 0], [0.5, 1]], [[0, 2, 0, 1, 0]]),
    "FalsePos": Rows([[0.92, 0], [0.4, 1], [0.5, 0]], [[0, 2, 0, 1, 0]]),
}


def _precisions():
    ins = {"DetectRes": DETECTED, "Label": LABELLED}
    outs = ["MAP", "AccumPosCount", "AccumTruePos", "AccumFalsePos"]

    def case(name, inputs, **attrs):
        attrs = dict(attrs, class_num=5)
        return _case("detection_map_" + name, "detection_map", inputs, outs, attrs)

    yield case("integral", ins, ap_type="integral")
    easy = Rows(np.delete(LABELLED.values, 1, axis=1), LABELLED.lengths)
    yield case("5", dict(ins, Label=easy), overlap_threshold=0.3)
    for name, ap_type, background in (("11point", "11point", 0), ("as_many", "integral", 1)):
        attrs = {"ap_type": ap_type, "background_label": background, "evaluate_difficult": False}
        yield case(name, ins, **attrs)
    yield case("state", dict(ins, **STATE))
    yield case("no_state", dict(ins, **dict(STATE, HasState=np.array([0], "int32"))))


CASES = list(_anchors()) + list(_coded()) + list(_boxes()) + list(_matches())
CASES += list(_precisions())

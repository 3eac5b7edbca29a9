"""Operators of detectors with proposals, whose rules only Fluid itself can tell, for any engine
that offers the Fluid API (Python 3.7 syntax).

A case is (name, operator, inputs, {output: number of variables}, attributes).
"""

import numpy as np

from tests.parity.ops import Rows

RNG = np.random.RandomState(0)


def _anchors(height, width, sides, stride=8.0):
    """Anchors [height, width, number of sides, 4]."""
    x, y = np.meshgrid(np.arange(width) * stride + 4, np.arange(height) * stride + 4)
    boxes = [np.stack([x - s / 2, y - s / 2, x + s / 2, y + s / 2], -1) for s in sides]
    return np.stack(boxes, 2).astype("float32")


def _boxes(number, room=24):
    corner = RNG.rand(number, 2) * room
    return np.concatenate([corner, corner + 8 + RNG.rand(number, 2) * 14], 1)


def _near(boxes, number):
    return boxes[RNG.randint(0, len(boxes), number)] + RNG.randn(number, 4) * 2


GRID = _anchors(3, 3, (6, 14))
PROPOSED = {
    "Scores": RNG.rand(2, 2, 3, 3).astype("float32"),
    "BboxDeltas": RNG.randn(2, 8, 3, 3).astype("float32") * 0.5,
    "ImInfo": np.array([[24, 24, 1], [20, 22, 2]], "float32"),
    "Anchors": GRID,
    "Variances": np.full_like(GRID, 0.5),
}
KEPT = {
    "pre_nms_topN": 12,
    "post_nms_topN": 5,
    "nms_thresh": 0.5,
    "min_size": 2.0,
    "eta": 1.0,
}
PROPOSALS = {"RpnRois": 1, "RpnRoiProbs": 1, "RpnRoisLod": 1}

FIRST, SECOND = _boxes(2), _boxes(3)
OBJECTS = {
    "GtBoxes": Rows(np.concatenate([FIRST, SECOND]), [[2, 3]]),
    "IsCrowd": Rows([[0], [0], [0], [1], [0]], [[2, 3]], "int32"),
    "ImInfo": np.array([[48, 48, 1], [40, 44, 1.5]], "float32"),
}
ANCHORS = dict(OBJECTS, Anchor=_anchors(6, 6, (8, 16, 30)).transpose(2, 0, 1, 3).reshape(-1, 4))
LABELLED = dict(ANCHORS, GtLabels=Rows([[1], [2], [3], [4], [5]], [[2, 3]], "int32"))
FAR = dict(
    ANCHORS,
    GtBoxes=Rows([[60, 60, 70, 70], [2, 2, 18, 20], [5, 5, 20, 21]], [[1, 2]]),
    IsCrowd=Rows([[0]] * 3, [[1, 2]], "int32"),
)
ASSIGNED = {
    "rpn_batch_size_per_im": 16,
    "rpn_straddle_thresh": 0.0,
    "rpn_fg_fraction": 0.5,
    "rpn_positive_overlap": 0.4,
    "rpn_negative_overlap": 0.3,
    "use_random": False,
}
TARGETS = {
    "LocationIndex": 1,
    "ScoreIndex": 1,
    "TargetBBox": 1,
    "TargetLabel": 1,
    "BBoxInsideWeight": 1,
}

ROIS = np.concatenate([_near(FIRST, 6), _boxes(4), _near(SECOND, 7) * 1.5, _boxes(3) * 1.5]).astype("float32")
EMPTY_ROIS = ROIS.copy()
EMPTY_ROIS[[0, 12]] = 10, 10, 5, 5
EMPTY_ROIS[3] = 10, 10, 10, 10
SAMPLES = dict(
    OBJECTS,
    RpnRois=Rows(ROIS, [[10, 10]]),
    GtClasses=Rows([[1], [2], [3], [2], [1]], [[2, 3]], "int32"),
)
DRAWN = {
    "batch_size_per_im": 8,
    "fg_fraction": 0.25,
    "fg_thresh": 0.5,
    "bg_thresh_hi": 0.5,
    "bg_thresh_lo": 0.0,
    "bbox_reg_weights": [0.1, 0.1, 0.2, 0.2],
    "class_nums": 4,
    "use_random": False,
    "is_cls_agnostic": False,
    "is_cascade_rcnn": False,
}
LABELS = {
    "Rois": 1,
    "LabelsInt32": 1,
    "BboxTargets": 1,
    "BboxInsideWeights": 1,
    "BboxOutsideWeights": 1,
}

POLYGONS = [  # image -> object -> polygon -> points
    [[[(2, 2), (20, 3), (22, 18), (4, 21)]]],
    [
        [[(5, 5), (15, 5), (10, 14)]],
        [[(1, 1), (9, 1), (9, 9), (1, 9)], [(8, 8), (20, 10), (16, 22), (7.5, 19.3)]],
    ],
]
OUTLINES = Rows(
    [p for image in POLYGONS for o in image for polygon in o for p in polygon],
    [
        [len(image) for image in POLYGONS],
        [len(o) for image in POLYGONS for o in image],
        [len(polygon) for image in POLYGONS for o in image for polygon in o],
    ],
)
MASKED = {
    "ImInfo": np.array([[48, 48, 1], [40, 44, 1.5]], "float32"),
    "GtClasses": Rows([[1], [1], [2]], [[1, 2]], "int32"),
    "IsCrowd": Rows([[0], [0], [0]], [[1, 2]], "int32"),
    "GtSegms": OUTLINES,
    "Rois": Rows(
        [[1, 1, 21, 20], [30, 30, 40, 40], [6, 3, 19, 24], [3.3, 3.1, 30.5, 33.7], [0, 0, 10, 10]],
        [[2, 3]],
    ),
    "LabelsInt32": Rows([[1], [0], [1], [2], [0]], [[2, 3]], "int32"),
}
MASKS = {"MaskRois": 1, "RoiHasMaskInt32": 1, "MaskInt32": 1}
CORNERS = RNG.rand(9, 2) * 24
PYRAMID = Rows(np.concatenate([CORNERS, CORNERS + 4 + RNG.rand(9, 2) ** 4 * 200], 1), [[4, 5]])
LEVELS = {"min_level": 2, "max_level": 4, "refer_level": 3, "refer_scale": 32}
COLLECTED = {
    "MultiLevelRois": [Rows(_boxes(5), [[2, 3]]), Rows(_boxes(4), [[3, 1]])],
    "MultiLevelScores": [
        Rows([[0.1], [0.5], [0.5], [0.2], [0.9]], [[2, 3]]),
        Rows([[0.5], [0.3], [0.8], [0.5]], [[3, 1]]),
    ],
}

CASES = [
    ("proposals", "generate_proposals", PROPOSED, PROPOSALS, KEPT),
    (
        "proposals_all",
        "generate_proposals",
        PROPOSED,
        PROPOSALS,
        dict(KEPT, pre_nms_topN=0, post_nms_topN=0, nms_thresh=0.9, eta=0.8),
    ),
    (
        "proposals_equal_scores",
        "generate_proposals",
        dict(
            PROPOSED,
            Scores=np.round(PROPOSED["Scores"])[..., :1],
            BboxDeltas=PROPOSED["BboxDeltas"][..., :1],
            Anchors=GRID[:, :1],
            Variances=PROPOSED["Variances"][:, :1],
        ),
        PROPOSALS,
        dict(KEPT, post_nms_topN=-1, nms_thresh=0.7),
    ),
    (
        "proposals_none_of_an_image",
        "generate_proposals",
        dict(PROPOSED, ImInfo=np.array([[24, 24, 40], [20, 22, 1]], "float32")),
        PROPOSALS,
        dict(KEPT, min_size=4.0),
    ),
    ("rpn", "rpn_target_assign", ANCHORS, TARGETS, ASSIGNED),
    (
        "rpn_both",
        "rpn_target_assign",
        ANCHORS,
        TARGETS,
        dict(ASSIGNED, rpn_negative_overlap=0.9, rpn_positive_overlap=0.95),
    ),
    (
        "rpn_all",
        "rpn_target_assign",
        ANCHORS,
        TARGETS,
        dict(ASSIGNED, rpn_straddle_thresh=-1.0, rpn_batch_size_per_im=400),
    ),
    ("rpn_far", "rpn_target_assign", FAR, TARGETS, ASSIGNED),
    (
        "retinanet",
        "retinanet_target_assign",
        LABELLED,
        dict(TARGETS, ForegroundNumber=1),
        {"positive_overlap": 0.5, "negative_overlap": 0.4},
    ),
    (
        "retinanet_both",
        "retinanet_target_assign",
        LABELLED,
        dict(TARGETS, ForegroundNumber=1),
        {"positive_overlap": 0.3, "negative_overlap": 0.6},
    ),
    ("labels", "generate_proposal_labels", SAMPLES, LABELS, DRAWN),
    (
        "labels_agnostic",
        "generate_proposal_labels",
        SAMPLES,
        LABELS,
        dict(DRAWN, is_cls_agnostic=True, class_nums=2, batch_size_per_im=40, fg_fraction=0.9),
    ),
    (
        "labels_thresholds",
        "generate_proposal_labels",
        SAMPLES,
        LABELS,
        dict(DRAWN, bg_thresh_lo=0.1, bg_thresh_hi=0.3, fg_fraction=0.9),
    ),
    (
        "labels_crowd_as_background",
        "generate_proposal_labels",
        SAMPLES,
        LABELS,
        dict(DRAWN, fg_thresh=2.0, bg_thresh_hi=-0.5, bg_thresh_lo=-1.0),
    ),
    (
        "labels_cascade",
        "generate_proposal_labels",
        dict(SAMPLES, RpnRois=Rows(EMPTY_ROIS, [[10, 10]])),
        LABELS,
        dict(DRAWN, is_cascade_rcnn=True, batch_size_per_im=30),
    ),
    ("masks", "generate_mask_labels", MASKED, MASKS, {"num_classes": 3, "resolution": 5}),
    (
        "masks_no_object",
        "generate_mask_labels",
        dict(MASKED, LabelsInt32=Rows([[0]] * 5, [[2, 3]], "int32")),
        MASKS,
        {"num_classes": 3, "resolution": 2},
    ),
    (
        "masks_crowd",
        "generate_mask_labels",
        dict(MASKED, IsCrowd=Rows([[0], [0], [1]], [[1, 2]], "int32")),
        MASKS,
        {"num_classes": 3, "resolution": 7},
    ),
    (
        "distribute",
        "distribute_fpn_proposals",
        {"FpnRois": PYRAMID},
        {"MultiFpnRois": 3, "RestoreIndex": 1},
        LEVELS,
    ),
    (
        "distribute_borders",
        "distribute_fpn_proposals",
        {"FpnRois": Rows([[5, 5, 3, 3], [0, 0, 31, 31], [0, 0, 15, 15], [0, 0, 0, 0]], [[1, 3]])},
        {"MultiFpnRois": 3, "RestoreIndex": 1},
        LEVELS,
    ),
    ("collect", "collect_fpn_proposals", COLLECTED, {"FpnRois": 1}, {"post_nms_topN": 4}),
    ("collect_all", "collect_fpn_proposals", COLLECTED, {"FpnRois": 1}, {"post_nms_topN": 100}),
]


def run(fluid, case):
    """{variable: (values, shape, lod)} of the outputs of a case."""
    _, op, inputs, outs, attrs = case
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        block = main.global_block()
        feed, names = {}, {}
        for slot, value in inputs.items():
            names[slot] = []
            for i, v in enumerate(value if isinstance(value, list) else [value]):
                name, ragged = "%s_%d" % (slot, i), isinstance(v, Rows)
                array = v.values if ragged else v
                block.create_var(
                    name=name,
                    shape=[-1] + list(array.shape[1:]) if ragged else list(array.shape),
                    dtype=str(array.dtype),
                    is_data=True,
                    lod_level=len(v.lengths) if ragged else 0,
                )
                names[slot].append(name)
                feed[name] = fluid.create_lod_tensor(array, v.lengths, fluid.CPUPlace()) if ragged else array
        found = {
            slot: [block.create_var(name="%s_out_%d" % (slot, i), dtype="float32") for i in range(n)]
            for slot, n in outs.items()
        }
        block.append_op(type=op, inputs=names, outputs=found, attrs=dict(attrs))
        fetches = [v for variables in found.values() for v in variables]
        exe = fluid.Executor(fluid.CPUPlace())
        values = exe.run(main, feed=feed, fetch_list=fetches, return_numpy=False)
    return {
        var.name: (np.array(v).ravel().tolist(), list(np.array(v).shape), v.lod()) for var, v in zip(fetches, values)
    }

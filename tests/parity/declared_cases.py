"""The cases of `declared`."""

import numpy as np

from tests.parity.declared import Case, Rows

RNG = np.random.RandomState(0)
F, I32, I64 = "float32", "int32", "int64"


def _r(*shape):
    return RNG.uniform(-1, 1, shape).astype(F)


def _i(values, dtype=I64):
    return np.array(values, dtype)


D, M, LENGTHS = 3, 4, [[0, 2, 0, 3, 1]]
H_0, C_0 = _r(5, D), _r(5, D)
X_3, X = Rows(_r(6, 3 * D), LENGTHS), Rows(_r(6, M), LENGTHS)
W_3, W_4, B_3, B_4, B_7 = _r(D, 3 * D), _r(D, 4 * D), _r(1, 3 * D), _r(1, 4 * D), _r(1, 7 * D)
W_M3, W_M4, W_5, IDS = _r(M, 3 * D), _r(M, 4 * D), _r(7, 4 * D), RNG.randint(0, 7, (6, 1))
FUSED = {"Hidden": F, "Cell": F, "XX": F}
BATCHED = ["BatchedInput", "BatchedHidden", "BatchedCell", "ReorderedH0", "ReorderedC0"]
CHECKED = ["CheckedCell"]


def _fused():
    for use_seq in (False, True):
        end = "_seq" if use_seq else ""
        attrs = {"is_reverse": True, "use_seq": use_seq}
        outs = ["ReorderedH0", "XX", "BatchedInput", "BatchedOut"]
        yield Case(
            "fusion_gru" + end,
            "fusion_gru",
            {"X": X, "WeightX": W_M3, "WeightH": W_3, "Bias": B_3, "H0": H_0},
            dict({"Hidden": F}, **dict.fromkeys(outs, F)),
            attrs,
            hidden=outs,
        )
        yield Case(
            "fusion_lstm" + end,
            "fusion_lstm",
            {"X": X, "WeightX": W_M4, "WeightH": W_4, "Bias": B_7, "H0": H_0, "C0": C_0},
            dict(FUSED, **dict.fromkeys(BATCHED + CHECKED, F)),
            dict(attrs, use_peepholes=True),
            hidden=["XX"] + BATCHED + CHECKED,
        )
        yield Case(
            "fused_embedding_fc_lstm" + end,
            "fused_embedding_fc_lstm",
            {
                "Ids": Rows(IDS, LENGTHS, I64),
                "Embeddings": W_5,
                "WeightH": W_4,
                "Bias": B_4,
                "H0": H_0,
                "C0": C_0,
            },
            dict(FUSED, **dict.fromkeys(BATCHED, F)),
            dict(attrs, use_peepholes=False),
            hidden=["XX"] + BATCHED,
        )


def _boxes(number, room):
    low = RNG.uniform(0, room / 2, (number, 2))
    return np.concatenate([low, low + RNG.uniform(4, room / 2, (number, 2))], 1).astype(F)


ROIS = _boxes(5, 24.0)
TWO = [[2, 3]]
ANCHORS = np.concatenate([_boxes(4, 20.0), _boxes(4, 24.0)])
SLICED = [
    Case(
        "sequence_slice_%d" % len(lengths[0]),
        "sequence_slice",
        {
            "X": Rows(_r(10, 3, 2), lengths),
            "Offset": _i([[1], [0], [2]]),
            "Length": _i([[2], [0], [1]]),
        },
        {"Out": F},
        {},
        ["X"],
    )
    for lengths in ([[4, 3, 3]],)
]
IMAGE = _r(1, 2, 4, 4)


def _recurrent():
    """Recurrent operators with all states declared, and the gradients of all inputs.

    In the gradients of Weight, H0 and C0 of LSTMs, Fluid counts states of empty sequences, so these are left out.
    """
    random, hidden, projected = np.random.RandomState(1), 3, 2

    def values(*shape):
        return random.uniform(-1, 1, shape).astype(F)

    for lengths in ([[1, 2, 3]], [[0, 2, 0, 3, 1]]):
        count, end = len(lengths[0]), "_%d" % len(lengths[0])
        for reverse in (False, True):
            name = end + ("_reverse" if reverse else "")
            for op, gates, attrs in (
                ("gru", 3, {"origin_mode": reverse}),
                ("lstm", 4, {"use_peepholes": reverse}),
                ("lstmp", 4, {"use_peepholes": reverse, "proj_activation": "tanh"}),
            ):
                out = projected if op == "lstmp" else hidden
                inputs = {
                    "Input": Rows(values(6, gates * hidden), lengths),
                    "Weight": values(out, gates * hidden),
                    "Bias": values(1, (7 if gates == 4 and reverse else gates) * hidden),
                    "H0": values(count, out),
                }
                batched = ["BatchGate", "BatchResetHiddenPrev", "BatchHidden"]
                outputs = ["Hidden"]
                if op != "gru":
                    inputs["C0"] = values(count, hidden)
                    batched, outputs = ["BatchGate", "BatchCellPreAct"], ["Hidden", "Cell"]
                if op == "lstmp":
                    inputs["ProjWeight"] = values(hidden, projected)
                    batched, outputs = batched + ["BatchHidden"], ["Projection", "Cell"]
                yield Case(
                    op + name,
                    op,
                    inputs,
                    dict.fromkeys(outputs + batched, F),
                    dict(attrs, is_reverse=reverse),
                    sorted(set(inputs) - ({"Weight", "H0", "C0"} if 0 in lengths[0] and op != "gru" else set())),
                    hidden=batched,
                )


CASES = [
    *_fused(),
    *SLICED,
    Case(
        "data_norm",
        "data_norm",
        {
            "X": _r(2, 3),
            "BatchSize": np.full(3, 1e4, F),
            "BatchSum": np.zeros(3, F),
            "BatchSquareSum": np.full(3, 1e4, F),
        },
        {"Y": F, "Means": F, "Scales": F},
        {"epsilon": 1e-5, "use_mkldnn": False},
        ["X"],
    ),
    Case(
        "retinanet_output",
        "retinanet_detection_output",
        {
            "BBoxes": [_r(1, 4, 4) * 0.1, _r(1, 2, 4) * 0.1],
            "Scores": [np.abs(_r(1, 4, 3)), np.abs(_r(1, 2, 3))],
            "Anchors": [_boxes(4, 24.0), _boxes(2, 24.0)],
            "ImInfo": Rows([[24, 24, 1]], [[1]]),
        },
        {"Out": F},
        {
            "score_threshold": 0.05,
            "nms_top_k": 6,
            "nms_threshold": 0.3,
            "keep_top_k": 5,
            "nms_eta": 1.0,
        },
    ),
    Case(
        "prroi_pool",
        "prroi_pool",
        {"X": _r(2, 3, 8, 8), "ROIs": Rows(ROIS / 4, TWO)},
        {"Out": F},
        {"spatial_scale": 1.0, "pooled_height": 2, "pooled_width": 2},
        ["X"],
    ),
    Case(
        "prroi_pool_numbers",
        "prroi_pool",
        {"X": _r(2, 3, 8, 8), "ROIs": ROIS / 4, "BatchRoINums": _i([2, 3])},
        {"Out": F},
        {"spatial_scale": 1.0, "pooled_height": 2, "pooled_width": 2},
        ["X"],
    ),
    Case(
        "mine_hard_examples",
        "mine_hard_examples",
        {
            "ClsLoss": np.array([[0.1, 0.1, 0.3], [0.3, 0.1, 0.1]], F),
            "LocLoss": np.array([[0.1, 0.2, 0.3], [0.3, 0.4, 0.1]], F),
            "MatchIndices": _i([[0, -1, -1], [-1, 0, -1]], I32),
            "MatchDist": np.array([[0.2, 0.4, 0.8], [0.1, 0.9, 0.3]], F),
        },
        {"NegIndices": I32, "UpdatedMatchIndices": I32},
        {
            "neg_pos_ratio": 1.0,
            "neg_dist_threshold": 0.5,
            "sample_size": 0,
            "mining_type": "max_negative",
        },
    ),
    Case(
        "mine_hard_examples_of_all",
        "mine_hard_examples",
        {
            "ClsLoss": np.array([[0.5, 0.1, 0.3], [0.3, 0.1, 0.2]], F),
            "LocLoss": np.array([[0.2, 0.2, 0.3], [0.3, 0.4, 0.2]], F),
            "MatchIndices": _i([[0, -1, -1], [-1, 0, -1]], I32),
            "MatchDist": np.array([[0.2, 0.4, 0.8], [0.1, 0.9, 0.3]], F),
        },
        {"NegIndices": I32, "UpdatedMatchIndices": I32},
        {"sample_size": 2, "mining_type": "hard_example"},
    ),
    *[
        Case(
            "center_loss_%s" % update,
            "center_loss",
            {
                "X": _r(4, 3),
                "Label": _i([0, 1, 1, 2]),
                "Centers": _r(5, 3),
                "CenterUpdateRate": np.array([0.1], F),
            },
            {"SampleCenterDiff": F, "Loss": F, "CentersOut": F},
            {"cluster_num": 5, "lambda": 0.1, "need_update": update},
            ["X"],
            ["Loss"],
        )
        for update in (True, False)
    ],
    *[
        Case("randperm_%d" % dtype, "randperm", {}, {"Out": name}, {"n": 6, "dtype": dtype})
        for dtype, name in ((2, I32), (3, I64))
    ],
    Case(
        "var_conv_2d",
        "var_conv_2d",
        {
            "X": Rows(_r(2 * (6 + 4), 1), [[12, 8]]),
            "ROW": Rows(_r(5, 1), [[3, 2]]),
            "COLUMN": Rows(_r(4, 1), [[2, 2]]),
            "W": _r(3, 2 * 4),
        },
        {"Out": F, "Col": F},
        {
            "InputChannel": 2,
            "OutputChannel": 3,
            "StrideH": 1,
            "StrideW": 1,
            "KernelH": 2,
            "KernelW": 2,
        },
        ["X"],
        hidden=["Col"],
    ),
    Case(
        "sequence_topk_avg_pooling",
        "sequence_topk_avg_pooling",
        {
            "X": Rows(_r(2 * (6 + 4), 1), [[12, 8]]),
            "ROW": Rows(_r(5, 1), [[3, 2]]),
            "COLUMN": Rows(_r(4, 1), [[2, 2]]),
        },
        {"Out": F, "pos": I32},
        {"topks": [1, 2], "channel_num": 2},
        ["X"],
        hidden=["pos"],
    ),
    Case(
        "max_pool3d_with_index_adaptive",
        "max_pool3d_with_index",
        {"X": _r(1, 2, 5, 7, 6)},
        {"Out": F, "Mask": I32},
        {"ksize": [2, 3, 2], "adaptive": True},
        ["X"],
    ),
    Case(
        "one_hot_depth",
        "one_hot",
        {"X": Rows([[0], [2], [1], [3]], [[1, 3]], I32), "depth_tensor": _i([5], I32)},
        {"Out": F},
        {"dtype": 5},
    ),
    Case(
        "one_hot_v2_depth",
        "one_hot_v2",
        {"X": Rows([0, 2, 1, 3], [[1, 3]], I32), "depth_tensor": _i([5], I32)},
        {"Out": F},
        {"dtype": 5},
    ),
    *[
        Case(
            "gaussian_random_" + end,
            "gaussian_random",
            inputs,
            {"Out": F},
            dict(attrs, mean=2.0, std=0.0),
        )
        for end, inputs, attrs in (
            ("shape", {"ShapeTensor": _i([3, 4], I32)}, {}),
            ("shapes", {"ShapeTensorList": [_i([3], I32), _i([4], I32)]}, {"shape": [-1, 4]}),
        )
    ],
    *[
        Case(
            "bilinear_interp_%s_%d" % (corners, mode),
            "bilinear_interp",
            {"X": IMAGE},
            {"Out": F},
            {
                "out_h": 3,
                "out_w": 7,
                "interp_method": "bilinear",
                "align_corners": corners,
                "align_mode": mode,
            },
            ["X"],
        )
        for corners in (True, False)
        for mode in (0, 1)
    ],
    Case(
        "bilinear_interp_sizes",
        "bilinear_interp",
        {"X": IMAGE, "SizeTensor": [_i([3], I32), _i([7], I32)], "OutSize": _i([5, 5], I32)},
        {"Out": F},
        {"out_h": 2, "out_w": 2, "interp_method": "bilinear", "align_corners": True},
    ),
    Case(
        "bilinear_interp_bytes",
        "bilinear_interp",
        {"X": (IMAGE * 100 + 120).astype("uint8")},
        {"Out": "uint8"},
        {"out_h": 3, "out_w": 7, "interp_method": "bilinear", "align_corners": True},
    ),
    Case(
        "bilinear_interp_last",
        "bilinear_interp",
        {"X": _r(1, 4, 4, 2), "Scale": np.array([1.5], F)},
        {"Out": F},
        {
            "out_h": -1,
            "out_w": -1,
            "scale": 0.0,
            "interp_method": "bilinear",
            "align_corners": False,
            "align_mode": 1,
            "data_layout": "NHWC",
        },
    ),
    *_recurrent(),
]

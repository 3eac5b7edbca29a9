"""Operators of CTC, text matching and hashing, on what only Fluid can tell. A case is as in
`tests.parity.ops`.
"""

import numpy as np

from tests.parity.ops import Rows, operator

RNG = np.random.RandomState(3)


def _r(*shape):
    return RNG.randn(*shape).astype("float32")


def _i(values, dtype="int64"):
    return np.array(values, dtype)


LOGITS, PADDED = Rows(_r(9, 4), [[4, 2, 3]]), _r(4, 3, 4)
LABELS = Rows([[1], [1], [3], [2], [3]], [[2, 1, 2]], "int32")
CTC = {"blank": 0, "norm_by_times": False}
PATHS = [[0], [1], [1], [0], [2], [2], [0], [0], [3], [0]]
MERGED = {"blank": 0, "merge_repeated": True}
GRID = _i([[0, 1, 2, 2, 0, 4], [0, 4, 5, 0, 6, 0], [0, 7, 7, 7, 0, 0]])
HYPS = Rows([[12], [3], [5], [8], [2]], [[3, 0, 2]], "int64")
REFS = Rows([[12], [4], [7], [8], [1], [2], [8]], [[4, 1, 2]], "int64")
TEXTS = Rows(_r(5, 2), [[2, 3]]), Rows(_r(4, 2), [[3, 1]])
MATRIX = _r(2, 2, 2)
PICTURES, HIGH, WIDE = (
    Rows(_r(46, 1), [[30, 16]]),
    Rows(_r(7, 1), [[3, 4]]),
    Rows(_r(7, 1), [[5, 2]]),
)
QUERIES = {
    "Score": _r(7, 2),
    "Label": _i([[0], [1], [2], [1], [0], [1], [3]], "float32"),
    "QueryID": _i([[1], [1], [1], [2], [2], [2], [2]]),
}
QUERIES["Score"][3] = QUERIES["Score"][6]
PAIRS = ["PositivePair", "NegativePair", "NeutralPair"]
INSTANCES, TAGS = Rows(_r(6, 2), [[2, 1, 3]]), Rows([[0], [1], [1], [3], [2]], [[2, 1, 2]], "int64")
ATTENTION = {
    "X": Rows(_r(6, 3), [[2, 0, 4]]),
    "C0": _r(3, 2),
    "AttentionWeight": _r(5, 1),
    "LSTMWeight": _r(5, 8),
    "LSTMBias": _r(1, 8),
}


def _convolution(kernel, strides):
    return operator(
        "var_conv_2d_%d%d_%d%d" % (kernel + strides),
        "var_conv_2d",
        {"X": PICTURES, "ROW": HIGH, "COLUMN": WIDE, "W": _r(3, 2 * kernel[0] * kernel[1])},
        attrs={
            "InputChannel": 2,
            "OutputChannel": 3,
            "KernelH": kernel[0],
            "KernelW": kernel[1],
            "StrideH": strides[0],
            "StrideW": strides[1],
        },
        others=["Col"],
        grads=["X", "W"],
    )


def _match(name, x, y, outs):
    inputs, others = {"X": x, "Y": y, "W": MATRIX}, ["Tmp"] if len(outs) < 2 else []
    grads = ["X", "Y", "W"]
    return operator(
        "match_matrix" + name, "match_matrix_tensor", inputs, outs=outs, attrs={"dim_t": 2}, others=others, grads=grads
    )


def _hashed(name, x):
    return operator("hash" + name, "hash", {"X": x}, attrs={"num_hash": 3, "mod_by": 2**20})


def _filtered(name, ins, wanted, is_lod):
    return operator(
        "filter_by_instag" + name,
        "filter_by_instag",
        {"Ins": ins, "Ins_tag": TAGS, "Filter_tag": _i(wanted)},
        outs=["Out", "LossWeight", "IndexMap"],
        attrs={"is_lod": is_lod, "out_val_if_empty": 5},
        grads=["Ins"],
    )


def _attention(name, **more):
    return operator(
        "attention_lstm" + name,
        "attention_lstm",
        dict(ATTENTION, **more),
        outs=["Hidden", "Cell"],
        attrs={"candidate_activation": "relu"} if more else {},
        others=["AttentionedX", "AttentionFCOut", "LSTMX", "LSTMOUT"],
    )


def _filter(places):
    """A Bloom filter of 128 bits and 3 hashes, in which these bits are set."""
    bits = np.zeros(128, "uint8")
    bits[places] = 1
    header = np.array([17070416, 128, 3, 0], "uint64").tobytes()
    return np.frombuffer(header + np.packbits(bits).tobytes(), "float32").reshape(-1, 1).copy()


# that of the runs (1, 2) and (2, 3, 4), one without entries, and one of everything
FILTER, EMPTY_FILTER, FULL_FILTER = (
    _filter([5, 6, 18, 25, 53, 76, 79, 84, 111, 118, 119]),
    _filter([]),
    _filter(slice(None)),
)


def _pyramid(name, lengths=((4, 1, 0, 3),), white=None, black=None, **more):
    words = np.arange(1, 1 + sum(lengths[0]))[:, None] % 6
    attrs = {
        "num_emb": 6,
        "space_len": 50,
        "pyramid_layer": 3,
        "rand_len": 2,
        "drop_out_percent": 0.25,
        "is_training": 0,
        "use_filter": white is not None,
        "white_list_len": 0 if white is None else len(white),
        "black_list_len": 0 if black is None else len(black),
        "seed": 0,
        "lr": 0.5,
        "distribute_update_vars": "",
    }
    attrs.update(more)
    empty = np.zeros((0, 1), "float32")
    inputs = {
        "X": Rows(words, [list(n) for n in lengths], "int32"),
        "W": np.arange(52, dtype="float32")[:, None] / 8,
        "WhiteList": empty if white is None else white,
        "BlackList": empty if black is None else black,
    }
    return operator("pyramid_hash" + name, "pyramid_hash", inputs, attrs=attrs, others=["DropPos", "X_Temp_Out"])


def _ctc(name, inputs, attrs=CTC, grads=("Logits",)):
    return operator(
        "warpctc" + name, "warpctc", inputs, outs=["Loss"], attrs=attrs, others=["WarpCTCGrad"], grads=list(grads)
    )


def _align(name, inputs, attrs=MERGED, outs=("Output",)):
    return operator("ctc_align" + name, "ctc_align", inputs, outs=list(outs), attrs=attrs)


def _edit(name, inputs, normalized):
    attrs = {"normalized": normalized}
    return operator("edit_distance" + name, "edit_distance", inputs, outs=["Out", "SequenceNum"], attrs=attrs)


CASES = [
    _ctc("", {"Logits": LOGITS, "Label": LABELS}),
    _ctc("_by_times", {"Logits": LOGITS, "Label": LABELS}, dict(CTC, norm_by_times=True)),
    _ctc(
        "_last_blank",
        {"Logits": LOGITS, "Label": Rows(LABELS.values - 1, LABELS.lengths, "int32")},
        dict(CTC, blank=3),
    ),
    _ctc("_long_labels", {"Logits": LOGITS, "Label": Rows([[1]] * 8, [[2, 2, 4]], "int32")}),
    _ctc("_empty_label", {"Logits": LOGITS, "Label": Rows([[1], [1], [3]], [[2, 0, 1]], "int32")}),
    _ctc("_empty_logits", {"Logits": Rows(_r(7, 4), [[4, 0, 3]]), "Label": LABELS}),
    _ctc(
        "_padded",
        {
            "Logits": PADDED,
            "Label": _i([[1, 2], [3, 0], [2, 2]], "int32"),
            "LogitsLength": _i([4, 2, 3]),
            "LabelLength": _i([2, 1, 2]),
        },
        dict(CTC, norm_by_times=True),
    ),
    _align("", {"Input": Rows(PATHS, [[5, 2, 3]], "int64")}),
    _align(
        "_unmerged",
        {"Input": Rows(PATHS, [[5, 2, 3]], "int32")},
        {"blank": 2, "merge_repeated": False},
    ),
    _align("_nothing", {"Input": Rows([[0], [0], [0]], [[1, 2]], "int64")}),
    _align("_one_empty", {"Input": Rows([[0], [1], [0]], [[0, 1, 2]], "int64")}),
    _align(
        "_padded",
        {"Input": GRID, "InputLength": _i([[6], [5], [4]])},
        dict(MERGED, padding_value=9),
        ("Output", "OutputLength"),
    ),
    _edit("", {"Hyps": HYPS, "Refs": REFS}, False),
    _edit("_normalized", {"Hyps": HYPS, "Refs": REFS}, True),
    _edit("_empty", {"Hyps": HYPS, "Refs": Rows([[12], [4]], [[0, 0, 2]], "int64")}, False),
    _edit(
        "_padded",
        {
            "Hyps": _i([[1, 2, 3], [4, 5, 6]]),
            "Refs": _i([[1, 3, 4, 1], [4, 5, 8, 1]]),
            "HypsLength": _i([3, 2]),
            "RefsLength": _i([4, 3]),
        },
        False,
    ),
    _match("", TEXTS[0], TEXTS[1], ["Out", "Tmp"]),
    _match("_empty", Rows(_r(2, 2), [[2, 0]]), TEXTS[1], ["Out"]),
    _convolution((3, 3), (1, 1)),
    _convolution((2, 3), (2, 1)),
    _convolution((5, 1), (1, 3)),
    operator("positive_negative_pair", "positive_negative_pair", QUERIES, outs=PAIRS, attrs={"column": -1}),
    operator(
        "positive_negative_pair_weighted",
        "positive_negative_pair",
        dict(
            QUERIES,
            Weight=_r(7, 1),
            AccumulatePositivePair=_r(1),
            AccumulateNegativePair=_r(1),
            AccumulateNeutralPair=_r(1),
        ),
        outs=PAIRS,
        attrs={"column": 0},
    ),
    _hashed("_32", Rows([[1, 2], [3, 4], [5, -6]], [[2, 1]], "int32")),
    _hashed("_odd", Rows([[1, 2, 3], [3, 4, 5]], [[2, 0]], "int32")),
    _hashed("_one", _i([[7], [8]], "int32")),
    _hashed("_64", Rows(np.arange(20).reshape(4, 5) - 7, [[4]], "int64")),
    _filtered("", INSTANCES, [3, 1], True),
    _filtered("_none", INSTANCES, [7], True),
    _filtered("_rows", _r(3, 2), [1], False),
    _filtered("_no_row", _r(3, 2), [9], False),
    _pyramid(""),
    _pyramid("_long", [[5]], pyramid_layer=6, num_emb=3, rand_len=3, space_len=49),
    _pyramid("_training", is_training=1, drop_out_percent=0.0),
    _pyramid("_white", white=FILTER, black=EMPTY_FILTER),
    _pyramid("_black", white=FULL_FILTER, black=FILTER),
    _attention(""),
    _attention("_scaled", AttentionScalar=_r(1, 1), AttentionScalarBias=_r(1, 1)),
    _attention(
        "_all",
        H0=_r(3, 2),
        AttentionBias=_r(1, 1),
        AttentionScalar=_r(1, 1),
        AttentionScalarBias=_r(1, 1),
    ),
]

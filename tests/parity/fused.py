"""Fused operators over sequences, as cases of tests/parity/ops.py: what the real Fluid alone can tell."""

import numpy as np

from tests.parity.ops import Rows, operator

RNG = np.random.RandomState(5)


def _r(*shape):
    return RNG.uniform(-1, 1, shape).astype("float32")


LENGTHS, ONES, M, D = [[2, 3, 1]], [[1, 1, 1]], 3, 2
X = Rows(_r(6, M), LENGTHS)
IDS = Rows([[1], [4], [0], [3], [3], [2]], LENGTHS, "int64")
H_0, C_0 = _r(3, D), _r(3, D)
LSTM_OTHERS = ["XX", "BatchedInput", "BatchedHidden", "BatchedCell", "ReorderedH0", "ReorderedC0"]
GRU = {"X": X, "WeightX": _r(M, 3 * D), "WeightH": _r(D, 3 * D), "Bias": _r(1, 3 * D)}
GRU_OTHERS = ["ReorderedH0", "XX", "BatchedInput", "BatchedOut"]
LSTM = {"X": X, "WeightX": _r(M, 4 * D), "WeightH": _r(D, 4 * D)}
PEEPHOLES = {"Bias": _r(1, 7 * D)}
PLAIN = {"Bias": _r(1, 4 * D)}
START = {"H0": H_0, "C0": C_0}
EMBEDDED = {"Ids": IDS, "Embeddings": _r(5, 4 * D), "WeightH": _r(D, 4 * D)}
WINDOW = {"contextLength": 3, "contextStart": -1, "contextStride": 1}
POOLED = [Rows(_r(6, 4), LENGTHS), Rows(_r(5, 4), [[1, 2, 2]])]
COUNTS = [Rows(np.abs(p.values), p.lengths) for p in POOLED]

CASES = [
    operator("fusion_gru", "fusion_gru", GRU, outs=["Hidden"], others=GRU_OTHERS),
    operator(
        "fusion_gru start, reverse",
        "fusion_gru",
        {**GRU, "H0": H_0},
        outs=["Hidden"],
        attrs={"is_reverse": True, "use_seq": False},
        others=GRU_OTHERS,
    ),
    operator(
        "fusion_lstm peepholes",
        "fusion_lstm",
        {**LSTM, **PEEPHOLES},
        outs=["Hidden", "Cell"],
        attrs={"use_peepholes": True},
        others=LSTM_OTHERS + ["CheckedCell"],
    ),
    operator(
        "fusion_lstm start, reverse",
        "fusion_lstm",
        {**LSTM, **PLAIN, **START},
        outs=["Hidden", "Cell"],
        attrs={"use_peepholes": False, "is_reverse": True, "candidate_activation": "relu"},
        others=LSTM_OTHERS + ["CheckedCell"],
    ),
    operator(
        "fused_embedding_fc_lstm",
        "fused_embedding_fc_lstm",
        {**EMBEDDED, **PLAIN},
        outs=["Hidden", "Cell"],
        attrs={"use_peepholes": False},
        others=LSTM_OTHERS,
    ),
    operator(
        "fused_embedding_fc_lstm start, reverse",
        "fused_embedding_fc_lstm",
        {**EMBEDDED, **PLAIN, **START},
        outs=["Hidden", "Cell"],
        attrs={"use_peepholes": False, "is_reverse": True, "use_seq": False},
        others=LSTM_OTHERS,
    ),
    operator(
        "fusion_seqconv_eltadd_relu",
        "fusion_seqconv_eltadd_relu",
        {"X": X, "Filter": _r(3 * M, 4), "Bias": _r(1, 4)},
        attrs=WINDOW,
        others=["ColMat"],
    ),
    operator(
        "fusion_seqexpand_concat_fc",
        "fusion_seqexpand_concat_fc",
        {"X": [X, Rows(_r(3, 2), ONES), Rows(_r(3, 1), ONES)], "FCWeight": _r(M + 3, 4), "FCBias": _r(1, 4)},
        attrs={"fc_activation": "tanh"},
        others=["FCOut"],
    ),
    operator("fusion_seqpool_concat", "fusion_seqpool_concat", {"X": POOLED}, attrs={"pooltype": "SQRT"}),
    operator(
        "fusion_seqpool_cvm_concat",
        "fusion_seqpool_cvm_concat",
        {"X": COUNTS, "CVM": np.ones((3, 2), "float32")},
        attrs={"pooltype": "SUM", "use_cvm": True},
    ),
]

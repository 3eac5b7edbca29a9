"""Single operators on sequences, and on what else Fluid alone can tell, for any engine that offers
the Fluid API.

`operator` makes a case.
"""

import numpy as np

RNG = np.random.RandomState(0)


class Rows:
    """Rows in sequences: values and lengths by level."""

    def __init__(self, values, lengths, dtype="float32"):
        self.values, self.lengths = np.array(values, dtype), lengths


def _r(*shape):
    return RNG.randn(*shape).astype("float32")


def _i(values, dtype="int64"):
    return np.array(values, dtype)


def operator(name, op, inputs, outs=("Out",), attrs=(), others=(), grads=()):
    """A case: name, operator, inputs, outputs to compare, attributes, further outputs, inputs with gradients."""
    return name, op, inputs, list(outs), dict(attrs), list(others), list(grads)


LENGTHS = [[2, 0, 3]]
X = Rows([[1, 4], [3, 2], [2, 9], [7, 5], [6, 1]], LENGTHS)
X_2 = Rows([[1, 4], [3, 2], [2, 9], [7, 5], [6, 1]], [[2, 1], [1, 2, 2]])
IDS = Rows([[1], [2], [3], [2], [5]], LENGTHS, "int64")
FULL = [[2, 3, 1]]
D, P, K = 2, 3, 3
X_4, X_3 = Rows(_r(6, 4 * D), FULL), Rows(_r(6, 3 * D), FULL)
H_0, C_0 = _r(3, D), _r(3, D)
W_4, B_4, B_7 = _r(D, 4 * D) * 0.5, _r(1, 4 * D), _r(1, 7 * D)
W_3, B_3 = _r(D, 3 * D), _r(1, 3 * D)
EMISSION, TRANSITION = Rows(_r(6, K), FULL), _r(K + 2, K)
TAGS = Rows(RNG.randint(0, K, (6, 1)), FULL, "int64")
DENSE, DENSE_TAGS, STEPS = _r(2, 4, K), RNG.randint(0, K, (2, 4)).astype("int64"), _i([[3], [4]])
CRF = ["Alpha", "EmissionExps", "TransitionExps"]
GATES = ["BatchGate", "BatchCellPreAct"]
CHUNKS = ["Precision", "Recall", "F1-Score", "NumInferChunks", "NumLabelChunks", "NumCorrectChunks"]
ROWS, LABELS = _r(3, 2), _i([[1], [5], [0]])
NCE = {
    "num_total_classes": 6,
    "num_neg_samples": 2,
    "sampler": 0,
    "seed": 0,
    "is_sparse": False,
    "custom_neg_classes": [2, 3],
    "remote_prefetch": False,
}
SUMMARIES = {
    "BatchSize": np.array([4, 4, 4], "float32"),
    "BatchSum": np.array([1, 2, 3], "float32"),
    "BatchSquareSum": np.array([5, 6, 7], "float32"),
}


def _chunk_cases():
    for scheme, tags in (("IOB", 2), ("IOE", 2), ("IOBES", 4), ("plain", 1)):
        for excluded in ([], [1]):
            r = np.random.RandomState(5)
            found = r.randint(0, 3 * tags + 1, (40, 1))
            wanted, changed = found.copy(), r.rand(40) < 0.3
            wanted[changed] = r.randint(0, 3 * tags + 1, (changed.sum(), 1))
            lengths = [[10, 0, 17, 13]]
            yield operator(
                "chunk_eval_%s_%d" % (scheme, len(excluded)),
                "chunk_eval",
                {"Inference": Rows(found, lengths, "int64"), "Label": Rows(wanted, lengths, "int64")},
                outs=CHUNKS,
                attrs={"num_chunk_types": 3, "chunk_scheme": scheme, "excluded_chunk_types": excluded},
            )
    yield operator(
        "chunk_eval_dense",
        "chunk_eval",
        {"Inference": found.reshape(4, 10), "Label": wanted.reshape(4, 10), "SeqLength": _i([10, 3, 7, 0])},
        outs=CHUNKS,
        attrs={"num_chunk_types": 3, "chunk_scheme": "plain", "excluded_chunk_types": []},
    )


CASES = [
    *[
        operator(
            "sequence_pool_" + kind,
            "sequence_pool",
            {"X": X},
            outs=["Out", "MaxIndex"] if kind == "MAX" else ["Out"],
            attrs={"pooltype": kind, "pad_value": -5.0},
            others=[] if kind == "MAX" else ["MaxIndex"],
            grads=["X"],
        )
        for kind in ("SUM", "AVERAGE", "SQRT", "MAX", "LAST", "FIRST")
    ],
    operator(
        "sequence_pool_levels", "sequence_pool", {"X": X_2}, attrs={"pooltype": "SUM"}, others=["MaxIndex"], grads=["X"]
    ),
    operator("sequence_softmax", "sequence_softmax", {"X": Rows([[1], [2], [3], [4], [5]], LENGTHS)}, grads=["X"]),
    operator("sequence_expand_rows", "sequence_expand", {"X": _r(3, 2), "Y": X}, attrs={"ref_level": 0}, grads=["X"]),
    operator(
        "sequence_expand_last_level", "sequence_expand", {"X": _r(3, 2), "Y": X_2}, attrs={"ref_level": -1}, grads=["X"]
    ),
    operator(
        "sequence_expand_sequences",
        "sequence_expand",
        {"X": Rows([[1], [2], [3], [4]], [[1, 3]]), "Y": Rows([[0]] * 5, [[2, 3], [1] * 5])},
        attrs={"ref_level": 0},
        grads=["X"],
    ),
    operator(
        "sequence_expand_none",
        "sequence_expand",
        {"X": Rows([[1], [2], [3], [4]], [[1, 3]]), "Y": Rows([[0]] * 2, [[2, 0]])},
        attrs={"ref_level": 0},
    ),
    operator("sequence_expand_as", "sequence_expand_as", {"X": _r(3, 2), "Y": X}, grads=["X"]),
    operator(
        "sequence_concat", "sequence_concat", {"X": [X, Rows([[0, 1], [0, 2], [0, 3]], [[1, 1, 1]])]}, grads=["X"]
    ),
    operator(
        "sequence_slice",
        "sequence_slice",
        {"X": X, "Offset": _i([[0], [0], [1]]), "Length": _i([[1], [0], [2]])},
        grads=["X"],
    ),
    operator(
        "sequence_pad",
        "sequence_pad",
        {"X": X, "PadValue": np.array([9], "float32")},
        outs=["Out", "Length"],
        attrs={"padded_length": -1},
        grads=["X"],
    ),
    operator(
        "sequence_pad_length",
        "sequence_pad",
        {"X": X, "PadValue": np.array([9, 8], "float32")},
        outs=["Out", "Length"],
        attrs={"padded_length": 4},
        grads=["X"],
    ),
    operator("sequence_unpad", "sequence_unpad", {"X": _r(3, 4, 2), "Length": _i([2, 1, 3])}, grads=["X"]),
    operator("sequence_unpad_numbers", "sequence_unpad", {"X": _r(3, 4), "Length": _i([2, 0, 3])}),
    operator(
        "sequence_reshape_wider", "sequence_reshape", {"X": Rows(_r(6, 2), [[2, 4]])}, attrs={"new_dim": 4}, grads=["X"]
    ),
    operator(
        "sequence_reshape_narrower",
        "sequence_reshape",
        {"X": Rows(_r(3, 4), [[1, 2]])},
        attrs={"new_dim": 2},
        grads=["X"],
    ),
    operator("sequence_reverse", "sequence_reverse", {"X": X}, outs=["Y"], grads=["X"]),
    operator(
        "sequence_scatter",
        "sequence_scatter",
        {
            "X": _r(3, 4),
            "Ids": Rows([[0], [1], [0], [2], [2]], LENGTHS, "int64"),
            "Updates": Rows([[1], [2], [3], [4], [5]], LENGTHS),
        },
        grads=["X", "Updates"],
    ),
    operator("sequence_enumerate", "sequence_enumerate", {"X": IDS}, attrs={"win_size": 2, "pad_value": 0}),
    operator("sequence_erase", "sequence_erase", {"X": IDS}, attrs={"tokens": [2]}),
    operator("sequence_mask", "sequence_mask", {"X": _i([2, 0, 3])}, outs=["Y"], attrs={"maxlen": 4, "out_dtype": 5}),
    operator(
        "sequence_mask_longest",
        "sequence_mask",
        {"X": _i([[2, 0], [3, 1]])},
        outs=["Y"],
        attrs={"maxlen": -1, "out_dtype": 3},
    ),
    operator(
        "sequence_conv",
        "sequence_conv",
        {"X": X, "Filter": _r(6, 2)},
        attrs={"contextStart": -1, "contextLength": 3, "contextStride": 1},
        grads=["X", "Filter"],
    ),
    operator(
        "sequence_conv_ahead",
        "sequence_conv",
        {"X": X, "Filter": _r(6, 2)},
        attrs={"contextStart": 0, "contextLength": 3, "contextStride": 1},
        grads=["X", "Filter"],
    ),
    operator(
        "sequence_topk_avg_pooling",
        "sequence_topk_avg_pooling",
        {
            "X": Rows(np.arange(14)[:, None] * ((-1) ** np.arange(14))[:, None], [[6, 8]]),
            "ROW": Rows(np.zeros((5, 1)), [[3, 2]]),
            "COLUMN": Rows(np.zeros((6, 1)), [[2, 4]]),
        },
        attrs={"topks": [1, 3], "channel_num": 1},
        others=["pos"],
        grads=["X"],
    ),
    operator("lod_reset_offsets", "lod_reset", {"X": X}, attrs={"target_lod": [0, 1, 5]}, grads=["X"]),
    operator("lod_reset_like", "lod_reset", {"X": X, "Y": X_2}, grads=["X"]),
    operator("lod_reset_by_tensor", "lod_reset", {"X": X, "Y": _i([0, 4, 5], "int32")}, grads=["X"]),
    operator("lod_reset_append", "lod_reset", {"X": X}, attrs={"append": True, "target_lod": [0, 1, 2, 3, 4, 5]}),
    operator("row_conv", "row_conv", {"X": Rows(_r(5, 2), [[2, 3]]), "Filter": _r(2, 2)}, grads=["X", "Filter"]),
    operator("row_conv_dense", "row_conv", {"X": _r(2, 3, 2), "Filter": _r(2, 2)}, grads=["X", "Filter"]),
    operator(
        "im2sequence",
        "im2sequence",
        {"X": _r(1, 2, 4, 4)},
        attrs={"kernels": [2, 3], "strides": [2, 1], "paddings": [0, 1, 0, 1]},
        grads=["X"],
    ),
    operator(
        "add_position_encoding",
        "add_position_encoding",
        {"X": Rows(_r(5, 4), LENGTHS)},
        attrs={"alpha": 1.0, "beta": 2.0},
        grads=["X"],
    ),
    operator(
        "add_position_encoding_dense",
        "add_position_encoding",
        {"X": _r(2, 3, 4)},
        attrs={"alpha": 0.5, "beta": 2.0},
        grads=["X"],
    ),
    operator(
        "fill_constant_batch_size_like",
        "fill_constant_batch_size_like",
        {"Input": X_2},
        attrs={"shape": [-1, 2], "value": 3.0, "dtype": 5, "input_dim_idx": 0, "output_dim_idx": 0},
    ),
    operator(
        "lstm",
        "lstm",
        {"Input": X_4, "Weight": W_4, "Bias": B_4},
        outs=["Hidden", "Cell"],
        attrs={"use_peepholes": False},
        others=GATES,
        grads=["Input", "Weight", "Bias"],
    ),
    operator(
        "lstm_peepholes_reverse",
        "lstm",
        {"Input": X_4, "Weight": W_4, "Bias": B_7, "H0": H_0, "C0": C_0},
        outs=["Hidden", "Cell"],
        attrs={"use_peepholes": True, "is_reverse": True},
        others=GATES,
        grads=["Input", "Weight", "Bias", "H0", "C0"],
    ),
    operator(
        "lstm_activations",
        "lstm",
        {"Input": X_4, "Weight": W_4, "Bias": B_7},
        outs=["Hidden", "Cell"],
        attrs={"use_peepholes": True, "candidate_activation": "relu", "cell_activation": "identity"},
        others=GATES,
        grads=["Input", "Weight"],
    ),
    operator(
        "lstmp",
        "lstmp",
        {"Input": X_4, "Weight": _r(P, 4 * D) * 0.5, "ProjWeight": _r(D, P), "Bias": B_7},
        outs=["Projection", "Cell"],
        attrs={"use_peepholes": True, "proj_activation": "tanh"},
        others=GATES + ["BatchHidden"],
        grads=["Input", "Weight", "ProjWeight"],
    ),
    operator(
        "lstmp_clipped",
        "lstmp",
        {"Input": X_4, "Weight": _r(P, 4 * D) * 0.5, "ProjWeight": _r(D, P), "Bias": B_4, "H0": _r(3, P), "C0": C_0},
        outs=["Projection", "Cell"],
        attrs={
            "use_peepholes": False,
            "proj_activation": "identity",
            "is_reverse": True,
            "cell_clip": 0.3,
            "proj_clip": 0.2,
        },
        others=GATES + ["BatchHidden"],
    ),
    operator(
        "gru",
        "gru",
        {"Input": X_3, "Weight": W_3, "Bias": B_3},
        outs=["Hidden"],
        others=["BatchGate", "BatchResetHiddenPrev", "BatchHidden"],
        grads=["Input", "Weight", "Bias"],
    ),
    operator(
        "gru_origin_reverse",
        "gru",
        {"Input": X_3, "Weight": W_3, "Bias": B_3, "H0": H_0},
        outs=["Hidden"],
        attrs={"is_reverse": True, "origin_mode": True},
        others=["BatchGate", "BatchResetHiddenPrev", "BatchHidden"],
        grads=["Input", "Weight", "Bias", "H0"],
    ),
    operator(
        "gru_relu",
        "gru",
        {"Input": X_3, "Weight": W_3, "H0": H_0},
        outs=["Hidden"],
        attrs={"activation": "relu"},
        others=["BatchGate", "BatchResetHiddenPrev", "BatchHidden"],
    ),
    operator(
        "gru_unit",
        "gru_unit",
        {"Input": _r(3, 3 * D), "HiddenPrev": H_0, "Weight": W_3, "Bias": B_3},
        outs=["Hidden"],
        attrs={"activation": 2, "gate_activation": 1},
        others=["Gate", "ResetHiddenPrev"],
        grads=["Input", "HiddenPrev", "Weight", "Bias"],
    ),
    operator(
        "gru_unit_origin",
        "gru_unit",
        {"Input": _r(3, 3 * D), "HiddenPrev": H_0, "Weight": W_3},
        outs=["Hidden"],
        attrs={"activation": 2, "gate_activation": 1, "origin_mode": True},
        others=["Gate", "ResetHiddenPrev"],
        grads=["Input", "HiddenPrev"],
    ),
    operator("lstm_unit", "lstm_unit", {"X": _r(3, 4 * D), "C_prev": C_0}, outs=["H", "C"], attrs={"forget_bias": 0.5}),
    operator(
        "gather_tree",
        "gather_tree",
        {"Ids": RNG.randint(0, 9, (3, 2, 2)).astype("int64"), "Parents": RNG.randint(0, 2, (3, 2, 2)).astype("int64")},
    ),
    operator(
        "linear_chain_crf",
        "linear_chain_crf",
        {"Emission": EMISSION, "Transition": TRANSITION, "Label": TAGS},
        outs=["LogLikelihood"],
        others=CRF,
        grads=["Emission", "Transition"],
    ),
    operator(
        "linear_chain_crf_dense",
        "linear_chain_crf",
        {"Emission": DENSE, "Transition": TRANSITION, "Label": DENSE_TAGS, "Length": STEPS},
        outs=["LogLikelihood"],
        others=CRF,
        grads=["Emission", "Transition"],
    ),
    operator("crf_decoding", "crf_decoding", {"Emission": EMISSION, "Transition": TRANSITION}, outs=["ViterbiPath"]),
    operator(
        "crf_decoding_label",
        "crf_decoding",
        {"Emission": EMISSION, "Transition": TRANSITION, "Label": TAGS},
        outs=["ViterbiPath"],
    ),
    operator(
        "crf_decoding_dense",
        "crf_decoding",
        {"Emission": DENSE, "Transition": TRANSITION, "Length": STEPS},
        outs=["ViterbiPath"],
    ),
    *list(_chunk_cases()),
    operator(
        "nce",
        "nce",
        {"Input": ROWS, "Label": LABELS, "Weight": _r(6, 2), "Bias": _r(6, 1)},
        outs=["Cost"],
        attrs=NCE,
        others=["SampleLogits", "SampleLabels"],
        grads=["Input", "Weight", "Bias"],
    ),
    operator(
        "nce_log_uniform",
        "nce",
        {
            "Input": ROWS,
            "Label": _i([[1, 2], [5, 4], [0, 3]]),
            "Weight": _r(6, 2),
            "SampleWeight": np.array([[0.5], [1], [2]], "float32"),
        },
        outs=["Cost"],
        attrs=dict(NCE, sampler=1),
        others=["SampleLogits", "SampleLabels"],
        grads=["Input", "Weight"],
    ),
    operator(
        "nce_custom",
        "nce",
        {
            "Input": ROWS,
            "Label": LABELS,
            "Weight": _r(6, 2),
            "Bias": _r(6, 1),
            "CustomDistProbs": np.array([0.1, 0.2, 0.3, 0.1, 0.1, 0.2], "float32"),
            "CustomDistAlias": np.arange(6).astype("int32"),
            "CustomDistAliasProbs": np.ones(6, "float32"),
        },
        outs=["Cost"],
        attrs=dict(NCE, sampler=2),
        others=["SampleLogits", "SampleLabels"],
    ),
    *[
        operator(
            "hierarchical_sigmoid_%d" % n,
            "hierarchical_sigmoid",
            {"X": ROWS, "W": _r(n - 1, 2), "Label": LABELS % n, "Bias": _r(n - 1, 1)},
            outs=["Out", "PreOut"],
            attrs={"num_classes": n},
            others=["W_Out"],
            grads=["X", "W", "Bias"],
        )
        for n in (5, 6, 8)
    ],
    operator(
        "hierarchical_sigmoid_custom",
        "hierarchical_sigmoid",
        {
            "X": ROWS,
            "W": _r(4, 2),
            "Label": LABELS,
            "PathTable": _i([[0, 2, -1], [0, 1, 3], [0, -1, -1]]),
            "PathCode": _i([[1, 0, -1], [0, 1, 1], [1, -1, -1]]),
        },
        attrs={"num_classes": 4},
        others=["PreOut", "W_Out"],
        grads=["X", "W"],
    ),
    operator(
        "cvm",
        "cvm",
        {"X": Rows(np.abs(_r(6, 4)), FULL), "CVM": np.array([[1, 0], [2, 1], [3, 1]], "float32")},
        outs=["Y"],
        attrs={"use_cvm": True},
        grads=["X"],
    ),
    operator(
        "cvm_left_out",
        "cvm",
        {"X": Rows(np.abs(_r(6, 4)), FULL), "CVM": np.array([[1, 0], [2, 1], [3, 1]], "float32")},
        outs=["Y"],
        attrs={"use_cvm": False},
        grads=["X"],
    ),
    operator(
        "data_norm",
        "data_norm",
        dict(SUMMARIES, X=_r(5, 3)),
        outs=["Y", "Means", "Scales"],
        attrs={"epsilon": 0.0001},
        grads=["X", "BatchSize", "BatchSum", "BatchSquareSum"],
    ),
    operator(
        "data_norm_slots",
        "data_norm",
        {
            "X": np.array([[0, 1, 2, 3], [1, 2, 3, 4]], "float32"),
            "BatchSize": np.full(4, 4, "float32"),
            "BatchSum": np.array([1, 2, 3, 1], "float32"),
            "BatchSquareSum": np.array([5, 6, 7, 8], "float32"),
        },
        outs=["Y"],
        attrs={"epsilon": 0.0001, "slot_dim": 2},
        others=["Means", "Scales"],
        grads=["X", "BatchSize", "BatchSum", "BatchSquareSum"],
    ),
    operator(
        "data_norm_scaled",
        "data_norm",
        dict(SUMMARIES, X=_r(5, 3), scale_w=np.array([1, 2, 3], "float32"), bias=np.array([0.1, 0.2, 0.3], "float32")),
        outs=["Y"],
        attrs={"epsilon": 0.0001, "enable_scale_and_shift": True},
        others=["Means", "Scales"],
    ),
    operator(
        "im2sequence_real_sizes",
        "im2sequence",
        {"X": _r(2, 2, 4, 6), "Y": np.array([[5, 4], [7, 6]], "float32")},
        attrs={"kernels": [2, 2], "strides": [1, 2], "paddings": [0, 1, 1, 0], "out_stride": [2, 1]},
    ),
    operator(
        "sequence_conv_trained_padding",
        "sequence_conv",
        {"X": X, "PaddingData": _r(3, 2), "Filter": _r(8, 2)},
        attrs={"contextStart": -1, "contextLength": 4, "contextStride": 1, "paddingTrainable": True},
        grads=["X", "PaddingData", "Filter"],
    ),
]


def run(fluid, case):
    """{output or "d" + input: (values, shape, lod)} of a case; gradients of the sum of squares of
    the first output.
    """
    _, op, inputs, outs, attrs, others, grads = case
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        block = main.global_block()
        feed, names, variables = {}, {}, {}
        for slot, value in inputs.items():
            names[slot] = []
            for i, v in enumerate(value if isinstance(value, list) else [value]):
                name, ragged = "%s_%d" % (slot, i), isinstance(v, Rows)
                array = v.values if ragged else v
                shape = [-1] + list(array.shape[1:]) if ragged else list(array.shape)
                var = block.create_var(
                    name=name,
                    shape=shape,
                    dtype=str(array.dtype),
                    is_data=True,
                    lod_level=len(v.lengths) if ragged else 0,
                )
                var.stop_gradient = slot not in grads
                names[slot].append(name)
                variables.setdefault(slot, []).append(var)
                feed[name] = fluid.create_lod_tensor(array, v.lengths, fluid.CPUPlace()) if ragged else array
        found = {o: [block.create_var(name="out_" + o, dtype="float32")] for o in outs + others}
        block.append_op(type=op, inputs=names, outputs=found, attrs=dict(attrs))
        fetches = [(o, found[o][0]) for o in outs]
        if grads:
            wanted = [(s, v) for s in grads for v in variables[s]]
            loss = fluid.layers.reduce_sum(fluid.layers.square(found[outs[0]][0]))
            for (_, var), grad in zip(wanted, fluid.gradients(loss, [v for _, v in wanted])):
                fetches.append(("d" + var.name, grad))
        exe = fluid.Executor(fluid.CPUPlace())
        values = exe.run(main, feed=feed, fetch_list=[v for _, v in fetches], return_numpy=False)
    return {
        name: (np.array(v).ravel().tolist(), list(np.array(v).shape), v.lod()) for (name, _), v in zip(fetches, values)
    }

"""Matching matrices, convolutions of pictures of different sizes, chosen instances and attention,
against loops over sequences.
"""

import numpy as np
import pytest

from jfluid import create_lod_tensor, errors
from tests.op_case import check

RNG = np.random.RandomState(5)


def rand(*shape):
    return RNG.normal(size=shape).astype("float32")


def ragged(values, lengths):
    return create_lod_tensor(values, [lengths], None)


def parts(values, lengths):
    return np.split(values, np.cumsum(lengths)[:-1])


X, Y, W = rand(5, 2), rand(4, 3), rand(2, 2, 3)
X_LENGTHS, Y_LENGTHS = [2, 0, 3], [3, 1, 0]


def test_match_matrix_tensor():
    found = [
        np.stack([a @ W[:, t] @ b.T for t in range(2)]).reshape(-1, 1)
        for a, b in zip(parts(X, X_LENGTHS), parts(Y, Y_LENGTHS), strict=True)
    ]
    check(
        "match_matrix_tensor",
        {"X": ragged(X, X_LENGTHS), "Y": ragged(Y, Y_LENGTHS), "W": W},
        {"dim_t": 2},
        expect={
            "Out": ragged(np.concatenate(found), [len(f) for f in found]),
            "Tmp": (X @ W.reshape(2, 6)).reshape(-1, 1),
        },
        grad=("X", "Y", "W"),
        rows=(),
    )


def convolved(picture, kernels, strides):
    _, high, wide = picture.shape
    tall, broad = kernels.shape[2:]
    padded = np.pad(picture, ((0, 0), (tall // 2, tall), (broad // 2, broad)))
    return np.array(
        [
            [
                [(padded[:, i : i + tall, j : j + broad] * kernel).sum() for j in columns]
                for i in range(0, high, strides[0])
            ]
            for kernel in kernels
            for columns in [range(0, wide, strides[1])]
        ],
        picture.dtype,
    ).reshape(-1, 1)


@pytest.mark.parametrize(("kernel", "strides"), [((3, 2), (1, 1)), ((1, 3), (2, 2))])
def test_var_conv_2d(kernel, strides):
    heights, widths, channels, out = [3, 1, 0], [2, 4, 3], 2, 2
    sizes = [channels * h * w for h, w in zip(heights, widths, strict=True)]
    x, w = rand(sum(sizes), 1), rand(out, channels * kernel[0] * kernel[1])
    found = [
        convolved(p.reshape(channels, h, v), w.reshape(out, channels, *kernel), strides)
        for p, h, v in zip(parts(x, sizes), heights, widths, strict=True)
    ]
    attrs = {"InputChannel": channels, "OutputChannel": out, "KernelH": kernel[0]}
    attrs |= {"KernelW": kernel[1], "StrideH": strides[0], "StrideW": strides[1]}
    check(
        "var_conv_2d",
        {
            "X": ragged(x, sizes),
            "ROW": ragged(rand(sum(heights), 1), heights),
            "COLUMN": ragged(rand(sum(widths), 1), widths),
            "W": w,
        },
        attrs,
        expect={"Out": ragged(np.concatenate(found), [len(f) for f in found])},
        grad=("X", "W"),
        rows=(),
    )


def test_shapes_that_do_not_fit():
    inputs = {"X": ragged(X, X_LENGTHS), "Y": ragged(Y, [3, 1]), "W": W}
    with pytest.raises(errors.ShapeError, match="X, Y need one number of sequences"):
        check("match_matrix_tensor", inputs, {"dim_t": 2}, expect={"Out": None})
    inputs["Y"] = ragged(Y, Y_LENGTHS)
    with pytest.raises(errors.ShapeError, match="W is .*expected"):
        check("match_matrix_tensor", inputs, {"dim_t": 3}, expect={"Out": None})


TAGS, TAG_LENGTHS = np.array([[0], [1], [1], [3], [2]]), [2, 1, 0, 2]


@pytest.mark.parametrize("wanted", [[1], [2, 0], [7]])
def test_filter_by_instag_of_sequences(wanted):
    ins, lengths = rand(6, 2), [2, 1, 1, 2]
    tags = parts(TAGS, TAG_LENGTHS)
    kept = [i for i, t in enumerate(tags) if np.isin(t, wanted).any()]
    rows = [parts(ins, lengths)[i] for i in kept] or [np.full((1, 2), 5, "float32")]
    here = [len(r) for r in rows]
    starts = np.cumsum([0, *lengths])
    where = [[sum(here[:k]), starts[i], lengths[i]] for k, i in enumerate(kept)] or [[0, 1, 1]]
    ones = [1] * len(rows)
    check(
        "filter_by_instag",
        {
            "Ins": ragged(ins, lengths),
            "Ins_tag": ragged(TAGS, TAG_LENGTHS),
            "Filter_tag": np.array(wanted),
        },
        {"is_lod": True, "out_val_if_empty": 5},
        expect={
            "Out": ragged(np.concatenate(rows), here),
            "LossWeight": ragged(np.full((len(rows), 1), float(bool(kept)), "float32"), ones),
            "IndexMap": ragged(np.array(where), ones),
        },
        grad=("Ins",),
        rows=(),
    )


def test_filter_by_instag_of_rows():
    ins = rand(4, 3)
    check(
        "filter_by_instag",
        {"Ins": ins, "Ins_tag": ragged(TAGS, TAG_LENGTHS), "Filter_tag": np.array([1, 2])},
        {"is_lod": False},
        expect={"Out": ragged(ins[[0, 1, 3]], [1, 1, 1]), "LossWeight": None, "IndexMap": None},
        grad=("Ins",),
        rows=(),
    )
    inputs = {"Ins": ins, "Ins_tag": ragged(TAGS, [2, 3]), "Filter_tag": np.array([1])}
    with pytest.raises(errors.ShapeError, match="4 instances, Ins_tag 2 lists"):
        check("filter_by_instag", inputs, {"is_lod": False}, expect={"Out": None})


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def attended(x, h, c, weight, bias, w, b):
    """Hidden states and cells of one sequence."""
    width, depth = x.shape[1], len(c)
    for _ in x:
        score = np.maximum(x @ weight[:width, 0] + c @ weight[width:, 0] + bias, 0)
        chance = np.exp(score - score.max())
        gates = (chance / chance.sum()) @ x @ w[depth:] + h @ w[:depth] + b[0]
        forget, enter, leave = (sigmoid(gates[i * depth : (i + 1) * depth]) for i in range(3))
        c = forget * c + enter * np.tanh(gates[3 * depth :])
        h = leave * np.tanh(c)
        yield h, c


def test_attention_lstm():
    lengths, x, h, c = [1, 0, 4], rand(5, 3), rand(3, 2), rand(3, 2)
    weight, bias, w, b = rand(5, 1), rand(1, 1), rand(5, 8), rand(1, 8)
    states = [s for i, p in enumerate(parts(x, lengths)) for s in attended(p, h[i], c[i], weight, bias[0, 0], w, b)]
    hidden, cells = (ragged(np.array(v, "float32"), lengths) for v in zip(*states, strict=True))
    inputs = {"X": ragged(x, lengths), "C0": c, "H0": h, "AttentionWeight": weight}
    inputs |= {"AttentionBias": bias, "LSTMWeight": w, "LSTMBias": b}
    check("attention_lstm", inputs, {}, expect={"Hidden": hidden, "Cell": cells}, rows=())
    with pytest.raises(errors.ShapeError, match="expected an activation"):
        check("attention_lstm", inputs, {"gate_activation": "elu"}, expect={"Hidden": None})
    inputs |= {"LSTMWeight": w[:4]}
    with pytest.raises(errors.ShapeError, match="LSTMWeight"):
        check("attention_lstm", inputs, {}, expect={"Hidden": None})

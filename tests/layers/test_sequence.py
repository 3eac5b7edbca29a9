"""Layers of sequences and of recurrent steps through programs, against NumPy, sequence by
sequence.
"""

import contextlib
import functools

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.layers.control_flow import lod_rank_table
from tests.layers.ragged_net import Net

RNG = np.random.RandomState(11)
LENGTHS, FULL = [2, 0, 3], [2, 3, 1]
X = RNG.normal(size=(5, 4)).astype("float32")
IDS = np.array([[1], [2], [3], [2], [5]])


def ragged(values, *lengths):
    return fluid.create_lod_tensor(values, [*lengths] or [LENGTHS], fluid.CPUPlace())


def parts(values, lengths=LENGTHS):
    """The rows of each sequence."""
    return np.split(np.asarray(values), np.cumsum(lengths)[:-1])


def normal(*shape):
    return RNG.normal(size=shape).astype("float32") / 2


def given(value, name=None):
    """A parameter that begins with a value."""
    return fluid.ParamAttr(name=name, initializer=fluid.initializer.NumpyArrayInitializer(value))


def check(net, expected, lengths=None, at=0, rtol=1e-5):
    """What a net gives: rows, and the lengths of their sequences by level, none for a dense
    tensor.
    """
    np.testing.assert_allclose(net[at], expected, rtol=rtol, atol=1e-6)
    assert net.values[at].recursive_sequence_lengths() == (lengths or [])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# ---- rows of sequences ----


def test_sequence_concat():
    other = RNG.normal(size=(4, 4)).astype("float32")
    net = Net(lambda x, y: layers.sequence_concat([x, y]), x=ragged(X), y=ragged(other, [1, 1, 2]))
    joined = [part for pair in zip(parts(X), parts(other, [1, 1, 2])) for part in pair]
    check(net, np.concatenate(joined), [[3, 1, 5]])


@pytest.mark.parametrize(("start", "act"), [(None, None), (0, "relu")])
def test_sequence_conv(start, act):
    weight, bias = normal(12, 2), normal(2)
    net = Net(
        lambda x: layers.sequence_conv(
            x,
            2,
            3,
            padding_start=start,
            param_attr=given(weight, "w"),
            bias_attr=given(bias, "b"),
            act=act,
        ),
        x=ragged(X),
    )
    assert net.parameters == {"w": (12, 2), "b": (2,)}
    first = -1 if start is None else start
    rows = []
    for part in parts(X):
        for t in range(len(part)):
            seen = [part[t + k] if 0 <= t + k < len(part) else np.zeros(4) for k in range(first, first + 3)]
            rows.append(np.concatenate(seen) @ weight + bias)
    check(net, np.maximum(rows, 0) if act else rows, [LENGTHS])


def test_sequence_enumerate():
    net = Net(lambda ids: layers.sequence_enumerate(ids, 2, pad_value=9), ids=ragged(IDS))
    check(net, [[1, 2], [2, 9], [3, 2], [2, 5], [5, 9]], [LENGTHS])
    assert net.variables[0].stop_gradient


def test_sequence_expand_as():
    rows = normal(3, 2)
    net = Net(layers.sequence_expand_as, x=rows, y=ragged(X))
    check(net, np.repeat(rows, LENGTHS, 0), [LENGTHS])


def test_sequence_first_and_last_step():
    net = Net(lambda x: [layers.sequence_first_step(x), layers.sequence_last_step(x)], x=ragged(X))
    check(net, [X[0], np.zeros(4), X[2]])
    check(net, [X[1], np.zeros(4), X[4]], at=1)


@pytest.mark.parametrize("maxlen", [4, None, "variable"])
def test_sequence_mask(maxlen):
    def mask(lengths):
        most = layers.fill_constant([1], "int32", 4) if maxlen == "variable" else maxlen
        return layers.sequence_mask(lengths, maxlen=most, dtype="float32")

    net = Net(mask, lengths=np.array([2, 0, 3]))
    check(net, np.array([[1, 1, 0, 0], [0] * 4, [1, 1, 1, 0]])[:, : 3 if maxlen is None else 4])
    assert net[0].dtype == np.float32


@pytest.mark.parametrize(("width", "lengths"), [(2, [4, 0, 6]), (8, [1, 0, 2])])
def test_sequence_reshape(width, lengths):
    x = X if width == 2 else np.concatenate([X, X[:1]])
    net = Net(lambda x: layers.sequence_reshape(x, width), x=ragged(x, [2, 0, len(x) - 2]))
    check(net, x.reshape(-1, width), [lengths])


def test_sequence_reverse():
    net = Net(layers.sequence_reverse, x=ragged(X))
    check(net, np.concatenate([part[::-1] for part in parts(X)]), [LENGTHS])


def test_sequence_scatter():
    rows, columns, updates = normal(3, 4), np.array([[0], [1], [0], [2], [2]]), normal(5, 1)
    net = Net(layers.sequence_scatter, input=rows, index=ragged(columns), updates=ragged(updates))
    expected = rows.copy()
    for i, (at, values) in enumerate(zip(parts(columns), parts(updates))):
        np.add.at(expected[i], at[:, 0], values[:, 0])
    check(net, expected)


def test_sequence_slice():
    net = Net(
        layers.sequence_slice,
        input=ragged(X),
        offset=np.array([[1], [0], [0]]),
        length=np.array([[1], [0], [2]]),
    )
    check(net, X[[1, 2, 3]], [[1, 0, 2]])


def test_sequence_unpad():
    def back_and_forth(x):
        padded, length = layers.sequence_pad(x, layers.fill_constant([1], "float32", 7.0), maxlen=4)
        return padded, layers.sequence_unpad(padded, length)

    net = Net(back_and_forth, x=ragged(X))
    check(net, [np.concatenate([part, np.full((4 - len(part), 4), 7.0)]) for part in parts(X)])
    check(net, X, [LENGTHS], at=1)


def test_sequence_pad_to_the_longest():
    """Of rows that are fed, and of those that an operator makes of a dense tensor or of other rows."""
    fill = functools.partial(layers.fill_constant, [1], "float32", 7.0)

    def expected(lengths, values):
        most = max(lengths)
        rows = [np.concatenate([part, np.full((most - len(part), 4), 7.0)]) for part in parts(values, lengths)]
        return np.stack(rows)

    fed = Net(lambda x: layers.sequence_pad(x, fill())[0], x=ragged(X))
    check(fed, expected(LENGTHS, X))
    dense = RNG.normal(size=(3, 6, 4)).astype("float32")
    lengths = np.array([4, 0, 3], "int64")
    made = Net(
        lambda a, n: layers.sequence_pad(layers.sequence_unpad(a, n), fill())[0],
        a=dense,
        n=lengths,
    )
    rows = np.concatenate([part[:n] for part, n in zip(dense, lengths)])
    check(made, expected(lengths, rows))
    sliced = Net(
        lambda x, a, b: layers.sequence_pad(layers.sequence_slice(x, a, b), fill())[0],
        x=ragged(X, [2, 1, 2]),
        a=np.array([[1], [0], [0]], "int64"),
        b=np.array([[1], [1], [2]], "int64"),
    )
    check(sliced, expected([1, 1, 2], X[1:]))


def test_sequence_unpad_of_ids_with_a_lod():
    table = normal(20, 4)

    def net(ids, n):
        return layers.sequence_unpad(fluid.embedding(ids, [20, 4], param_attr=given(table)), n)

    ids = RNG.randint(0, 20, (3, 5))
    lengths = np.array([3, 5, 0], "int64")
    expected = table[np.concatenate([row[:n] for row, n in zip(ids, lengths)])]
    check(Net(net, ids=ragged(ids, [1, 1, 1]), n=lengths), expected, [[3, 5, 0]])


# ---- levels ----


@pytest.mark.parametrize("by", ["list", "variable"])
def test_lod_append(by):
    offsets = [0, 1, 2, 3, 4, 5]
    feeds = {"x": ragged(X, [2, 1, 2])} | ({"level": np.array(offsets, "int32")} if by == "variable" else {})
    exact = pytest.warns(RuntimeWarning, match="lod_reset with target_lod needs the exact number of rows")
    with exact if by == "list" else contextlib.nullcontext():
        net = Net(lambda x, level=None: layers.lod_append(x, offsets if level is None else level), **feeds)
    check(net, X, [[2, 1, 2], [1] * 5])
    with pytest.raises(errors.ProgramError, match="lod_append, level: expected a list or a Variable, found int"):
        Net(lambda x, level=None: layers.lod_append(x, 5), **feeds)


def test_lod_reset_takes_offsets_in_an_array():
    with pytest.warns(RuntimeWarning, match="lod_reset with target_lod needs the exact number of rows"):
        net = Net(lambda x: layers.lod_reset(x, target_lod=np.array([0, 1, 5])), x=ragged(X, [2, 1, 2]))
    check(net, X, [[1, 4]])


def test_reorder_lod_tensor_by_rank():
    rows = normal(3, 2)
    net = Net(
        lambda x, rows: [layers.reorder_lod_tensor_by_rank(value, lod_rank_table(x)) for value in (rows, x)],
        x=ragged(X),
        rows=rows,
    )
    order = [2, 0, 1]  # the longest first
    check(net, rows[order])
    check(net, np.concatenate([parts(X)[i] for i in order]), [[3, 2, 0]], at=1)


# ---- others ----


def test_row_conv():
    weight = normal(3, 4)
    net = Net(lambda x: layers.row_conv(x, 2, param_attr=given(weight, "w"), act="tanh"), x=ragged(X))
    assert net.parameters == {"w": (3, 4)}
    rows = [
        sum(part[t + k] * weight[k] for k in range(3) if t + k < len(part))
        for part in parts(X)
        for t in range(len(part))
    ]
    check(net, np.tanh(rows), [LENGTHS])


def test_im2sequence():
    images = normal(2, 3, 4, 5)
    net = Net(lambda images: layers.im2sequence(images, [2, 3], [2, 1], padding=[0, 1]), images=images)
    padded = np.pad(images, [(0, 0), (0, 0), (0, 0), (1, 1)])
    patches = [image[:, i : i + 2, j : j + 3].ravel() for image in padded for i in (0, 2) for j in range(5)]
    check(net, patches, [[10, 10]])


def test_im2sequence_of_padded_images():
    images = normal(2, 1, 4, 4)
    net = Net(
        lambda images, sizes: layers.im2sequence(images, 2, 2, input_image_size=sizes, out_stride=2),
        images=images,
        sizes=np.array([[8, 4], [4, 8]], "float32"),
    )  # of which 4 by 2 and 2 by 4 are left
    patches = [images[n, 0, i : i + 2, j : j + 2].ravel() for n, i, j in ((0, 0, 0), (0, 2, 0), (1, 0, 0), (1, 0, 2))]
    check(net, patches, [[2, 2]])


def test_add_position_encoding():
    def code(length):
        angle = np.arange(length)[:, None] / 10000.0 ** np.array([0, 1])
        return np.concatenate([np.sin(angle), np.cos(angle)], 1)

    net = Net(lambda x: layers.add_position_encoding(x, alpha=0.5, beta=2.0), x=ragged(X))
    check(net, np.concatenate([0.5 * part + 2 * code(len(part)) for part in parts(X)]), [LENGTHS])
    dense = normal(2, 3, 4)
    check(
        Net(lambda x: layers.add_position_encoding(x, alpha=1.0, beta=1.0), x=dense),
        dense + code(3),
    )


# ---- recurrent steps ----


def test_lstm_unit():
    x, hidden, cell, weight, bias = (
        normal(3, 5),
        normal(3, 2),
        normal(3, 2),
        normal(7, 8),
        normal(8),
    )
    net = Net(
        lambda x, hidden, cell: layers.lstm_unit(
            x,
            hidden,
            cell,
            forget_bias=0.5,
            param_attr=given(weight, "w"),
            bias_attr=given(bias, "b"),
        ),
        x=x,
        hidden=hidden,
        cell=cell,
    )
    assert net.parameters == {"w": (7, 8), "b": (8,)}
    i, f, o, a = np.split(np.concatenate([x, hidden], 1) @ weight + bias, 4, 1)
    new = sigmoid(f + 0.5) * cell + sigmoid(i) * np.tanh(a)
    check(net, sigmoid(o) * np.tanh(new))
    check(net, new, at=1)


@pytest.mark.parametrize(("peepholes", "backwards"), [(True, False), (False, True)])
def test_dynamic_lstmp(peepholes, backwards):
    width, projected = 3, 2
    x, h_0, c_0 = normal(6, 4 * width), normal(3, projected), normal(3, width)
    bias = np.full((1, (7 if peepholes else 4) * width), 0.3, "float32")

    def net(x, h_0, c_0):
        return layers.dynamic_lstmp(
            x,
            4 * width,
            projected,
            param_attr=fluid.initializer.Constant(0.2),
            bias_attr=given(bias, "b"),
            use_peepholes=peepholes,
            is_reverse=backwards,
            proj_activation="identity",
            h_0=h_0,
            c_0=c_0,
            cell_clip=0.8,
        )

    found = Net(net, x=ragged(x, FULL), h_0=h_0, c_0=c_0)
    assert sorted(found.parameters.values()) == sorted([bias.shape, (projected, 4 * width), (width, projected)])
    seen = 0.3 if peepholes else 0.0
    hidden, cells = [], []
    for part, h, c in zip(parts(x, FULL), h_0, c_0):
        rows = []
        for row in part[::-1] if backwards else part:
            a, i, f, o = np.split(row + h @ np.full((projected, 4 * width), 0.2) + 0.3, 4)
            c_before = c
            c = np.clip(
                sigmoid(f + seen * c_before) * c_before + sigmoid(i + seen * c_before) * np.tanh(a),
                -0.8,
                0.8,
            )
            h = (sigmoid(o + seen * c) * np.tanh(c)) @ np.full((width, projected), 0.2)
            rows.append((h, c))
        for h_t, c_t in rows[::-1] if backwards else rows:
            hidden.append(h_t)
            cells.append(c_t)
    check(found, hidden, [FULL])
    check(found, cells, [FULL], at=1)
    with pytest.raises(errors.ProgramError, match="dynamic_lstmp: c_0 needs h_0"):
        Net(
            lambda x, h_0, c_0: layers.dynamic_lstmp(x, 4 * width, projected, c_0=c_0),
            x=ragged(x, FULL),
            h_0=h_0,
            c_0=c_0,
        )


def test_gather_tree():
    ids, parents = RNG.randint(0, 9, (4, 2, 3)), RNG.randint(0, 3, (4, 2, 3))
    expected = np.empty_like(ids)
    for batch in range(2):
        for beam in range(3):
            at = beam
            for t in range(3, -1, -1):
                expected[t, batch, beam] = ids[t, batch, at]
                at = parents[t, batch, at]
    check(Net(layers.gather_tree, ids=ids, parents=parents), expected)

"""Operators on arrays, rank tables, beams and sparse rows, called directly."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.compile.runtime.padding import trimmed
from jfluid.lod_tensor import LoDTensor, LoDTensorArray
from jfluid.ops import ragged_dispatch, registry
from jfluid.ops.ragged import Level, Ragged
from jfluid.ops.tensor_array import TensorArray
from tests.op_case import check

ROWS = np.arange(12.0).reshape(6, 2)
OFFSETS = np.array([0, 2, 2, 5, 6], np.int32)  # sequences of 2, 0, 3 and 1 rows


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def apply(op_type, *inputs, **attrs):
    outs = ragged_dispatch.call(registry.get(op_type), inputs, attrs)
    return outs[0] if len(outs) == 1 else outs


def ragged(values=ROWS, offsets=OFFSETS, room=0):
    """The rows in sequences, with `room` padding rows."""
    values = np.concatenate([values, np.repeat(values[:1], room, 0)])
    level = Level(jnp.asarray(offsets), int(np.diff(offsets).max()) + room)
    return Ragged(jnp.asarray(values), (level,), exact=not room)


@pytest.mark.parametrize("room", [0, 3])
def test_sequences_by_steps_and_back(room):
    x = ragged(room=room)
    ranks = apply("lod_rank_table", x, level=0)
    assert ranks.order.tolist() == [2, 0, 3, 1] and ranks.lengths.tolist() == [3, 2, 1, 0]
    assert apply("max_sequence_len", ranks).tolist() == [3]
    steps = apply("lod_tensor_to_array", x, ranks)
    assert apply("lod_array_length", steps).tolist() == [3]
    first, last = (apply("read_from_array", steps, np.array([i]), None) for i in (0, 2))
    assert int(first.count()) == 3 and int(last.count()) == 1
    np.testing.assert_array_equal(first.values[:3], ROWS[[2, 0, 5]])
    np.testing.assert_array_equal(last.values[:1], ROWS[[4]])
    back = apply("array_to_lod_tensor", steps, ranks)
    np.testing.assert_array_equal(back.values[:6], ROWS)
    np.testing.assert_array_equal(back.last.offsets, OFFSETS)
    memory = apply("shrink_rnn_memory", jnp.asarray(ROWS[:4]), ranks, np.array([1]))
    assert int(memory.count()) == 2


@pytest.mark.parametrize("room", [0, 3])
def test_reordering_rows_and_sequences(room):
    ranks = apply("lod_rank_table", ragged(room=room), level=0)
    np.testing.assert_array_equal(apply("reorder_lod_tensor_by_rank", jnp.asarray(ROWS[:4]), ranks), ROWS[[2, 0, 3, 1]])
    moved = apply("reorder_lod_tensor_by_rank", ragged(room=room), ranks)
    np.testing.assert_array_equal(moved.values[:6], ROWS[[2, 3, 4, 0, 1, 5]])
    assert moved.last.offsets.tolist() == [0, 3, 5, 6, 6]


def test_rows_chosen_by_a_mask_and_merged():
    mask = np.array([[True], [False], [True], [False]])
    true, false = apply("split_lod_tensor", jnp.asarray(ROWS[:4]), jnp.asarray(mask))
    assert int(true.count()) == int(false.count()) == 2
    np.testing.assert_array_equal(true.values[:2], ROWS[[0, 2]])
    np.testing.assert_array_equal(false.values[:2], ROWS[[1, 3]])
    merged, same = (
        apply(op_type, jnp.asarray(mask), jnp.asarray(mask), true, false)
        for op_type in ("merge_lod_tensor", "merge_lod_tensor_infer")
    )
    np.testing.assert_array_equal(same, merged)
    np.testing.assert_array_equal(merged, ROWS[:4])
    chosen, _ = apply("split_lod_tensor", ragged(), jnp.asarray(mask))
    assert chosen.last.offsets.tolist()[:3] == [0, 2, 5] and int(chosen.last.count) == 2
    np.testing.assert_array_equal(chosen.values[:5], ROWS[:5])


def test_arrays_are_written_read_and_joined():
    array = apply("write_to_array", jnp.ones((2, 3)), np.array([1]), None)
    array = apply("write_to_array", jnp.zeros((2, 1)), np.array([0]), array)
    assert apply("lod_array_length", array).tolist() == [2]
    joined, sizes = apply("tensor_array_to_tensor", array, axis=1)
    assert joined.shape == (2, 4) and sizes.tolist() == [1, 3]
    with pytest.raises(errors.OpError, match="the array holds nothing at 2"):
        apply("read_from_array", array, np.array([2]), None)
    with pytest.raises(errors.OpError, match="elements of different shapes"):
        array.stacked(2)
    with pytest.raises(errors.OpError, match="the array is empty"):
        apply("tensor_array_to_tensor", TensorArray())


def test_select_input_and_rnn_memory_helper():
    branches = [jnp.zeros(2), jnp.ones(2)]
    assert apply("select_input", branches, np.array([1])).tolist() == [1, 1]
    assert jax.jit(lambda m: apply("select_input", branches, m))(np.array([0])).tolist() == [0, 0]
    assert apply("rnn_memory_helper", jnp.ones(2), dtype=5).tolist() == [1, 1]


def tensor(values, lod, dtype="float32"):
    return LoDTensor(np.array(values, dtype).reshape(len(values), -1), lod)


def test_beam_search():
    lod = [[0, 2, 3], [0, 1, 2, 3]]
    scores = tensor([[-1.0, -2.0, -0.3], [-0.1, -0.2, -0.3], [-1.5, -1.2, -3.0]], lod)
    ids = tensor([[5, 6, 0], [7, 8, 9], [2, 0, 3]], lod, "int64")
    before, before_scores = tensor([1, 0, 4], lod, "int64"), tensor([-0.5, -0.9, -1.0], lod)
    found = registry.get("beam_search").fn(before, before_scores, ids, scores, level=0, beam_size=2, end_id=0)
    assert np.array(found[0]).ravel().tolist() == [0, 0, 0, 2] and found[0].lod() == [
        [0, 2, 3],
        [0, 1, 2, 4],
    ]
    np.testing.assert_allclose(np.array(found[1]).ravel(), [-0.3, -0.9, -1.2, -1.5], rtol=1e-6)
    assert np.array(found[2]).tolist() == [0, 1, 2, 2]
    ended = registry.get("beam_search").fn(
        tensor([0, 0, 4], lod, "int64"), before_scores, ids, scores, level=0, beam_size=2, end_id=0
    )
    assert np.array(ended[0]).ravel().tolist() == [0, 2] and ended[0].lod() == [
        [0, 2, 3],
        [0, 0, 0, 2],
    ]
    probabilities = tensor(np.exp(np.array(scores)), lod)
    same = registry.get("beam_search").fn(
        before,
        tensor([0, 0, 0], lod),
        ids,
        probabilities,
        level=0,
        beam_size=2,
        end_id=0,
        is_accumulated=False,
    )
    assert np.array(same[0]).ravel().tolist() == [0, 0, 0, 2]
    with pytest.raises(errors.OpError, match="scores need a LoD with level 0, found 0 levels"):
        registry.get("beam_search").fn(
            before,
            before_scores,
            None,
            tensor([[1.0], [1], [1]], []),
            level=0,
            beam_size=2,
            end_id=0,
        )


def test_beam_search_decode():
    steps = [
        ([[0, 1, 2], [0, 1, 2]], [1, 1], [0.0, 0.0]),
        ([[0, 1, 2], [0, 2, 4]], [3, 4, 5, 6], [-0.1, -0.2, -0.3, -0.4]),
        ([[0, 2, 4], [0, 1, 2, 2, 4]], [0, 7, 8, 5], [-0.5, -0.6, -0.7, -0.65]),
        ([[0, 2, 4], [0, 1, 2, 2, 4]], [0, 9, 0, 3], [-0.5, -0.8, -0.9, -0.65]),
    ]
    ids = LoDTensorArray(tensor(words, lod, "int64") for lod, words, _ in steps)
    scores = LoDTensorArray(tensor(values, lod) for lod, _, values in steps)
    words, values = registry.get("beam_search_decode").fn(ids, scores, beam_size=2, end_id=0)
    assert words.lod() == [[0, 2, 4], [0, 3, 7, 11, 15]]
    assert np.array(words).tolist() == [1, 3, 0, 1, 4, 7, 9, 1, 6, 5, 3, 1, 6, 5, 0]
    np.testing.assert_allclose(
        np.array(values),
        [0, -0.1, -0.5, 0, -0.2, -0.6, -0.8, 0, -0.4, -0.65, -0.65, 0, -0.4, -0.65, -0.9],
        rtol=1e-6,
    )


@pytest.mark.parametrize("op_type", ["lookup_table_grad", "lookup_table_v2_grad"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_gradient_of_a_table(op_type, is_sparse):
    ids, grad = np.array([1, 3, 1, 2]), np.arange(8.0).reshape(4, 2)
    ids_shape = (4, 1) if op_type == "lookup_table_grad" else (4,)
    found = apply(
        op_type,
        jnp.zeros((5, 2)),
        jnp.asarray(ids.reshape(ids_shape)),
        jnp.asarray(grad),
        is_sparse=is_sparse,
        padding_idx=2,
    )
    want = np.zeros((5, 2))
    np.add.at(want, ids, grad)
    if is_sparse:
        assert found.rows.tolist() == [1, 3, 1, 2]
        found = apply("get_tensor_from_selected_rows", apply("merge_selected_rows", found))
        np.testing.assert_array_equal(np.asarray(trimmed(found)), want[[1, 2, 3]])
    else:
        want[2] = 0
        np.testing.assert_array_equal(found, want)


def test_padding_never_reaches_the_gradient_of_a_table():
    ids = Ragged(jnp.array([[1], [2], [1], [1]]), (Level(jnp.array([0, 2], jnp.int32), 4),))
    found = apply("lookup_table_grad", jnp.zeros((5, 2)), ids, ids.like(jnp.ones((4, 2))), is_sparse=True)
    assert found.rows.tolist() == [1, 2, 5, 5]


def test_sample_logits_with_given_samples():
    logits, labels = np.random.RandomState(0).randn(2, 7), np.array([[1], [3]])
    samples, chances = (
        np.array([[1, 2, 3, 5], [3, 2, 3, 5]]),
        np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]]),
    )
    outs = apply(
        "sample_logits",
        *map(jnp.asarray, (logits, labels, samples, chances)),
        num_samples=3,
        use_customized_samples=True,
        key=jax.random.key(0),
    )
    want = np.take_along_axis(logits, samples, 1) - np.log(chances)
    want[1, 2] -= 1e20  # an accidental hit
    np.testing.assert_allclose(outs[4], want, rtol=1e-6)
    assert outs[5].tolist() == [[0], [0]] and outs[2].tolist() == [2, 7]


def test_sampled_softmax_draws_classes_that_differ():
    logits, labels = jnp.zeros((3, 50)), jnp.asarray([[1], [4], [9]])
    draw = jax.jit(functools.partial(apply, "sample_logits", num_samples=20))
    outs = draw(logits, labels, None, None, key=jax.random.key(1))
    drawn = np.asarray(outs[0])
    assert drawn.shape == (3, 21) and drawn[:, 0].tolist() == [1, 4, 9]
    assert len(set(drawn[0, 1:])) == 20 and (drawn[0, 1:] == drawn[2, 1:]).all() and drawn.max() < 50
    scores, label = fluid.data("scores", [3, 50]), fluid.data("label", [3, 1], dtype="int64")
    loss = layers.sampled_softmax_with_cross_entropy(scores, label, num_samples=49)
    feed = {"scores": np.zeros((3, 50), "float32"), "label": np.array([[1], [4], [9]])}
    (found,) = fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=[loss])
    assert found.shape == (3, 1) and (found > 0).all()


def numpy_lstm(x, h, c, weight, recurrent, bias, backwards):
    out = np.zeros((len(x), *h.shape))
    for t in range(len(x))[:: -1 if backwards else 1]:
        i, f, a, o = np.split(x[t] @ weight.T + h @ recurrent.T + bias, 4, axis=1)
        i, f, o = (1 / (1 + np.exp(-v)) for v in (i, f, o))
        c = f * c + i * np.tanh(a)
        h = o * np.tanh(c)
        out[t] = h
    return out, h, c


@pytest.mark.parametrize("is_bidirec", [False, True])
def test_cudnn_lstm(is_bidirec):
    rng, (steps, batch, inputs, width, depth) = np.random.RandomState(0), (4, 2, 3, 2, 2)
    ways = 2 if is_bidirec else 1
    x, h, c = (
        rng.randn(steps, batch, inputs),
        rng.randn(depth * ways, batch, width),
        rng.randn(depth * ways, batch, width),
    )
    matrices = [
        (rng.randn(4 * width, inputs if k < ways else width * ways), rng.randn(4 * width, width))
        for k in range(depth * ways)
    ]
    biases = [(rng.randn(4 * width), rng.randn(4 * width)) for _ in matrices]
    flat = np.concatenate([m.ravel() for pair in matrices + biases for m in pair])
    inputs_of_op = {"Input": x, "InitH": h, "InitC": c, "W": flat}
    last_h, last_c = [], []
    for layer in range(depth):
        found = []
        for way in range(ways):
            k = layer * ways + way
            found.append(numpy_lstm(x, h[k], c[k], *matrices[k], sum(biases[k]), way == 1))
            last_h.append(found[-1][1])
            last_c.append(found[-1][2])
        x = np.concatenate([f[0] for f in found], axis=-1)
    check(
        "cudnn_lstm",
        inputs_of_op,
        {"is_bidirec": is_bidirec, "input_size": inputs, "hidden_size": width, "num_layers": depth},
        expect={"Out": x, "last_h": np.stack(last_h), "last_c": np.stack(last_c)},
        grad=tuple(inputs_of_op),
        rows=("Input",),
    )


def test_weights_of_cudnn_lstm_of_another_size():
    with pytest.raises(errors.ShapeError, match="cudnn_lstm: expected 88 weights, found 3"):
        apply(
            "cudnn_lstm",
            jnp.zeros((4, 2, 3)),
            jnp.zeros((1, 2, 2)),
            jnp.zeros((1, 2, 2)),
            jnp.zeros(3),
            None,
            input_size=7,
            hidden_size=2,
            key=jax.random.key(0),
        )


def test_gradients_of_cudnn_lstm_are_of_the_elements_that_its_dropout_keeps():
    rng, program = np.random.RandomState(0), fluid.Program()
    program.random_seed = 5
    with fluid.program_guard(program):
        x, h = (
            fluid.data("x", [4, 2, 3], dtype="float64"),
            fluid.data("h", [2, 2, 5], dtype="float64"),
        )
        x.stop_gradient = False
        out, _, _ = layers.lstm(x, h, h, max_len=4, hidden_size=5, num_layers=2, dropout_prob=0.4)
        loss = layers.reduce_sum(out * out)
        (gradient,) = fluid.gradients(loss, x)
    weight = {program.all_parameters()[0].name: rng.randn(program.all_parameters()[0].shape[0])}
    feed = {"x": rng.randn(4, 2, 3), "h": rng.randn(2, 2, 5)} | weight
    exe = fluid.Executor(fluid.CPUPlace())

    def run(shift):
        """In a scope of its own, so that the same elements are dropped each time."""
        return exe.run(
            program,
            feed=feed | {"x": feed["x"] + shift},
            fetch_list=[loss, gradient],
            scope=fluid.Scope(),
        )

    found = run(0.0)[1]
    numeric = np.zeros_like(found)
    for at in np.ndindex(*found.shape):
        shift = np.zeros_like(found)
        shift[at] = 1e-6
        numeric[at] = (run(shift)[0].item() - run(-shift)[0].item()) / 2e-6
    np.testing.assert_allclose(found, numeric, rtol=1e-5, atol=1e-7)


def test_the_layer_lstm_and_static_rnn_make_their_operators():
    x, h = fluid.data("x", [4, 2, 3]), fluid.data("h", [1, 2, 5])
    out, last_h, _ = layers.lstm(x, h, h, max_len=4, hidden_size=5, num_layers=1)
    rnn = layers.StaticRNN()
    with rnn.step():
        rnn.step_output(layers.scale(rnn.step_input(x), 2.0))
    doubled = rnn()
    types = [op.type for op in fluid.default_main_program().global_block().ops]
    assert "cudnn_lstm" in types and "recurrent" in types
    assert out.shape == (4, 2, 5) and last_h.shape == (1, 2, 5)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    values = np.ones((4, 2, 3), "float32")
    found, twice = exe.run(feed={"x": values, "h": np.zeros((1, 2, 5), "float32")}, fetch_list=[out, doubled])
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(twice, 2 * values)

"""Click model operators, with the gradients that Fluid's training relies on: counts in place of
derivatives.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.ops import ragged_dispatch, registry
from jfluid.ops.ragged import Level, Ragged
from tests.op_case import check
from tests.slow_tests import nightly_but

RNG = np.random.RandomState(6)
X = RNG.uniform(0.5, 3, (5, 4)).astype("float32")
COUNTS = np.array([[1, 0], [2, 1], [3, 1], [5, 2], [8, 3]], "float32")
SHOW = np.log(X[:, :1] + 1)


def ragged(values, lengths, room=0):
    offsets = jnp.asarray(np.cumsum([0, *lengths]), jnp.int32)
    padded = np.concatenate([values, np.repeat(values[:1], room, 0)])
    return Ragged(jnp.asarray(padded), (Level(offsets, max(lengths) + room),), exact=not room)


@pytest.mark.parametrize("use_cvm", [True, False])
def test_cvm(use_cvm):
    expected = np.concatenate([SHOW, np.log(X[:, 1:2] + 1) - SHOW, X[:, 2:]], 1) if use_cvm else X[:, 2:]
    check("cvm", {"X": X, "CVM": COUNTS}, {"use_cvm": use_cvm}, expect={"Y": expected})
    out, back = jax.vjp(lambda x: registry.get("cvm").fn(x, COUNTS, use_cvm=use_cvm), X)
    grad = RNG.normal(size=out.shape).astype("float32")
    np.testing.assert_array_equal(back(grad)[0], np.concatenate([COUNTS, grad[:, -2:]], 1))


@pytest.mark.parametrize("room", [0, 3])
def test_cvm_of_sequences_counts_for_each_row_what_its_sequence_has(room):
    x = ragged(X, [2, 0, 3], room)
    out, back = jax.vjp(lambda v: registry.get("cvm").fn(x.like(v), COUNTS[:3], use_cvm=False).values, x.values)
    np.testing.assert_array_equal(out[:5], X[:, 2:])
    seed = np.ones(out.shape, "float32")
    seed[5:] = 0
    grad = back(jnp.asarray(seed))[0]
    np.testing.assert_array_equal(grad[:5, :2], COUNTS[[0, 0, 2, 2, 2]])
    assert (np.asarray(grad)[:5, 2:] == 1).all() and not np.any(grad[5:])


SIZE = np.array([4, 5, 6, 7], "float32")
TOTAL = np.array([1, -2, 3, 1], "float32")
SQUARES = np.array([5, 6, 7, 8], "float32")
SUMMARIES = {"BatchSize": SIZE, "BatchSum": TOTAL, "BatchSquareSum": SQUARES}
MEANS, SCALES = TOTAL / SIZE, np.sqrt(SIZE / SQUARES)
SHIFT = {
    "scale_w": np.array([1, 2, 3, 4], "float32"),
    "bias": np.array([0.1, 0.2, 0.3, 0.4], "float32"),
}
FEATURES = ("X",)


def test_data_norm():
    y = (X - MEANS) * SCALES
    check(
        "data_norm",
        {"X": X, **SUMMARIES},
        expect={"Y": y, "Means": MEANS, "Scales": SCALES},
        rows=FEATURES,
    )
    check(
        "data_norm",
        {"X": X, **SUMMARIES, **SHIFT},
        {"enable_scale_and_shift": True},
        rows=FEATURES,
        expect={"Y": y * SHIFT["scale_w"] + SHIFT["bias"]},
        grad=("X", "scale_w", "bias"),
    )


@pytest.mark.parametrize("room", [0, 3])
def test_data_norm_gives_the_summaries_of_the_batch_as_gradients(room):
    definition, x = registry.get("data_norm"), ragged(X, [2, 0, 3], room)
    attrs = {"epsilon": 1e-3}

    def run(values, size, total, squares):
        out = ragged_dispatch.call(definition, [None, None, x.like(values), size, total, squares], attrs)[0]
        return jnp.where(x.mask()[:, None], out.values, 0)

    out, back = jax.vjp(run, x.values, SIZE, TOTAL, SQUARES)
    np.testing.assert_allclose(out[:5], (X - MEANS) * SCALES, rtol=1e-5, atol=1e-6)
    grad, size, total, squares = back(jnp.ones_like(out))
    np.testing.assert_allclose(grad[:5], np.tile(SCALES, (5, 1)), rtol=1e-6)
    assert not np.any(grad[5:])
    np.testing.assert_array_equal(size, [5] * 4)
    np.testing.assert_allclose(total, X.sum(0), rtol=1e-6)
    np.testing.assert_allclose(squares, ((X - MEANS) ** 2).sum(0) + 5e-3, rtol=1e-5)


def test_data_norm_leaves_slots_without_a_count_at_zero():
    x = X.copy()
    x[1, 0] = x[3, 0] = x[4, 2] = 0
    seen = np.array([[1, 1], [0, 1], [1, 1], [0, 1], [1, 0]]).repeat(2, 1)
    y = (x - MEANS) * SCALES * seen
    check("data_norm", {"X": x, **SUMMARIES}, {"slot_dim": 2}, expect={"Y": y}, rows=FEATURES)
    scaled = ((x - MEANS) * SCALES * SHIFT["scale_w"] + SHIFT["bias"]) * seen
    check(
        "data_norm",
        {"X": x, **SUMMARIES, **SHIFT},
        {"slot_dim": 2, "enable_scale_and_shift": True},
        expect={"Y": scaled},
        rows=FEATURES,
    )

    def run(*inputs):
        return registry.get("data_norm").fn(None, None, *inputs, slot_dim=2, epsilon=1e-3)[0]

    out, back = jax.vjp(run, x, SIZE, TOTAL, SQUARES)
    grad, size, total, squares = back(jnp.ones_like(out))
    count = seen.sum(0)
    np.testing.assert_allclose(grad, SCALES * seen, rtol=1e-6)
    np.testing.assert_array_equal(size, [1] * 4)
    np.testing.assert_allclose(total, (x * seen).sum(0) / count, rtol=1e-6)
    np.testing.assert_allclose(squares, ((x - MEANS) ** 2 * seen).sum(0) / count + count * 1e-3, rtol=1e-5)


PARTS = [RNG.normal(size=(3, 4)).astype("float32") for _ in range(3)]


@pytest.mark.parametrize(("start", "length", "columns"), [(1, 2, [1, 2]), (-2, -1, [2, 3]), (0, 4, [0, 1, 2, 3])])
def test_parts_of_several(start, length, columns):
    attrs = {"start_index": start, "length": length}
    stacked = np.stack(PARTS)[:, :, columns]
    joined = stacked.transpose(1, 0, 2).reshape(3, -1)
    check("partial_concat", {"X": PARTS}, attrs, expect={"Out": joined}, grad=("X",))
    check("partial_sum", {"X": PARTS}, attrs, expect={"Out": stacked.sum(0)}, grad=("X",))


@pytest.mark.parametrize("op_type", ["partial_concat", "partial_sum"])
@pytest.mark.parametrize(
    ("parts", "attrs", "message"),
    [
        (PARTS, {"start_index": 4}, "reach beyond 4 columns"),
        (PARTS, {"start_index": 2, "length": 3}, "start_index 2 and length 3 reach beyond"),
        ([PARTS[0], PARTS[1][:, :3]], {}, r"the same shape, found \[3, 4\], \[3, 3\]"),
    ],
)
def test_parts_that_are_not_there(op_type, parts, attrs, message):
    with pytest.raises(errors.ShapeError, match=message):
        check(op_type, {"X": parts}, attrs, expect={"Out": None})


def test_rank_attention():
    """Ads of ranks 1, 2, 3 beside each other, one alone, and one without a rank."""
    offset = np.array(
        [
            [1, 1, 0, 2, 1, 0, 0],
            [2, 1, 0, 2, 1, 3, 2],
            [3, 3, 2, 0, 9, 1, 0],
            [1, 0, 0, 0, 0, 0, 0],
            [0, 1, 0, 2, 1, 0, 0],
        ],
        "int32",
    )
    features = RNG.normal(size=(5, 2)).astype("float32")
    matrices = RNG.normal(size=(3, 3, 2, 4)).astype("float32")
    expected = np.zeros((5, 4))
    for row, (own, *shown) in enumerate(offset):
        for rank, other in zip(shown[::2], shown[1::2]):
            if own and rank:
                expected[row] += features[other] @ matrices[own - 1, rank - 1]
    inputs = {"X": features, "RankOffset": offset, "RankParam": matrices.reshape(18, 4)}
    expect = {"Out": expected.astype("float32")}
    check("rank_attention", inputs, expect=expect, grad=("RankParam",), rows=("X", "RankOffset"))
    with pytest.raises(errors.ShapeError, match=r"RankOffset \[rows, 5\] for MaxRank 2"):
        check("rank_attention", inputs, {"MaxRank": 2}, expect={"Out": None})
    with pytest.raises(errors.ShapeError, match=r"RankParam \[9 \* 2, columns\]"):
        wrong = inputs | {"RankParam": matrices.reshape(9, 8)}
        check("rank_attention", wrong, expect={"Out": None})


@pytest.mark.parametrize("shape", nightly_but([(2, 5, 3), (1, 1)], [(7, 3), (2, 5, 3), (1, 1)]))
def test_shuffle_batch(shape):
    x = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    inputs = {"X": x, "Seed": np.array([5])}
    expect = {"Out": None, "ShuffleIdx": None, "SeedOut": None}
    got = check("shuffle_batch", inputs, expect=expect, grad=("X",), rows=("X",))
    out, index, seed = (np.asarray(got[slot][0]) for slot in expect)
    vectors = x.reshape(-1, shape[-1])
    np.testing.assert_array_equal(out.reshape(vectors.shape)[index], vectors)
    assert sorted(index) == list(range(len(vectors))) and seed[0] > 5
    if len(vectors) > 1:
        assert (out != x).any()


def test_shuffle_batch_leaves_padding_behind():
    x = fluid.LoDTensor(X, [[0, 2, 2, 5]])
    inputs = {"X": x, "Seed": np.array([1])}
    got = check("shuffle_batch", inputs, expect={"Out": None, "ShuffleIdx": None}, grad=("X",))
    assert got["Out"][0].lod() == [[0, 2, 2, 5]]
    np.testing.assert_array_equal(np.asarray(got["Out"][0])[np.asarray(got["ShuffleIdx"][0])], X)

"""CRF and chunk operators against enumeration of all taggings and a chunk reader written as a loop;
with padding rows.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jfluid import errors
from jfluid.ops import crf, registry
from jfluid.ops.ragged import Level, Ragged
from tests.op_case import check
from tests.slow_tests import nightly_but

RNG = np.random.RandomState(4)
TAGS = 3
TRANSITION = RNG.normal(size=(TAGS + 2, TAGS)).astype("float32")
EMISSION = RNG.normal(size=(3, 4, TAGS)).astype("float32")
LABEL = RNG.randint(0, TAGS, (3, 4)).astype("int64")
LENGTHS = [4, 1, 2]
LENGTH = np.array(LENGTHS, "int64")[:, None]
DENSE = {"Emission": EMISSION, "Transition": TRANSITION, "Length": LENGTH}
ROWS = ("Emission", "Label", "Length")


def score(emission, path):
    steps = TRANSITION[2:]
    return (
        TRANSITION[0, path[0]]
        + TRANSITION[1, path[-1]]
        + sum(e[t] for e, t in zip(emission, path, strict=True))
        + sum(steps[a, b] for a, b in itertools.pairwise(path))
    )


def taggings(emission):
    return list(itertools.product(range(TAGS), repeat=len(emission)))


def loss(emission, path):
    return np.log(sum(np.exp(score(emission, p)) for p in taggings(emission))) - score(emission, path)


def best(emission):
    return max(taggings(emission), key=lambda path: score(emission, path))


def dense_losses():
    return np.array([[loss(e[:n], t[:n])] for e, t, n in zip(EMISSION, LABEL, LENGTHS, strict=True)])


def dense_paths():
    path = np.zeros((3, 4), "int64")
    for row, emission, n in zip(path, EMISSION, LENGTHS, strict=True):
        row[:n] = best(emission[:n])
    return path


def ragged(values, lengths, room=0):
    """Rows in sequences, with `room` padding rows."""
    offsets = jnp.asarray(np.cumsum([0, *lengths]), jnp.int32)
    padded = np.concatenate([values, np.repeat(values[:1], room, 0)])
    return Ragged(jnp.asarray(padded), (Level(offsets, max(lengths) + room),), exact=not room)


def call(op_type, *inputs, **attrs):
    with jax.enable_x64(True):
        return jax.jit(lambda *given: registry.get(op_type).fn(*given, **attrs))(*inputs)


def test_linear_chain_crf_of_padded_sequences():
    check(
        "linear_chain_crf",
        {**DENSE, "Label": LABEL},
        expect={"LogLikelihood": dense_losses()},
        rows=ROWS,
    )


def test_linear_chain_crf_has_gradients():
    """Against central differences, all of them in one compiled call."""
    with jax.enable_x64(True):
        x = jnp.asarray(np.concatenate([EMISSION.ravel(), TRANSITION.ravel()]), jnp.float64)

        def total(x):
            emission, transition = (
                x[: EMISSION.size].reshape(EMISSION.shape),
                x[EMISSION.size :].reshape(TRANSITION.shape),
            )
            out = registry.get("linear_chain_crf").fn(emission, transition, LABEL, LENGTH)[3]
            return (out[:, 0] * jnp.array([1.0, 3.0, 2.0])).sum()

        steps = jnp.eye(x.size) * 1e-6
        numeric = jax.jit(jax.vmap(lambda step: (total(x + step) - total(x - step)) / 2e-6))(steps)
        np.testing.assert_allclose(jax.jit(jax.grad(total))(x), numeric, rtol=1e-5, atol=1e-7)


def test_linear_chain_crf_keeps_fluids_intermediates():
    """Alpha holds the forward probabilities scaled to a sum of 1 at each step, and zeros behind the
    end.
    """
    alpha = np.zeros_like(EMISSION)
    for row, emission, n in zip(alpha, EMISSION, LENGTHS, strict=True):
        row[0] = np.exp(TRANSITION[0] + emission[0])
        for t in range(1, n):
            row[t] = row[t - 1] @ np.exp(TRANSITION[2:]) * np.exp(emission[t])
        row[:n] /= row[:n].sum(1, keepdims=True)
    check(
        "linear_chain_crf",
        {**DENSE, "Label": LABEL[..., None]},
        rows=ROWS,
        expect={
            "Alpha": alpha,
            "EmissionExps": np.exp(EMISSION - EMISSION.max(-1, keepdims=True)),
            "TransitionExps": np.exp(TRANSITION),
            "LogLikelihood": dense_losses(),
        },
    )


@pytest.mark.parametrize("room", [0, 3])
def test_linear_chain_crf_of_ragged_rows(room):
    """The loss of an empty sequence is 0; gradients are those of the same sequences in the padded
    form, 0 in padding.
    """
    labels = ragged(LABEL.reshape(-1, 1)[:6], [2, 0, 4], room)
    rows = ragged(EMISSION.reshape(-1, TAGS)[:6], [2, 0, 4], room)
    weights = np.array([1.0, 5.0, 2.0], "float32")

    @jax.jit
    @jax.value_and_grad
    def total(values):
        out = registry.get("linear_chain_crf").fn(rows.like(values), TRANSITION, labels, None)[3]
        return (out[:, 0] * weights).sum()

    @jax.jit
    @jax.grad
    def total_dense(dense):
        out = registry.get("linear_chain_crf").fn(dense, TRANSITION, np.stack([flat[:4], flat[2:6]]), np.array([2, 4]))[
            3
        ]
        return (out[:, 0] * weights[[0, 2]]).sum()

    with jax.enable_x64(True):
        flat, values = LABEL.reshape(-1)[:6], EMISSION.reshape(-1, TAGS)[:6]
        found, grad = total(rows.values)
        np.testing.assert_allclose(found, loss(values[:2], flat[:2]) + 2 * loss(values[2:], flat[2:]), rtol=1e-5)
        expected = total_dense(np.stack([values[:4], values[2:]]))
    np.testing.assert_allclose(grad[:6], np.concatenate([expected[0, :2], expected[1]]), rtol=1e-4, atol=1e-6)
    assert not np.any(grad[6:])


def test_linear_chain_crf_needs_a_lod_or_a_length():
    with pytest.raises(errors.OpError, match="Emission needs a LoD"):
        call("linear_chain_crf", EMISSION[0], TRANSITION, LABEL[0], None)


def test_crf_decoding_of_padded_sequences():
    check("crf_decoding", DENSE, expect={"ViterbiPath": dense_paths()}, rows=ROWS)
    inside = np.arange(4) < LENGTH
    right = ((dense_paths() == LABEL) & inside).astype("int64")
    check("crf_decoding", {**DENSE, "Label": LABEL}, expect={"ViterbiPath": right}, rows=ROWS)


@pytest.mark.parametrize("room", [0, 3])
def test_crf_decoding_of_ragged_rows(room):
    rows, labels = EMISSION.reshape(-1, TAGS)[:6], LABEL.reshape(-1, 1)[:6]
    path = np.array([*best(rows[:2]), *best(rows[2:])])[:, None]
    decode = jax.jit(registry.get("crf_decoding").fn)
    with jax.enable_x64(True):
        out = decode(ragged(rows, [2, 0, 4], room), TRANSITION, None, None)
    np.testing.assert_array_equal(out.values[:6], path)
    assert out.dtype == "int64" and out.exact == (not room) and out.last.offsets.tolist() == [0, 2, 2, 6]
    seen = ragged(labels, [2, 0, 4], room)
    with jax.enable_x64(True):
        out = decode(ragged(rows, [2, 0, 4], room), TRANSITION, seen, None)
    np.testing.assert_array_equal(out.values[:6], path == labels)


def read_chunks(tags, scheme, types):
    """{(first, last, type)}: the conlleval reading, a chunk open or not at each tag."""
    letters = {"IOB": "BI", "IOE": "IE", "IOBES": "BIES", "plain": "I"}[scheme]
    found, start = set(), None
    marks = [(letters[t % len(letters)], t // len(letters)) if t // len(letters) < types else ("O", None) for t in tags]
    for i, (mark, kind) in enumerate([*marks, ("O", None)]):
        before, before_kind = marks[i - 1] if i else ("O", None)
        changed = kind != before_kind
        if start is not None and (changed or mark in "BS" or before in "ES"):
            found.add((start, i - 1, before_kind))
            start = None
        if mark != "O" and start is None:
            start = i
    return found


def chunk_numbers(inferred, labels, lengths, scheme, types, excluded):
    counts, at = np.zeros(3, "int64"), 0
    for n in lengths:
        mine, theirs = (
            {c for c in read_chunks(v[at : at + n], scheme, types) if c[2] not in excluded} for v in (inferred, labels)
        )
        counts += [len(mine), len(theirs), len(mine & theirs)]
        at += n
    precision, recall = (counts[2] / max(counts[i], 1) for i in (0, 1))
    score = 2 * precision * recall / (precision + recall) if counts[2] else 0
    return [*np.array([[precision], [recall], [score]], "float32"), *counts[:, None]]


OUTS = ("Precision", "Recall", "F1-Score", "NumInferChunks", "NumLabelChunks", "NumCorrectChunks")
SCHEMES = {"IOB": 2, "IOE": 2, "IOBES": 4, "plain": 1}


def tag_rows(scheme, number):
    labels = RNG.randint(0, 3 * SCHEMES[scheme] + 1, number).astype("int64")
    return np.where(RNG.rand(number) < 0.2, RNG.randint(0, 3 * SCHEMES[scheme] + 1, number), labels), labels


# before each change test_ragged_ops.py holds all schemes against the real Fluid
@pytest.mark.parametrize("excluded", nightly_but([(1,)], [(), (1,)]))
@pytest.mark.parametrize("scheme", nightly_but(["IOBES"], SCHEMES))
def test_chunk_eval(scheme, excluded):
    attrs = {"num_chunk_types": 3, "chunk_scheme": scheme, "excluded_chunk_types": excluded}
    lengths = [20, 0, 35, 1]
    inferred, labels = tag_rows(scheme, 56)
    expected = chunk_numbers(inferred, labels, lengths, scheme, 3, excluded)
    assert expected[-1] > 0
    for room in (0, 5):
        outs = call(
            "chunk_eval",
            *(ragged(v[:, None], lengths, room) for v in (inferred, labels)),
            None,
            **attrs,
        )
        for slot, out, want in zip(OUTS, outs, expected, strict=True):
            assert out.dtype == want.dtype and out.shape == (1,), slot
            np.testing.assert_allclose(out, want, rtol=1e-6, err_msg=slot)
    dense = [np.concatenate([v[20:55], v[:35]]).reshape(2, 35) for v in (inferred, labels)]
    joined = [np.concatenate([v[0], v[1, :9]]) for v in dense]
    check(
        "chunk_eval",
        {"Inference": dense[0], "Label": dense[1], "SeqLength": np.array([35, 9])},
        attrs,
        expect=dict(zip(OUTS, chunk_numbers(*joined, [35, 9], scheme, 3, excluded), strict=True)),
    )


def test_chunk_eval_without_chunks_gives_zeros():
    outside = np.full((2, 3), 6)
    check(
        "chunk_eval",
        {"Inference": outside, "Label": outside, "SeqLength": np.array([3, 2])},
        {"num_chunk_types": 3, "chunk_scheme": "IOB"},
        expect=dict(zip(OUTS, [np.zeros(1, "float32")] * 3 + [np.zeros(1, "int64")] * 3, strict=True)),
    )


def test_chunk_eval_names_the_schemes():
    with pytest.raises(errors.AttributeTypeError, match="IOB, IOE, IOBES, plain, found 'BIO'"):
        call("chunk_eval", LABEL, LABEL, LENGTH, num_chunk_types=3, chunk_scheme="BIO")


@pytest.mark.parametrize("scale", [1, 60])
def test_sums_over_paths_have_the_gradient_of_jax(scale):
    """Also with weights whose exponentials overflow float32, and a step that no path takes."""

    def plain(start, x, steps, inside):
        alpha = start
        for now, here in zip(x, inside, strict=True):
            new = jax.nn.logsumexp(alpha[:, :, None] + steps, axis=1) + now
            alpha = jnp.where(here[:, None], new, alpha)
        return alpha

    random = np.random.RandomState(1)
    start, x, steps = (scale * random.normal(size=s).astype("float32") for s in ((3, 4), (5, 3, 4), (4, 4)))
    steps[1, 2] = -np.inf
    inside = np.arange(5)[:, None] < np.array([5, 0, 3])
    weights = random.normal(size=(3, 4)).astype("float32")

    def value_and_gradients(function):
        def both(*given):
            value, back = jax.vjp(lambda *values: function(*values, inside), *given)
            return value, back(weights)

        return jax.jit(both)(start, x, steps)

    ours, own = value_and_gradients(lambda *given: crf._forward(*given)[0])
    theirs, plainly = value_and_gradients(plain)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    for found, expected in zip(own, plainly, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)

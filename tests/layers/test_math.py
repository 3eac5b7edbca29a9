"""Arithmetic, reductions, norms and products through the public API."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors

RNG = np.random.RandomState(11)
X = RNG.uniform(0.5, 2.0, (2, 3)).astype("float32")
Y = RNG.uniform(2.1, 3.0, (2, 3)).astype("float32")
Z = RNG.uniform(-1, 1, (3, 4)).astype("float32")
BATCH = RNG.uniform(-1, 1, (2, 3, 2)).astype("float32")
DIVIDEND, DIVISOR = np.array([[5, -7, 9]]), np.array([[3, 2, -4]])
layers = fluid.layers


def run_each(cases):
    """Return the values of the variables that cases (function, arrays, ...) make, all in one program."""
    program, outs, feeds = fluid.Program(), {}, {}
    with fluid.program_guard(program, fluid.Program()), fluid.unique_name.guard():
        for at, (name, (build, arrays, *_)) in enumerate(cases.items()):
            given = {f"feed_{at}_{i}": a for i, a in enumerate(arrays)}
            data = [
                layers.data(n, list(a.shape), append_batch_size=False, dtype=str(a.dtype)) for n, a in given.items()
            ]
            outs[name] = build(*data)
            feeds |= given
        values = fluid.Executor(fluid.CPUPlace()).run(
            program, feed=feeds, fetch_list=list(outs.values()), scope=fluid.Scope()
        )
    for name, value in zip(outs, values, strict=True):
        assert tuple(outs[name].shape) == value.shape, name
    return dict(zip(outs, values))


def run(build, *arrays):
    """Return the value of the variable that a function makes of variables fed with arrays."""
    return run_each({"": (build, arrays)})[""]


def l2(x, axis):
    return x / np.linalg.norm(x, axis=axis, keepdims=True)


CASES = {
    "elementwise_add": (
        lambda x, y: layers.elementwise_add(x, y, act="relu"),
        [X, -Y],
        np.maximum(X - Y, 0),
    ),
    "elementwise_sub": (
        lambda x, y: layers.elementwise_sub(x, y, axis=0),
        [X, Y[:, 0]],
        X - Y[:, :1],
    ),
    "elementwise_mul": (lambda x, y: layers.elementwise_mul(x, y), [X, Y[0]], X * Y[0]),
    "elementwise_div": (lambda x, y: layers.elementwise_div(x, y), [X, Y], X / Y),
    "elementwise_max": (
        lambda x, y: layers.elementwise_max(x, y),
        [X, Y - 1],
        np.maximum(X, Y - 1),
    ),
    "elementwise_min": (
        lambda x, y: layers.elementwise_min(x, y),
        [X, Y - 1],
        np.minimum(X, Y - 1),
    ),
    "elementwise_pow": (lambda x, y: layers.elementwise_pow(x, y), [X, Y], X**Y),
    "elementwise_mod": (
        lambda x, y: layers.elementwise_mod(x, y),
        [DIVIDEND, DIVISOR],
        np.array([[2, -1, 1]]),
    ),
    "elementwise_floordiv": (
        lambda x, y: layers.elementwise_floordiv(x, y),
        [DIVIDEND, DIVISOR],
        np.array([[1, -3, -2]]),
    ),
    "reduce_sum": (lambda x: layers.reduce_sum(x, dim=1), [X], X.sum(1)),
    "reduce_mean": (
        lambda x: layers.reduce_mean(x, dim=[0], keep_dim=True),
        [X],
        X.mean(0, keepdims=True),
    ),
    "reduce_max": (lambda x: layers.reduce_max(x), [X], X.max().reshape(1)),
    "reduce_min": (lambda x: layers.reduce_min(x, dim=[-1, -2]), [X], X.min().reshape(1)),
    "reduce_prod": (
        lambda x: layers.reduce_prod(x, dim=[], keep_dim=True),
        [X],
        X.prod().reshape(1, 1),
    ),
    "reduce_all": (lambda x: layers.reduce_all(x, dim=1), [X > 1], (X > 1).all(1)),
    "reduce_any": (lambda x: layers.reduce_any(x), [X > 1], np.array([(X > 1).any()])),
    "mean": (lambda x: layers.mean(x), [X], X.mean().reshape(1)),
    "logsumexp": (
        lambda x: layers.logsumexp(x, dim=[1], keepdim=True),
        [X],
        np.log(np.exp(X).sum(1, keepdims=True)),
    ),
    "logsumexp of all": (lambda x: layers.logsumexp(x), [X], np.log(np.exp(X).sum()).reshape(1)),
    "sum": (lambda x, y: layers.sum([x, y]), [X, Y], X + Y),
    "sum of one": (lambda x: layers.sum(x), [X], X),
    "sums": (lambda x, y: layers.sums([x, y, x]), [X, Y], 2 * X + Y),
    "scale": (lambda x: layers.scale(x, 2.0, -3.0, act="relu"), [X], np.maximum(2 * X - 3, 0)),
    "scale before bias": (
        lambda x: layers.scale(x, 2, 3, bias_after_scale=False),
        [X],
        2 * (X + 3),
    ),
    "scale by a tensor": (lambda x, s: layers.scale(x, s), [X, X[0, :1]], X * X[0, 0]),
    "cumsum": (lambda x: layers.cumsum(x), [X], np.cumsum(X, 1)),
    "cumsum backwards": (
        lambda x: layers.cumsum(x, axis=0, exclusive=True, reverse=True),
        [X],
        np.stack([X[1], X[1] * 0]),
    ),
    "clip": (lambda x: layers.clip(x, 1, 1.5), [X], np.clip(X, 1, 1.5)),
    "clamp": (lambda x: layers.clamp(x, 1.0), [X], np.maximum(X, 1)),
    "clamp by a tensor": (
        lambda x, m: layers.clamp(x, max=m),
        [X - 1, np.full(1, 0.4, "float32")],
        np.clip(X - 1, 0, 0.4),
    ),
    "clip_by_norm": (lambda x: layers.clip_by_norm(x, 1.0), [X], X / np.linalg.norm(X)),
    "addcmul": (lambda x, y: layers.addcmul(x, x, y, value=0.5), [X, Y], X + 0.5 * X * Y),
    "mul": (
        lambda x, y: layers.mul(x, y, x_num_col_dims=2, y_num_col_dims=1),
        [BATCH, Z[:2]],
        BATCH @ Z[:2],
    ),
    "matmul": (lambda x, y: layers.matmul(x, y, transpose_y=True, alpha=2.0), [X, Y], 2 * X @ Y.T),
    "matmul of a batch": (
        lambda x, y: layers.matmul(x, y, transpose_x=True),
        [BATCH, Z],
        BATCH.transpose(0, 2, 1) @ Z,
    ),
    "bmm": (
        lambda x: layers.bmm(x, layers.transpose(x, [0, 2, 1])),
        [BATCH],
        BATCH @ BATCH.transpose(0, 2, 1),
    ),
    "dot": (lambda x, y: layers.dot(x, y), [X, Y], (X * Y).sum(1, keepdims=True)),
    "addmm": (
        lambda a, x, y: layers.addmm(a, x, y, alpha=2.0, beta=3.0),
        [X[:, :1] + Z[:2], X, Z],
        3 * (X[:, :1] + Z[:2]) + 2 * X @ Z,
    ),
    "kron": (lambda x, y: layers.kron(x, y), [X, Y], np.kron(X, Y)),
    "cross": (lambda x, y: layers.cross(x, y), [X, Y], np.cross(X, Y)),
    "cross along": (lambda x: layers.cross(x, x, dim=1), [BATCH], BATCH * 0),
    "trace": (lambda x: layers.trace(x, offset=1), [Z], np.trace(Z, 1).reshape(1)),
    "trace of a batch": (
        lambda x: layers.trace(x, dim1=1, dim2=2),
        [BATCH],
        np.trace(BATCH, axis1=1, axis2=2),
    ),
    "dist": (lambda x, y: layers.dist(x, y), [X, Y], np.linalg.norm(X - Y).reshape(1)),
    "dist inf": (
        lambda x, y: layers.dist(x, y, float("inf")),
        [X, Y],
        np.abs(X - Y).max().reshape(1),
    ),
    "l2_normalize": (lambda x: layers.l2_normalize(x, 1), [X], l2(X, 1)),
    "l2_normalize of a vector": (lambda x: layers.l2_normalize(x, None), [X[0]], l2(X[0], 0)),
    "cos_sim": (
        lambda x, y: layers.cos_sim(x, y),
        [X, Y],
        (l2(X, 1) * l2(Y, 1)).sum(1, keepdims=True),
    ),
}


@pytest.fixture(scope="module")
def values():
    return run_each(CASES)


@pytest.mark.parametrize("name", CASES)
def test_value(name, values):
    found, expected = values[name], CASES[name][-1]
    assert found.dtype == np.asarray(expected).dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def into(build, dtype="float32"):
    """`build` with a variable to write, which it must return."""

    def with_output(*variables):
        out = layers.create_tensor(dtype)
        assert build(out, *variables) is out
        return out

    return with_output


WRITES = {
    "sums": (into(lambda out, x: layers.sums([x, x], out=out)), [X], 2 * X),
    "kron": (into(lambda out, x: layers.kron(x, x, out=out)), [X], np.kron(X, X)),
    "trace": (into(lambda out, x: layers.trace(x, out=out)), [X], np.trace(X).reshape(1)),
    "clamp": (into(lambda out, x: layers.clamp(x, 1.0, 1.5, output=out)), [X], np.clip(X, 1, 1.5)),
    "addcmul": (into(lambda out, x: layers.addcmul(x, x, x, out=out)), [X], X + X * X),
    "logsumexp": (
        into(lambda out, x: layers.logsumexp(x, out=out)),
        [X],
        np.log(np.exp(X).sum()).reshape(1),
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_a_given_variable(name):
    build, arrays, expected = WRITES[name]
    np.testing.assert_allclose(run(build, *arrays), expected, rtol=1e-5)


def test_names_follow_the_layer():
    with fluid.program_guard(fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [2, 3], append_batch_size=False)
        assert layers.mean(x).name == "mean_0.tmp_0"
        assert layers.elementwise_add(x, x, act="relu", name="both").name == "both.tmp_1"
        assert layers.l2_normalize(x, 1).name == "l2_normalize_0.tmp_0"
        assert layers.clamp(x, 1.0).name == "clamp_0.tmp_0"


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (
            lambda x, i: layers.elementwise_add(x, 3),
            TypeError,
            "elementwise_add, y: expected a Variable",
        ),
        (
            lambda x, i: layers.elementwise_add(x, i),
            errors.ShapeError,
            "one dtype, found float32 and int64",
        ),
        (
            lambda x, i: layers.elementwise_add(x, layers.transpose(x, [1, 0])),
            errors.ShapeError,
            "dimension 0 is 2",
        ),
        (lambda x, i: layers.mean(i), TypeError, "mean, x: expected dtype .* found int64"),
        (lambda x, i: layers.reduce_all(x), TypeError, "expected dtype bool, found float32"),
        (
            lambda x, i: layers.reduce_sum(x, dim=2),
            errors.ShapeError,
            r"reduce_sum: dim .* found \[2\]",
        ),
        (lambda x, i: layers.matmul(x, x), errors.ShapeError, r"matmul: .* found 3 and 2"),
        (lambda x, i: layers.bmm(x, x), errors.ShapeError, "3 dimensions"),
        (lambda x, i: layers.sum([x, i]), errors.ShapeError, "one dtype"),
        (lambda x, i: layers.clamp(x), ValueError, "min, max or both"),
        (lambda x, i: layers.clip(x, 2.0, 1.0), errors.ShapeError, "less than max"),
    ],
)
def test_wrong_arguments(build, error, match):
    with fluid.program_guard(fluid.Program()):
        x = layers.data("x", [2, 3], append_batch_size=False)
        i = layers.data("i", [2, 3], append_batch_size=False, dtype="int64")
        with pytest.raises(error, match=match):
            build(x, i)


def test_unknown_batch_size_stays_unknown():
    with fluid.program_guard(fluid.Program()):
        x, y = layers.data("x", [6]), layers.data("y", [3])
        assert layers.elementwise_add(x, x).shape == (-1, 6)
        assert layers.matmul(x, y, transpose_x=True).shape == (6, 3)
        assert layers.reduce_sum(x, dim=1).shape == (-1,)
        assert layers.cos_sim(x, x).shape == (-1, 1)
        row = layers.data("row", [1, 6], append_batch_size=False)
        assert layers.elementwise_mul(x, row).shape == (-1, 6)

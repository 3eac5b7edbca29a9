"""Dropout."""

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.ops import registry
from tests.op_case import check

X = np.random.RandomState(0).uniform(0.5, 1.5, (3, 4)).astype("float32")
DROPOUT = registry.get("dropout").fn


def draw(number, shape=(400, 500), **attrs):
    out, mask = jax.jit(lambda key: DROPOUT(np.ones(shape, "float32"), None, key=key, **attrs))(jax.random.key(number))
    return np.asarray(out), np.asarray(mask)


@pytest.mark.parametrize("prob", [0.1, 0.5, 0.73])
def test_elements_are_dropped_with_the_given_probability(prob):
    out, mask = draw(0, (1000, 4000), dropout_prob=prob)
    assert mask.dtype == np.uint8
    np.testing.assert_array_equal(out, mask)
    # Four million draws: five standard deviations are at most 0.00125.
    assert abs(1 - mask.mean() - prob) < 5 * np.sqrt(prob * (1 - prob) / mask.size)
    for axis in (0, 1):  # no row or column is special
        means = mask.mean(axis)
        deviation = np.sqrt(prob * (1 - prob) / mask.shape[axis])
        assert abs(means.std() / deviation - 1) < 0.1 and abs(means + prob - 1).max() < 6 * deviation


def test_masks_of_neighbours_and_of_other_keys_are_independent():
    masks = [draw(n, dropout_prob=0.5)[1].astype(float) - 0.5 for n in range(4)]
    limit = 5 * 0.25 / np.sqrt(masks[0].size)
    for i, first in enumerate(masks):
        for second in masks[:i]:
            assert abs((first * second).mean()) < limit
        flat = first.reshape(-1)
        for lag in (1, 2, 3, 16, 500, 512, 4096, 65536):
            assert abs((flat[lag:] * flat[:-lag]).mean()) < 2 * limit


def test_kept_elements_are_scaled_up_in_training():
    out, mask = draw(1, dropout_prob=0.2, dropout_implementation="upscale_in_train")
    np.testing.assert_allclose(out, mask * np.float32(1.25), rtol=1e-6)


@pytest.mark.parametrize(("implementation", "factor"), [("downgrade_in_infer", 0.7), ("upscale_in_train", 1.0)])
def test_the_test_form(implementation, factor):
    check(
        "dropout",
        {"X": X},
        {"dropout_prob": 0.3, "is_test": True, "dropout_implementation": implementation},
        expect={"Out": X * np.float32(factor), "Mask": None},
    )


@pytest.mark.parametrize("implementation", ["downgrade_in_infer", "upscale_in_train"])
@pytest.mark.parametrize("prob", [0.0, 1.0])
def test_nothing_and_everything_dropped(prob, implementation):
    check(
        "dropout",
        {"X": X},
        {"dropout_prob": prob, "dropout_implementation": implementation},
        expect={"Out": X * np.float32(1 - prob), "Mask": np.full(X.shape, 1 - prob, "uint8")},
    )


@pytest.mark.parametrize(("implementation", "factor"), [("downgrade_in_infer", 1.0), ("upscale_in_train", 2.0)])
def test_gradient(implementation, factor):
    mask, grad = np.arange(12).reshape(3, 4).astype("uint8") % 2, X[::-1]
    attrs = {"dropout_prob": 0.5, "dropout_implementation": implementation}
    check(
        "dropout_grad",
        {"Mask": mask, "Out@GRAD": grad},
        attrs,
        expect={"X@GRAD": grad * mask * np.float32(factor)},
    )


@pytest.mark.parametrize("half", ["float16", "float64"])
def test_dtypes(half):
    found = check(
        "dropout",
        {"X": np.ones((8, 8), half)},
        {"dropout_prob": 0.5},
        expect={"Out": None, "Mask": None},
    )
    assert found["Out"][0].dtype == half


def run(steps, **attrs):
    """What dropout leaves of ones, and the gradient of its sum, in several steps."""
    program = fluid.Program()
    program.random_seed = 3
    block = program.global_block()
    inputs = {"X": block.create_var(name="x", shape=[-1, 64], dtype="float32", is_data=True, stop_gradient=False)}
    feed = {"x": np.ones((16, 64), "float32")}
    if "seed_tensor" in attrs:
        inputs["Seed"] = block.create_var(name="s", shape=[1], dtype="int32", is_data=True)
        feed["s"] = np.array([attrs.pop("seed_tensor")], "int32")
    out, mask = (block.create_var(name=n) for n in ("out", "mask"))
    block.append_op("dropout", inputs, {"Out": out, "Mask": mask}, attrs)
    (grad,) = fluid.gradients(out, inputs["X"])
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    return [exe.run(program, feed=feed, fetch_list=[out, mask, grad], scope=scope) for _ in range(steps)]


def test_each_step_draws_anew_and_the_gradient_uses_its_mask():
    steps = run(3, dropout_prob=0.4, dropout_implementation="upscale_in_train")
    for out, mask, grad in steps:
        np.testing.assert_allclose(out, mask / np.float32(0.6), rtol=1e-6)
        np.testing.assert_array_equal(grad, out)
    assert not np.array_equal(steps[0][1], steps[1][1]) and not np.array_equal(steps[1][1], steps[2][1])


@pytest.mark.parametrize("attrs", [{"seed": 5, "fix_seed": True}, {"seed_tensor": 5}])
def test_a_fixed_seed_gives_the_same_mask_in_every_step(attrs):
    first, second = run(2, **attrs)
    np.testing.assert_array_equal(first[1], second[1])
    assert 0.4 < first[1].mean() < 0.6
    different = {"seed_tensor": 6} if "seed_tensor" in attrs else {"seed": 6, "fix_seed": True}
    assert not np.array_equal(first[1], run(1, **different)[0][1])


@pytest.mark.parametrize("attrs", [{"seed": 5}, {"seed_tensor": 0}])
def test_a_seed_that_is_not_fixed_counts_for_nothing(attrs):
    first, second = run(2, **attrs)
    assert not np.array_equal(first[1], second[1])


@pytest.mark.parametrize("attrs", [{"dropout_prob": 1.5}, {"dropout_implementation": "scale"}])
def test_wrong_attributes_raise(attrs):
    with pytest.raises(errors.ProgramError, match=r"1\.5|scale"):
        check("dropout", {"X": X}, attrs, expect={"Out": None})

"""Penalties and clips on their own; with an optimizer they are in tests/optimizer/test_optimizer.py."""

import warnings

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.clip import (
    ErrorClipByValue,
    GradientClipByGlobalNorm,
    GradientClipByNorm,
    GradientClipByValue,
    set_gradient_clip,
)
from jfluid.regularizer import L1Decay, L2Decay

X = np.array([[1.0, -2.0, 0.5], [0.3, 0.8, -1.5]], "float32")


def net():
    """A loss whose gradients of fc_0.w_0 and fc_0.b_0 are known: mean(x @ w + b)."""
    x = fluid.data("x", [2, 3])
    half = fluid.initializer.Constant(0.5)
    return fluid.layers.mean(fluid.layers.fc(x, 2, param_attr=half, bias_attr=half))


W_GRAD = np.repeat(X.sum(0)[:, None], 2, 1) / 4
B_GRAD = np.full(2, 0.5, "float32")


def updated(optimizer, loss=None):
    """What one step subtracts from (w, b), with a learning rate of 1."""
    optimizer.minimize(net() if loss is None else loss)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    executor.run(feed={"x": X})
    return [0.5 - np.array(fluid.global_scope().find_var(n).get_tensor()) for n in ("fc_0.w_0", "fc_0.b_0")]


def close(found, *expect):
    for a, b in zip(found, expect, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def norm(*arrays):
    return np.sqrt(sum((a**2).sum() for a in arrays))


def test_l2_decay():
    close(updated(fluid.optimizer.SGD(1.0, regularization=L2Decay(0.2))), W_GRAD + 0.1, B_GRAD + 0.1)


def test_l1_decay():
    close(updated(fluid.optimizer.SGD(1.0, regularization=L1Decay(0.2))), W_GRAD + 0.2, B_GRAD + 0.2)


def test_a_parameters_own_decay_goes_first():
    loss = net()
    loss.block.var("fc_0.w_0").regularizer = L1Decay(0.4)
    close(
        updated(fluid.optimizer.SGD(1.0, regularization=L2Decay(0.2)), loss),
        W_GRAD + 0.4,
        B_GRAD + 0.1,
    )


def test_clip_by_value():
    close(
        updated(fluid.optimizer.SGD(1.0, grad_clip=GradientClipByValue(0.3, -0.1))),
        np.clip(W_GRAD, -0.1, 0.3),
        np.clip(B_GRAD, -0.1, 0.3),
    )


def test_clip_by_norm():
    close(
        updated(fluid.optimizer.SGD(1.0, grad_clip=GradientClipByNorm(0.6))),
        W_GRAD * min(1, 0.6 / norm(W_GRAD)),
        B_GRAD * min(1, 0.6 / norm(B_GRAD)),
    )


@pytest.mark.parametrize("bound", [0.3, 100.0])
def test_clip_by_global_norm(bound):
    factor = bound / max(bound, norm(W_GRAD, B_GRAD))
    found = updated(fluid.optimizer.SGD(1.0, grad_clip=GradientClipByGlobalNorm(bound)))
    close(found, W_GRAD * factor, B_GRAD * factor)


def test_need_clip():
    clip = GradientClipByGlobalNorm(0.3, need_clip=lambda p: p.name == "fc_0.w_0")
    close(updated(fluid.optimizer.SGD(1.0, grad_clip=clip)), W_GRAD * 0.3 / norm(W_GRAD), B_GRAD)
    clip = GradientClipByValue(0.1, need_clip=lambda p: False)
    assert clip([]) == []


@pytest.mark.parametrize("kind", [GradientClipByValue, GradientClipByNorm, GradientClipByGlobalNorm])
def test_parameters_without_gradient_are_left_out_as_in_fluid(kind):
    loss = net()
    pairs = fluid.backward.append_backward(loss)
    alone = fluid.layers.create_parameter([2], "float32", name="alone")
    found = kind(0.3)([*pairs, (alone, None)])
    assert [p.name for p, _ in found] == [p.name for p, _ in pairs]
    set_gradient_clip(kind(0.3))
    found = fluid.clip.append_gradient_clip_ops([(alone, None), *pairs])
    assert [p.name for p, _ in found] == [p.name for p, _ in pairs]
    nothing = GradientClipByGlobalNorm(0.3, need_clip=lambda p: False)
    assert nothing([*pairs, (alone, None)]) == [*pairs, (alone, None)]


def test_clips_name_the_clipped_gradient():
    loss = net()
    fluid.optimizer.SGD(1.0, grad_clip=GradientClipByNorm(0.6)).minimize(loss)
    pairs = [tuple(op.attr("op_role_var")) for op in loss.block.ops if op.type == "clip_by_norm"]
    assert pairs == [("fc_0.b_0", "clip_by_norm_0.tmp_0"), ("fc_0.w_0", "clip_by_norm_1.tmp_0")]


def test_set_gradient_clip():
    loss = net()
    set_gradient_clip(GradientClipByGlobalNorm(0.3))
    factor = 0.3 / norm(W_GRAD, B_GRAD)
    close(updated(fluid.optimizer.SGD(1.0), loss), W_GRAD * factor, B_GRAD * factor)


def test_grad_clip_goes_before_set_gradient_clip():
    loss = net()
    set_gradient_clip(GradientClipByValue(1e-3))
    close(
        updated(fluid.optimizer.SGD(1.0, grad_clip=GradientClipByValue(0.1)), loss),
        np.clip(W_GRAD, -0.1, 0.1),
        np.clip(B_GRAD, -0.1, 0.1),
    )


def test_set_gradient_clip_of_some_parameters_clips_nothing_as_in_fluid():
    loss = net()
    set_gradient_clip(GradientClipByValue(0.1), ["fc_0.w_0"])
    with pytest.warns(UserWarning, match=r"nothing is clipped.*fc_0\.b_0"):
        found = updated(fluid.optimizer.SGD(1.0), loss)
    close(found, W_GRAD, B_GRAD)


def test_with_different_clips_the_last_is_applied_to_all_as_in_fluid():
    loss = net()
    set_gradient_clip(GradientClipByGlobalNorm(0.3, "a"), ["fc_0.w_0"])
    set_gradient_clip(GradientClipByGlobalNorm(0.1, "b"), [loss.block.var("fc_0.b_0")])
    with pytest.warns(UserWarning, match=r"the clip of fc_0\.w_0"):
        found = updated(fluid.optimizer.SGD(1.0), loss)
    factor = 0.3 / norm(W_GRAD)
    close(found, W_GRAD * factor, B_GRAD * factor)


@pytest.mark.parametrize("kind", [GradientClipByValue, GradientClipByNorm, GradientClipByGlobalNorm])
def test_set_gradient_clip_does_not_ask_need_clip_as_in_fluid(kind):
    loss = net()
    set_gradient_clip(kind(0.05, need_clip=lambda p: False))
    with pytest.warns(UserWarning, match="every gradient is clipped: Fluid ignores need_clip"):
        found = updated(fluid.optimizer.SGD(1.0), loss)
    if kind is GradientClipByValue:
        close(found, np.clip(W_GRAD, -0.05, 0.05), np.clip(B_GRAD, -0.05, 0.05))
    else:
        norms = [norm(W_GRAD, B_GRAD)] * 2 if kind is GradientClipByGlobalNorm else [norm(W_GRAD), norm(B_GRAD)]
        close(found, W_GRAD * 0.05 / norms[0], B_GRAD * 0.05 / norms[1])


def test_one_group_has_one_norm():
    loss = net()
    set_gradient_clip(GradientClipByGlobalNorm(0.3), ["fc_0.w_0"])
    set_gradient_clip(GradientClipByGlobalNorm(0.1), ["fc_0.b_0"])
    with pytest.raises(errors.ProgramError, match="one clip_norm"), warnings.catch_warnings():
        fluid.optimizer.SGD(1.0).minimize(loss)


def test_error_clip():
    loss = net()
    loss.block.var("fc_0.tmp_1").set_error_clip(ErrorClipByValue(0.1))
    close(updated(fluid.optimizer.SGD(1.0), loss), W_GRAD * 0.1 / 0.25, B_GRAD * 0.1 / 0.25)


def test_error_clip_of_a_wrong_type():
    loss = net()
    loss.block.var("fc_0.tmp_1").set_error_clip(3)
    with pytest.raises(TypeError, match="ErrorClipByValue"):
        fluid.optimizer.SGD(1.0).minimize(loss)


@pytest.mark.parametrize(
    "attempt, error",
    [
        (lambda: GradientClipByValue(-1.0), ValueError),
        (lambda: ErrorClipByValue(1.0, 2.0), ValueError),
        (lambda: GradientClipByNorm(1.0, need_clip=3), TypeError),
        (lambda: set_gradient_clip(3), TypeError),
        (lambda: L2Decay("a"), ValueError),
    ],
)
def test_errors(attempt, error):
    with pytest.raises(error):
        attempt()


def test_texts():
    assert str(L2Decay(0.5)) == "L2Decay, regularization_coeff=0.500000"
    assert str(GradientClipByValue(1.0)) == "Gradient Clip By Value, min = -1.000000, max=1.000000"
    assert str(GradientClipByNorm(1.0)) == "Gradient Clip By Norm, clip_norm=1.000000"
    assert str(GradientClipByGlobalNorm(1.0)) == "Gradient Clip By GlobalNorm, global_norm=1.000000"
    assert str(ErrorClipByValue(2.0)) == "ByValue, min=-2.000000, max=2.000000"

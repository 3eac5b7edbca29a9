"""Optimizer operators against NumPy. The formulas were held against the real Fluid
(tests/oracle/golden.py).
"""

import numpy as np
import pytest

import jfluid as fluid
from jfluid.compat.fluid.op import Operator
from tests.op_case import check

rng = np.random.RandomState(3)
P, G = rng.randn(3, 2).astype("float32"), rng.randn(3, 2).astype("float32")
A, B, C = (rng.rand(3, 2).astype("float32") for _ in range(3))
LR = np.array([0.1], "float32")
B1, B2 = np.array([0.9**3], "float32"), np.array([0.999**3], "float32")
BASE = {"Param": P, "Grad": G, "LearningRate": LR}


def norm(x):
    return np.sqrt((x.astype("float64") ** 2).sum())


def single(x):
    return float(np.float32(x))


def test_sgd():
    check("sgd", BASE, expect={"ParamOut": P - 0.1 * G})
    wide = {k: v.astype("float64") for k, v in BASE.items()}
    check("sgd", wide, expect={"ParamOut": wide["Param"] - wide["LearningRate"] * wide["Grad"]})


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(nesterov):
    v = 0.9 * A + G
    step = G + 0.9 * v if nesterov else v
    check(
        "momentum",
        BASE | {"Velocity": A},
        {"mu": 0.9, "use_nesterov": nesterov},
        expect={"ParamOut": P - 0.1 * step, "VelocityOut": v},
    )


@pytest.mark.parametrize(
    "p, g, decay", [(P, G, 0.3), (P, G, 0.0), (P * 0, G, 0.3), (P, G * 0, 0.3), (P * 0, G * 0, 0.3)]
)
def test_lars_momentum(p, g, decay):
    rate = 0.1
    if p.any() and g.any():
        rate *= 0.01 * norm(p) / (norm(g) + decay * norm(p))
    v = 0.9 * A + rate * (g + decay * p)
    check(
        "lars_momentum",
        {"Param": p, "Grad": g, "LearningRate": LR, "Velocity": A},
        {"mu": 0.9, "lars_coeff": 0.01, "lars_weight_decay": decay},
        expect={"ParamOut": p - v, "VelocityOut": v},
    )


@pytest.mark.parametrize("tensors", [False, True])
def test_adam(tensors):
    b1, b2 = (single(0.8), single(0.99)) if tensors else (single(0.9), single(0.999))
    extra = {"Beta1Tensor": np.array([0.8], "float32"), "Beta2Tensor": np.array([0.99], "float32")} if tensors else {}
    m, v = b1 * A + (1 - b1) * G, b2 * B + (1 - b2) * G**2
    rate = 0.1 * np.sqrt(1 - B2.astype("float64")) / (1 - B1.astype("float64"))
    check(
        "adam",
        BASE | {"Moment1": A, "Moment2": B, "Beta1Pow": B1, "Beta2Pow": B2} | extra,
        {"epsilon": 0.1},
        expect={
            "ParamOut": P - rate * m / (np.sqrt(v) + 0.1),
            "Moment1Out": m,
            "Moment2Out": v,
            "Beta1PowOut": B1 * b1,
            "Beta2PowOut": B2 * b2,
        },
    )


def test_adamax():
    m, n = 0.9 * A + 0.1 * G, np.maximum(np.abs(G), 0.999 * B + 0.1)
    check(
        "adamax",
        BASE | {"Moment": A, "InfNorm": B, "Beta1Pow": B1},
        {"epsilon": 0.1},
        expect={"ParamOut": P - 0.1 / (1 - B1) * m / n, "MomentOut": m, "InfNormOut": n},
    )


def test_adagrad():
    m = A + G**2
    check(
        "adagrad",
        BASE | {"Moment": A},
        {"epsilon": 0.1},
        expect={"ParamOut": P - 0.1 * G / (np.sqrt(m) + 0.1), "MomentOut": m},
    )


def test_decayed_adagrad():
    m = 0.7 * A + 0.3 * G**2
    check(
        "decayed_adagrad",
        BASE | {"Moment": A},
        {"epsilon": 0.1, "decay": 0.7},
        expect={"ParamOut": P - 0.1 * G / (np.sqrt(m) + 0.1), "MomentOut": m},
    )


def test_adadelta_steps_with_the_average_that_it_reads():
    """With the new one only where it is the same variable, as Fluid's optimizer has it."""
    g2 = 0.7 * A + 0.3 * G**2
    u2 = 0.7 * B + 0.3 * (B + 0.1) / (g2 + 0.1) * G**2
    check(
        "adadelta",
        {"Param": P, "Grad": G, "AvgSquaredGrad": A, "AvgSquaredUpdate": B},
        {"epsilon": 0.1, "rho": 0.7},
        expect={
            "ParamOut": P - np.sqrt((B + 0.1) / (g2 + 0.1)) * G,
            "AvgSquaredGradOut": g2,
            "AvgSquaredUpdateOut": u2,
        },
    )
    scope = fluid.core.Scope()
    for name, value in {"p": P, "g": G, "a": A, "u": B}.items():
        scope.var(name).get_tensor().set(value.astype("float32"))
    Operator(
        "adadelta",
        Param="p",
        Grad="g",
        AvgSquaredGrad="a",
        AvgSquaredUpdate="u",
        ParamOut="p",
        AvgSquaredGradOut="a",
        AvgSquaredUpdateOut="u",
        epsilon=0.1,
        rho=0.7,
    ).run(scope, fluid.CPUPlace())
    np.testing.assert_allclose(
        np.array(scope.find_var("p").get_tensor()),
        P - np.sqrt((u2 + 0.1) / (g2 + 0.1)) * G,
        rtol=1e-5,
    )


@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop(centered):
    s, c = 0.7 * B + 0.3 * G**2, C * 0.1
    mean = 0.7 * c + 0.3 * G if centered else c
    moment = 0.5 * A + 0.1 * G / np.sqrt(s - (mean**2 if centered else 0) + 0.1)
    check(
        "rmsprop",
        BASE | {"Moment": A, "MeanSquare": B, "MeanGrad": c},
        {"epsilon": 0.1, "decay": 0.7, "momentum": 0.5, "centered": centered},
        expect={
            "ParamOut": P - moment,
            "MomentOut": moment,
            "MeanSquareOut": s,
            "MeanGradOut": mean,
        },
    )


@pytest.mark.parametrize("l1, l2, power", [(0.0, 0.0, -0.5), (0.3, 0.2, -0.5), (0.3, 0.2, -0.7), (3.0, 0.2, -0.5)])
def test_ftrl(l1, l2, power):
    total = A.astype("float64") + G**2
    linear = B + G - (total**-power - A**-power) / 0.1 * P
    shrunk = ((l1 + 1e-10) * np.sign(linear) - linear) / (total**-power / 0.1 + 2 * l2)
    check(
        "ftrl",
        BASE | {"SquaredAccumulator": A, "LinearAccumulator": B},
        {"l1": l1, "l2": l2, "lr_power": power},
        expect={
            "ParamOut": np.where(np.abs(linear) > l1, shrunk, 0),
            "SquaredAccumOut": total,
            "LinearAccumOut": linear,
        },
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("p, g", [(P, G), (P * 0, G), (P * 0, G * 0)])
def test_lamb(p, g):
    a = A * bool(g.any())
    m, v = 0.9 * a + 0.1 * g, single(0.999) * B + (1 - single(0.999)) * g**2
    step = m / (np.sqrt(v) + 0.1) + 0.01 * p
    ratio = norm(p) / norm(step) if p.any() and step.any() else 1.0
    check(
        "lamb",
        {
            "Param": p,
            "Grad": g,
            "LearningRate": LR,
            "Moment1": a,
            "Moment2": B,
            "Beta1Pow": B1,
            "Beta2Pow": B2,
        },
        {"beta1": 0.9, "beta2": 0.999, "epsilon": 0.1, "weight_decay": 0.01},
        expect={"ParamOut": p - 0.1 * ratio * step, "Moment1Out": m, "Moment2Out": v},
    )


@pytest.mark.parametrize("clip", [100.0, 0.1])
def test_dpsgd_clips(clip):
    check(
        "dpsgd",
        BASE,
        {"clip": clip, "sigma": 0.0},
        expect={"ParamOut": P - 0.1 * G / max(1.0, norm(G) / clip)},
    )


def test_dpsgd_adds_one_number_to_all_elements():
    quiet = check("dpsgd", BASE, {"clip": 1.0, "sigma": 0.0}, expect={"ParamOut": None})["ParamOut"][0]
    noisy = check("dpsgd", BASE, {"clip": 1.0, "sigma": 9.0, "seed": 5}, expect={"ParamOut": None})["ParamOut"][0]
    again = check("dpsgd", BASE, {"clip": 1.0, "sigma": 9.0, "seed": 5}, expect={"ParamOut": None})["ParamOut"][0]
    np.testing.assert_array_equal(noisy, again)
    noise = noisy - quiet
    assert abs(noise).min() > 1e-4
    np.testing.assert_allclose(noise, noise[0, 0], rtol=1e-3)


def proximal(point, l1, l2):
    if l1 > 0:
        point = np.sign(point) * np.maximum(np.abs(point) - 0.1 * l1, 0)
    return point / (1 + 0.1 * l2)


@pytest.mark.parametrize("l1, l2", [(0.0, 0.0), (0.0, 0.5), (3.0, 0.5)])
def test_proximal(l1, l2):
    check(
        "proximal_gd",
        BASE,
        {"l1": l1, "l2": l2},
        expect={"ParamOut": proximal(P - 0.1 * G, l1, l2)},
    )
    m = A + G**2
    check(
        "proximal_adagrad",
        BASE | {"Moment": A},
        {"l1": l1, "l2": l2},
        expect={"ParamOut": proximal(P - 0.1 * G / np.sqrt(m), l1, l2), "MomentOut": m},
    )


@pytest.mark.parametrize(
    "count, updates, rate, low, high, closes",
    [
        (3, 5, 0.5, 10, 20, False),
        (12, 50, 0.1, 10, 20, True),
        (12, 50, 0.5, 10, 20, False),
        (22, 50, 0.5, 10, 20, True),
        (5, 16383, 0.5, 1000, 2000, False),
        (5, 16383, 0.5, 3, 4, True),
    ],
)
def test_average_accumulates(count, updates, rate, low, high, closes):
    one, two, three = A + P, B, C
    if (updates + 1) % 16384 == 0:
        one, two = one * 0, two + one
    numbers = np.array([count + 1]), np.array([2])
    if closes:
        one, two, three = one * 0, two * 0, one + two
        numbers = np.array([0]), np.array([count + 1])
    check(
        "average_accumulates",
        {
            "param": P,
            "in_sum_1": A,
            "in_sum_2": B,
            "in_sum_3": C,
            "in_num_accumulates": np.array([count]),
            "in_old_num_accumulates": np.array([2]),
            "in_num_updates": np.array([updates]),
        },
        {"average_window": rate, "min_average_window": low, "max_average_window": high},
        expect={
            "out_sum_1": one,
            "out_sum_2": two,
            "out_sum_3": three,
            "out_num_accumulates": numbers[0],
            "out_old_num_accumulates": numbers[1],
            "out_num_updates": np.array([updates + 1]),
        },
    )


def test_no_gradient_passes_through_an_update():
    for op in ("sgd", "adam", "lamb", "average_accumulates"):
        assert fluid.ops.registry.find(f"{op}_grad") is None

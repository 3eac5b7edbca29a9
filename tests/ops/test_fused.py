"""Fused operators: those over sequences against the real Fluid, the others against NumPy."""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.compile.runtime import padding
from tests.op_case import check
from tests.parity.fused import CASES
from tests.parity.ops import run

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "fused_ops.json").read_text())
RNG = np.random.RandomState(3)


def rand(*shape):
    return RNG.uniform(-1, 1, shape).astype("float32")


def relu(x):
    return np.maximum(x, 0)


def test_all_cases_have_golden_values():
    assert {case[0] for case in CASES} == set(GOLDEN)


@pytest.mark.usefixtures("interpreted_steps")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_values_and_lods_over_sequences_are_fluids(case, monkeypatch):
    rounded = padding.ladder
    monkeypatch.setattr(padding, "ladder", lambda n, rungs=4: 3 * rounded(n, rungs) + 2)
    found = run(fluid, case)
    for name, (values, shape, lod) in GOLDEN[case[0]].items():
        ours, our_shape, our_lod = found[name]
        assert (our_shape, our_lod) == (shape, lod), name
        np.testing.assert_allclose(ours, values, rtol=2e-4, atol=2e-5, err_msg=name)


def test_fc():
    x, w, b = rand(3, 2, 2), rand(4, 5), rand(1, 5)
    expected = relu(x.reshape(3, 4) @ w + b)
    ins = {"Input": x, "W": w, "Bias": b}
    attrs = {"activation_type": "relu"}
    check("fc", ins, attrs, expect={"Out": expected}, grad=("Input", "W", "Bias"), rows=["Input"])


def test_fc_keeps_leading_dimensions_and_leaves_out_padding_of_weights():
    x, w = rand(2, 3, 4), rand(8, 9)
    expected = np.einsum("abi,io->abo", x, w[:4, :5])
    attrs = {"in_num_col_dims": 2, "padding_weights": True}
    check("fc", {"Input": x, "W": w}, attrs, expect={"Out": expected}, rows=["Input"])


def test_fc_refuses_what_it_cannot_mean():
    ins = {"Input": rand(2, 3), "W": rand(3, 4)}
    with pytest.raises(errors.ShapeError, match="expected 4 numbers"):
        check("fc", {**ins, "Bias": rand(3)}, expect={"Out": rand(2, 4)})
    with pytest.raises(errors.ShapeError, match="'' or 'relu'"):
        check("fc", ins, {"activation_type": "tanh"}, expect={"Out": rand(2, 4)})


def test_fusion_repeated_fc_relu():
    x, ws, bs = rand(4, 3), [rand(3, 2), rand(2, 5)], [rand(1, 2), rand(1, 5)]
    first = relu(x @ ws[0] + bs[0])
    check(
        "fusion_repeated_fc_relu",
        {"X": x, "W": ws, "Bias": bs},
        expect={"ReluOut": [first], "Out": relu(first @ ws[1] + bs[1])},
        rows=["X"],
    )


def test_fusion_squared_mat_sub():
    x, y = rand(2, 3), rand(3, 4)
    pairs = [
        sum(x[i, a] * y[a, j] * x[i, b] * y[b, j] for a in range(3) for b in range(3) if a != b)
        for i in range(2)
        for j in range(4)
    ]
    check(
        "fusion_squared_mat_sub",
        {"X": x, "Y": y},
        {"scalar": 0.5},
        expect={"Out": 0.5 * np.array(pairs, "float32").reshape(2, 4), "SquaredX": x**2},
        grad=("X", "Y"),
        rows=["X"],
    )


@pytest.mark.parametrize(
    ("functors", "function"),
    [
        (["relu", "elementwise_add"], lambda x, y: relu(x + y)),
        (["scale", "elementwise_mul"], lambda x, y: 3 * (x * y)),
        (["elementwise_add", "tanh"], lambda x, y: x + np.tanh(y)),
        (["elementwise_mul", "sigmoid"], lambda x, y: x / (1 + np.exp(-y))),
    ],
)
def test_fused_elemwise_activation(functors, function):
    x, y = rand(2, 3, 4), rand(3)
    spread = y[:, None]
    inner = x + spread if functors[1] == "elementwise_add" else x * spread
    if functors[0].startswith("elementwise"):
        inner = np.tanh(y) if functors[1] == "tanh" else 1 / (1 + np.exp(-y))
    check(
        "fused_elemwise_activation",
        {"X": x, "Y": y},
        {"functor_list": functors, "axis": 1, "scale": 3.0, "save_intermediate_out": True},
        expect={"Out": function(x, spread), "IntermediateOut": inner},
        grad=("X", "Y") if functors[0] != "scale" else (),
        rows=["X"],
    )


def test_fused_elemwise_activation_needs_a_function_of_each_kind():
    with pytest.raises(errors.ShapeError, match="one of elementwise_add"):
        check(
            "fused_elemwise_activation",
            {"X": rand(2), "Y": rand(2)},
            {"functor_list": ["relu", "tanh"]},
            expect={"Out": rand(2)},
        )


def test_a_pooled_empty_sequence_is_zero():
    x = fluid.create_lod_tensor(rand(3, 2), [[2, 0, 1]], fluid.CPUPlace())
    rows = np.array(x)
    expected = np.stack([rows[:2].sum(0), np.zeros(2), rows[2]]).astype("float32")
    out = fluid.create_lod_tensor(np.hstack([expected, expected]), [[1, 1, 1]], fluid.CPUPlace())
    check("fusion_seqpool_concat", {"X": [x, x]}, expect={"Out": out}, grad=("X",))


def test_coalesce_tensor():
    a, b = rand(2, 3), rand(5)
    fused = np.zeros(2048, "float32")
    fused[:6], fused[1024:1029] = a.ravel(), b
    attrs = {"copy_data": True, "set_constant": False, "constant": 0.0, "dtype": 5}
    expect = {"Output": [a, b], "FusedOutput": fused}
    check("coalesce_tensor", {"Input": [a, b]}, attrs, expect=expect, rows=[])
    attrs |= {"copy_data": False, "set_constant": True, "constant": 2.5}
    expect = {"Output": [np.full_like(a, 2.5)], "FusedOutput": np.full(1024, 2.5, "float32")}
    check("coalesce_tensor", {"Input": [a]}, attrs, expect=expect, rows=[])

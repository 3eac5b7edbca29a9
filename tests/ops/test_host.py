"""print and py_func, which run in Python between compiled segments."""

import re

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.ir import callables
from tests.op_case import check

X = np.arange(6, dtype="float32").reshape(2, 3) / 4
PRINT = {
    "first_n": -1,
    "message": "hello",
    "summarize": 4,
    "print_tensor_name": True,
    "print_tensor_type": True,
    "print_tensor_shape": True,
    "print_tensor_lod": True,
    "print_phase": "BOTH",
    "is_forward": True,
}


def test_print(capsys):
    check("print", {"In": X}, PRINT, expect={"Out": X}, infer=False)
    out = capsys.readouterr().out
    lines = ["Tensor[In_0]", "\tshape: [2,3]", "\tdtype: float32", "\tdata: 0,0.25,0.5,0.75"]
    assert re.fullmatch(r"\d+\thello", out.splitlines()[0]) and out.splitlines()[1:] == lines


@pytest.mark.parametrize(
    ("attrs", "lines"),
    [
        ({"print_phase": "BACKWARD"}, []),
        ({"is_forward": False, "print_phase": "FORWARD"}, []),
        (
            {"print_tensor_name": False, "print_tensor_type": False, "print_tensor_shape": False},
            ["\tdata: 1,2,3,4"],
        ),
        (
            {"summarize": -1, "print_tensor_type": False},
            ["Tensor[In_0]", "\tshape: [5]", "\tdata: 1,2,3,4,5"],
        ),
    ],
)
def test_what_print_prints(capsys, attrs, lines):
    value = np.arange(1, 6)
    check("print", {"In": value}, PRINT | attrs, expect={"Out": value}, infer=False)
    assert capsys.readouterr().out.splitlines()[1:] == lines


def test_print_grad(capsys):
    check(
        "print_grad",
        {"Out@GRAD": X},
        PRINT | {"print_phase": "FORWARD"},
        expect={"In@GRAD": X},
        infer=False,
    )
    assert capsys.readouterr().out == ""
    check("print_grad", {"Out@GRAD": X}, PRINT, expect={"In@GRAD": X}, infer=False)
    assert "Tensor[Out@GRAD_0]" in capsys.readouterr().out


def test_py_func():
    number = callables.register(lambda a, b: (a + b, a * b))
    check(
        "py_func",
        {"X": [X, 2 * X]},
        {"forward_callable_id": number},
        expect={"Out": [3 * X, 2 * X * X]},
        infer=False,
    )


def test_py_func_grad_gets_inputs_outputs_and_gradients_without_the_skipped():
    number = callables.register(lambda *arrays: sum(arrays))
    given = {"X": [X], "Out": [10 * X], "Out@GRAD": [100 * X]}
    for skip, factor in (([], 111), (["X_0"], 110), (["X_0", "Out_0"], 100)):
        check(
            "py_func_grad",
            given,
            {"backward_callable_id": number, "backward_skip_vars": skip},
            expect={"X@GRAD": [factor * X]},
            infer=False,
        )
    check(
        "py_func_grad",
        {s: given[s] for s in ("X", "Out")},
        {"backward_callable_id": number},
        expect={"X@GRAD": [11 * X]},
        infer=False,
    )


def test_py_func_errors():
    with pytest.raises(errors.OpError, match="no Python function has the number 999999 in this process"):
        check(
            "py_func",
            {"X": [X]},
            {"forward_callable_id": 999999},
            expect={"Out": [None]},
            infer=False,
        )
    number = callables.register(lambda a: (a, a))
    with pytest.raises(errors.OpError, match=r"the function returned 2 values, expected 1 \(Out_out_0\)"):
        check(
            "py_func",
            {"X": [X]},
            {"forward_callable_id": number},
            expect={"Out": [None]},
            infer=False,
        )

    def broken(a):
        raise ZeroDivisionError("by zero")

    with pytest.raises(errors.OpError, match=r"operator py_func .* failed: by zero"):
        check(
            "py_func",
            {"X": [X]},
            {"forward_callable_id": callables.register(broken)},
            expect={"Out": [None]},
            infer=False,
        )


def test_py_func_may_return_nothing():
    seen = []
    program = fluid.Program()
    program.global_block().create_var(name="x", shape=X.shape, dtype="float32", is_data=True)
    program.global_block().append_op(
        "py_func",
        {"X": ["x"]},
        {"Out": []},
        {"forward_callable_id": callables.register(seen.append)},
    )
    fluid.Executor(fluid.CPUPlace()).run(program, feed={"x": X}, fetch_list=[])
    np.testing.assert_array_equal(seen, [X])

"""SelectedRows that a script puts into a scope, and programs that read and write the rows."""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from tests.parity import scope_rows

pytestmark = pytest.mark.usefixtures("interpreted_steps")

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "scope_rows.json").read_text())


def close(found, wanted):
    if isinstance(wanted, (list, tuple)) and not all(isinstance(v, float) for v in wanted):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            close(a, b)
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", scope_rows.CASES)
def test_a_program_gives_what_fluid_gives(name):
    close(scope_rows.run(fluid, name), GOLDEN[name])


def shown(numbers=None, table=None):
    case = scope_rows.Case(fluid)
    var = case.rows("x", numbers, table)
    with fluid.program_guard(case.program):
        return case, fluid.layers.get_tensor_from_selected_rows(var)


def test_rows_and_values_that_do_not_match_are_named():
    case, out = shown([7, 0, 3], scope_rows.values(2, 4))
    with pytest.raises(errors.ProgramError, match="variable x: 3 rows of SelectedRows, but values of shape"):
        case.run(fetch_list=[out])


def test_a_scope_without_the_rows_is_named():
    case, out = shown()
    with pytest.raises(errors.UninitializedError, match=r'x: the scope holds no SelectedRows .*scope.var\("x"\)'):
        case.run(fetch_list=[out])


def test_rows_are_no_fetch():
    case, _ = shown([1], scope_rows.values(1, 4))
    with pytest.raises(errors.FetchError, match="fetch x: its SelectedRows stay in the scope: fetch"):
        case.run(fetch_list=["x"])


def test_an_id_without_a_row_is_named():
    case = scope_rows.Case(fluid)
    with fluid.program_guard(case.program):
        ids = fluid.data("ids", [None, 1], "int64")
    out = case.block.create_var(name="out", dtype="float32")
    table = case.rows("w", [0, 4], scope_rows.values(2, 4))
    case.append("lookup_table", {"W": [table], "Ids": [ids]}, {"Out": [out]})
    with pytest.raises(errors.ShapeError, match="the table has no row 5"):
        case.run(feed={"ids": np.array([[5]])}, fetch_list=[out])


@pytest.mark.parametrize("op", ["momentum", "adam"])
def test_a_parameter_of_rows_is_updated_by_sgd_alone(op):
    case = scope_rows.Case(fluid)
    param, gradient = (case.rows(n, [1], scope_rows.values(1, 4)) for n in "pg")
    slots, outs = {"Param": param, "Grad": gradient, "LearningRate": case.dense("r", np.ones(1, "float32"))}, {}
    states = ("Velocity",) if op == "momentum" else ("Moment1", "Moment2", "Beta1Pow", "Beta2Pow")
    for slot in states:
        slots[slot] = outs[slot + "Out"] = case.dense(slot, np.ones(1 if "Pow" in slot else (10, 4), "float32"))
    case.append(op, slots, outs | {"ParamOut": param}, **({"mu": 0.9} if op == "momentum" else {}))
    with pytest.raises(errors.UnsupportedError, match=f"{op}: a parameter of SelectedRows is updated by sgd alone"):
        case.run()


def test_replicas_look_up_and_update_the_rows_of_one_scope():
    case = scope_rows.Case(fluid)
    table = case.rows("w", [0, 4, 7], scope_rows.values(3, 4))
    with fluid.program_guard(case.program):
        ids = fluid.data("ids", [None, 1], "int64")
    out = case.block.create_var(name="out", dtype="float32", shape=[-1, 4])
    case.append("lookup_table", {"W": table, "Ids": ids}, {"Out": out})
    slots = {"Param": table, "Grad": case.rows("g", [7], scope_rows.values(1, 4) + 1)}
    case.append("sgd", slots | {"LearningRate": case.dense("r", np.ones(1, "float32"))}, {"ParamOut": table})
    program = fluid.CompiledProgram(case.program).with_data_parallel(places=[fluid.CPUPlace()] * 2)
    feed = {"ids": np.array([[7], [0], [4], [7]])}
    for step in range(2):
        (found,) = case.run(program=program, feed=feed, fetch_list=[out.name])
        rows = scope_rows.values(3, 4)
        rows[2] -= step * (scope_rows.values(4) + 1)
        np.testing.assert_array_equal(found, rows[[2, 0, 1, 2]])

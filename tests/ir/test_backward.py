"""Gradients as operators: names, accumulation, no_grad_set, targets, higher orders."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors


def _data(name, shape, dtype="float32"):
    block = fluid.default_main_program().global_block()
    return block.create_var(name=name, shape=shape, dtype=dtype, is_data=True)


def _op(op_type, ins, attrs=None, out="Out"):
    block = fluid.default_main_program().global_block()
    var = block.create_var(name=fluid.unique_name.generate(op_type))
    block.append_op(op_type, ins, {out: var}, attrs)
    return var


def _param(name, shape):
    return fluid.default_main_program().global_block().create_parameter(name=name, shape=shape, dtype="float32")


def _run(feed, fetch):
    return fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=fetch)


@pytest.fixture
def square_loss():
    w = _param("w", [3])
    x = _data("x", [3])
    y = _op("elementwise_mul", {"X": w, "Y": x})
    z = _op("elementwise_mul", {"X": y, "Y": w})
    return w, x, _op("mean", {"X": z})


def test_gradients_of_a_reused_variable_are_summed_under_fluids_names(square_loss):
    w, _, loss = square_loss
    ((param, grad),) = fluid.append_backward(loss)
    assert param is w and grad.name == "w@GRAD"
    ops = fluid.default_main_program().global_block().ops
    assert [op.input("X") for op in ops if op.type == "sum"] == [["w@GRAD@RENAME@block0@0", "w@GRAD@RENAME@block0@1"]]
    fluid.global_scope().var("w").get_tensor().set(np.array([1, 2, 3], "float32"))
    (got,) = _run({"x": np.array([4, 5, 6], "float32")}, [grad])
    np.testing.assert_allclose(got, 2 * np.array([1, 2, 3]) * [4, 5, 6] / 3, rtol=1e-6)


def test_any_gradient_can_be_fetched_by_name(square_loss):
    _w, _x, loss = square_loss
    fluid.append_backward(loss)
    fluid.global_scope().var("w").get_tensor().set(np.ones(3, "float32"))
    names = [n for n in fluid.default_main_program().global_block().vars if n.endswith("@GRAD")]
    values = _run({"x": np.ones(3, "float32")}, names)
    assert len(values) == len(names) >= 3 and all(np.isfinite(v).all() for v in values)


def test_roles_of_backward_operators(square_loss):
    _w, _, loss = square_loss
    fluid.append_backward(loss)
    ops = fluid.default_main_program().global_block().ops
    seed = next(op for op in ops if op.type == "fill_constant")
    assert seed.attr("op_role") == 1 | 256 and seed.output("Out") == [loss.name + "@GRAD"]
    assert all(op.attr("op_role") & 1 for op in ops[ops.index(seed) :])
    assert ops[-1].attr("op_role_var") == ("w", "w@GRAD")


def test_no_grad_set_and_stop_gradient_cut(square_loss):
    _w, _, loss = square_loss
    middle = loss.block.var("elementwise_mul_0")
    fluid.append_backward(loss, no_grad_set={middle.name})
    fluid.global_scope().var("w").get_tensor().set(np.array([1, 2, 3], "float32"))
    (got,) = _run({"x": np.array([4, 5, 6], "float32")}, ["w@GRAD"])
    np.testing.assert_allclose(got, np.array([1, 2, 3]) * [4, 5, 6] / 3, rtol=1e-6)


def test_gradients_with_target_gradients_and_of_gradients():
    x = _data("x", [4])
    y = _op("square", {"X": x})
    (g,) = fluid.gradients(y, x, _op("scale", {"X": x}, {"scale": 3.0}))
    (second,) = fluid.gradients(g, x)
    value = np.array([1, 2, 3, 4], "float32")
    first, again = _run({"x": value}, [g, second])
    np.testing.assert_allclose(first, 6 * value**2, rtol=1e-6)
    np.testing.assert_allclose(again, 12 * value, rtol=1e-6)


def test_gradients_gives_none_where_nothing_flows():
    x, other = _data("x", [4]), _data("other", [4])
    assert fluid.gradients(_op("square", {"X": x}), [other]) == [None]


def test_unused_outputs_get_zero_gradients():
    x = _data("x", [2, 4])
    block = x.block
    parts = [block.create_var(name=f"part{i}") for i in range(2)]
    block.append_op("split", {"X": x}, {"Out": parts}, {"num": 2, "axis": 1})
    (g,) = fluid.gradients(_op("square", {"X": parts[0]}), x)
    value = np.arange(8, dtype="float32").reshape(2, 4)
    (got,) = _run({"x": value}, [g])
    np.testing.assert_allclose(got, np.where(np.arange(4) < 2, 2 * value, 0))


def test_a_variable_written_twice_keeps_its_versions_apart():
    x = _data("x", [3])
    block = x.block
    y = _op("scale", {"X": x}, {"scale": 2.0})
    block.append_op("square", {"X": y}, {"Out": y})
    block.append_op("scale", {"X": y}, {"Out": y}, {"scale": 5.0})
    (g,) = fluid.gradients(y, x)
    value = np.array([1, 2, 3], "float32")
    (got,) = _run({"x": value}, [g])
    np.testing.assert_allclose(got, 5 * 8 * value)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: fluid.append_backward(_data("x", [3])), "expected one element"),
        (
            lambda: fluid.gradients(_data("x", [3]), [], [None, None]),
            "1 targets, but 2 target_gradients",
        ),
        (
            lambda: fluid.append_backward(_op("mean", {"X": _param("weight", [3])}), ["wieght"]),
            "did you mean weight",
        ),
    ],
)
def test_bad_arguments(make, text):
    with pytest.raises(errors.ProgramError, match=text):
        make()


def _deep_net(depth=12):
    x = _data("x", [16, 8])
    h, marks = x, []
    for i in range(depth):
        h = _op("mul", {"X": h, "Y": _param(f"w{i}", [8, 8])})
        dropped = x.block.create_var(name=f"h{i}")
        x.block.append_op(
            "dropout",
            {"X": _op("tanh", {"X": h})},
            {"Out": dropped, "Mask": f"mask{i}"},
            {"dropout_prob": 0.1, "dropout_implementation": "upscale_in_train"},
        )
        h = dropped
        if i % 6 == 5:
            marks.append(h)
    return _op("mean", {"X": _op("square", {"X": h})}), marks


def _deep_grads(checkpointed):
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        fluid.default_main_program().random_seed = 1
        loss, marks = _deep_net()
        pairs = fluid.append_backward(loss, checkpoints=marks if checkpointed else None)
        r = np.random.RandomState(0)
        for p, _ in pairs:
            fluid.global_scope().var(p.name).get_tensor().set(r.randn(8, 8).astype("float32") / 3)
        exe = fluid.Executor(fluid.CPUPlace())
        values = exe.run(
            feed={"x": r.randn(16, 8).astype("float32")},
            fetch_list=[loss] + [g for _, g in pairs],
        )
        (step,) = exe.engine._steps.values()
        segment = step.segments[0]
        shapes = [np.zeros((16, 8), "float32") if n == "x" else np.zeros((8, 8), "float32") for n in segment.kept]
        return values, segment.exact.lower((), tuple(shapes), np.zeros(2, "uint32")).as_text()


@pytest.mark.usefixtures("interpreted_steps")
def test_checkpoints_recompute_and_change_no_value():
    plain, plain_text = _deep_grads(False)
    saved, saved_text = _deep_grads(True)
    for a, b in zip(plain, saved):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)
    assert saved_text.count("stablehlo.tanh") == plain_text.count("stablehlo.tanh") + 12 == 24
    assert saved_text.count("stablehlo.optimization_barrier") == 2


def test_a_checkpoint_off_the_path_has_no_effect():
    loss, _ = _deep_net(2)
    with pytest.raises(errors.ProgramError, match="no variable elsewhere"):
        fluid.append_backward(loss, checkpoints=["elsewhere"])
    aside = fluid.layers.relu(loss)
    with pytest.warns(RuntimeWarning, match=f"does not depend on {aside.name}"):
        fluid.append_backward(loss, checkpoints=[aside, "x"])
    assert "recompute_barrier" not in [op.type for op in loss.block.ops]


def test_an_operator_that_reads_a_variable_twice():
    x = fluid.data("x", [2, 3])
    x.stop_gradient = False
    product = fluid.layers.elementwise_mul(x, x)
    stacked = fluid.layers.stack([x, product, x], axis=0)
    (grad,) = fluid.gradients(fluid.layers.reduce_sum(stacked), [x])
    values = np.arange(6, dtype="float32").reshape(2, 3)
    (found,) = fluid.Executor(fluid.CPUPlace()).run(feed={"x": values}, fetch_list=[grad])
    np.testing.assert_allclose(found, 2 + 2 * values)


def test_a_program_without_parameters_has_gradients_of_what_is_fed():
    x = _data("x", [3])
    x.stop_gradient = False
    loss = _op("mean", {"X": _op("square", {"X": x})})
    assert fluid.append_backward(loss) == []
    (got,) = _run({"x": np.array([1, 2, 3], "float32")}, ["x@GRAD"])
    np.testing.assert_allclose(got, np.array([2, 4, 6]) / 3, rtol=1e-6)


def test_a_gradient_operator_is_described_without_being_appended():
    x = _data("x", [3])
    _op("elementwise_mul", {"X": x, "Y": _data("y", [3])})
    block = fluid.default_main_program().global_block()
    desc, count = block.ops[-1].desc, len(block.ops)
    (grad,), of = fluid.core.get_grad_op_desc(desc, {"y@GRAD"}, [])
    out = desc.output("Out")[0]
    assert (grad.type(), grad.input("Out@GRAD")) == ("elementwise_mul_grad", [out + "@GRAD"])
    assert (grad.output("X@GRAD"), grad.output("Y@GRAD")) == (["x@GRAD"], ["@EMPTY@"])
    assert of == {"x@GRAD": "x", out + "@GRAD": out}
    assert len(block.ops) == count
    assert grad.attr("axis") == -1 and "axis" in grad.attr_names()


def test_a_description_changes_its_operator():
    _op("scale", {"X": _data("x", [3])}, {"scale": 2.0})
    op = fluid.default_main_program().global_block().ops[-1]
    _data("z", [3])
    op.desc._rename_input("x", "z")
    op.desc._set_attr("scale", 3.0)
    assert (op.input("X"), op.attr("scale")) == (["z"], 3.0)
    op.desc.remove_attr("scale")
    assert op.attr("scale") == 1.0
    with pytest.raises(TypeError, match="scale"):
        op.desc._set_attr("scale", "three")

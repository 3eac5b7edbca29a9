"""Filters that a step holds in another order: users see Fluid's."""

from types import SimpleNamespace

import numpy as np
import pytest

import jfluid as fluid
from jfluid import engine
from jfluid.compile.lowering import plan
from jfluid.compile.runtime import filter_layouts
from jfluid.compile.runtime.filter_layouts import Held
from tests.gpu.ahead import TracedAsForH200

pytestmark = pytest.mark.usefixtures("interpreted_steps")


def _net():
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 3, 8, 8])
        y = fluid.layers.conv2d(x, 4, 3, padding=1, act="relu")
        y = fluid.layers.conv2d(y, 40, 3, act="relu")
        y = fluid.layers.conv2d(y, 2, 3)
        loss = fluid.layers.mean(fluid.layers.square(y))
        test = main.clone(for_test=True)
        fluid.optimizer.Momentum(0.1, 0.9, regularization=fluid.regularizer.L2Decay(0.01)).minimize(loss)
    return main, startup, test, loss


_FEED = {"x": np.random.RandomState(0).randn(2, 3, 8, 8).astype("float32")}


WEIGHT = "conv2d_1.w_0"


def _history(folder, holds, replicas):
    """What a user sees who trains, reads, sets, saves and loads."""
    main, startup, test, loss = _net()
    trained = fluid.CompiledProgram(main).with_data_parallel(loss.name) if replicas else main
    scope, exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())

    def run(program=trained, more=()):
        loss_now, *others = exe.run(program, feed=_FEED, fetch_list=[loss, *more])
        return [loss_now, *others]

    with fluid.scope_guard(scope):
        exe.run(startup)
        tensor = scope.find_var(WEIGHT).get_tensor()
        seen = run() + run()
        held = tensor._pending
        assert isinstance(held, Held) == holds
        seen += run()
        assert tensor._pending is held  # steps leave it where it is
        seen += run(test)
        assert tensor._pending is held  # and share it
        seen.append(np.array(tensor))
        assert tensor.shape() == [40, 4, 3, 3] and tensor._pending is None
        seen += run()
        for factor in (0.5, 0.5, 2):
            tensor.set(np.array(tensor) * factor, fluid.CPUPlace())
        seen += run() + run(more=[WEIGHT])
        assert not isinstance(tensor._pending, Held)  # it is fetched
        seen += run()
        fluid.io.save_persistables(exe, str(folder), main)
        run()
        fluid.io.load_persistables(exe, str(folder), main)
        seen += run()
        with pytest.raises(fluid.errors.ProgramError, match=f"{WEIGHT}: the scope holds shape"):
            tensor.set(np.zeros((40, 4, 2, 3), "float32"))
            run()
        with pytest.raises(fluid.errors.UninitializedError, match=WEIGHT):
            tensor.value = None
            run()
    return seen


@pytest.mark.parametrize("where", ["on a CPU", "as on a GPU", "in replicas"])
def test_values_are_those_of_fluids_order_whoever_reads_and_sets_them(where, monkeypatch, tmp_path):
    replicas = where == "in replicas"
    with monkeypatch.context() as patched:
        if where == "as on a GPU":
            patched.setattr(engine, "of_device", TracedAsForH200)
        found = _history(tmp_path / "held", True, replicas)
    monkeypatch.setattr(filter_layouts, "of", lambda plan, device: {})
    expected = _history(tmp_path / "given", False, replicas)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=5e-5, atol=1e-6)


@pytest.mark.parametrize("replicas", [False, True])
def test_filters_and_what_their_optimizer_keeps_are_held(replicas):
    main, startup, _, loss = _net()
    scope, exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
    program = fluid.CompiledProgram(main).with_data_parallel(loss.name) if replicas else main
    with fluid.scope_guard(scope):
        exe.run(startup)
        exe.run(program, feed=_FEED, fetch_list=[loss])
    pending = {n: scope.find_var(n).get_tensor()._pending for n in scope.local_var_names()}
    held = {n: p.value.shape for n, p in pending.items() if isinstance(p, Held)}
    names = {f"conv2d_{i}.w_0{more}" for i in range(3) for more in ("", "_velocity_0")}
    assert held.keys() == names and held[WEIGHT] == (3, 3, 4, 40)


@pytest.mark.parametrize("capability", ["9.0", "12.1", "8.9", "gfx942", None])
def test_gpus_of_which_xla_wants_channels_last(capability):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [2, 3, 8, 8])
        y = fluid.layers.conv2d(x, 4, 3, bias_attr=False)
        y = fluid.layers.conv2d(y, 6, 1, bias_attr=False)  # it has no windows
        y = fluid.layers.conv2d(y, 6, 3, groups=6, bias_attr=False)  # and this one channel
        y = fluid.layers.conv2d_transpose(y, 5, filter_size=2, bias_attr=False)
        y = fluid.layers.unsqueeze(y, [2])
        y = fluid.layers.conv3d(y, 2, [1, 2, 2], bias_attr=False)
        fluid.optimizer.Adam(0.1).minimize(fluid.layers.mean(y))
    planned = plan.plan(main, ["x"], [])
    device = SimpleNamespace(platform="gpu", compute_capability=capability)
    found = filter_layouts.of(planned, device)
    if capability not in ("9.0", "12.1"):
        assert not found
        return
    moments = ("", "_moment1_0", "_moment2_0")
    assert {name: order for name, order in found.items() if name.startswith("conv2d_0")} == {
        f"conv2d_0.w_0{more}": (0, 2, 3, 1) for more in moments
    }
    assert {name: order for name, order in found.items() if not name.startswith("conv2d_0")} == {
        f"conv2d_transpose_0.w_0{more}": (1, 2, 3, 0) for more in moments
    }


def test_shapes_that_follow_from_a_convolution(monkeypatch):
    """What computes them runs before the step, of filters in Fluid's order."""

    def sizes():
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 5
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            x = fluid.data("x", [2, 3, 8, 8])
            y = fluid.layers.conv2d(x, 3, 3, padding=1)  # its filter has one shape in both orders
            end = fluid.layers.cast(fluid.layers.reduce_sum(fluid.layers.square(y)), "int32")
            end = fluid.layers.reshape(fluid.layers.elementwise_mod(end, _int(7)), [1])
            end = fluid.layers.elementwise_add(end, _int(1))
            part = fluid.layers.slice(y, [3], [0], [end])
            loss = fluid.layers.mean(fluid.layers.square(part))
            fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        with fluid.scope_guard(fluid.Scope()):
            exe.run(startup)
            return [exe.run(main, feed=_FEED, fetch_list=[end, part, loss]) for _ in range(3)]

    found = sizes()
    monkeypatch.setattr(filter_layouts, "of", lambda plan, device: {})
    for step, expected in zip(found, sizes(), strict=True):
        for a, b in zip(step, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def _int(value):
    return fluid.layers.fill_constant([1], "int32", value)

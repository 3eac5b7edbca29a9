"""Names that Fluid keeps for itself, and that subclasses and tools of its time touch."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import core, errors, layers, optimizer


def net():
    loss = layers.mean(layers.fc(fluid.data("x", [None, 2]), 2))
    fluid.optimizer.SGD(0.1).minimize(loss)
    layers.scale(loss, 2.0)  # nobody needs it
    return fluid.default_main_program(), loss


def test_a_program_is_pruned_to_fetches_and_updates():
    main, loss = net()
    exe = fluid.Executor(fluid.CPUPlace())
    pruned = exe._prune_program(main, {"x": 1}, [loss], [])
    types = [op.type for op in pruned.global_block().ops]
    assert types == [op.type for op in main.global_block().ops if op.type != "scale"]
    assert types.count("sgd") == 2
    compiled = fluid.CompiledProgram(main).with_data_parallel(loss.name)
    assert exe._prune_program(compiled, [{"x": 1}], [loss], []) is compiled
    exe.run(fluid.default_startup_program())
    feed = {"x": np.ones((4, 2), "float32")}
    assert exe.run(compiled, feed=feed, fetch_list=[loss])[0].shape == (1,)


def test_a_program_is_compiled_for_one_scope_and_place():
    program = fluid.CompiledProgram(net()[0])
    scope = fluid.global_scope()
    assert program._compile(scope, fluid.CPUPlace()) is program
    assert program._compile(scope, fluid.CPUPlace()) is program
    with pytest.raises(errors.ProgramError, match="compiled for another scope"):
        program._compile(fluid.core.Scope(), fluid.CPUPlace())
    with pytest.raises(errors.ProgramError, match="compiled for another place"):
        program._compile(scope, core.CUDAPinnedPlace())


def test_what_variables_are_is_copied_from_another_program():
    main, _ = net()
    twin = main.clone()
    x = twin.global_block().var("x")
    x.is_data, x.need_check_feed, x.stop_gradient = False, False, False
    twin._copy_data_info_from(main)
    assert x.is_data and x.need_check_feed and x.stop_gradient
    with pytest.raises(TypeError, match="expected a Program, found int"):
        twin._copy_data_info_from(1)


def test_names_of_accumulators():
    assert optimizer.MomentumOptimizer._velocity_acc_str == "velocity"
    assert optimizer.LarsMomentumOptimizer._velocity_acc_str == "velocity"
    for kind in (optimizer.AdamOptimizer, optimizer.LambOptimizer):
        assert (kind._moment1_acc_str, kind._moment2_acc_str) == ("moment1", "moment2")
        assert kind._beta1_pow_acc_str == "beta1_pow_acc"
        assert kind._beta2_pow_acc_str == "beta2_pow_acc"
    assert optimizer.AdamaxOptimizer._inf_norm_acc_str == "inf_norm"
    assert optimizer.AdagradOptimizer._moment_acc_str == "moment"
    assert optimizer.DecayedAdagradOptimizer._moment_acc_str == "moment"
    assert optimizer.AdadeltaOptimizer._avg_squared_grad_acc_str == "_avg_squared_grad"
    assert optimizer.AdadeltaOptimizer._avg_squared_update_acc_str == "_avg_squared_update"
    rms = optimizer.RMSPropOptimizer
    names = rms._momentum_acc_str, rms._mean_square_acc_str, rms._mean_grad_acc_str
    assert names == ("momentum", "mean_square", "mean_grad")
    assert optimizer.FtrlOptimizer._squared_acc_str == "squared"
    assert optimizer.FtrlOptimizer._linear_acc_str == "linear"
    assert optimizer.DGCMomentumOptimizer._u_velocity_acc_str == "_dgc_u_"


def test_numbers_of_places():
    assert [fluid.CPUPlace()._type(), core.CUDAPinnedPlace()._type()] == [1, 2]
    place = core.Place()
    assert place._type() == 0 == fluid.CUDAPlace(0)._type()
    place.set_place(fluid.CPUPlace())
    assert place._type() == 1


def test_others():
    assert fluid.transpiler.RoundRobin(["a:1"])._eps == ["a:1"]
    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    assert not dataset.parse_ins_id
    dataset.set_parse_ins_id(True)
    assert dataset.parse_ins_id


@pytest.mark.parametrize("iterable", [True, False])
def test_a_loader_is_reset(iterable):
    x = fluid.data("x", [None, 2])
    loader = fluid.io.DataLoader.from_generator([x], 2, iterable=iterable)
    batches = [[np.full((1, 2), i, "float32")] for i in range(4)]
    loader.set_batch_generator(lambda: iter(batches), fluid.CPUPlace())
    for _ in range(2):
        if iterable:
            assert np.array(next(loader)[0]["x"]).tolist() == [[0.0, 0.0]]
        else:
            loader.start()
            exe = fluid.Executor(fluid.CPUPlace())
            assert exe.run(fetch_list=[x])[0].tolist() == [[0.0, 0.0]]
        loader._reset()
    loader._reset()  # which does nothing


def test_operators_as_functions():
    """The numbers are those of the real Fluid."""

    def value(array):
        return fluid.dygraph.to_variable(np.asarray(array, "float32"))

    with fluid.dygraph.guard(fluid.CPUPlace()):
        x, out = value(np.ones((2, 3))), value([0])
        x.stop_gradient = out.stop_gradient = False
        assert [v.shape for v in core.ops.split(x, 3, "num", 3, "axis", 1)] == [[2, 1]] * 3
        assert [v.shape for v in core.ops.reshape2(x, "shape", [3, 2])] == [[3, 2], [0, 2, 3]]
        product = core.ops.matmul(x, x, out, "transpose_Y", True)
        assert product is out and product.numpy().tolist() == [[3, 3], [3, 3]]
        core.ops.relu(product).backward()
        assert x.gradient().tolist() == [[4, 4, 4], [4, 4, 4]]
        parameter, gradient, rate, velocity = value([1, 1]), value([2, 2]), value([0.5]), value([0, 0])
        core.ops.sgd(parameter, rate, gradient, parameter)
        core.ops.momentum(parameter, gradient, velocity, rate, parameter, velocity, "mu", 0.9)
        assert parameter.numpy().tolist() == [-1, -1] and velocity.numpy().tolist() == [2, 2]
        normal = core.ops.layer_norm(value([[0, 2]]), value([2, 2]), value([1, 1]), "begin_norm_axis", 1)
        np.testing.assert_allclose(normal[0].numpy(), [[-1, 3]], rtol=1e-4)
        with pytest.raises(TypeError, match="core.ops.sgd: expected 4 inputs and outputs"):
            core.ops.sgd(parameter, rate, gradient)
    with pytest.raises(AttributeError, match="core.ops has no operator 'relru'"):
        core.ops.relru  # noqa: B018
    with pytest.raises(errors.DygraphError, match="needs dygraph mode"):
        core.ops.relu(x)

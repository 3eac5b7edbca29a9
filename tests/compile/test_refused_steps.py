"""A step that is refused for its values applies nothing, wherever the step runs: loops, parts between which the host
runs operators, replicas, predictors, imperative mode.
"""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.compile.runtime.specialize import Specialized
from tests.ops.test_refused_values import LOD, ROWS, THREE, TIME, WIDTH, lengths, numbers

layers = fluid.layers


@pytest.fixture(
    autouse=True, params=[True, pytest.param(False, marks=pytest.mark.nightly)], ids=["kernels", "no kernels"]
)
def kernels(request):
    """Values are checked before a step, whatever computes it: without kernels at night."""
    fluid.set_flags({"FLAGS_cpu_kernels": request.param})
    yield
    fluid.set_flags({"FLAGS_cpu_kernels": True})


def pooled():
    hidden = layers.fc(fluid.data("x", [None, WIDTH]), WIDTH)
    return layers.sequence_pool(layers.lod_reset(hidden, lengths("z", "int32")), "max")


def of_computed_offsets():
    hidden = layers.fc(fluid.data("x", [None, WIDTH]), WIDTH)
    given = layers.cast(layers.scale(layers.cast(lengths("z", "int32"), "float32"), 1.0), "int32")
    return layers.sequence_pool(layers.lod_reset(hidden, given), "max")


def while_loop():
    x, offsets = fluid.data("x", [None, WIDTH]), lengths("z", "int32")
    at, end = (layers.fill_constant([1], "int64", n) for n in (0, 6))
    total = layers.fill_constant([2, WIDTH], "float32", 0.0)
    goes_on = layers.less_than(at, end)
    loop = layers.While(goes_on)
    with loop.block():
        of_one = layers.sequence_pool(layers.lod_reset(layers.fc(x, WIDTH), offsets), "sum")
        layers.assign(total + of_one, total)
        layers.increment(at, in_place=True)
        layers.less_than(at, end, cond=goes_on)
    return total + layers.sequence_pool(layers.lod_reset(layers.fc(x, WIDTH), target_lod=LOD), "sum")


def static_rnn():
    x, offsets = fluid.data("x", [None, WIDTH]), lengths("z", "int32")
    steps = layers.stack([x, x, x])
    zero = layers.fill_constant([2, WIDTH], "float32", 0.0)
    rnn = layers.StaticRNN()
    with rnn.step():
        now, before = rnn.step_input(steps), rnn.memory(init=zero)
        hidden = layers.lod_reset(layers.fc(now, WIDTH), offsets)
        after = before + layers.sequence_pool(hidden, "sum")
        rnn.update_memory(before, after)
        rnn.step_output(after)
    return rnn()


def dynamic_rnn():
    rows = layers.lod_reset(fluid.data("x", [None, WIDTH]), target_lod=LOD)
    rnn = layers.DynamicRNN()
    with rnn.block():
        now, before = rnn.step_input(rows), rnn.memory(shape=[WIDTH], value=0.0)
        after = layers.fc([now, before], WIDTH, act="tanh")
        rnn.update_memory(before, after)
        rnn.output(after)
    return layers.sequence_pool(layers.lod_reset(rnn(), lengths("z", "int32")), "max")


def behind_a_host_operator():
    hidden, offsets = layers.fc(fluid.data("x", [None, WIDTH]), WIDTH), lengths("z", "int32")
    longest = layers.sequence_mask(layers.cast(offsets, "int64"))  # the host looks for the largest
    used = 0 * layers.reduce_sum(layers.cast(longest, "float32"))
    return layers.sequence_pool(layers.lod_reset(hidden, offsets), "sum") + used


def between_host_operators():
    """The first part counts steps and moves statistics, the second refuses."""
    x, offsets = fluid.data("x", [None, WIDTH]), lengths("z", "int32")
    hidden = layers.batch_norm(layers.fc(x, WIDTH)) * layers.exponential_decay(0.1, 10, 0.5)
    longest = layers.sequence_mask(layers.cast(layers.abs(offsets), "int64"))
    used = 0 * layers.reduce_sum(layers.cast(longest, "float32"))
    return layers.sequence_pool(layers.lod_reset(hidden + used, offsets), "sum")


def state_of(program, scope):
    names = [v.name for v in program.list_vars() if v.persistable]
    found = {n: scope.find_var(n) for n in names}
    return {n: np.array(v.get_tensor()) for n, v in found.items() if v is not None}


@pytest.mark.parametrize(
    "build",
    [
        pooled,
        of_computed_offsets,
        while_loop,
        static_rnn,
        dynamic_rnn,
        behind_a_host_operator,
        between_host_operators,
    ],
)
def test_nothing_of_a_step_that_is_refused_is_applied(build):
    loss = layers.reduce_mean(build())
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    program, scope = fluid.default_main_program(), fluid.global_scope()
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())

    def run(*offsets):
        feed = {"x": ROWS, "z": numbers(*offsets, dtype="int32")}
        (found,) = executor.run(feed=feed, fetch_list=[loss])
        return found.item()

    losses = [run(0, 3, 8)]
    before = state_of(program, scope)
    for wrong in ([0, 3, 9], [0, 9, 8], [2, 3, 8]):
        with pytest.raises(errors.OperandError, match="operator lod_reset"):
            run(*wrong)
        after = state_of(program, scope)
        assert all(np.array_equal(before[n], after[n]) for n in before)
    losses.append(run(0, 3, 8))
    assert losses[1] != losses[0]


def test_a_branch_that_is_not_taken_refuses_nothing():
    hidden, offsets = layers.fc(fluid.data("x", [None, WIDTH]), WIDTH), lengths("z", "int32")
    wanted = fluid.data("wanted", [1], "bool")
    out = layers.cond(
        wanted,
        lambda: layers.sequence_pool(layers.lod_reset(hidden, offsets), "sum"),
        lambda: layers.sequence_pool(layers.lod_reset(hidden, target_lod=LOD), "sum"),
    )
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())

    def run(taken, *offsets):
        feed = {"x": ROWS, "z": numbers(*offsets, dtype="int32"), "wanted": np.array([taken])}
        return executor.run(feed=feed, fetch_list=[out])[0]

    np.testing.assert_allclose(run(True, 0, 3, 8), run(False, 0, 99, 3), rtol=1e-5)
    with pytest.raises(errors.OperandError, match=r"found \[0, 99, 3\]"):
        run(True, 0, 99, 3)


@pytest.mark.parametrize("apart", [False, True], ids=["as one program", "by device"])
def test_one_replica_refuses_for_all(apart, monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    x = fluid.data("x", [None, 4, WIDTH])
    hidden = layers.fc(x, WIDTH, num_flatten_dims=2)
    if apart:  # replicas with conditions are no one program
        hidden = layers.cond(layers.reduce_sum(x) < 1e9, lambda: hidden * 2, lambda: hidden)
    out = layers.fc(layers.sequence_pool(layers.sequence_unpad(hidden, lengths()), "sum"), 2)
    loss = layers.reduce_mean(out)
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    program, scope = fluid.default_main_program(), fluid.global_scope()
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    compiled = fluid.CompiledProgram(program).with_data_parallel(loss.name)

    def run(*lengths):
        feed = {"x": np.concatenate([THREE, THREE]), "n": numbers(*lengths)}
        return executor.run(compiled, feed=feed, fetch_list=[loss])[0]

    run(4, 3, 2, 1)
    before = state_of(program, scope)
    for wrong, shown in (((4, 3, 2, 5), "2, 5"), ((-1, 9, 0, 0), "-1, 9")):
        with pytest.raises(errors.OperandError, match=rf"sequence_unpad .*found \[{shown}\]"):
            run(*wrong)
        after = state_of(program, scope)
        assert all(np.array_equal(before[n], after[n]) for n in before)
    run(4, 3, 2, 1)


def test_predictors_refuse(tmp_path):
    out = pooled()
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    fluid.io.save_inference_model(str(tmp_path), ["x", "z"], [out], executor)
    predictor = fluid.core.create_paddle_predictor(fluid.core.AnalysisConfig(str(tmp_path)))

    def run(*offsets):
        given = ROWS, numbers(*offsets, dtype="int32")
        return predictor.run([fluid.core.PaddleTensor(value) for value in given])

    run(0, 3, 8)
    with pytest.raises(errors.OperandError, match=r"found \[0, 3, 2000000000\]"):
        run(0, 3, 2_000_000_000)
    run(0, 3, 8)


def test_operators_of_imperative_mode_refuse():
    with fluid.dygraph.guard():
        x, labels = (fluid.dygraph.to_variable(v) for v in (TIME, numbers([1, 2], [2, 1], dtype="int32")))

        def run(n, m):
            n, m = (fluid.dygraph.to_variable(numbers(*v)) for v in (n, m))
            loss = layers.warpctc(x * 1.0, labels, input_length=n * 1, label_length=m)
            return loss.numpy().ravel().tolist()

        first = run((4, 3), (2, 1))
        for wrong, text in (
            (((4, 5), (2, 1)), r"LogitsLength: .* \[4, 5\]"),
            (((4, 3), (2, -1)), r"LabelLength: .* \[2, -1\]"),
        ):
            with pytest.raises(errors.OperandError, match=f"operator warpctc .*{text}"):
                run(*wrong)
        assert run((4, 3), (2, 1)) == first


def test_programs_without_such_operators_evaluate_nothing(monkeypatch):
    def check(self, *arguments):
        raise AssertionError("evaluated")

    monkeypatch.setattr(Specialized, "_check", check)
    x = fluid.data("x", [None, WIDTH])
    out = layers.sequence_pool(layers.lod_reset(x, target_lod=LOD), "max")
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(feed={"x": ROWS}, fetch_list=[out])


def test_a_section_of_a_pipeline_refuses(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    x = fluid.data("x", [None, 4, WIDTH])
    with fluid.device_guard("gpu:0"):
        hidden = layers.fc(x, WIDTH, num_flatten_dims=2)
    with fluid.device_guard("gpu:1"):
        pooled = layers.sequence_pool(layers.sequence_unpad(hidden, lengths()), "sum")
        loss = layers.reduce_mean(layers.fc(pooled, 1))
    inner = fluid.optimizer.Momentum(layers.exponential_decay(0.1, 1, 0.9), 0.9)
    fluid.optimizer.PipelineOptimizer(inner, num_microbatches=2).minimize(loss)
    program, scope = fluid.default_main_program(), fluid.global_scope()
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())

    def run(*lengths):
        feed = {"x": np.concatenate([THREE, THREE]), "n": numbers(*lengths)}
        return executor.run(program, feed=feed, fetch_list=[loss])[0]

    run(4, 3, 2, 1)
    before = state_of(program, scope)
    with pytest.raises(errors.OperandError, match=r"sequence_unpad .*found \[2, 5\]"):
        run(4, 3, 2, 5)
    after = state_of(program, scope)
    assert all(np.array_equal(before[n], after[n]) for n in before)
    run(4, 3, 2, 1)

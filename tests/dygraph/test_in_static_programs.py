"""Functions of dygraph mode that are converted and called while a static program is built."""

import ast
import importlib
import inspect
import os
import signal
import sys

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.dygraph import Conv2D, Layer, Linear, dygraph_to_static_func, guard, to_variable
from jfluid.dygraph.dygraph_to_static import ProgramTranslator

pytestmark = pytest.mark.usefixtures("interpreted_steps")

X = np.arange(4, dtype="float32").reshape(1, 4)
HALF = fluid.ParamAttr(initializer=fluid.initializer.Constant(0.5))


def jumps(x):
    x = fluid.dygraph.to_variable(x)
    for i in range(10):
        x += 1
        if i > 5:
            continue
        x += 10086
    return x


def branch_by_value(x):
    x = to_variable(x)
    if layers.mean(x).numpy()[0] > 5:
        x = x - 1
    else:
        x = x + 1
    return x


def loop_by_value(x):
    x = to_variable(value=x)
    while layers.reduce_sum(x).numpy() < 100:
        x = x * 2
        if layers.mean(x).numpy()[0] > 30:
            break
    return x


class Sums:
    @staticmethod
    def add(a, b):
        return to_variable(a.numpy() + b.numpy())


def through_a_method(x):
    x = to_variable(x)
    return Sums().add(x, x)


def power(x, n):
    if n == 0:
        return x
    return power(x * 2, n - 1)


def recursion(x):
    return power(to_variable(x), 3)


def inner_recursion(x):
    def add(y, n):
        if n <= 0:
            return y
        return add(y + 1, n - 1)

    return add(to_variable(x), 4)


class Net(Layer):
    def __init__(self):
        super().__init__()
        self.fc = Linear(4, 3, param_attr=HALF)

    @dygraph_to_static_func
    def forward(self, x):
        y = self.fc(x)
        if layers.mean(y).numpy()[0] > 0:
            y = y + 1
        return y


def layer(x):
    return Net()(to_variable(x))


def layers_inside(x):
    x = layers.reshape(to_variable(x), [1, 1, 2, 2])
    return Conv2D(1, 2, 1, param_attr=HALF, act="relu")(x)


# What the real Fluid gives for X; it has no method that both converts itself and is a static one.
FOUND = {
    jumps: X + 60526,
    branch_by_value: X + 1,
    loop_by_value: X * 32,
    through_a_method: X * 2,
    recursion: X * 8,
    inner_recursion: X + 4,
    layer: [[4, 4, 4]],
    layers_inside: np.stack([X.reshape(1, 2, 2) / 2] * 2, axis=1),
}


@pytest.mark.parametrize("function", FOUND, ids=lambda function: function.__name__)
def test_a_converted_function_builds_the_program(function):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        found = dygraph_to_static_func(function)(X)
    exe = fluid.Executor()
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        (given,) = exe.run(main, fetch_list=[found])
    np.testing.assert_allclose(given, FOUND[function], rtol=1e-6)
    parameters = {"layer": "linear_0", "layers_inside": "conv2d_0"}.get(function.__name__)
    names = [f"{parameters}.b_0", f"{parameters}.w_0"] if parameters else []
    assert sorted(p.name for p in main.all_parameters()) == names


def halved(x):
    if layers.reduce_sum(x) > 10.0:
        return halved(x * 0.5)
    return x


def test_a_recursion_that_a_tensor_decides_names_the_remedy():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        with pytest.raises(errors.ProgramError, match="calls itself in a branch upon a tensor .* write a while loop"):
            dygraph_to_static_func(halved)(layers.assign(X))
    with guard():
        assert float(layers.reduce_sum(halved(to_variable(X + 9))).numpy()[0]) == 5.25


def test_what_dygraph_alone_can_do_is_refused_in_fluids_words():
    words = "'{}' should be called by imperative Varible in imperative mode, please use "
    words += "fluid.dygraph.guard() as context to run it in imperative mode"
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [1])
        for what in ("numpy", "backward", "gradient", "clear_gradient"):
            with pytest.raises(AssertionError) as caught:
                getattr(x, what)()
            assert str(caught.value).startswith(words.format(what))
            assert "Executor.run" in str(caught.value)
        with pytest.raises(AssertionError) as caught:
            x.detach()
        assert type(caught.value) is AssertionError and str(caught.value) == words.format("detach")
        assert "stop_gradient" in caught.value.__notes__[0]


OPTIMIZERS = {
    "DGCMomentumOptimizer": lambda sgd: fluid.optimizer.DGCMomentumOptimizer(0.1, 0.9, 0),
    "ExponentialMovingAverage": lambda sgd: fluid.optimizer.ExponentialMovingAverage(0.9),
    "LookaheadOptimizer": fluid.optimizer.LookaheadOptimizer,
    "ModelAverage": lambda sgd: fluid.optimizer.ModelAverage(0.1),
    "PipelineOptimizer": fluid.optimizer.PipelineOptimizer,
    "RecomputeOptimizer": fluid.optimizer.RecomputeOptimizer,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_programs_refuse_in_fluids_words(name):
    with guard():
        sgd = fluid.optimizer.SGD(0.1, parameter_list=Linear(2, 2).parameters())
        with pytest.raises(errors.UnsupportedError) as caught:
            OPTIMIZERS[name](sgd)
    assert str(caught.value) == f"In dygraph, don't support {name}."
    assert any("Program" in note for note in caught.value.__notes__)


def test_names_that_tools_use():
    utils = importlib.import_module("jfluid.dygraph.dygraph_to_static.utils")
    conditions = importlib.import_module("jfluid.dygraph.dygraph_to_static.ifelse_transformer")
    variables = importlib.import_module("jfluid.dygraph.dygraph_to_static.variable_trans_func")
    assert utils.index_in_list([4, 5], 5) == 1 and utils.index_in_list([4, 5], 6) == -1
    tree = ast.parse(inspect.getsource(power))
    made, source = utils.ast_to_func(tree, power)
    assert made(3, 2) == 12 and "def power" in inspect.getsource(made) and "power" in source
    with pytest.raises(ValueError, match="no function recursion"):
        utils.ast_to_func(tree, recursion)
    with pytest.raises(TypeError, match="syntax tree"):
        utils.ast_to_source_code(3)
    body = ast.parse("a = b + f(c)\nif a:\n    d = 1\n    e = 2\nelse:\n    d = 3\ng = 4").body
    uses = {n: [type(c).__name__ for c in u] for n, u in conditions.get_name_ids(body).items()}
    assert uses["a"] == ["Store", "Load"] and "f" not in uses and uses["e"] == ["Store"]
    assert {*conditions.get_name_ids(body, body[2])} == {"a", "b", "c", "d"}
    assert {*conditions.get_name_ids(body, body[1].body[1])} == {"a", "b", "c", "d"}
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = variables.data_layer_not_check("x", [None, 4])
        assert x.shape == (-1, 4) and x.is_data and not x.need_check_feed and x.stop_gradient
        for value, dtype in ((True, "BOOL"), (2, "INT64"), (2.0, "FP64")):
            assert variables.to_static_variable(value).dtype.name == dtype
        assert variables.to_static_variable(x) is x


def test_static_analysis():
    found = importlib.import_module("jfluid.dygraph.dygraph_to_static.static_analysis")
    kinds = found.NodeVarType
    tree = ast.parse(
        "def f(n, m=2):\n    return n\n"
        "a = 1\nb = a + 2.5\nc = 'x'\nd = not a\ne = fluid.layers.relu(b)\n"
        "g = np.zeros(3) * 2\nh = {1}\ni = None\nj = to_variable(g)\nk = a == b\nl = a + c\n"
    )
    visitor = found.StaticAnalysisVisitor(tree)
    types = visitor.get_var_env().get_scope_var_type()
    assert {n: min(t) for n, t in types.items()} == {
        "a": kinds.INT,
        "b": kinds.FLOAT,
        "c": kinds.STRING,
        "d": kinds.INT,
        "e": kinds.PADDLE_RETURN_TYPES,
        "g": kinds.NUMPY_NDARRAY,
        "h": kinds.SET,
        "i": kinds.NONE,
        "j": kinds.TENSOR,
        "k": kinds.BOOLEAN,
        "l": kinds.UNKNOWN,
        "f": kinds.UNKNOWN,
    }
    root, wrappers = visitor.get_node_wrapper_root(), visitor.get_node_to_wrapper_map()
    assert root.node is tree and wrappers[tree.body[0]].parent is root
    assert [c.node for c in root.children] == tree.body
    with pytest.raises(errors.ProgramError, match="outside of a function"):
        found.StaticAnalysisVisitor(ast.parse("return 3"))


def test_what_layers_of_users_call():
    helpers = importlib.import_module("jfluid.dygraph_utils")
    with pytest.raises(AssertionError, match="within"):
        helpers._append_activation_in_dygraph(None)
    with guard():
        x = to_variable(X)
        assert helpers._append_activation_in_dygraph(x) is x
        assert helpers._append_bias_in_dygraph(x) is x
        y = helpers._append_bias_in_dygraph(x, to_variable(-X[0]), 1)
        y = helpers._append_activation_in_dygraph(y - 1.0, "relu", use_cudnn=True)
        np.testing.assert_array_equal(y.numpy(), np.zeros((1, 4)))


def test_names_of_core():
    core = fluid.core
    assert core.Layer is Layer and core.ParallelStrategy().nranks == 1
    with guard():
        made = core.VarBase(value=X, place=fluid.CPUPlace(), name="given", persistable=True, zero_copy=False)
        np.testing.assert_array_equal(made.numpy(), X)
        assert made.name == "given" and made.persistable and made.stop_gradient
        for given in ((X,), (X, fluid.CPUPlace()), (X, fluid.CPUPlace(), True, False, "in_order")):
            made = core.VarBase(*given)
            np.testing.assert_array_equal(made.numpy(), X)
            assert made.stop_gradient and made.persistable == (len(given) == 5)
        assert made.name == "in_order"
        with pytest.raises(TypeError, match="CPUPlace"):
            core.VarBase(value=[1], place=fluid.CPUPlace())
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", "input()"],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/dev/zero", os.O_RDONLY, 0)],
    )
    try:
        core._set_process_pids(1, [child])
        core._throw_error_if_process_failed()  # it runs
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        with pytest.raises(core.EnforceNotMet, match=f"{child}.* by signal 9"):
            core._throw_error_if_process_failed()
    finally:
        core._erase_process_pids(1)
        os.waitpid(child, 0)
    core._throw_error_if_process_failed()
    with pytest.raises(TypeError, match="process ids"):
        core._set_process_pids(1, child)


def test_the_translator_converts_in_static_mode():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        found = ProgramTranslator().get_func(recursion)(X)
        assert found.block.program is fluid.default_main_program()

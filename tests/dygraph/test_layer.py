"""`Layer` and the containers: names, attributes, hooks, states. They need no values, so these run in
programs.
"""

from collections import OrderedDict

import numpy as np
import pytest

import jfluid as fluid
from jfluid import dygraph, errors

pytestmark = pytest.mark.usefixtures("interpreted_steps")


@pytest.fixture(autouse=True)
def program():
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        yield


def parameter(*shape):
    return fluid.layers.create_parameter(list(shape or [1]), "float32")


class Net(dygraph.Layer):
    def __init__(self):
        super().__init__()
        self.a = dygraph.Linear(3, 4)
        self.bn = dygraph.BatchNorm(4)
        self.w = self.create_parameter([2, 2])
        self.inner = dygraph.Sequential(("first", dygraph.Linear(4, 2)), ("second", dygraph.Linear(2, 2)))
        self.rows = dygraph.LayerList([dygraph.Linear(2, 2)])
        self.slopes = dygraph.ParameterList([parameter(2, 3)])
        self.d = dygraph.Dropout(0.5)

    def forward(self, x):
        return self.inner(self.bn(self.a(x)))


def test_parameters_and_layers_are_listed_as_in_fluid():
    net = Net()
    assert [(path, p.name) for path, p in net.named_parameters()] == [
        ("w", "net_0.w_0"),
        ("a.weight", "linear_0.w_0"),
        ("a.bias", "linear_0.b_0"),
        ("bn.weight", "batch_norm_0.w_0"),
        ("bn.bias", "batch_norm_0.b_0"),
        ("bn._mean", "batch_norm_0.w_1"),
        ("bn._variance", "batch_norm_0.w_2"),
        ("inner.first.weight", "linear_1.w_0"),
        ("inner.first.bias", "linear_1.b_0"),
        ("inner.second.weight", "linear_2.w_0"),
        ("inner.second.bias", "linear_2.b_0"),
        ("rows.0.weight", "linear_3.w_0"),
        ("rows.0.bias", "linear_3.b_0"),
        ("slopes.0", "create_parameter_0.w_0"),
    ]
    assert [p.name for p in net.parameters(include_sublayers=False)] == ["net_0.w_0"]
    assert [(path, layer.full_name()) for path, layer in net.named_sublayers(prefix="p")] == [
        ("p.a", "linear_0"),
        ("p.bn", "batch_norm_0"),
        ("p.inner", "sequential_0"),
        ("p.inner.first", "linear_1"),
        ("p.inner.second", "linear_2"),
        ("p.rows", "layer_list_0"),
        ("p.rows.0", "linear_3"),
        ("p.slopes", "parameter_list_0"),
        ("p.d", "dropout_0"),
    ]
    assert next(iter(net.named_sublayers(include_self=True))) == ("", net)
    assert len(net.sublayers()) == 9 and not net.sublayers(include_sublayers=False)
    net.eval()
    assert not any(layer.training for layer in (net, *net.sublayers()))
    net.train()
    assert net.inner["first"].training


def test_state_dict_has_shared_layers_twice_and_parameters_once():
    shared = dygraph.Linear(2, 2)
    chain = dygraph.Sequential(shared, shared)
    assert list(chain.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert len(chain.parameters()) == 2
    into = OrderedDict()
    assert chain.state_dict(into, structured_name_prefix="x.") is into
    assert list(into) == ["x.0.weight", "x.0.bias", "x.1.weight", "x.1.bias"]
    assert not chain.state_dict(include_sublayers=False)


def test_attributes():
    net = Net()
    with pytest.raises(TypeError, match=r"net_0\.w is a parameter"):
        net.w = 3
    with pytest.raises(TypeError, match=r"net_0\.a is a layer"):
        net.a = 3
    net.w = net.a = None
    assert net.w is None and net.a is None and "a.weight" not in net.state_dict()
    del net.bn
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'bn'"):
        _ = net.bn
    net.other = 3
    net.other = parameter(1)
    assert "other" in net.state_dict() and "other" in dir(net)
    net.other = dygraph.Linear(1, 1)
    assert "other.weight" in net.state_dict() and "other" not in net._parameters
    assert net.add_parameter("none", None) is None
    with pytest.raises(TypeError, match="expected a parameter or None"):
        net.add_parameter("number", 3)
    with pytest.raises(TypeError, match="expected a Layer"):
        net.add_sublayer("number", 3)

    class Late(dygraph.Layer):
        def __init__(self, value):
            self.value = value

    for value in (dygraph.Linear(1, 1), parameter(1)):
        with pytest.raises(ValueError, match=r"call super\(\).__init__\(\) before value"):
            Late(value)


def test_names():
    class HTTPBlock2D(dygraph.Layer):
        pass

    assert HTTPBlock2D().full_name() == "http_block2d_0"
    assert dygraph.Layer().full_name() == "layer_0"
    assert [dygraph.Layer("mine").full_name() for _ in range(2)] == ["mine_0", "mine_1"]
    layer = dygraph.Layer("mine")
    assert layer.create_variable("v", dtype="float32").name == "mine_2.v"
    assert layer.create_variable().name == "mine_2._generated_var_0"
    assert layer.create_parameter([2], False) is None
    assert layer.create_parameter([2], "own").name == "own"


def test_calls():
    with pytest.raises(NotImplementedError):
        dygraph.Layer()(fluid.data("x", [1], "float32"))
    with pytest.raises(ValueError, match="a layer has no backward: call"):
        dygraph.Layer().backward()

    class Sum(dygraph.Layer):
        built = 0

        def _build_once(self, *inputs, y):
            self.built += 1

        def forward(self, x, y=0):
            return x + y

    layer = Sum()
    before = layer.register_forward_pre_hook(lambda layer, inputs: (inputs[0] * 2,))
    keep = layer.register_forward_post_hook(lambda layer, inputs, out: None)
    after = layer.register_forward_post_hook(lambda layer, inputs, out: (out, inputs))
    assert layer(3, y=1) == (7, (6,))
    before.remove()
    before.remove()
    assert layer(3, y=1) == (4, (3,)) and layer.built == 1
    after.remove()
    keep.remove()
    layer.register_forward_pre_hook(lambda layer, inputs: inputs[0] + 1)
    assert layer(3) == 4
    with pytest.raises(TypeError, match="hook: expected a function"):
        layer.register_forward_pre_hook(3)


def test_sequential():
    first, second = dygraph.Linear(4, 2), dygraph.Linear(2, 2)
    chain = dygraph.Sequential(first, second)
    assert chain[0] is first and chain["1"] is second and len(chain) == 2
    chain[0] = second
    assert list(chain) == [second, second]
    del chain["1"]
    assert len(chain) == 1
    with pytest.raises(KeyError, match="expected one of 0"):
        chain[5]
    for wrong in ((3,), (("a", first), second), ([first],)):
        with pytest.raises(TypeError):
            dygraph.Sequential(*wrong)


def test_layer_list():
    layers = [dygraph.Linear(1, 1) for _ in range(5)]
    rows = dygraph.LayerList(layers[:2])
    assert rows.append(layers[3]) is rows
    rows.insert(2, layers[2])
    rows.extend(layers[4:])
    assert list(rows) == layers and rows[-1] is layers[4] and len(rows) == 5
    assert list(rows[1:3]) == layers[1:3]
    del rows[0]
    assert [path for path, _ in rows.named_sublayers()] == ["0", "1", "2", "3"]
    rows[0] = layers[0]
    assert list(rows) == [layers[0], *layers[2:]]
    with pytest.raises(KeyError):
        rows[7]
    with pytest.raises(IndexError):
        rows.insert(9, layers[0])
    with pytest.raises(TypeError):
        rows.append(3)
    with pytest.raises(TypeError):
        rows.insert(0, 3)
    assert list(rows) == [layers[0], *layers[2:]]
    assert len(dygraph.LayerList()) == 0


def test_parameter_list():
    values = [parameter() for _ in range(4)]
    held = dygraph.ParameterList(values[:2])
    assert held.append(values[2]) is held
    held[0] = values[3]
    assert [p.name for p in held] == [values[i].name for i in (3, 1, 2)]
    assert held[-1] is values[2] and len(held) == 3
    with pytest.raises(KeyError):
        held[3]
    with pytest.raises(TypeError):
        held.append(3)
    with pytest.raises(TypeError):
        held.append(None)


def test_states_that_do_not_fit():
    layer = dygraph.Linear(2, 2)
    state = {"weight": np.ones((2, 2), "float32")}
    with pytest.raises(errors.UninitializedError, match="the state has no bias"):
        layer.set_dict(state)
    with pytest.raises(errors.UninitializedError, match=r"linear_0\.w_0.*use_structured_name"):
        layer.load_dict(state, use_structured_name=False)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: dygraph.Conv2D(3, 4, 3, groups=2), ValueError, "must divide the 3 channels"),
        (lambda: dygraph.Conv2D(3, 4, 3, use_cudnn=1), ValueError, "use_cudnn"),
        (lambda: dygraph.Conv2D(3, 4, [3, 3, 3]), ValueError, "filter_size"),
        (lambda: dygraph.Pool2D(2, "foo"), ValueError, "pool_type"),
        (lambda: dygraph.Pool2D(), ValueError, "pool_size"),
        (lambda: dygraph.GroupNorm(4, 2, data_layout="NHWC"), ValueError, "data_layout"),
        (lambda: dygraph.InstanceNorm(4, bias_attr=False), ValueError, "bias_attr"),
        (lambda: dygraph.BatchNorm(4, param_attr=False), ValueError, "param_attr"),
        (lambda: dygraph.NCE(3, 4, sampler="zz"), ValueError, "sampler"),
        (lambda: dygraph.PRelu("zz"), ValueError, "mode"),
        (lambda: dygraph.PRelu("channel"), ValueError, "needs channel"),
        (lambda: dygraph.PRelu("element"), ValueError, "needs input_shape"),
        (lambda: dygraph.Embedding([3]), ValueError, "size"),
        (lambda: dygraph.Embedding(3), ValueError, "size"),
        (lambda: dygraph.Embedding([3, 2], padding_idx=3), ValueError, "padding_idx"),
        (lambda: dygraph.GRUUnit(10), ValueError, "multiple of 3"),
        (lambda: dygraph.GRUUnit(9, activation="x"), ValueError, "activation"),
        (lambda: dygraph.Dropout(2.0), ValueError, "p: expected a number"),
        (lambda: dygraph.Dropout(0.5, seed="x"), TypeError, "seed"),
        (lambda: dygraph.Dropout(0.5, dropout_implementation="x"), ValueError, "implementation"),
        (lambda: dygraph.MSELoss("x"), ValueError, "reduction"),
    ],
)
def test_arguments_that_do_not_fit(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_inputs_that_do_not_fit():
    x = fluid.data("x", [3, 2], "float32")
    for layer, says in (
        (dygraph.Conv2D(3, 4, 3), "4 dimensions"),
        (dygraph.LayerNorm([3]), r"expected an input \[\.\.\., 3\]"),
        (dygraph.Linear(3, 4), "matmul"),
    ):
        with pytest.raises(errors.ShapeError, match=says):
            layer(x)
    with pytest.raises(TypeError, match="act is the name"):
        dygraph.Linear(2, 2, act=3)(x)
    with pytest.raises(TypeError):
        dygraph.Linear(2, 2)(np.ones((1, 2), "float32"))


def test_buffers_belong_to_the_state():
    class Counts(fluid.dygraph.Layer):
        def __init__(self):
            super().__init__()
            self.inner = fluid.dygraph.Linear(2, 2)
            self.register_buffer("seen", fluid.dygraph.to_variable(np.zeros(1, "float32")))
            self.register_buffer("scratch", None, persistable=False)

        def forward(self, x):
            self.seen, self.scratch = self.seen + 1.0, x
            return self.inner(x)

    with fluid.dygraph.guard():
        net, x = Counts(), fluid.dygraph.to_variable(np.ones((1, 2), "float32"))
        net(x), net(x)
        assert net.seen.numpy() == [2] and net.scratch is x
        assert list(net.state_dict()) == ["seen", "inner.weight", "inner.bias"]
        assert [name for name, _ in net.named_buffers("a")] == ["a.seen", "a.scratch"]
        assert len(net.buffers()) == 2 and len(net.parameters()) == 2
        net.set_dict(net.state_dict() | {"seen": np.array([7], "float32")})
        assert net.seen.numpy() == [7]
        visited = []
        assert net.apply(visited.append) is net and visited == [net.inner, net]
        with pytest.raises(TypeError, match="expected a variable that is no parameter, found int"):
            net.seen = 3
        with pytest.raises(ValueError, match="there is a inner already"):
            net.register_buffer("inner", x)
        del net.seen
        assert not hasattr(net, "seen")


def test_names_of_parameters_are_unique_but_for_other_guards():
    ones = np.ones((2, 2), "float32")
    with fluid.dygraph.guard():
        first = fluid.dygraph.Linear(2, 2, param_attr="w")
        with pytest.raises(ValueError, match="there is a parameter w already"):
            fluid.dygraph.Linear(2, 2, param_attr="w")
        with fluid.unique_name.guard():
            second = fluid.dygraph.Linear(2, 2, param_attr="w")
        assert second.weight is not first.weight
        for layer, factor in ((first, 1.0), (second, 2.0)):  # of which each has moments of its own
            layer.weight.set_value(ones)
            with fluid.unique_name.guard():
                adam = fluid.optimizer.Adam(0.1, parameter_list=layer.parameters())
                loss = fluid.layers.mean(layer(fluid.dygraph.to_variable(ones * factor)))
                loss.backward()
                adam.minimize(loss)
            moment = adam.state_dict()["w_moment1_0"]
            np.testing.assert_allclose(moment.numpy(), 0.1 * layer.weight.gradient(), rtol=1e-6)
        del first, layer
        fluid.dygraph.Linear(2, 2, param_attr="w")  # one that is gone took its name with it


def test_a_variable_of_a_name_that_was_given_before_is_another():
    with fluid.dygraph.guard():
        a, b = (fluid.layers.create_global_var([1], n, "float32", True, name="g") for n in (1, 2))
        assert [a.numpy()[0], b.numpy()[0]] == [1, 2]


class Added(dygraph.Layer):
    """Computes as published layers do: by operators that it appends itself."""

    def __init__(self, act):
        super().__init__()
        self.act = act
        self.bias = self.create_parameter([2], is_bias=True)

    def forward(self, x):
        self._helper.is_instance(x, fluid.Variable)
        out = self._helper.create_variable_for_type_inference(self._helper.input_dtype([x, x]))
        self._helper.append_op("elementwise_add", {"X": x, "Y": self.bias}, {"Out": out}, {"axis": 1})
        return self._helper.append_activation(out, act=self.act)


def test_layers_that_append_operators():
    array = np.array([[-1.0, 2.0]], "float32")
    net = Added("relu")
    assert isinstance(net._helper, fluid.dygraph.layer_object_helper.LayerObjectHelper)
    assert net._helper.get_parameter("added_0.b_0") is net.bias
    with fluid.dygraph.guard():
        x = dygraph.to_variable(array)
        assert Added("relu")(x).numpy().tolist() == [[0.0, 2.0]]
        assert Added(None)(x).numpy().tolist() == array.tolist()
        net = Added({"type": "leaky_relu", "alpha": 0.5})
        assert net(x).numpy().tolist() == [[-0.5, 2.0]]
        with pytest.raises(TypeError, match="layer added_2: expected .*Variable.*, found list"):
            net([1.0])
        with pytest.raises(errors.ProgramError, match="inputs of one dtype"):
            net._helper.input_dtype([x, x.astype("int64")])
        with pytest.raises(errors.ProgramError, match="is no parameter"):
            buffer = net._helper.create_variable(name="b", persistable=True)
            net._helper.get_parameter(buffer.name)


def test_gradients_flow_to_what_is_not_trained():
    with fluid.dygraph.guard():
        layer = dygraph.Linear(2, 2, param_attr=fluid.ParamAttr(trainable=False))
        layer.bias.trainable = False
        assert not layer.weight.stop_gradient and not layer.bias.stop_gradient
        out = layer(dygraph.to_variable(np.ones((1, 2), "float32")))
        fluid.layers.reduce_sum(out).backward()
        sgd = fluid.optimizer.SGD(1.0, parameter_list=layer.parameters())
        assert sgd.minimize(out) == ([], []) and layer.bias.numpy().tolist() == [0, 0]
        layer.clear_gradients()  # of what is trained alone, as in Fluid
        assert layer.weight.gradient().tolist() == [[1, 1], [1, 1]]
        assert layer.bias.gradient().tolist() == [1, 1]

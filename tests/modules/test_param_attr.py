"""ParamAttr in all its forms, and weight normalisation."""

import numpy as np
import pytest

import jfluid as fluid

# Losses at the third step and parameters after it, by the real Fluid 1.8.5.
WEIGHT_NORM = {
    None: (1.355973243713379, [0.00396947, 0.09920566, 0.19444188, 0.28967807], [1.3806921]),
    1: (
        3.7972073554992676,
        [-0.486943, -0.307962, -0.11291566, 0.07020725],
        [1.6026195, 1.4983592, 1.4234347, 1.3726039],
    ),
}


@pytest.mark.parametrize("dim", WEIGHT_NORM)
def test_weight_norm_trains_as_in_fluid(dim):
    x = fluid.data("x", [None, 3])
    y = fluid.layers.fc(x, 4, param_attr=fluid.WeightNormParamAttr(dim=dim, name="w"), bias_attr=False)
    weight = fluid.WeightNormParamAttr.params_with_weight_norm[-1]
    assert weight.shape == (3, 4) and weight.op.type == "elementwise_mul"
    loss = fluid.layers.mean(fluid.layers.square(y))
    fluid.optimizer.SGD(0.1).minimize(loss)
    names = {p.name: p.shape for p in fluid.default_main_program().all_parameters()}
    assert names == {"w_g": (1, 1) if dim is None else (1, 4), "w_v": (3, 4)}
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.global_scope()
    exe.run(fluid.default_startup_program())
    direction, length = (scope.find_var(n).get_tensor() for n in ("w_v", "w_g"))
    axis = None if dim is None else 0
    np.testing.assert_allclose(np.array(length).ravel(), np.linalg.norm(np.array(direction), axis=axis), rtol=1e-5)
    direction.set(np.arange(12, dtype="float32").reshape(3, 4) / 10 + np.float32(0.1))
    length.set(np.full(names["w_g"], 2, "float32"))
    for _ in range(3):
        (value,) = exe.run(feed={"x": np.ones((2, 3), "float32")}, fetch_list=[loss])
    want, first, lengths = WEIGHT_NORM[dim]
    np.testing.assert_allclose(value, [want], rtol=1e-5)
    np.testing.assert_allclose(np.array(direction).ravel()[:4], first, rtol=1e-5)
    np.testing.assert_allclose(np.array(length).ravel(), lengths, rtol=1e-5)


def test_what_users_write_for_param_attr():
    x = fluid.data("x", [None, 3])
    for attr in (
        "named",
        fluid.initializer.Constant(0.5),
        fluid.regularizer.L2Decay(0.1),
        fluid.ParamAttr(trainable=False),
        None,
    ):
        fluid.layers.fc(x, 2, param_attr=attr, bias_attr=False)
    params = fluid.default_main_program().all_parameters()
    assert [p.name for p in params] == ["named", "fc_1.w_0", "fc_2.w_0", "fc_3.w_0", "fc_4.w_0"]
    assert params[2].regularizer is not None and not params[3].trainable
    assert len(fluid.default_main_program().global_block().ops) == 5
    with pytest.raises(TypeError, match="param_attr: expected a ParamAttr.*found float"):
        fluid.layers.fc(x, 2, param_attr=0.5)
    with pytest.raises(ValueError, match="must not be empty"):
        fluid.ParamAttr(name="")


def test_a_shared_parameter_is_one():
    x = fluid.data("x", [None, 3])
    for _ in range(2):
        fluid.layers.fc(x, 2, param_attr="shared", bias_attr=False)
    assert [p.name for p in fluid.default_main_program().all_parameters()] == ["shared"]
    assert len(fluid.default_startup_program().global_block().ops) == 1

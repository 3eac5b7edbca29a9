"""A script as its users write it. `make lint` holds the types that it gets from the package;
nothing runs it.
"""

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np

import jfluid as fluid
from jfluid import layers
from jfluid.fleet.collective import fleet
from jfluid.fleet.role_maker import UserDefinedRoleMaker
from jfluid.ir.operator import Operator
from jfluid.ir.variable import Parameter, Variable
from jfluid.ops import registry


def network() -> Variable:
    x = fluid.data("x", [None, 4])
    assert_type(x, Variable)
    hidden = layers.fc(x, 3, act="relu", param_attr=fluid.ParamAttr(initializer=fluid.initializer.Xavier()))
    assert_type(layers.topk(hidden, 2), tuple[Variable, Variable])
    assert_type(layers.split(hidden, 3), list[Variable])
    assert_type(hidden * 2.0 + 1.0, Variable)
    assert_type(hidden > 0.0, Variable)
    assert_type(hidden == 0.0, Variable)
    assert_type(fluid.nets.simple_img_conv_pool(x, 2, 3, 2, 2, act="relu"), Variable)
    return layers.mean(hidden)


def reader() -> Iterator[tuple[np.ndarray]]:
    yield (np.ones(4, np.float32),)


def train() -> list[Any]:
    loss = network()
    optimizer = fluid.optimizer.Adam(
        0.1,
        regularization=fluid.regularizer.L2Decay(1e-4),
        grad_clip=fluid.clip.GradientClipByNorm(1.0),
    )
    updates, gradients = optimizer.minimize(loss)
    assert_type(updates, list[Operator])
    assert_type(gradients, list[tuple[Parameter, Variable | None]])
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    accuracy = fluid.metrics.Accuracy()
    accuracy.update(0.5, 1)
    assert_type(accuracy.eval(), float | np.ndarray)
    tensor = fluid.global_scope().var("mean").get_tensor()
    assert_type(tensor, fluid.LoDTensor)
    tensor.set(np.zeros(3, np.float32))
    fluid.io.save_persistables(executor, "model")
    fleet.init(UserDefinedRoleMaker())
    return executor.run(feed={"x": np.ones((2, 4), np.float32)}, fetch_list=[loss])


@registry.op("twice", ins=("X",), outs=("Out",), rows="map")
def twice(x: np.ndarray) -> np.ndarray:
    return x * 2

import numpy as np
import paddle.fluid as fluid
from paddle.fluid import layers

i = layers.fill_constant(shape=[1], dtype="int64", value=0)
limit = layers.fill_constant(shape=[1], dtype="int64", value=3)
total = layers.fill_constant(shape=[1], dtype="float32", value=0.0)
less = layers.less_than(x=i, y=limit)
loop = layers.While(cond=less)
with loop.block():
    layers.assign(total + 1.0, total)
    layers.increment(x=i, value=1, in_place=True)
    layers.less_than(x=i, y=limit, cond=less)
with layers.control_flow.Switch() as switch:
    with switch.case(layers.less_than(total, layers.fill_constant([1], "float32", 5.0))):
        layers.assign(layers.fill_constant([1], "float32", 7.0), total)
    with switch.default():
        layers.assign(layers.fill_constant([1], "float32", 9.0), total)
chosen = layers.cond(layers.less_than(total, 8.0 + total), lambda: total, lambda: total * 2.0)
result = fluid.Executor(fluid.CPUPlace()).run(fetch_list=[chosen])
assert np.allclose(result[0], 7.0)

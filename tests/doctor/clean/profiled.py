import contextlib

import paddle.fluid as fluid
from paddle.fluid import profiler

x = fluid.data(name="x", shape=[None, 4], dtype="float32")
with fluid.name_scope("encoder"):
    hidden = fluid.layers.fc(x, 4, act="tanh", name="hidden")
switches = {"fetch": [hidden], "guard": contextlib.nullcontext()}
gradients = fluid.gradients([hidden], [x])
params = fluid.default_main_program().all_parameters()
print([p.name for p in params], [g.shape for g in gradients])
if fluid.is_compiled_with_cuda():
    profiler.reset_profiler()

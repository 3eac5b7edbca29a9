import os
import tempfile

import numpy as np
import paddle.fluid as fluid

folder = os.path.join(tempfile.mkdtemp(), "model")
x = fluid.data(name="x", shape=[None, 4], dtype="float32")
out = fluid.layers.fc(x, 2, act="softmax", param_attr=fluid.ParamAttr(name="w"))
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
fluid.io.save_inference_model(folder, ["x"], [out], exe, params_filename="params")
fluid.save(fluid.default_main_program(), os.path.join(folder, "net"))
with fluid.scope_guard(fluid.Scope()):
    program, feeds, fetches = fluid.io.load_inference_model(folder, exe, params_filename="params")
    (result,) = exe.run(program, feed={feeds[0]: np.ones((1, 4), "float32")}, fetch_list=fetches)
weight = np.array(fluid.global_scope().find_var("w").get_tensor())
print(weight.shape, result)

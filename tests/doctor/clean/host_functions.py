import numpy as np
import paddle.fluid as fluid


def double(x):
    return np.array(x) * 2


x = fluid.data(name="x", shape=[2, 3], dtype="float32")
block = fluid.default_main_program().current_block()
out = block.create_var(name="doubled", shape=[2, 3], dtype="float32")
fluid.layers.py_func(func=double, x=x, out=out)
shown = fluid.layers.Print(out, message="doubled", summarize=4)
exe = fluid.Executor(fluid.CPUPlace())
(value,) = exe.run(feed={"x": np.ones((2, 3), "float32")}, fetch_list=[shown])

import numpy as np
import paddle.fluid as fluid

x = fluid.data(name="x", shape=[None, 13], dtype="float32")
y = fluid.data(name="y", shape=[None, 1], dtype="float32")
predict = fluid.layers.fc(input=x, size=1, act=None)
loss = fluid.layers.mean(fluid.layers.square_error_cost(input=predict, label=y))
fluid.optimizer.SGD(learning_rate=0.001).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
for _ in range(3):
    feed = {"x": np.ones((4, 13), "float32"), "y": np.ones((4, 1), "float32")}
    print(exe.run(fluid.default_main_program(), feed=feed, fetch_list=[loss]))

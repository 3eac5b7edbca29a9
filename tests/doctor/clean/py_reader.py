import numpy as np
import paddle.fluid as fluid

reader = fluid.layers.py_reader(
    capacity=4, shapes=[[-1, 4], [-1, 1]], dtypes=["float32", "int64"], use_double_buffer=True
)
x, label = fluid.layers.read_file(reader)
cost = fluid.layers.mean(fluid.layers.cross_entropy(fluid.layers.fc(x, 3, act="softmax"), label))


def batches():
    for _ in range(2):
        yield np.zeros((2, 4), "float32"), np.zeros((2, 1), "int64")


reader.decorate_batch_generator(batches)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
reader.start()
try:
    while True:
        exe.run(fetch_list=[cost])
except fluid.core.EOFException:
    reader.reset()

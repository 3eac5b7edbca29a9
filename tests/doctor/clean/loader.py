import numpy as np
import paddle
import paddle.fluid as fluid


def samples():
    for i in range(8):
        yield np.full([4], i, "float32"), i % 2


x = fluid.data(name="x", shape=[None, 4], dtype="float32")
y = fluid.data(name="y", shape=[None, 1], dtype="int64")
loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(fluid.layers.fc(x, 2), y))
loader = fluid.io.DataLoader.from_generator(feed_list=[x, y], capacity=4, iterable=True)
loader.set_sample_list_generator(
    paddle.batch(fluid.io.shuffle(samples, 8), batch_size=4), places=fluid.cpu_places()
)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
for batch in loader():
    exe.run(feed=batch, fetch_list=[loss])
feeder = fluid.DataFeeder(place=fluid.CPUPlace(), feed_list=[x, y])
exe.run(feed=feeder.feed(list(samples())), fetch_list=[loss])

"""Dygraph."""
import numpy as np
import paddle.fluid as fluid
from paddle.fluid.dygraph import Linear, to_variable


class Net(fluid.dygraph.Layer):
    def __init__(self):
        super().__init__()
        self.fc = Linear(784, 10)

    def forward(self, x):
        return self.fc(x)


with fluid.dygraph.guard():
    net = Net()
    x = to_variable(np.zeros([1, 784], "float32"))
    loss = fluid.layers.mean(net(x))
    loss.backward()
    print(loss.numpy())
fluid.enable_dygraph()
fluid.save_dygraph({}, "net")
optimizer = fluid.optimizer.SGD(0.1)
optimizer.clear_gradients()

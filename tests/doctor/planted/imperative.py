"""Dygraph."""
import numpy as np
import paddle.fluid as fluid
from paddle.fluid.dygraph import Linear, to_variable


class Net(fluid.dygraph.Layer):  # expect: imperative
    def __init__(self):
        super().__init__()
        self.fc = Linear(784, 10)  # expect: imperative

    def forward(self, x):
        return self.fc(x)


with fluid.dygraph.guard():  # expect: imperative
    net = Net()
    x = to_variable(np.zeros([1, 784], "float32"))  # expect: imperative
    loss = fluid.layers.mean(net(x))
    loss.backward()  # expect: imperative
    print(loss.numpy())  # expect: imperative
fluid.enable_dygraph()  # expect: refused
fluid.save_dygraph({}, "net")  # expect: imperative
optimizer = fluid.optimizer.SGD(0.1)
optimizer.clear_gradients()  # expect: imperative

"""Examples of imperative mode: a cell for each name of Fluid."""

import numpy as np

import jfluid as fluid

half = fluid.initializer.Constant(0.5)

# %% fluid.dygraph.guard fluid.dygraph.to_variable
with fluid.dygraph.guard():
    x = fluid.dygraph.to_variable(np.float32([1, 2]))
    print((x * x).numpy())  # [1. 4.]

# %% fluid.dygraph.enable_dygraph fluid.disable_dygraph fluid.dygraph.enabled
fluid.enable_dygraph()
print(fluid.dygraph.enabled(), fluid.layers.ones([2], "float32").numpy())  # True [1. 1.]
fluid.disable_dygraph()
print(fluid.dygraph.enabled())  # False

# %% fluid.VarBase
with fluid.dygraph.guard():
    x = fluid.dygraph.to_variable(np.float32([1, 3]))
    x.stop_gradient = False
    y = fluid.layers.reduce_sum(x * x)
    y.backward()
    print(isinstance(x, fluid.core.VarBase), x.gradient())  # True [2. 6.]


# %% fluid.dygraph.Layer
class Net(fluid.dygraph.Layer):
    """A layer with a sublayer."""

    def __init__(self):
        super().__init__()
        self.inner = fluid.dygraph.Linear(2, 1, param_attr=half)

    def forward(self, x):
        return fluid.layers.relu(self.inner(x))


with fluid.dygraph.guard():
    net = Net()
    y = net(fluid.dygraph.to_variable(np.float32([[1, 2]])))
    print(y.numpy(), sorted(net.state_dict()))  # [[1.5]] ['inner.bias', 'inner.weight']

# %% fluid.dygraph.Linear
with fluid.dygraph.guard():
    layer = fluid.dygraph.Linear(3, 2, param_attr=half, act="relu")
    print(layer(fluid.dygraph.to_variable(np.ones([1, 3], "float32"))).numpy())  # [[1.5 1.5]]

# %% fluid.dygraph.Conv2D
with fluid.dygraph.guard():
    layer = fluid.dygraph.Conv2D(num_channels=3, num_filters=4, filter_size=3, padding=1)
    print(layer(fluid.dygraph.to_variable(np.ones([2, 3, 8, 8], "float32"))).shape)  # [2, 4, 8, 8]

# %% fluid.dygraph.Conv2DTranspose
with fluid.dygraph.guard():
    layer = fluid.dygraph.Conv2DTranspose(num_channels=3, num_filters=4, filter_size=2, stride=2)
    print(layer(fluid.dygraph.to_variable(np.ones([2, 3, 8, 8], "float32"))).shape)  # [2, 4, 16, 16]

# %% fluid.dygraph.Conv3D
with fluid.dygraph.guard():
    layer = fluid.dygraph.Conv3D(num_channels=1, num_filters=2, filter_size=3)
    print(layer(fluid.dygraph.to_variable(np.ones([1, 1, 4, 4, 4], "float32"))).shape)  # [1, 2, 2, 2, 2]

# %% fluid.dygraph.Conv3DTranspose
with fluid.dygraph.guard():
    layer = fluid.dygraph.Conv3DTranspose(num_channels=1, num_filters=2, filter_size=2, stride=2)
    print(layer(fluid.dygraph.to_variable(np.ones([1, 1, 2, 2, 2], "float32"))).shape)  # [1, 2, 4, 4, 4]

# %% fluid.dygraph.Pool2D
with fluid.dygraph.guard():
    layer = fluid.dygraph.Pool2D(pool_size=2, pool_type="avg", pool_stride=2)
    print(layer(fluid.dygraph.to_variable(np.ones([1, 3, 8, 8], "float32"))).shape)  # [1, 3, 4, 4]

# %% fluid.dygraph.BatchNorm
with fluid.dygraph.guard():
    layer = fluid.dygraph.BatchNorm(num_channels=2)
    print(layer(fluid.dygraph.to_variable(np.float32([[0, 10], [2, 30]]))).numpy().round(2).tolist())
    # [[-1.0, -1.0], [1.0, 1.0]]

# %% fluid.dygraph.GroupNorm
with fluid.dygraph.guard():
    layer = fluid.dygraph.GroupNorm(channels=4, groups=2)
    print(layer(fluid.dygraph.to_variable(np.ones([1, 4, 2, 2], "float32"))).shape)  # [1, 4, 2, 2]

# %% fluid.dygraph.InstanceNorm
with fluid.dygraph.guard():
    layer = fluid.dygraph.InstanceNorm(num_channels=1)
    print(layer(fluid.dygraph.to_variable(np.float32([[[[0, 2]]]]))).numpy().round(2).ravel())  # [-1.  1.]

# %% fluid.dygraph.LayerNorm
with fluid.dygraph.guard():
    layer = fluid.dygraph.LayerNorm(normalized_shape=[2])
    print(layer(fluid.dygraph.to_variable(np.float32([[0, 2]]))).numpy().round(2))  # [[-1.  1.]]

# %% fluid.dygraph.SpectralNorm
with fluid.dygraph.guard():
    layer = fluid.dygraph.SpectralNorm(weight_shape=[2, 2], power_iters=20)
    print(layer(fluid.dygraph.to_variable(np.float32([[4, 0], [0, 1]]))).numpy().round(2).tolist())
    # [[1.0, 0.0], [0.0, 0.25]]

# %% fluid.dygraph.PRelu
with fluid.dygraph.guard():
    layer = fluid.dygraph.PRelu(mode="all", param_attr=fluid.ParamAttr(initializer=fluid.initializer.Constant(0.25)))
    print(layer(fluid.dygraph.to_variable(np.float32([[-4, 2]]))).numpy())  # [[-1.  2.]]

# %% fluid.dygraph.Dropout
with fluid.dygraph.guard():
    layer = fluid.dygraph.Dropout(p=0.5, dropout_implementation="upscale_in_train")
    layer.eval()
    print(layer(fluid.dygraph.to_variable(np.float32([[1, 2]]))).numpy())  # [[1. 2.]]

# %% fluid.dygraph.Embedding
with fluid.dygraph.guard():
    layer = fluid.dygraph.Embedding(size=[10, 4])
    print(layer(fluid.dygraph.to_variable(np.int64([[1, 2, 3]]))).shape)  # [1, 3, 4]

# %% fluid.dygraph.BilinearTensorProduct
with fluid.dygraph.guard():
    layer = fluid.dygraph.BilinearTensorProduct(input1_dim=3, input2_dim=4, output_dim=5)
    x = fluid.dygraph.to_variable(np.ones([2, 3], "float32"))
    y = fluid.dygraph.to_variable(np.ones([2, 4], "float32"))
    print(layer(x, y).shape)  # [2, 5]

# %% fluid.dygraph.GRUUnit
with fluid.dygraph.guard():
    layer = fluid.dygraph.GRUUnit(size=3 * 5)
    x = fluid.dygraph.to_variable(np.ones([2, 15], "float32"))
    before = fluid.dygraph.to_variable(np.zeros([2, 5], "float32"))
    hidden, reset, gates = layer(x, before)
    print(hidden.shape)  # [2, 5]

# %% fluid.dygraph.NCE
with fluid.dygraph.guard():
    layer = fluid.dygraph.NCE(num_total_classes=100, dim=4, num_neg_samples=5)
    x = fluid.dygraph.to_variable(np.ones([2, 4], "float32"))
    print(layer(x, fluid.dygraph.to_variable(np.int64([[3], [7]]))).shape)  # [2, 1]

# %% fluid.dygraph.TreeConv
with fluid.dygraph.guard():
    layer = fluid.dygraph.TreeConv(feature_size=4, output_size=3, num_filters=2, max_depth=2)
    nodes = fluid.dygraph.to_variable(np.ones([1, 3, 4], "float32"))
    edges = fluid.dygraph.to_variable(np.int32([[[1, 2], [1, 3]]]))
    print(layer(nodes, edges).shape)  # [1, 3, 3, 2]

# %% fluid.dygraph.Sequential
with fluid.dygraph.guard():
    net = fluid.dygraph.Sequential(fluid.dygraph.Linear(4, 3), fluid.dygraph.Linear(3, 2))
    print(net(fluid.dygraph.to_variable(np.ones([1, 4], "float32"))).shape, len(net.parameters()))  # [1, 2] 4

# %% fluid.dygraph.LayerList
with fluid.dygraph.guard():
    layers = fluid.dygraph.LayerList([fluid.dygraph.Linear(4, 4) for _ in range(3)])
    x = fluid.dygraph.to_variable(np.ones([1, 4], "float32"))
    for layer in layers:
        x = layer(x)
    print(len(layers), x.shape)  # 3 [1, 4]

# %% fluid.dygraph.ParameterList
with fluid.dygraph.guard():
    weights = fluid.dygraph.ParameterList(
        [fluid.layers.create_parameter([2, 2], "float32", default_initializer=half) for _ in range(2)]
    )
    print(len(weights), weights[0].numpy().tolist())  # 2 [[0.5, 0.5], [0.5, 0.5]]

# %% fluid.dygraph.BCELoss
with fluid.dygraph.guard():
    loss = fluid.dygraph.BCELoss()
    odds = fluid.dygraph.to_variable(np.float32([[0.5]]))
    print(loss(odds, fluid.dygraph.to_variable(np.float32([[1]]))).numpy().round(3))  # [0.693]

# %% fluid.dygraph.L1Loss
with fluid.dygraph.guard():
    loss = fluid.dygraph.L1Loss()
    x = fluid.dygraph.to_variable(np.float32([1, 5]))
    print(loss(x, fluid.dygraph.to_variable(np.float32([2, 2]))).numpy())  # [2.]

# %% fluid.dygraph.MSELoss
with fluid.dygraph.guard():
    loss = fluid.dygraph.MSELoss()
    x = fluid.dygraph.to_variable(np.float32([1, 5]))
    print(loss(x, fluid.dygraph.to_variable(np.float32([2, 2]))).numpy())  # [5.]

# %% fluid.dygraph.NLLLoss
with fluid.dygraph.guard():
    loss = fluid.dygraph.NLLLoss()
    logs = fluid.dygraph.to_variable(np.log(np.float32([[0.5, 0.5]])))
    print(loss(logs, fluid.dygraph.to_variable(np.int64([1]))).numpy().round(3))  # [0.693]

# %% fluid.dygraph.CosineDecay
with fluid.dygraph.guard():
    rate = fluid.dygraph.CosineDecay(0.1, step_each_epoch=1, epochs=4)
    print([round(float(np.ravel(rate().numpy())[0]), 4) for _ in range(3)])  # [0.1, 0.0854, 0.05]

# %% fluid.dygraph.ExponentialDecay
with fluid.dygraph.guard():
    rate = fluid.dygraph.ExponentialDecay(0.1, decay_steps=1, decay_rate=0.5)
    print([round(float(np.ravel(rate().numpy())[0]), 4) for _ in range(3)])  # [0.1, 0.05, 0.025]

# %% fluid.dygraph.InverseTimeDecay
with fluid.dygraph.guard():
    rate = fluid.dygraph.InverseTimeDecay(0.1, decay_steps=1, decay_rate=1.0)
    print([round(float(np.ravel(rate().numpy())[0]), 4) for _ in range(3)])  # [0.1, 0.05, 0.0333]

# %% fluid.dygraph.NaturalExpDecay
with fluid.dygraph.guard():
    rate = fluid.dygraph.NaturalExpDecay(0.1, decay_steps=1, decay_rate=0.5)
    print([round(float(np.ravel(rate().numpy())[0]), 4) for _ in range(3)])  # [0.1, 0.0607, 0.0368]

# %% fluid.dygraph.NoamDecay
with fluid.dygraph.guard():
    rate = fluid.dygraph.NoamDecay(d_model=4, warmup_steps=2)
    print([round(float(np.ravel(rate().numpy())[0]), 4) for _ in range(3)])  # [0.1768, 0.3536, 0.2887]

# %% fluid.dygraph.PiecewiseDecay
with fluid.dygraph.guard():
    rate = fluid.dygraph.PiecewiseDecay(boundaries=[1, 2], values=[0.1, 0.01, 0.001], begin=0)
    print([round(float(np.ravel(rate().numpy())[0]), 4) for _ in range(3)])  # [0.1, 0.01, 0.001]

# %% fluid.dygraph.PolynomialDecay
with fluid.dygraph.guard():
    rate = fluid.dygraph.PolynomialDecay(0.1, decay_steps=2, end_learning_rate=0.0)
    print([round(float(np.ravel(rate().numpy())[0]), 4) for _ in range(3)])  # [0.1, 0.05, 0.0]

# %% fluid.dygraph.LinearLrWarmup
with fluid.dygraph.guard():
    rate = fluid.dygraph.LinearLrWarmup(0.1, warmup_steps=2, start_lr=0.0, end_lr=0.1)
    print([round(float(np.ravel(rate().numpy())[0]), 4) for _ in range(3)])  # [0.05, 0.1, 0.1]

# %% fluid.dygraph.LambdaDecay
with fluid.dygraph.guard():
    rate = fluid.dygraph.LambdaDecay(0.1, lambda epoch: 0.5**epoch)
    for _ in range(2):
        print(round(float(np.ravel(rate().numpy())[0]), 4))
        rate.epoch()

# %% fluid.dygraph.MultiStepDecay
with fluid.dygraph.guard():
    rate = fluid.dygraph.MultiStepDecay(0.1, milestones=[1, 2])
    for _ in range(2):
        print(round(float(np.ravel(rate().numpy())[0]), 4))
        rate.epoch()

# %% fluid.dygraph.StepDecay
with fluid.dygraph.guard():
    rate = fluid.dygraph.StepDecay(0.1, step_size=1)
    for _ in range(2):
        print(round(float(np.ravel(rate().numpy())[0]), 4))
        rate.epoch()

# %% fluid.dygraph.ReduceLROnPlateau
with fluid.dygraph.guard():
    rate = fluid.dygraph.ReduceLROnPlateau(0.1, patience=0)
    for loss in (1.0, 1.0):  # the loss of an epoch; the second is no better
        rate.step(fluid.dygraph.to_variable(np.float32([loss])))
    print(round(float(np.ravel(rate().numpy())[0]), 4))  # 0.01

# %% fluid.dygraph.grad
with fluid.dygraph.guard():
    x = fluid.dygraph.to_variable(np.float32([2]))
    x.stop_gradient = False
    (slope,) = fluid.dygraph.grad(x * x * x, x, create_graph=True)
    (curve,) = fluid.dygraph.grad(slope, x)
    print(slope.numpy(), curve.numpy())  # [12.] [12.]

# %% fluid.dygraph.BackwardStrategy
with fluid.dygraph.guard():
    strategy = fluid.dygraph.BackwardStrategy()
    strategy.sort_sum_gradient = True
    x = fluid.dygraph.to_variable(np.float32([2]))
    x.stop_gradient = False
    (x * x).backward(strategy)
    print(x.gradient())  # [4.]

# %% fluid.dygraph.no_grad
with fluid.dygraph.guard():
    layer = fluid.dygraph.Linear(2, 1)
    with fluid.dygraph.no_grad():
        y = layer(fluid.dygraph.to_variable(np.float32([[1, 2]])))
    print(y.stop_gradient)  # True

# %% fluid.dygraph.save_dygraph fluid.dygraph.load_dygraph
with fluid.dygraph.guard():
    layer = fluid.dygraph.Linear(2, 1, param_attr=half)
    fluid.dygraph.save_dygraph(layer.state_dict(), "saved")
    parameters, optimizer = fluid.dygraph.load_dygraph("saved")
    again = fluid.dygraph.Linear(2, 1)
    again.set_dict(parameters)
    print(again.weight.numpy().ravel(), optimizer)  # [0.5 0.5] None


# %% fluid.dygraph.declarative
@fluid.dygraph.declarative
def double_if_large(x):
    """A function whose branch depends on a tensor."""
    if fluid.layers.mean(x) > 5.0:
        return x * 2
    return x


with fluid.dygraph.guard():
    print(double_if_large(fluid.dygraph.to_variable(np.float32([10]))).numpy())  # [20.]


# %% fluid.dygraph.dygraph_to_static_func
@fluid.dygraph.dygraph_to_static_func
def positive(x):
    """A function that becomes part of a program."""
    if fluid.layers.mean(x) > 0:
        y = x
    else:
        y = -x
    return y


x = fluid.data("x", [2], "float32")
y = positive(x)
exe = fluid.Executor(fluid.CPUPlace())
print(exe.run(feed={"x": np.float32([-1, -2])}, fetch_list=[y])[0])  # [1. 2.]


# %% fluid.dygraph.ProgramTranslator
def double(x):
    """A function of a tensor."""
    return x * 2


translator = fluid.dygraph.ProgramTranslator()
print("x" in translator.get_code(double))  # True

# %% fluid.dygraph.TracedLayer
with fluid.dygraph.guard():
    layer = fluid.dygraph.Linear(2, 1, param_attr=half)
    x = fluid.dygraph.to_variable(np.float32([[1, 2]]))
    y, traced = fluid.dygraph.TracedLayer.trace(layer, inputs=[x])
    traced.save_inference_model("saved_model")
    print(traced([x])[0])  # [[1.5]]

# %% fluid.dygraph.ParallelEnv fluid.dygraph.prepare_context fluid.dygraph.DataParallel
with fluid.dygraph.guard():
    place = fluid.dygraph.ParallelEnv()  # of the process in its job
    print(place.nranks, place.local_rank)  # 1 0
    strategy = fluid.dygraph.prepare_context()
    net = fluid.dygraph.DataParallel(fluid.dygraph.Linear(2, 1, param_attr=half), strategy)
    loss = fluid.layers.mean(net(fluid.dygraph.to_variable(np.float32([[1, 2]]))))
    loss = net.scale_loss(loss)
    loss.backward()
    net.apply_collective_grads()
    print(loss.numpy())  # [1.5]

"""Networks of each kind that jfluid has CPU kernels for, in float32 and float64, for any engine that offers the Fluid
API (Python 3.7 syntax).

A net takes the engine and the element type, and returns its loss. `feeds` has the feed of each net.
"""

import numpy as np

TABLE = "table"  # a parameter that starts at zero: after a step of gradient descent it is the negative gradient
LENGTHS = [7, 3, 9, 1, 6, 5, 8, 2]


def _layer(fluid, x, channels, stride=1, act=None):
    x = fluid.layers.conv2d(x, channels, 3, stride=stride, padding=1, bias_attr=False)
    return fluid.layers.batch_norm(x, act=act)


def _classified(fluid, x, classes=5, lod_level=0):
    label = fluid.data("label", [None, 1], "int64", lod_level=lod_level)
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(fluid.layers.fc(x, classes), label))


def residual(fluid, dtype):
    """Build a residual net of 13 convolutions with batch normalization, on a batch of 4."""
    layers = fluid.layers
    x = _layer(fluid, fluid.data("image", [4, 3, 16, 16], dtype), 8, act="relu")
    for channels, stride in ((8, 1), (8, 1), (16, 2), (16, 1), (16, 1), (16, 1)):
        inner = _layer(fluid, _layer(fluid, x, channels, stride, "relu"), channels)
        short = x if stride == 1 else layers.pool2d(layers.concat([x, x], 1), 2, "avg", 2)
        x = layers.relu(layers.elementwise_add(inner, short))
    return _classified(fluid, layers.pool2d(x, global_pooling=True, pool_type="avg"))


def convolution(fluid, dtype):
    """Build plain, strided, dilated and grouped convolutions with pools."""
    layers = fluid.layers
    x = layers.conv2d(fluid.data("image", [4, 3, 24, 24], dtype), 16, 5, padding=2, act="relu")
    x = layers.conv2d(layers.pool2d(x, 2, pool_stride=2), 32, 3, padding=1, act="tanh")
    x = layers.conv2d(x, 32, 3, padding=2, dilation=2, groups=2, act="relu")
    x = layers.conv2d(x, 48, 3, stride=2, padding=1, act="relu")
    return _classified(fluid, layers.pool2d(x, global_pooling=True, pool_type="max"))


def windows(fluid, dtype):
    """Build convolutions with more filters than positions, pools of each form, a transposition and narrow products."""
    layers = fluid.layers
    x = layers.conv2d(fluid.data("image", [2, 3, 8, 71], dtype), 24, 3, padding=1, act="relu6")
    x = layers.pool2d(x, [1, 64], "avg", pool_stride=1)
    x = layers.pool2d(x, 3, "max", pool_stride=2, pool_padding=1)
    x = layers.conv2d(x, 64, 3, padding=1, act="relu")
    x = layers.conv2d(layers.elementwise_max(x, layers.scale(x, -0.5)), 48, 3, padding=1)
    x = layers.pool2d(x, 2, "avg", pool_stride=2)
    x = layers.fc(layers.transpose(x, [0, 2, 3, 1]), 2, num_flatten_dims=3)
    x = layers.fc(layers.reshape(x, [-1, 2]), 40, act="tanh")
    return _classified(fluid, x)


def _sequences(fluid, dtype):
    return fluid.data("words", [None, 20], dtype, lod_level=1)


def gru(fluid, dtype):
    """Build two GRUs, one of which is reversed."""
    layers, width = fluid.layers, 32
    x = layers.dynamic_gru(layers.fc(_sequences(fluid, dtype), 3 * width), width)
    x = layers.dynamic_gru(layers.fc(x, 3 * width), width, is_reverse=True, origin_mode=True)
    return _classified(fluid, x, lod_level=1)


def lstm(fluid, dtype, cells=32):
    """Build two LSTMs, one with peepholes."""
    layers = fluid.layers
    x, _ = layers.dynamic_lstm(layers.fc(_sequences(fluid, dtype), 4 * cells), 4 * cells, dtype=dtype)
    x, _ = layers.dynamic_lstm(layers.fc(x, 4 * cells), 4 * cells, use_peepholes=False, is_reverse=True, dtype=dtype)
    return _classified(fluid, x, lod_level=1)


def lstm_of_20_cells(fluid, dtype):
    """Build `lstm` with a number of cells for which the gradient of Fluid's kernel is right: no multiple of 8."""
    return lstm(fluid, dtype, 20)


def product(fluid, dtype):
    """Build products of matrices with each activation, and an attention."""
    layers = fluid.layers
    x = fluid.data("rows", [64, 200], dtype)
    for width, act in ((256, "relu"), (160, "tanh"), (192, "sigmoid"), (128, None)):
        x = layers.fc(x, width, act=act)
    weights = layers.softmax(layers.matmul(x, x, transpose_y=True, alpha=0.125))
    return _classified(fluid, layers.matmul(weights, x), 40)


def row(fluid, dtype):
    """Build sums of the rows of a table, in which the gradient of a row has many terms."""
    layers = fluid.layers
    x = fluid.embedding(fluid.data("ids", [40, 30], "int64"), [12, 33], is_sparse=True, param_attr=TABLE, dtype=dtype)
    loss = _classified(fluid, layers.reduce_mean(x, dim=1))
    fluid.optimizer.SGD(1.0).minimize(loss)
    return loss


NETS = {f.__name__: f for f in (residual, convolution, windows, gru, lstm, lstm_of_20_cells, product, row)}


def feeds(fluid, net, random, dtype):
    """Return the feed of a net."""
    if net == "windows":
        given, count = {"image": random.randn(2, 3, 8, 71).astype("float32").astype(dtype)}, 8
    elif net in ("residual", "convolution"):
        size = 16 if net == "residual" else 24
        given, count = {"image": random.randn(4, 3, size, size).astype("float32").astype(dtype)}, 4
    elif net == "product":
        given, count = {"rows": random.randn(64, 200).astype("float32").astype(dtype)}, 64
    elif net == "row":
        given, count = {"ids": random.randint(0, 12, (40, 30)).astype("int64")}, 40
    else:
        count = sum(LENGTHS)
        rows = random.randn(count, 20).astype("float32").astype(dtype)
        given = {"words": fluid.create_lod_tensor(rows, [LENGTHS], fluid.CPUPlace())}
    label = random.randint(0, 5, (count, 1)).astype("int64")
    given["label"] = fluid.create_lod_tensor(label, [LENGTHS], fluid.CPUPlace()) if "words" in given else label
    return given


def run(fluid, dtype, net="residual"):
    """Return the loss, and the gradients of all parameters in one vector, as float64."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    random = np.random.RandomState(0)
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(scope):
        loss = NETS[net](fluid, dtype)
        parameters = main.global_block().all_parameters()
        if net != "row":
            fluid.backward.append_backward(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for parameter in parameters:
            drawn = random.randn(*parameter.shape).astype("float32") * (0.3 if len(parameter.shape) > 1 else 0.1)
            drawn = drawn + (len(parameter.shape) == 1 and net == "residual")
            if parameter.name == TABLE:
                drawn = drawn * 0
            tensor = scope.find_var(parameter.name).get_tensor()
            tensor.set(drawn.astype(np.array(tensor).dtype), fluid.CPUPlace())
        fetched = [loss.name] + [
            p.name + "@GRAD" for p in parameters if p.name != TABLE and main.global_block().has_var(p.name + "@GRAD")
        ]
        found = exe.run(main, feed=feeds(fluid, net, random, dtype), fetch_list=fetched)
        if net == "row":
            found.append(np.array(scope.find_var(TABLE).get_tensor()))
    return float(np.ravel(found[0])[0]), np.concatenate([np.asarray(g, "float64").ravel() for g in found[1:]])


def errors(fluid, net="residual", float64=None):
    """Return the relative errors in float32 of the loss, and of the gradient by its length; float64 is what
    `run` returned for that type.
    """
    loss, gradient = run(fluid, "float32", net)
    exact, exact_gradient = float64 or run(fluid, "float64", net)
    return {
        "loss": abs(loss - exact) / exact,
        "gradient": float(np.linalg.norm(gradient - exact_gradient) / np.linalg.norm(exact_gradient)),
        "exact": [exact, float(np.linalg.norm(exact_gradient))],
    }

"""A residual net with batch normalization on a small batch, in float32 and float64, for any engine that offers
the Fluid API (Python 3.7 syntax).
"""

import numpy as np


def _layer(fluid, x, channels, stride=1, act=None):
    x = fluid.layers.conv2d(x, channels, 3, stride=stride, padding=1, bias_attr=False)
    return fluid.layers.batch_norm(x, act=act)


def _loss(fluid, dtype):
    layers = fluid.layers
    x = _layer(fluid, fluid.data("image", [4, 3, 16, 16], dtype), 8, act="relu")
    for channels, stride in ((8, 1), (8, 1), (16, 2), (16, 1), (16, 1), (16, 1)):
        inner = _layer(fluid, _layer(fluid, x, channels, stride, "relu"), channels)
        short = x if stride == 1 else layers.pool2d(layers.concat([x, x], 1), 2, "avg", 2)
        x = layers.relu(layers.elementwise_add(inner, short))
    scores = layers.fc(layers.pool2d(x, global_pooling=True, pool_type="avg"), 5)
    return layers.mean(layers.softmax_with_cross_entropy(scores, fluid.data("label", [4, 1], "int64")))


def run(fluid, dtype):
    """Return the loss, and the gradients of all parameters in one vector, as float64."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    random = np.random.RandomState(0)
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(scope):
        loss = _loss(fluid, dtype)
        gradients = fluid.backward.append_backward(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for parameter, _ in gradients:
            drawn = random.randn(*parameter.shape).astype("float32") * (0.3 if len(parameter.shape) > 1 else 0.1)
            tensor = scope.find_var(parameter.name).get_tensor()
            tensor.set((drawn + (len(parameter.shape) == 1)).astype(np.array(tensor).dtype), fluid.CPUPlace())
        feed = {
            "image": random.randn(4, 3, 16, 16).astype("float32").astype(dtype),
            "label": random.randint(0, 5, (4, 1)).astype("int64"),
        }
        found = exe.run(main, feed=feed, fetch_list=[loss] + [g for _, g in gradients])
    return float(found[0][0]), np.concatenate([np.asarray(g, "float64").ravel() for g in found[1:]])


def errors(fluid, float64=None):
    """Return the relative errors in float32 of the loss, and of the gradient by its length; float64 is what
    `run` returned for that type.
    """
    (loss, gradient), (exact, exact_gradient) = run(fluid, "float32"), float64 or run(fluid, "float64")
    return {
        "loss": abs(loss - exact) / exact,
        "gradient": float(np.linalg.norm(gradient - exact_gradient) / np.linalg.norm(exact_gradient)),
        "exact": [exact, float(np.linalg.norm(exact_gradient))],
    }

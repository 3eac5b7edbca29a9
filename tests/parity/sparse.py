"""Two look-ups in one table with sparse gradients, by each optimizer, for any engine that offers
the Fluid API.
"""

import numpy as np

OPTIMIZERS = {
    "sgd": lambda f, **k: f.optimizer.SGD(0.1, **k),
    "momentum": lambda f, **k: f.optimizer.Momentum(0.1, 0.9, **k),
    "nesterov": lambda f, **k: f.optimizer.Momentum(0.1, 0.9, use_nesterov=True, **k),
    "adagrad": lambda f, **k: f.optimizer.Adagrad(0.1, **k),
    "adam": lambda f, **k: f.optimizer.Adam(0.1, **k),
    "lazy_adam": lambda f, **k: f.optimizer.Adam(0.1, lazy_mode=True, **k),
    "adamax": lambda f, **k: f.optimizer.Adamax(0.1, **k),
    "ftrl": lambda f, **k: f.optimizer.Ftrl(0.1, **k),
    "rmsprop": lambda f, **k: f.optimizer.RMSProp(0.1, **k),
    "rmsprop_centered": lambda f, **k: f.optimizer.RMSProp(0.1, centered=True, momentum=0.5, **k),
    "adadelta": lambda f, **k: f.optimizer.Adadelta(0.1, **k),
    "decayed_adagrad": lambda f, **k: f.optimizer.DecayedAdagrad(0.1, **k),
    "lamb": lambda f, **k: f.optimizer.Lamb(0.1, **k),
    "lars": lambda f, **k: f.optimizer.LarsMomentum(0.1, 0.9, **k),
    "dpsgd": lambda f, **k: f.optimizer.Dpsgd(0.1, sigma=0.0, **k),
    "sgd_l2": lambda f: f.optimizer.SGD(0.1, regularization=f.regularizer.L2Decay(0.1)),
    "adagrad_l1": lambda f: f.optimizer.Adagrad(0.1, regularization=f.regularizer.L1Decay(0.1)),
    "sgd_clip_value": lambda f: f.optimizer.SGD(0.1, grad_clip=f.clip.GradientClipByValue(0.05)),
    "sgd_clip_norm": lambda f: f.optimizer.SGD(0.1, grad_clip=f.clip.GradientClipByNorm(0.05)),
    "sgd_clip_global_norm": lambda f: f.optimizer.SGD(0.1, grad_clip=f.clip.GradientClipByGlobalNorm(0.05)),
    "lazy_adam_clip_global_norm": lambda f: f.optimizer.Adam(
        0.1, lazy_mode=True, grad_clip=f.clip.GradientClipByGlobalNorm(0.05)
    ),
}
# Those that Fluid has a sparse form of.
VARIANTS = sorted(set(OPTIMIZERS) - {"adamax", "ftrl", "adadelta", "decayed_adagrad", "lars", "dpsgd"})


def table(height, width):
    return np.random.RandomState(0).randn(height, width).astype("float32")


def train(fluid, name):
    """The losses of four steps, and the table after them."""
    layers, rng = fluid.layers, np.random.RandomState(1)
    main, startup = fluid.Program(), fluid.Program()
    scope = fluid.Scope() if hasattr(fluid, "Scope") else fluid.core.Scope()
    with fluid.scope_guard(scope), fluid.program_guard(main, startup), fluid.unique_name.guard():
        ids = [layers.data(n, [1], dtype="int64") for n in "ab"]
        attr = fluid.ParamAttr(name="table", initializer=fluid.initializer.NumpyArrayInitializer(table(7, 3)))
        rows = [layers.embedding(i, [7, 3], is_sparse=True, param_attr=attr) for i in ids]
        target = layers.data("y", [3])
        loss = layers.mean(layers.square(layers.elementwise_add(*rows) - target))
        OPTIMIZERS[name](fluid).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        losses = []
        for _ in range(4):
            feed = {
                "a": rng.randint(0, 6, (4, 1)).astype("int64"),
                "b": rng.randint(0, 3, (4, 1)).astype("int64"),
                "y": rng.randn(4, 3).astype("float32"),
            }
            losses.append(float(np.ravel(exe.run(main, feed=feed, fetch_list=[loss])[0])[0]))
        return losses, np.array(scope.find_var("table").get_tensor()).tolist()

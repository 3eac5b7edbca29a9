"""Programs that train in replicas, for any engine that offers the Fluid API (Python 3.7 syntax).

Each builder takes the engine and an optimizer and returns (loss, feed).
"""

import os

import numpy as np

from tests.parity.programs import new_scope, set_parameters

STEPS = 20


def mlp(fluid, optimizer):
    x = fluid.data("x", [None, 12], "float32")
    y = fluid.data("y", [None, 1], "int64")
    hidden = fluid.layers.fc(x, 16, act="relu")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(fluid.layers.fc(hidden, 4, act="softmax"), y))
    optimizer.minimize(loss)
    return loss, lambda r: {
        "x": r.randn(8, 12).astype("float32"),
        "y": r.randint(0, 4, (8, 1)).astype("int64"),
    }


def conv(fluid, optimizer):
    x = fluid.data("x", [None, 2, 8, 8], "float32")
    y = fluid.data("y", [None, 1], "int64")
    hidden = fluid.layers.conv2d(x, 8, 3, padding=1, bias_attr=False)
    hidden = fluid.layers.pool2d(fluid.layers.batch_norm(hidden, act="relu"), 2, "max", 2)
    loss = fluid.layers.mean(fluid.layers.cross_entropy(fluid.layers.fc(hidden, 4, act="softmax"), y))
    optimizer.minimize(loss)
    return loss, lambda r: {
        "x": r.randn(8, 2, 8, 8).astype("float32"),
        "y": r.randint(0, 4, (8, 1)).astype("int64"),
    }


def attention(fluid, optimizer):
    layers = fluid.layers
    words = fluid.data("words", [None, 6], "int64")
    x = fluid.embedding(words, [20, 8])
    q, k, v = [layers.fc(x, 8, num_flatten_dims=2, bias_attr=False) for _ in range(3)]
    x = layers.layer_norm(
        x + layers.matmul(layers.softmax(layers.matmul(q, k, transpose_y=True, alpha=8**-0.5)), v),
        begin_norm_axis=2,
    )
    logits = layers.fc(x, 20, num_flatten_dims=2)
    target = fluid.data("target", [None, 6, 1], "int64")
    loss = layers.mean(layers.softmax_with_cross_entropy(logits, target))
    optimizer.minimize(loss)
    return loss, lambda r: {
        "words": r.randint(0, 20, (8, 6)).astype("int64"),
        "target": r.randint(0, 20, (8, 6, 1)).astype("int64"),
    }


def ctr(fluid, optimizer):
    layers = fluid.layers
    dense = fluid.data("dense", [None, 4], "float32")
    label = fluid.data("label", [None, 1], "int64")
    slots = [fluid.data("slot_%d" % i, [None, 1], "int64", lod_level=1) for i in range(3)]
    rows = [
        layers.sequence_pool(layers.embedding(s, [40, 8], is_sparse=True, param_attr="table"), "sum") for s in slots
    ]
    hidden = layers.fc(layers.concat(rows + [dense], axis=1), 16, act="relu")
    loss = layers.mean(layers.cross_entropy(layers.fc(hidden, 2, act="softmax"), label))
    optimizer.minimize(loss)

    def feed(r):
        found = {
            "dense": r.randn(8, 4).astype("float32"),
            "label": r.randint(0, 2, (8, 1)).astype("int64"),
        }
        for i in range(3):
            lengths = r.randint(1, 5, 8).tolist()
            ids = r.randint(0, 40, (sum(lengths), 1)).astype("int64")
            found["slot_%d" % i] = fluid.create_lod_tensor(ids, [lengths], fluid.CPUPlace())
        return found

    return loss, feed


def _clipped(fluid):
    return fluid.optimizer.Adam(
        0.01,
        grad_clip=fluid.clip.GradientClipByGlobalNorm(0.1),
        regularization=fluid.regularizer.L2Decay(1e-3),
    )


def _scheduled(fluid):
    return fluid.optimizer.Momentum(fluid.layers.exponential_decay(0.1, 5, 0.8), 0.9)


CASES = {
    "mlp_sgd": (mlp, lambda fluid: fluid.optimizer.SGD(0.1)),
    "mlp_momentum": (mlp, _scheduled),
    "mlp_adam": (mlp, lambda fluid: fluid.optimizer.Adam(0.01)),
    "mlp_lamb": (mlp, lambda fluid: fluid.optimizer.Lamb(0.01)),
    "mlp_lars": (mlp, lambda fluid: fluid.optimizer.LarsMomentum(0.1, 0.9)),
    "mlp_clip": (mlp, _clipped),
    "conv_momentum": (conv, lambda fluid: fluid.optimizer.Momentum(0.1, 0.9)),
    "attention_adam": (attention, lambda fluid: fluid.optimizer.Adam(0.01)),
    "ctr_sgd": (ctr, lambda fluid: fluid.optimizer.SGD(0.1)),
    "ctr_adagrad": (ctr, lambda fluid: fluid.optimizer.Adagrad(0.1)),
    "ctr_lazy_adam": (ctr, lambda fluid: fluid.optimizer.Adam(0.01, lazy_mode=True)),
}


def _part(fluid, value, part):
    """Rows or sequences of one of several equal parts."""
    lengths = value.recursive_sequence_lengths()[0] if hasattr(value, "lod") else [1] * len(value)
    begin, end = (len(lengths) * i // part[1] for i in (part[0], part[0] + 1))
    rows = np.array(value)[sum(lengths[:begin]) : sum(lengths[:end])]
    return fluid.create_lod_tensor(rows, [lengths[begin:end]], fluid.CPUPlace()) if hasattr(value, "lod") else rows


def built(fluid, case):
    """(main program, startup program, loss, what draws a feed, an executor) of a case."""
    main, startup = fluid.Program(), fluid.Program()
    build, optimizer = CASES[case]
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, feed = build(fluid, optimizer(fluid))
    return main, startup, loss, feed, fluid.Executor(fluid.CPUPlace())


def train(fluid, case, replicas, reduce=False, sync=False, part=None, build=built):
    """(losses, one for each replica and step; values of all persistables by name).

    `replicas`: how many, on the CPU; 0 for the program itself. `part`: (which, of how many) of a
    batch's rows to feed. `build`: gives what `built` does.
    """
    os.environ["CPU_NUM"] = str(max(replicas, 1))
    scope = new_scope(fluid)
    main, startup, loss, feed, exe = build(fluid, case)
    with fluid.scope_guard(scope):
        exe.run(startup)
        set_parameters(fluid, main, scope)
        program = main
        if replicas:
            strategy = fluid.BuildStrategy()
            if reduce:
                strategy.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
            strategy.sync_batch_norm = sync
            if part:
                strategy.trainer_id, strategy.num_trainers = part
            program = fluid.CompiledProgram(main).with_data_parallel(loss_name=loss.name, build_strategy=strategy)
        r = np.random.RandomState(0)
        batches = [feed(r) for _ in range(4)]
        if part:
            batches = [{n: _part(fluid, v, part) for n, v in b.items()} for b in batches]
        losses = [np.ravel(exe.run(program, feed=batches[i % 4], fetch_list=[loss])[0]).tolist() for i in range(STEPS)]
        names = sorted(v.name for v in main.list_vars() if v.persistable and v.name not in ("feed", "fetch"))
        return losses, {n: np.array(scope.find_var(n).get_tensor()) for n in names}

"""Programs that train a small net with every optimizer: run by the tests, and by the real Fluid for
golden values.

Everything takes the engine as `fluid`. Kept to Python 3.7: the real Fluid runs there.
"""

import numpy as np

STEPS = 5
X = np.array([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7], [-0.2, 0.9, 0.4], [0.1, -0.6, 1.1]], "float32")
Y = np.array([[1.0, 0.2], [-0.5, 0.4], [0.3, -1.2], [0.8, 0.1]], "float32")
W0 = np.array([[0.2, -0.4, 0.1, 0.5], [0.3, 0.6, -0.2, -0.1], [-0.5, 0.2, 0.4, 0.3]], "float32")
W1 = np.array([[0.7, -0.3], [0.2, 0.5], [-0.6, 0.1], [0.4, -0.8]], "float32")


def optimizers(fluid):
    """Case name -> a function that makes the optimizer."""
    o, clip, decay = fluid.optimizer, fluid.clip, fluid.regularizer
    return {
        "sgd": lambda: o.SGD(0.1),
        "momentum": lambda: o.Momentum(0.1, 0.9),
        "nesterov": lambda: o.Momentum(0.1, 0.9, use_nesterov=True),
        "lars": lambda: o.LarsMomentum(0.1, 0.9, lars_coeff=0.1),
        "adam": lambda: o.Adam(0.05, epsilon=0.01),
        "adamax": lambda: o.Adamax(0.05),
        "adagrad": lambda: o.Adagrad(0.1, initial_accumulator_value=0.3),
        "decayed_adagrad": lambda: o.DecayedAdagrad(0.05),
        "adadelta": lambda: o.Adadelta(0.1, rho=0.8),
        "rmsprop": lambda: o.RMSPropOptimizer(0.02, momentum=0.5),
        "rmsprop_centered": lambda: o.RMSPropOptimizer(0.02, centered=True),
        "ftrl": lambda: o.Ftrl(0.1, l1=0.01, l2=0.02),
        "lamb": lambda: o.LambOptimizer(0.05, exclude_from_weight_decay_fn=lambda p: p.name.endswith("b_0")),
        "dpsgd": lambda: o.Dpsgd(0.1, clip=0.2, batch_size=4.0, sigma=0.0),
        "named": lambda: o.Adam(0.05, name="mine"),
        "l1": lambda: o.SGD(0.1, regularization=decay.L1Decay(0.05)),
        "l2": lambda: o.SGD(0.1, regularization=decay.L2Decay(0.05)),
        "clip_value": lambda: o.SGD(0.1, grad_clip=clip.GradientClipByValue(0.1)),
        "clip_norm": lambda: o.SGD(0.1, grad_clip=clip.GradientClipByNorm(0.2)),
        "clip_global_norm": lambda: o.SGD(
            0.1, regularization=decay.L2Decay(0.05), grad_clip=clip.GradientClipByGlobalNorm(0.2)
        ),
        "clip_some": lambda: o.SGD(
            0.1,
            grad_clip=clip.GradientClipByGlobalNorm(0.1, need_clip=lambda p: p.name.endswith("w_0")),
        ),
        "scheduled": lambda: o.SGD(fluid.layers.exponential_decay(0.2, 2, 0.5)),
        "param_attr": lambda: o.Momentum(0.1, 0.9, regularization=decay.L2Decay(0.05)),
    }


def build(fluid, case, make):
    """(main program, startup program, loss, what `make` returned) of a case."""
    main, startup = fluid.Program(), fluid.Program()
    constant = fluid.initializer.NumpyArrayInitializer
    own = {}
    if case == "param_attr":
        own = {"learning_rate": 0.5, "regularizer": fluid.regularizer.L1Decay(0.1)}
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [4, 3])
        y = fluid.data("y", [4, 2])
        hidden = fluid.layers.fc(x, 4, act="tanh", param_attr=fluid.ParamAttr(initializer=constant(W0), **own))
        out = fluid.layers.fc(hidden, 2, param_attr=fluid.ParamAttr(initializer=constant(W1)))
        loss = fluid.layers.mean(fluid.layers.square_error_cost(out, y))
        optimizer = make()
        optimizer.minimize(loss)
    return main, startup, loss, optimizer


def train(fluid, main, startup, loss, steps=STEPS):
    """(losses, scope): the given number of steps from the first values."""
    executor, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    with fluid.scope_guard(scope):
        executor.run(startup)
        losses = [
            float(np.asarray(executor.run(main, feed={"x": X, "y": Y}, fetch_list=[loss])[0]).ravel()[0])
            for _ in range(steps)
        ]
    return losses, scope


def state(main, scope):
    """Variable name -> values, of everything that outlives a run."""
    names = [v.name for v in main.list_vars() if v.persistable and v.name not in ("feed", "fetch")]
    return {n: np.array(scope.find_var(n).get_tensor()).ravel().tolist() for n in sorted(names)}


def schedules(fluid):
    """Case name -> a function that makes the learning rate."""
    layers = fluid.layers
    return {
        "exponential": lambda: layers.exponential_decay(0.1, 4, 0.5),
        "exponential_staircase": lambda: layers.exponential_decay(0.1, 4, 0.5, staircase=True),
        "natural_exp": lambda: layers.natural_exp_decay(0.1, 4, 0.5),
        "natural_exp_staircase": lambda: layers.natural_exp_decay(0.1, 4, 0.5, staircase=True),
        "inverse_time": lambda: layers.inverse_time_decay(0.1, 4, 0.5),
        "inverse_time_staircase": lambda: layers.inverse_time_decay(0.1, 4, 0.5, staircase=True),
        "polynomial": lambda: layers.polynomial_decay(0.1, 6, 0.01, power=2.0),
        "polynomial_cycle": lambda: layers.polynomial_decay(0.1, 4, 0.01, cycle=True),
        "noam": lambda: layers.noam_decay(64, 5, learning_rate=2.0),
        "cosine": lambda: layers.cosine_decay(0.1, 3, 4),
        "piecewise": lambda: layers.piecewise_decay([3, 6], [1.0, 0.5, 0.1]),
        "warmup": lambda: layers.linear_lr_warmup(0.1, 5, 0.01, 0.1),
        "warmup_scheduled": lambda: layers.linear_lr_warmup(layers.exponential_decay(0.1, 4, 0.5), 5, 0.01, 0.1),
    }


def schedule_program(fluid, make):
    """(main program, startup program, learning rate)."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        rate = make()
    return main, startup, rate


def rates(fluid, main, startup, rate, steps=10):
    """The learning rate in each of the first steps."""
    executor, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    with fluid.scope_guard(scope):
        executor.run(startup)
        return [float(np.asarray(executor.run(main, fetch_list=[rate])[0]).ravel()[0]) for _ in range(steps)]


HIDDEN_ATTRS = {
    "op_callstack",
    "op_namescope",
    "op_device",
    "with_quant_attr",
    "use_mkldnn",
    "use_cudnn",
    "x_data_format",
    "y_data_format",
    "str_value",
    "sub_block",
    "skip_eager_deletion_vars",
}


def describe(program, roles):
    """The operators of all blocks whose role has one of the bits `roles`: [type, inputs, outputs,
    attributes].
    """
    found = []
    for block in program.blocks:
        for op in block.ops:
            if not op.has_attr("op_role") or not int(op.attr("op_role")) & roles:
                continue
            slots = [
                {s: sorted(get(s)) for s in names if get(s)}
                for names, get in ((op.input_names, op.input), (op.output_names, op.output))
            ]
            attrs = {a: op.attr(a) for a in sorted(op.attr_names) if a not in HIDDEN_ATTRS}
            found.append(
                [op.type]
                + slots
                + [{a: list(v) if isinstance(v, (list, tuple)) else v for a, v in attrs.items() if v != [] and v != ()}]
            )
    return found


def averages(fluid):
    """Case name -> a function that, after `minimize`, makes something with `apply`."""

    def exponential(**kwargs):
        average = fluid.optimizer.ExponentialMovingAverage(0.5, **kwargs)
        average.update()
        return average

    return {
        "model_average": lambda: fluid.optimizer.ModelAverage(0.5, 2, 4),
        "exponential": exponential,
        "exponential_named": lambda: exponential(name="mine_"),
        "exponential_scheduled": lambda: exponential(
            thres_steps=fluid.layers.cast(fluid.layers.autoincreased_step_counter(), "float32")
        ),
    }


def average(fluid, make):
    """What the first weight is after each step, within `apply` and after it."""
    made = []

    def optimizer():
        return fluid.optimizer.Momentum(0.1, 0.9)

    main, startup, loss, _ = build(fluid, "average", optimizer)
    with fluid.program_guard(main, startup), fluid.unique_name.guard("late_"):
        made.append(make())
    executor, scope, values = fluid.Executor(fluid.CPUPlace()), fluid.Scope(), []

    def weight():
        values.append(np.array(scope.find_var("fc_1.w_0").get_tensor()).ravel().tolist())

    with fluid.scope_guard(scope):
        executor.run(startup)
        for step in range(6):
            executor.run(main, feed={"x": X, "y": Y}, fetch_list=[loss])
            weight()
            if step % 2:
                with made[0].apply(executor):
                    weight()
                weight()
    return {"values": values, "state": state(main, scope)}


def lookahead(fluid):
    """An optimizer around another one, as a case of `build`."""
    return lambda: fluid.optimizer.LookaheadOptimizer(fluid.optimizer.SGD(0.2), alpha=0.4, k=2)

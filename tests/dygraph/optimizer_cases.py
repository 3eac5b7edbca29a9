"""A small net trained in dygraph mode with every optimizer, schedule and clip: run by the tests, and
by the real Fluid for golden values.

Everything takes the engine as `fluid`. Kept to Python 3.7: the real Fluid runs there.
"""

import numpy as np

STEPS = 4
RANDOM = np.random.RandomState(0)
X, Y = RANDOM.rand(4, 3).astype("float32"), RANDOM.rand(4, 2).astype("float32")
WEIGHTS = [RANDOM.rand(*s).astype("float32") for s in ((3, 5), (5,), (5, 2), (2,))]


def optimizers(fluid):
    """Case name -> a function that makes the optimizer of some parameters."""
    o, d = fluid.optimizer, fluid.dygraph
    clip, decay = fluid.clip, fluid.regularizer
    by_norm = clip.GradientClipByGlobalNorm
    return {
        "sgd": lambda p: o.SGD(0.1, parameter_list=p),
        "momentum": lambda p: o.Momentum(0.1, 0.9, parameter_list=p),
        "lars": lambda p: o.LarsMomentum(0.1, 0.9, lars_coeff=0.1, parameter_list=p),
        "adam": lambda p: o.Adam(0.05, parameter_list=p),
        "adamax": lambda p: o.Adamax(0.05, parameter_list=p),
        "adagrad": lambda p: o.Adagrad(0.05, parameter_list=p),
        "decayed_adagrad": lambda p: o.DecayedAdagrad(0.05, parameter_list=p),
        "adadelta": lambda p: o.Adadelta(0.1, rho=0.8, parameter_list=p),
        "rmsprop": lambda p: o.RMSProp(0.02, momentum=0.5, centered=True, parameter_list=p),
        "ftrl": lambda p: o.Ftrl(0.1, l1=0.02, l2=0.02, parameter_list=p),
        "lamb": lambda p: o.Lamb(0.05, parameter_list=p),
        "dpsgd": lambda p: o.Dpsgd(0.1, clip=0.2, batch_size=4.0, sigma=0.0, parameter_list=p),
        "clip_global_norm": lambda p: o.SGD(
            0.5, parameter_list=p, grad_clip=by_norm(0.2), regularization=decay.L2Decay(0.1)
        ),
        "clip_norm": lambda p: o.SGD(0.5, parameter_list=p, grad_clip=clip.GradientClipByNorm(0.1)),
        "clip_value": lambda p: o.Momentum(
            0.5,
            0.9,
            parameter_list=p,
            grad_clip=clip.GradientClipByValue(0.05),
            regularization=decay.L1Decay(0.1),
        ),
        "noam": lambda p: o.Adam(d.NoamDecay(8, 10), parameter_list=p),
        "warmup": lambda p: o.SGD(
            d.LinearLrWarmup(d.PiecewiseDecay([2, 4], [0.1, 0.05, 0.02], 0), 3, 0.0, 0.2),
            parameter_list=p,
        ),
        "plateau": lambda p: o.SGD(
            d.ReduceLROnPlateau(0.1, patience=0, decay_rate=0.5, threshold=0.5), parameter_list=p
        ),
        "epochs": lambda p: o.SGD(d.StepDecay(0.1, 2), parameter_list=p),
    }


def net_of(fluid):
    """The net, with the same parameters each time."""
    d = fluid.dygraph
    slow = fluid.ParamAttr(learning_rate=0.5)
    net = d.Sequential(d.Linear(3, 5, param_attr=slow, act="tanh"), d.Linear(5, 2))
    for param, value in zip(net.parameters(), WEIGHTS):
        param.set_value(value)
    return net


def train(fluid, net, optimizer, case, steps=STEPS):
    """The losses and learning rates of some steps."""
    layers = fluid.layers
    losses, rates = [], []
    for _ in range(steps):
        x, y = fluid.dygraph.to_variable(X), fluid.dygraph.to_variable(Y)
        loss = layers.reduce_mean(layers.square(net(x) - y))
        loss.backward()
        optimizer.minimize(loss)
        net.clear_gradients()
        losses.append(float(loss.numpy()[0]))
        rates.append(float(optimizer.current_step_lr()))
        if case == "plateau":
            optimizer._learning_rate.step(loss)
        if case == "epochs":
            optimizer._learning_rate.epoch()
    return losses, rates


def result(fluid, case, make):
    """What is compared of a case."""
    with fluid.dygraph.guard():
        net = net_of(fluid)
        optimizer = make(net.parameters())
        losses, rates = train(fluid, net, optimizer, case)
        state = optimizer.state_dict()
        return {
            "losses": losses,
            "rates": rates,
            "parameters": {p.name: p.numpy().tolist() for p in net.parameters()},
            "state": {
                name: value if isinstance(value, dict) else value.numpy().tolist() for name, value in state.items()
            },
        }


def schedules(fluid):
    """Case name -> a schedule by steps."""
    d = fluid.dygraph

    def warming():
        return d.LinearLrWarmup(d.ExponentialDecay(0.1, 2, 0.5), 3, 0.0, 0.2)

    def after_a_look(schedule):
        schedule.step()
        return schedule

    return {
        "noam": lambda: d.NoamDecay(8, 3, learning_rate=2.0),
        "piecewise": lambda: d.PiecewiseDecay([2, 4], [0.1, 0.2, 0.3], 0),
        "natural_exp": lambda: d.NaturalExpDecay(0.1, 2, 0.5),
        "natural_exp_staircase": lambda: d.NaturalExpDecay(0.1, 2, 0.5, True),
        "exponential": lambda: d.ExponentialDecay(0.1, 2, 0.5),
        "exponential_begin": lambda: d.ExponentialDecay(0.1, 2, 0.5, staircase=True, begin=1, step=2),
        "inverse_time": lambda: d.InverseTimeDecay(0.1, 2, 0.5),
        "polynomial": lambda: d.PolynomialDecay(0.1, 3, power=2.0),
        "polynomial_cycle": lambda: d.PolynomialDecay(0.1, 3, cycle=True),
        "cosine": lambda: d.CosineDecay(0.1, 2, 3),
        "noam_rounded": lambda: d.NoamDecay(512, 40),
        "natural_exp_rounded": lambda: d.NaturalExpDecay(0.1, 3, 0.37),
        "exponential_rounded": lambda: d.ExponentialDecay(0.1, 3, 0.37),
        "inverse_time_rounded": lambda: d.InverseTimeDecay(0.1, 3, 0.37),
        "polynomial_rounded": lambda: d.PolynomialDecay(0.1, 7, 0.003, 0.7),
        "polynomial_cycle_rounded": lambda: d.PolynomialDecay(0.1, 3, 0.003, 0.7, cycle=True),
        "cosine_rounded": lambda: d.CosineDecay(0.1, 2, 10),
        "warmup": lambda: d.LinearLrWarmup(0.1, 3, 0.0, 0.2),
        "warmup_from": lambda: d.LinearLrWarmup(0.1, 3, 0.05, 0.2),
        "warmup_schedule": warming,
        "warmup_schedule_read": lambda: after_a_look(warming()),
    }


def epoch_schedules(fluid):
    """Case name -> a schedule by epochs."""
    d = fluid.dygraph
    return {
        "step": lambda: d.StepDecay(0.1, 2),
        "multi_step": lambda: d.MultiStepDecay(0.1, [1, 3]),
        "lambda": lambda: d.LambdaDecay(0.1, lambda epoch: 0.9**epoch),
    }


LOSSES = [5, 4, 4, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3, 3]


def rates(fluid):
    """The rates of all schedules, and their states at the end."""
    found = {}

    def value(schedule):
        return float(schedule().numpy()[0])

    with fluid.dygraph.guard():
        for name, make in schedules(fluid).items():
            schedule = make()
            found[name] = [[value(schedule) for _ in range(7)], schedule.state_dict()]
        for name, make in epoch_schedules(fluid).items():
            schedule, seen = make(), []
            for _ in range(5):
                seen.append(value(schedule))
                schedule.epoch()
            schedule.epoch(1)
            found[name] = [[*seen, value(schedule)], schedule.state_dict()]
        for mode, kind in (("min", "rel"), ("max", "abs")):
            schedule = fluid.dygraph.ReduceLROnPlateau(
                1.0, mode, 0.5, 1, threshold=0.1, threshold_mode=kind, cooldown=1, min_lr=0.2
            )
            seen = []
            for loss in LOSSES:
                schedule.step(fluid.dygraph.to_variable(np.array([loss], "float32")))
                seen.append(value(schedule))
            found["plateau_" + mode] = [seen, schedule.state_dict()]
    return {name: [rates, {key: float(v) for key, v in state.items()}] for name, (rates, state) in found.items()}

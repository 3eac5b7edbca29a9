"""What the programs of the gallery share: arguments, parameters that start alike wherever they run,
and three ways to train: alone, on several CPU devices (--parallel), or as one process of a job with
parameter servers. Python 3.7 syntax: the real Fluid runs this too.
"""

import argparse
import json
import os
import sys
import zlib

import numpy as np
import paddle.fluid as fluid


def arguments(description, **defaults):
    """The arguments of a program: numbers with these defaults, and those that all programs have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in defaults.items():
        parser.add_argument("--" + name, type=type(value), default=value)
    parser.add_argument("--seed", type=int, default=90, help="of the data")
    parser.add_argument("--output_dir", default="output", help="for losses.json")
    parser.add_argument("--parallel", type=int, default=0, help="1: on as many CPU devices as CPU_NUM says")
    return parser.parse_args()


def parameter(name, shape, scale=0.1):
    """A parameter whose first values, uniform in [-scale, scale], follow from its name alone."""
    draw = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    values = draw.uniform(-scale, scale, shape).astype("float32")
    return fluid.ParamAttr(name=name, initializer=fluid.initializer.NumpyArrayInitializer(values))


def dense(values, size, name, act=None):
    """A layer over the last axis, the same at all others."""
    inputs = values.shape[-1]
    return fluid.layers.fc(
        values,
        size,
        num_flatten_dims=len(values.shape) - 1,
        act=act,
        param_attr=parameter(name, [inputs, size], (3.0 / inputs) ** 0.5),
        bias_attr=fluid.ParamAttr(name=name + "_bias"),
    )


def normed(values, name):
    """Layer normalization over the last axis."""
    return fluid.layers.layer_norm(
        values,
        begin_norm_axis=len(values.shape) - 1,
        param_attr=fluid.ParamAttr(name=name + "_scale"),
        bias_attr=fluid.ParamAttr(name=name + "_bias"),
    )


def attention(asking, heard, bias, heads, name):
    """What each place of `asking` takes from all of `heard`, by several heads: [batch, places, width],
    as they are. `bias` is added to the scores, [batch, heads, places asking, places heard].
    """
    width = asking.shape[-1]

    def parted(values, part):
        values = fluid.layers.reshape(dense(values, width, name + part), [0, 0, heads, width // heads])
        return fluid.layers.transpose(values, [0, 2, 1, 3])

    query, key, value = parted(asking, "_query"), parted(heard, "_key"), parted(heard, "_value")
    scores = fluid.layers.matmul(query, key, transpose_y=True, alpha=(width // heads) ** -0.5)
    weights = fluid.layers.softmax(fluid.layers.elementwise_add(scores, bias))
    found = fluid.layers.transpose(fluid.layers.matmul(weights, value), [0, 2, 1, 3])
    return dense(fluid.layers.reshape(found, [0, 0, width]), width, name + "_heard")


def lengths(draw, size, shortest, longest):
    """Of the sequences of a batch: each from `shortest` to `longest` equally often, so that all
    batches have as many rows, and a step is compiled for one number of them.
    """
    return draw.permutation(shortest + np.arange(size) % (longest - shortest + 1))


def train(loss, prediction, batch_of, args):
    """Train for `args.steps` batches, and return the predictions of the last quarter of them.

    `batch_of(step)` is a dict of arrays by sample, or lists of sequences of numbers, by the names of
    the variables. No sample comes twice, and a prediction is made before its batch is learnt from:
    it says how good the model is for what it has not seen. A trainer of several takes every so
    manieth sample of each batch. The mean loss of each step goes to losses.json.
    """
    executor = fluid.Executor(fluid.CPUPlace())
    program, trainer, trainers = fluid.default_main_program(), 0, 1
    if "TRAINING_ROLE" in os.environ:
        program, trainer, trainers = _join(executor)
    executor.run(fluid.default_startup_program())
    if args.parallel:
        program = fluid.CompiledProgram(program).with_data_parallel(loss_name=loss.name)
    losses, predicted = [], []
    for step in range(args.steps):
        batch = {name: values[trainer::trainers] for name, values in batch_of(step).items()}
        value, found = executor.run(program, feed=_feed(batch), fetch_list=[loss, prediction], return_numpy=False)
        losses.append(float(np.mean(np.array(value))))
        if step >= args.steps - args.steps // 4:
            predicted.append((batch, np.array(found)))
    executor.close()
    os.makedirs(args.output_dir, exist_ok=True)  # another trainer may make it at the same time
    name = "losses.json" if trainers == 1 else "losses-%d.json" % trainer
    with open(os.path.join(args.output_dir, name), "w") as file:
        json.dump(losses, file)
    return predicted


def _feed(batch):
    return {
        name: fluid.create_lod_tensor(
            np.concatenate(values).astype("int64").reshape(-1, 1),
            [[len(value) for value in values]],
            fluid.CPUPlace(),
        )
        if isinstance(values, list)
        else values
        for name, values in batch.items()
    }


def _join(executor):
    """This process's part in a job with parameter servers: serve, and end, or (program, number of
    this trainer, number of trainers).
    """
    trainer = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    trainers = int(os.environ["PADDLE_TRAINERS_NUM"])
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(trainer, pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"], trainers=trainers)
    if os.environ["TRAINING_ROLE"] == "PSERVER":
        endpoint = os.environ["PADDLE_CURRENT_ENDPOINT"]
        program, startup = transpiler.get_pserver_programs(endpoint)
        executor.run(startup)
        executor.run(program)
        sys.exit()
    return transpiler.get_trainer_program(), trainer, trainers


def area_under_curve(clicks, scores):
    """The chance that a sample with a click has a higher score than one without."""
    order = np.argsort(scores, kind="mergesort")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    clicked = clicks > 0.5
    return (ranks[clicked].mean() - (clicked.sum() + 1) / 2.0) / (~clicked).sum()


def report(name, found, best, worst_gap):
    """Print a figure beside the best that anything could reach; end with an error where they are
    further apart than `worst_gap`.
    """
    gap = abs(best - found)
    print("%s: %.4f; best reachable: %.4f; gap: %.4f" % (name, found, best, gap))
    if gap > worst_gap:
        sys.exit("the gap is above %s" % worst_gap)

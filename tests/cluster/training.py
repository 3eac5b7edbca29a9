"""What the processes of a job on several hosts run: a small regression, whose losses say whether the
job has done what one process does.

A trainer appends `step loss` lines to `losses-<rank>` in the folder of the job. Where there is a file
`go`, trainers take the steps below the number that it has, and wait for a larger one.
"""

import argparse
import functools
import os
import sys
import time
from pathlib import Path

import numpy as np

import jfluid as fluid
from jfluid import layers

BATCH, IDS = 12, 40


def network():
    """The loss; its parameters begin with the same numbers in every process."""

    def numbers(*shape):
        values = np.random.RandomState(sum(shape)).uniform(-0.5, 0.5, shape).astype("float32")
        return fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(values))

    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1])
    row = fluid.embedding(fluid.data("id", [None], "int64"), [IDS, 3], is_sparse=True, param_attr=numbers(IDS, 3))
    hidden = layers.fc(layers.concat([x, row], 1), 8, act="tanh", param_attr=numbers(7, 8))
    return layers.mean(layers.square_error_cost(layers.fc(hidden, 1, param_attr=numbers(8, 1)), y))


def batch(step, share=slice(None)):
    """A step's batch, or some of its rows."""
    random = np.random.RandomState(step)
    x = random.rand(BATCH, 4).astype("float32")
    found = {
        "x": x,
        "y": x.sum(1, keepdims=True) - 2,
        "id": random.randint(0, IDS, BATCH).astype("int64"),
    }
    return {name: value[share] for name, value in found.items()}


@functools.cache
def alone(steps):
    """The losses of one process that has whole batches."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss = network()
        fluid.optimizer.SGD(0.1).minimize(loss)
    executor, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    executor.run(startup, scope=scope)
    return [executor.run(main, feed=batch(step), fetch_list=[loss], scope=scope)[0].item() for step in range(steps)]


def losses_of(folder, trainers):
    """What the trainers of a job have written: the mean of their losses by step."""
    lines = [Path(folder, f"losses-{rank}").read_text().splitlines() for rank in range(trainers)]
    values = [{int(word): float(loss) for word, loss in map(str.split, own)} for own in lines]
    return [float(np.mean([own[step] for own in values])) for step in sorted(values[0])]


def train(options, executor, program, loss, rank, trainers, first=0, after=lambda step: None):
    share = BATCH // trainers
    rows = slice(rank * share, (rank + 1) * share)
    with open(f"losses-{rank}", "a") as file:
        for step in range(first, options.steps):
            while os.path.exists("go") and step >= int(Path("go").read_text()):
                time.sleep(0.02)
            (value,) = executor.run(program, feed=batch(step, rows), fetch_list=[loss])
            print(step, float(np.mean(value)), file=file, flush=True)
            after(step)


def with_servers(options):
    from jfluid.incubate.fleet.base import role_maker
    from jfluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
    from jfluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy import (
        StrategyFactory,
    )

    from jfluid import distributed

    fleet.init(role_maker.PaddleCloudRoleMaker())
    loss = network()
    optimizer = fluid.optimizer.SGD(0.1)
    fleet.distributed_optimizer(optimizer, StrategyFactory.create_sync_strategy()).minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    executor = fluid.Executor(fluid.CPUPlace())
    fleet.init_worker()
    executor.run(fleet.startup_program)
    first = distributed.rounds(fleet.main_program)
    print("goes on with step", first, flush=True)
    place = fleet.worker_index(), fleet.worker_num()
    train(options, executor, fleet.main_program, loss, *place, first)
    fleet.stop_worker()


def together(options):
    from jfluid.incubate.fleet.base import role_maker
    from jfluid.incubate.fleet.collective import TrainStatus, fleet

    fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
    loss = network()
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.1)).minimize(loss)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fleet.startup_program)
    rank, first = fleet.worker_index(), 0
    if options.checkpoints:
        status = fleet.load_check_point(executor, options.checkpoints, rank)
        first = status.next() if status else 0
        print("goes on with step", first, flush=True)

    def save(step):
        if options.checkpoints and rank == 0:
            fleet.save_check_point(executor, options.checkpoints, TrainStatus(step))

    place = rank, fleet.worker_num()
    train(options, executor, fleet.main_program, loss, *place, first, save)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--checkpoints", default="")
    options = parser.parse_args()
    (with_servers if os.environ.get("TRAINING_ROLE") else together)(options)


if __name__ == "__main__":
    sys.exit(main())

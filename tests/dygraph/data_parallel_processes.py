"""A trainer of several, which train a net in dygraph mode, each on its part of the data; it writes
what it found.

    jfluid-launch --cpus 2 tests/dygraph/data_parallel_processes.py OUT
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import jfluid as fluid
from jfluid import dygraph

STEPS = 4


def train(parts, part):
    """Losses, gradients and parameters of a net that sees one part of each batch."""
    random = np.random.RandomState(1)
    xs = random.rand(STEPS, 8, 3).astype("float32")
    with dygraph.guard():
        fluid.default_startup_program().random_seed = 5 + part
        strategy = dygraph.prepare_context()
        inner = dygraph.Sequential(dygraph.Linear(3, 4, act="tanh"), dygraph.Linear(4, 1))
        if part == 0:
            for param in inner.parameters():
                param.set_value(random.rand(*param.shape).astype("float32"))
        net = dygraph.DataParallel(inner, strategy)
        optimizer = fluid.optimizer.Adam(0.05, parameter_list=net.parameters())
        losses = []
        for x in xs:
            x = np.split(x, parts)[part]
            out = net(dygraph.to_variable(x))
            target = dygraph.to_variable(x.sum(1, keepdims=True))
            loss = fluid.layers.reduce_mean(fluid.layers.square(out - target))
            losses.append(float(loss.numpy()[0]))
            net.scale_loss(loss).backward()
            net.apply_collective_grads()
            optimizer.minimize(loss)
            gradient = net.parameters()[0].gradient()
            net.clear_gradients()
        told = dygraph.ParallelEnv()
        return {
            "losses": losses,
            "gradient": gradient.tolist(),
            "parameters": [param.numpy().tolist() for param in net.parameters()],
            "names": [*net.state_dict(), *(name for name, _ in net.named_parameters())],
            "env": [told.nranks, told.local_rank, len(told.trainer_endpoints)],
            "strategy": strategy and [strategy.nranks, strategy.local_rank],
        }


if __name__ == "__main__":
    rank = dygraph.ParallelEnv().local_rank
    Path(sys.argv[1], f"result.{rank}").write_text(json.dumps(train(2, rank)))

"""A trainer of several whose batches have other shapes at each step, and others than its peers'; it writes what
it found.

    jfluid-launch --cpus 2 tests/parallel/stream_processes.py OUT
"""

import json
import os
import sys
import warnings
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from jfluid.incubate.fleet.base.role_maker import PaddleCloudRoleMaker
from jfluid.incubate.fleet.collective import DistributedStrategy, fleet

import jfluid as fluid

LENGTHS = [[5, 9, 7, 12, 6, 11, 8, 13, 14, 10, 4, 15], [8, 6, 11, 7, 9, 13, 5, 10, 12, 4, 14, 16]]


def batches(rank):
    random = np.random.RandomState(rank)
    return [random.rand(2, length, 3).astype("float32") for length in LENGTHS[rank]]


def train(rank):
    """Parameters at the start and at the end, losses, and how many programs were compiled."""
    compiled = []

    def note(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    startup = fluid.default_startup_program()
    startup.random_seed = 1
    x = fluid.data("x", [2, None, 3])
    hidden = fluid.layers.fc(x, 4, num_flatten_dims=2, act="tanh")
    loss = fluid.layers.mean(hidden)
    strategy = DistributedStrategy()
    strategy.mode, strategy.collective_mode = "collective", "grad_allreduce"
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.5), strategy).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    scope, params = fluid.global_scope(), fluid.default_main_program().all_parameters()

    def values():
        return [np.array(scope.find_var(p.name).get_tensor()).tolist() for p in params]

    before = values()
    jax.monitoring.register_event_duration_secs_listener(note)
    losses = [
        exe.run(fleet.main_program, feed={"x": batch}, fetch_list=[loss])[0].item()
        for batch in batches(rank)
    ]
    return {"before": before, "after": values(), "losses": losses, "compiled": len(compiled)}


if __name__ == "__main__":
    warnings.simplefilter("error")
    os.chdir(sys.argv[1])
    fleet.init(PaddleCloudRoleMaker(is_collective=True))
    rank = fleet.worker_index()
    Path(f"stream.{rank}").write_text(json.dumps(train(rank)))

"""A trainer of several: trains on batches of many shapes, which differ by trainer, and writes the results.

jfluid-launch --cpus 2 tests/dynamic_shapes/process_streams.py OUT STEPS
"""

import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from jfluid.incubate.fleet.base.role_maker import PaddleCloudRoleMaker
from jfluid.incubate.fleet.collective import DistributedStrategy, fleet

import jfluid as fluid
from tests.dynamic_shapes.test_placements import compilations, network

MODES = ["two devices", "grad_allreduce", "reduce"]  # processes join with the devices of the first mode


def batches(rank, steps, count):
    """The feeds of a trainer: `count` rows or more; trainers have different shapes in each step."""
    random = np.random.RandomState(10 * rank)
    for step in range(steps):
        rows, length = count + (5 * step + 3 * rank) % 7, 9 + (11 * step + 4 * rank) % 29
        yield {
            "x": random.randn(rows, length, 4).astype("float32"),
            "label": random.randint(0, 3, (rows, 1)),
        }


def train(mode, rank, steps, padded):
    """Losses, predictions, parameters and the number of compilations of a stream."""
    fluid.set_flags({"FLAGS_dynamic_shapes": padded})
    os.environ["CPU_NUM"] = "2" if mode == "two devices" else "1"
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1 + rank
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
        loss, given, _ = network()
        test = main.clone(for_test=True)
        strategy = DistributedStrategy()
        if mode == "grad_allreduce":
            strategy.mode, strategy.collective_mode = "collective", mode
        elif mode == "reduce":
            strategy.reduce_strategy = strategy.ReduceStrategy.Reduce
        fleet.distributed_optimizer(fluid.optimizer.Adam(0.05), strategy).minimize(loss)
        executor, program = fluid.Executor(fluid.CPUPlace()), fleet.main_program
        executor.run(startup)
        values = []
        with compilations() as compiled:
            for feed in batches(rank, steps, 4):
                values.append(executor.run(program, feed=feed, fetch_list=[loss, given]))
                assert len(values[-1][1]) == len(feed["label"])
                if mode == "grad_allreduce" and len(values) > steps - 4:
                    values.append(executor.run(test, feed=feed, fetch_list=[given]))
        names = sorted(v.name for v in main.list_vars() if v.persistable and fluid.global_scope().find_var(v.name))
        state = [np.array(fluid.global_scope().find_var(n).get_tensor()) for n in names]
    return [np.asarray(v).tolist() for own in [*values, state] for v in own], len(compiled)


if __name__ == "__main__":
    warnings.simplefilter("error")
    os.chdir(sys.argv[1])
    fleet.init(PaddleCloudRoleMaker(is_collective=True))
    rank, steps = fleet.worker_index(), int(sys.argv[2])
    told = {mode: [train(mode, rank, steps, padded) for padded in (False, True)] for mode in sys.argv[3:] or MODES}
    Path(f"result.{rank}").write_text(json.dumps(told))

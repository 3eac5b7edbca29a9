"""A trainer of several, which learn by what `MODES` names, each on its part of the data; it writes
what it found.

    jfluid-launch --cpus 2 tests/parallel/fleet_processes.py OUT
"""

import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from jfluid.incubate.fleet.base.role_maker import PaddleCloudRoleMaker
from jfluid.incubate.fleet.collective import DistributedStrategy, TrainStatus, fleet

import jfluid as fluid
from jfluid.dataset import exchange
from jfluid.lod_tensor import is_divided

# How they train together, and the optimizer. Momentum is no part of what local SGD brings together.
MODES = {
    "transpiler grad_allreduce": "clipped",
    "fleet grad_allreduce": "momentum",
    "fleet local_sgd": "sgd",
    "transpiler local_sgd": "sgd",
    "fleet nccl2": "adam",
    "fleet reduce": "adam",
}


def _optimizer(name):
    return {
        "clipped": lambda: fluid.optimizer.SGD(
            fluid.layers.exponential_decay(0.1, 5, 0.9),
            grad_clip=fluid.clip.GradientClipByGlobalNorm(1.0),
        ),
        "momentum": lambda: fluid.optimizer.Momentum(0.05, 0.9),
        "sgd": lambda: fluid.optimizer.SGD(0.1),
        "adam": lambda: fluid.optimizer.Adam(0.05),
    }[name]()


def train(mode, rank=0, endpoints=()):
    """Losses of five steps, and the parameters after them; alone where there are no endpoints."""
    kind, how = mode.split()
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        startup = fluid.default_startup_program()
        startup.random_seed = 1 + rank  # parameters become those of the first
        x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1])
        hidden = fluid.layers.fc(x, 8, act="relu")
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))
        optimizer, program = _optimizer(MODES[mode]), fluid.default_main_program()
        if endpoints and kind == "fleet":
            strategy = DistributedStrategy()
            if how in ("nccl2", "reduce"):
                strategy.reduce_strategy = list(strategy.ReduceStrategy)[how == "reduce"]
            else:
                strategy.mode, strategy.collective_mode = "collective", how
            optimizer = fleet.distributed_optimizer(optimizer, strategy)
        optimizer.minimize(loss)
        if endpoints and kind == "fleet":
            program = fleet.main_program
        elif endpoints:
            config = fluid.DistributeTranspilerConfig()
            config.mode, config.collective_mode, config.nccl_comm_num = "collective", how, 2
            fluid.DistributeTranspiler(config).transpile(
                rank, trainers=",".join(endpoints), current_endpoint=endpoints[rank]
            )
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        data, losses, parts = np.random.RandomState(0), [], max(len(endpoints), 1)
        for _ in range(5):
            rows = data.rand(8, 4).astype("float32")
            feed = {
                "x": np.split(rows, parts)[rank],
                "y": np.split(rows.sum(1, keepdims=True), parts)[rank],
            }
            losses.append(np.mean(exe.run(program, feed=feed, fetch_list=[loss])[0]).item())
        found = {
            "losses": losses,
            **{
                p.name: np.array(fluid.global_scope().find_var(p.name).get_tensor()).tolist()
                for p in fluid.default_main_program().all_parameters()
            },
        }
        # a last batch need not be of the same size everywhere
        if endpoints and how == "grad_allreduce":
            last = {"x": rows[: 2 + rank], "y": rows[: 2 + rank].sum(1, keepdims=True)}
            found["last"] = exe.run(program, feed=last, fetch_list=[loss])[0].item()
        if endpoints and mode == "fleet local_sgd":
            found |= meet(rank)
        if endpoints and how in ("local_sgd", "reduce") and kind == "fleet":
            found |= checkpoint(exe, rank, how)
        return found


def checkpoint(exe, rank, how):
    """Whether each trainer reads what the first wrote; where their state is divided, all of them
    have to give their part.
    """
    scope = fluid.global_scope()
    names = [v.name for v in fluid.io.get_program_persistable_vars(fluid.default_main_program())]
    divided = sum(is_divided(scope.find_var(n).get_tensor().value) for n in names)
    before = {n: np.array(scope.find_var(n).get_tensor()) for n in names}
    if how == "reduce" or fleet.is_first_worker():
        fleet.save_check_point(exe, how, TrainStatus(3))
    fleet.barrier_worker()
    for name in names:
        scope.find_var(name).get_tensor().set(np.zeros_like(before[name]))
    status = fleet.load_check_point(exe, how, rank)
    same = all((np.array(scope.find_var(n).get_tensor()) == before[n]).all() for n in names)
    return {"restored": same, "next": status.next(), "divided": divided}


def meet(rank):
    """What trainers tell each other."""
    sums = [0, 0]
    fleet.all_reduce_worker([rank + 1, 10], sums)
    return {
        "sums": sums,
        "files": fleet.split_files(["a", "b", "c"]),
        "totals": [exchange.total(rank + i, fleet) for i in range(3)],
    }


if __name__ == "__main__":
    warnings.simplefilter("error")
    os.chdir(sys.argv[1])
    fleet.init(PaddleCloudRoleMaker(is_collective=True))
    told = {mode: train(mode, fleet.worker_index(), fleet.worker_endpoints()) for mode in MODES}
    Path(f"result.{fleet.worker_index()}").write_text(json.dumps(told))

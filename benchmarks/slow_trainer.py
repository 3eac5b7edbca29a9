"""Throughput of synchronous and asynchronous training when one trainer is slow.

    python benchmarks/slow_trainer.py [--delay 0.05] [--seconds 10]

Two trainers and one server train a small click model. Trainer 1 sleeps `--delay` seconds before each step, as a trainer
with a slow disk or a busy neighbour does. Prints the steps of each trainer and the examples a second of the job.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BATCH = 256
_WARM_UP = 20


def train(mode: str, delay: float, seconds: float) -> None:
    """Train as one process of the job, and print the number of steps within `seconds`."""
    import numpy as np
    from jfluid.incubate.fleet.base.role_maker import PaddleCloudRoleMaker
    from jfluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
    from jfluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy import StrategyFactory

    import jfluid as fluid

    fleet.init(PaddleCloudRoleMaker())
    ids = fluid.data("ids", [None, 26], "int64")
    label = fluid.data("label", [None, 1])
    rows = fluid.embedding(ids, [100000, 10], is_sparse=True)
    hidden = fluid.layers.fc(fluid.layers.reshape(rows, [-1, 260]), 64, act="relu")
    loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), label))
    strategy = getattr(StrategyFactory, f"create_{mode}_strategy")()
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.01), strategy).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    exe.run(fluid.default_startup_program())
    fleet.init_worker()
    random = np.random.RandomState(fleet.worker_index())
    feeds = [
        {"ids": random.randint(0, 100000, (BATCH, 26)), "label": random.rand(BATCH, 1).astype("float32")}
        for _ in range(8)
    ]

    def step(number: int) -> None:
        if fleet.worker_index() == 1:
            time.sleep(delay)
        exe.run(fleet.main_program, feed=feeds[number % 8], fetch_list=[loss])

    for number in range(_WARM_UP):
        step(number)
    steps, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        step(steps)
        steps += 1
    print(f"STEPS {fleet.worker_index()} {steps}", flush=True)
    fleet.stop_worker()


def job(mode: str, delay: float, seconds: float) -> list[int]:
    """Run a job; return the steps of each trainer."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "jfluid.launch", "--log_dir", folder, "--server_num", "1", "--worker_num", "2"]
        arguments = ["--mode", mode, "--delay", str(delay), "--seconds", str(seconds)]
        subprocess.run([*command, __file__, *arguments], check=True, stdout=subprocess.DEVNULL)
        lines = "".join(Path(folder, f"workerlog.{rank}").read_text() for rank in range(2)).splitlines()
    found = dict(tuple(map(int, line.split()[-2:])) for line in lines if " STEPS " in line)
    return [found[0], found[1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--mode")
    given = parser.parse_args()
    if given.mode:
        train(given.mode, given.delay, given.seconds)
        return
    for mode in ("sync", "async"):
        steps = job(mode, given.delay, given.seconds)
        print(f"{mode}: steps {steps}, {sum(steps) * BATCH / given.seconds:,.0f} examples/s")


if __name__ == "__main__":
    main()

"""Process of a job: ROLE NUMBER FOLDER. A trainer writes its results into the folder."""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jfluid as fluid
from jfluid.check_device import networks
from jfluid.dataset import DatasetFactory
from jfluid.fleet import role_maker
from jfluid.fleet.collective import fleet as collective
from jfluid.fleet.parameter_server.fleet import fleet as servers
from jfluid.fleet.parameter_server.strategies import StrategyFactory

RATE = 0.1
_SLOTS, _WIDTH, _BATCH, _WARM, _TIMED = 26, 8, 512, 5, 30


def _collective(rows: int) -> dict[str, Any]:
    collective.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
    fluid.default_startup_program().random_seed = 1
    loss = networks.images_loss()
    optimizer = fluid.optimizer.Momentum(networks.IMAGE_RATE, momentum=0.9)
    collective.distributed_optimizer(optimizer).minimize(loss)
    executor = fluid.Executor()
    executor.run(collective.startup_program)
    number, count = collective.worker_index(), collective.worker_num()
    losses = []
    for step in range(networks.STEPS):
        batch = networks.part(networks.image_batch(step, rows), number, count)
        losses.append(float(np.mean(executor.run(collective.main_program, batch, [loss])[0])))
    return {"losses": losses}


def _with_servers(what: str, number: int) -> dict[str, Any] | None:
    """Return the results of a trainer; None in a server, which serves until all trainers have left."""
    servers.init(role_maker.PaddleCloudRoleMaker())
    fluid.default_startup_program().random_seed = 1
    loss = networks.clicks() if what == "servers" else networks.deepfm(_SLOTS, number, _WIDTH)
    strategy: Any = StrategyFactory.create_sync_strategy()
    if what == "ahead":  # rows come ahead where steps need not see all that went before
        strategy = StrategyFactory.create_async_strategy()
    servers.distributed_optimizer(fluid.optimizer.SGD(RATE), strategy).minimize(loss)
    executor = fluid.Executor(None if servers.is_worker() else fluid.CPUPlace())
    if servers.is_server():
        servers.init_server()
        servers.run_server()
        return None
    servers.init_worker()
    executor.run(servers.startup_program)
    found = _TRAIN[what](executor, loss, number)
    servers.stop_worker()
    return found


def _losses(executor: Any, loss: Any, rows: int) -> dict[str, Any]:
    number, count = servers.worker_index(), servers.worker_num()
    losses = []
    for step in range(networks.STEPS):
        batch = networks.part(networks.click_batch(step, rows), number, count)
        losses.append(float(executor.run(servers.main_program, batch, [loss])[0].item()))
    return {"losses": losses}


def _timed(executor: Any, loss: Any, ids: int) -> dict[str, Any]:
    """Return the time of a step and of the step's parts."""
    batches = _batches(ids, 8)

    def run(steps: int) -> None:
        for step in range(steps):
            executor.run(servers.main_program, batches[step % len(batches)], [loss])

    return _figures(run)


def _ahead(executor: Any, loss: Any, ids: int) -> dict[str, Any]:
    """Time a step with a dataset, with the rows of the next batch prefetched."""
    with tempfile.TemporaryDirectory() as folder:

        def run(steps: int) -> None:
            executor.train_from_dataset(servers.main_program, _dataset(Path(folder), ids, steps))

        return _figures(run)


def _dataset(folder: Path, ids: int, steps: int) -> Any:
    """Return a dataset of `steps` batches, as lines of a file."""
    path = folder / f"{steps}.txt"
    with path.open("w") as file:
        for batch in _batches(ids, steps):
            columns = np.concatenate([batch[f"slot_{i}"] for i in range(_SLOTS)], axis=1)
            for found, label in zip(columns, batch["label"]):
                file.write("".join(f"1 {i} " for i in found) + f"1 {label.item()}\n")
    block = fluid.default_main_program().global_block()
    dataset = DatasetFactory().create_dataset("QueueDataset")
    dataset.set_use_var([block.var(n) for n in (*(f"slot_{i}" for i in range(_SLOTS)), "label")])
    dataset.set_batch_size(_BATCH)
    dataset.set_filelist([str(path)])
    return dataset


def _batches(ids: int, count: int) -> list[dict[str, np.ndarray]]:
    random = np.random.RandomState(servers.worker_index())
    return [networks.deepfm_batch(random, _SLOTS, ids, _BATCH) for _ in range(count)]


def _figures(run: Callable[[int], None]) -> dict[str, float]:
    """Return the figures of a step, from a function that runs a number of steps."""
    seconds = getattr(servers._communicator, "seconds", dict)
    run(_WARM)
    begin, before = time.perf_counter(), dict(seconds())
    run(_TIMED)
    took = (time.perf_counter() - begin) / _TIMED
    parts = {n: (total - before.get(n, 0.0)) / _TIMED for n, total in seconds().items()}
    waiting = 100 * parts.get("rows", 0.0) / took
    return {
        "ms a step": took * 1e3,
        "examples/s": _BATCH / took,
        "% waiting for rows": waiting,
    } | {f"ms of {name}": part * 1e3 for name, part in parts.items()}


_TRAIN = {"servers": _losses, "deepfm": _timed, "ahead": _ahead}


def main(what: str, number: int, folder: Path) -> None:
    """Run the process."""
    with jax.default_matmul_precision("float32"):
        found = _collective(number) if what == "collective" else _with_servers(what, number)
    if found is not None:
        fleet = collective if what == "collective" else servers
        (folder / f"{fleet.worker_index()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))

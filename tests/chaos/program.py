"""What the processes of a job run: a server serves, a trainer trains from where it can go on, and
tells the harness.

Files of the plan's folder: `go` holds the step before which trainers wait; a trainer writes
`at-<number>` (the step before which it stands), `journal-<number>` and `done-<number>`; the first
one writes `final.npz` and `saved/` when all have trained.
"""

import contextlib
import faulthandler
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import jfluid as fluid
from jfluid import distributed, layers
from jfluid.distributed.programs import trainer_program
from jfluid.distributed.trainer.communicator import Communicator
from jfluid.distributed.wire import connections
from jfluid.ps_server import kernels
from jfluid.transpiler.config import DistributedMode
from tests.chaos import journal
from tests.chaos.entry import publish
from tests.distributed import job

MODES = {
    "half-async": DistributedMode.HALF_ASYNC,
    "async": DistributedMode.ASYNC,
    "geo": DistributedMode.GEO,
}
EVERY = 3  # steps between two exchanges of GEO
WIDTH = 400  # of marks: half of them have more than 64 KiB
ROW = 4
_LOOK_S = 0.03  # a look takes half a millisecond of the processor
_PACE_S = 0.2  # of the job that goes on beside the plans


# ---- programs ----


def marks(count: int, hashed: bool) -> Any:
    """What builds the loss of a program that makes marks. Its gradient changes nothing but mark
    `which`, of `count`: row `which`, and row `count + which`, of a dense parameter, so that each of
    two servers has one of them; and row `which` of a table that is cut, and of one whose rows are
    where the hashes of their ids say."""

    def build() -> tuple[Any]:
        which = fluid.data("which", [None, 1], dtype="int64")
        both = layers.concat([fluid.data("one_hot", [None, count])] * 2, axis=1)
        zero = fluid.initializer.Constant(0.0)
        dense = layers.create_parameter([2 * count, WIDTH], "float32", attr=fluid.ParamAttr("marks", initializer=zero))
        found = [layers.matmul(both, dense)]
        for name in ("cut", "hashed")[: 1 + hashed]:
            found.append(
                fluid.embedding(
                    which,
                    [count, ROW],
                    is_sparse=True,
                    is_distributed=name == "hashed",
                    param_attr=fluid.ParamAttr(name, initializer=zero),
                )
            )
        loss = layers.scale(layers.sums([layers.reduce_sum(each) for each in found]), -1.0)
        fluid.optimizer.SGD(1.0).minimize(loss)
        return (loss,)

    return build


def mark(which: int, count: int) -> dict[str, np.ndarray]:
    """The batch that makes a mark."""
    one_hot = np.zeros((1, count), np.float32)
    one_hot[0, which] = 1
    return {"which": np.array([[which]]), "one_hot": one_hot}


def regression(kind: str) -> Any:
    """What builds the loss of `job.wide_net`; of "dense" with dropout and running statistics, which
    only a trainer has.
    """
    if kind != "dense":
        return job.wide_net(kind)

    def build() -> tuple[Any, Any]:
        fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 7
        x = fluid.data("x", [None, 6])
        for name, size in (("w1", 6), ("w2", job.WIDE)):
            weight = fluid.ParamAttr(name, initializer=job.numbers(size, job.WIDE))
            x = layers.fc(x, job.WIDE, act="tanh", param_attr=weight, bias_attr=f"{name}_bias")
        x = layers.dropout(layers.batch_norm(x), 0.3)
        weight = fluid.ParamAttr("w3", initializer=job.numbers(job.WIDE, 1))
        predicted = layers.fc(x, 1, param_attr=weight, bias_attr="w3_bias")
        loss = layers.mean(layers.square_error_cost(predicted, fluid.data("y", [None, 1])))
        job.OPTIMIZERS["adam"]().minimize(loss)
        return loss, predicted

    return build


# ---- processes ----


def run(spec: Mapping[str, Any]) -> None:
    """Be a server or a trainer of a job, until it ends.

    Args:
        spec: what `entry.begin` takes, and "job", "steps", "trainers", "endpoints" (of the servers)
            and "through" (what each trainer takes for them).
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    faulthandler.register(signal.SIGUSR1)
    fluid.set_flags({"FLAGS_rpc_deadline": 60000})
    print(f"---- {spec['role']} {spec['number']}, process {os.getpid()} ----", flush=True)
    (serve if spec["role"] == "server" else train)(spec)


def transpiled(spec: Mapping[str, Any], endpoints: list[str], trainer: int = 0) -> Any:
    """What `job.transpile` gives for a process."""
    name, trainers = spec["job"], spec["trainers"]
    config: dict[str, Any] = {"sync": name == "soak" or name.startswith("sync"), "wait_port": True}
    if name.startswith("sync"):
        build = regression(name.removeprefix("sync-"))
    elif name == "soak":
        build = marks(spec["steps"], hashed=True)
    else:
        build = marks(spec["steps"] * trainers, hashed=name != "geo")
    if name == "geo":
        config |= {"geo_sgd_mode": True, "geo_sgd_need_push_nums": EVERY}
    if name != "half-async" and not config["sync"]:
        config |= {"runtime_split_send_recv": True}
    return job.transpile(build, endpoints, trainer, trainers, **config)


def serve(spec: Mapping[str, Any]) -> None:
    transpiler, *_ = transpiled(spec, spec["endpoints"])
    main, startup = transpiler.get_pserver_programs(spec["endpoints"][spec["number"]])
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)
    executor.run(main)


def train(spec: Mapping[str, Any]) -> None:
    number, folder = spec["number"], Path(spec["folder"])
    transpiler, startup, (loss, *_) = transpiled(spec, spec["through"][number], number)
    main = transpiler.get_trainer_program()
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)
    train_on = synchronously if spec["job"].startswith("sync") else for_long if spec["job"] == "soak" else by_marks
    for step, feed in train_on(spec, main):
        publish(folder / f"at-{number}", str(step))
        wait_for(folder / "go", step)
        executor.run(main, feed=feed, fetch_list=[loss])
    if spec["job"] != "soak":
        publish(folder / f"at-{number}", str(spec["steps"]))
    publish(folder / f"done-{number}", "")
    if spec["job"] in MODES:
        # A server that has started again has what idle trainers keep when they have seen that; at a
        # barrier all have.
        wait_to_be_there(folder / "calm")
        connections.connect(trainer_program.read(main)).client.barrier("all have ended")
    if number == 0:
        for other in range(spec["trainers"]):
            wait_to_be_there(folder / f"done-{other}")
        dump(spec, executor, main)
    wait_to_be_there(folder / "final.npz")
    executor.close()


def synchronously(spec: Mapping[str, Any], main: Any) -> Iterator[tuple[int, Any]]:
    """The steps and batches of a trainer of rounds, from the one that the job goes on with."""
    first = distributed.rounds(main)
    logging.info("goes on with round %d", first)
    for step in range(first, spec["steps"]):
        batch = job.wide_batch(step)
        yield (
            step,
            job.share(
                {name: batch[name] for name in batch if main.global_block().has_var(name)},
                spec["number"],
                spec["trainers"],
            ),
        )


def for_long(spec: Mapping[str, Any], main: Any) -> Iterator[tuple[int, Any]]:
    """The rounds and batches of a trainer that goes on until the file `last` names the round before
    which it ends.
    """
    step, last = distributed.rounds(main), Path(spec["folder"], "last")
    publish(Path(spec["folder"], "go"), str(1 << 60))
    while not last.exists() or step < int(last.read_text()):
        yield step, mark(step % spec["steps"], spec["steps"])
        time.sleep(_PACE_S)
        step += 1


def by_marks(spec: Mapping[str, Any], main: Any) -> Iterator[tuple[int, Any]]:
    """The steps and batches of a trainer that makes marks, from the first that no earlier life of
    it may have made.
    """
    number, steps, path = (
        spec["number"],
        spec["steps"],
        Path(spec["folder"], f"journal-{spec['number']}"),
    )
    first = max(journal.read(path).next_mark - number * steps, 0)
    communicator = Communicator(main, MODES[spec["job"]], {"trainers": spec["trainers"], "push_nums": EVERY})
    writer = journal.Writer(path, marks_in)
    writer.watch(connections.connect(trainer_program.read(main)).calls)
    communicator.start()
    logging.info("goes on with step %d", first)
    for step in range(first, steps):
        yield step, mark(number * steps + step, steps * spec["trainers"])
    communicator.stop()


def marks_in(blocks: Mapping[str, np.ndarray]) -> dict[int, float]:
    """By how much a push of blocks changes each mark, at each of the servers."""
    # A gradient of -1, and a difference, add to a mark.
    found = [
        {int(row): abs(float(values[row, 0])) for row in np.flatnonzero(values[:, 0])}
        for name, values in blocks.items()
        if name.startswith("marks")
    ]
    if any(each != found[0] for each in found):
        raise AssertionError(f"servers are to make the same marks: {found}")
    return found[0] if found else {}


def wait_to_be_there(path: Path) -> None:
    """Wait for a file."""
    while not path.exists():
        time.sleep(_LOOK_S)


def wait_for(path: Path, step: int) -> None:
    """Wait until the file says a larger number."""
    while True:
        with contextlib.suppress(FileNotFoundError, ValueError):
            if int(path.read_text()) > step:
                return
        time.sleep(_LOOK_S)


def dump(spec: Mapping[str, Any], executor: Any, main: Any) -> None:
    """Write what servers hold at the end."""
    folder, connection = Path(spec["folder"]), connections.connect(trainer_program.read(main))
    statuses = connection.client.status()
    arrays: dict[str, np.ndarray] = {"lost": np.array([s.lost for s in statuses])}
    if spec["job"].startswith("sync"):
        fluid.io.save_persistables(executor, str(folder / "saved"), main)
        names = [name for name, table in trainer_program.read(main).tables.items() if table.hashed]
        for name in names:
            ids = np.arange(main.global_block().var(name).shape[0])
            slots = ("", f"{name}_moment1_0", f"{name}_moment2_0")
            arrays |= {f"{name} {slot}": connection.client.look_up(name, ids, slot) for slot in slots}
    else:
        arrays |= job.served(main)
        arrays["cut servers"] = servers_of(trainer_program.read(main), "cut")
        if "hashed" in arrays:
            arrays["hashed servers"] = kernels.owners_of(np.arange(len(arrays["hashed"])), len(statuses))
    fresh = folder / "final.fresh"
    with open(fresh, "wb") as file:
        np.savez(file, **arrays)
    logging.info("lost: %s", arrays["lost"])
    fresh.replace(folder / "final.npz")


def servers_of(asked: Any, name: str) -> np.ndarray:
    """Which server has each row of a parameter that is cut."""
    found = asked.tables.get(name) or connections.connect(asked).params[name]
    return np.concatenate([np.full(piece.rows, piece.server) for piece in found.pieces])

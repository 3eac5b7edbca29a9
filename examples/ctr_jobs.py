"""Who trains in ctr_dnn.py: one process on its own, or trainers that share parameter servers."""

import os

from jfluid.incubate.fleet.base import role_maker
from jfluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from jfluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy import (
    StrategyFactory,
)

import jfluid as fluid

STRATEGIES = {
    "sync": StrategyFactory.create_sync_strategy,
    "half_async": StrategyFactory.create_half_async_strategy,
    "async": StrategyFactory.create_async_strategy,
    "geo": StrategyFactory.create_geo_strategy,
}


def this_job(strategy, push_every):
    """The job that this process belongs to: jfluid-launch says so by TRAINING_ROLE."""
    return Served(strategy, push_every) if "TRAINING_ROLE" in os.environ else Alone()


class Alone:
    """One process holds everything."""

    trainer, trainers, is_server = 0, 1, False
    updates_per_step = 1  # that a schedule of learning rates counts for each step of a trainer

    def minimize(self, optimizer, loss):
        self.program, self._startup = fluid.default_main_program(), fluid.default_startup_program()
        self.test_program = self.program.clone(for_test=True)
        optimizer.minimize(loss)

    def begin(self, executor):
        executor.run(self._startup)

    def share(self, files):
        """The files that this trainer reads."""
        return files

    def rows(self):
        """Rows in the tables; None where they are whole from the beginning."""
        return None

    def save(self, executor, folder, feeds, targets):
        fluid.io.save_inference_model(folder, feeds, targets, executor, main_program=self.test_program)

    def all_here(self):
        """Wait for the other trainers."""

    def end(self):
        """Say goodbye."""


class Served:
    """A trainer, or a server, of a job with parameter servers."""

    def __init__(self, strategy, push_every):
        fleet.init(role_maker.PaddleCloudRoleMaker())
        self.is_server, self.trainers = fleet.is_server(), fleet.worker_num()
        self.trainer = None if self.is_server else fleet.worker_index()
        # Servers count the steps of all trainers; with geo each trainer has a schedule of its own.
        self.updates_per_step = 1 if strategy in ("geo", "sync") else self.trainers
        self._strategy = STRATEGIES[strategy](*[push_every] * (strategy == "geo"))

    def minimize(self, optimizer, loss):
        fleet.distributed_optimizer(optimizer, self._strategy).minimize(loss)
        if not self.is_server:
            self.program, self.test_program = (
                fleet.main_program,
                fleet.main_program.clone(for_test=True),
            )

    def serve(self):
        """Serve until all trainers have left."""
        fleet.init_server()
        fleet.run_server()

    def begin(self, executor):
        fleet.init_worker()
        executor.run(fleet.startup_program)

    def share(self, files):
        return fleet.split_files(files)

    def rows(self):
        return sum(fleet.table_rows().values())

    def save(self, executor, folder, feeds, targets):
        fleet.save_inference_model(executor, folder, feeds, targets)

    def all_here(self):
        fleet.barrier_worker()

    def end(self):
        fleet.stop_worker()

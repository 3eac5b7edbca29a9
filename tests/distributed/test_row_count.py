"""What a trainer's progress shows of the servers."""

import time

from jfluid import errors
from jfluid.distributed.programs import trainer_program
from jfluid.distributed.trainer.row_count import RowCount, table_rows
from jfluid.distributed.wire import connections
from jfluid.engine import Runner
from tests.distributed.job import Job, batch, net


def test_rows_of_all_servers_are_counted():
    with Job(net("distributed", "sgd"), servers=2) as job:
        (trainer,) = job.trainers
        job.begin()
        shown = set()
        for step in range(3):
            trainer.run(batch(step))
            shown |= set(batch(step)["ids"].reshape(-1))
        client = connections.connect(trainer_program.read(trainer.main)).client
        assert table_rows(client) == {"table": len(shown)}
        with RowCount(client) as count:
            deadline = time.monotonic() + 120
            while not count() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert count() == {"rows": len(shown)}
        assert trainer.executor.engine.runner(trainer.main).counts().__class__ is RowCount
    with Runner().counts() as nothing:
        assert nothing() == {}


def test_a_server_that_does_not_answer_is_the_business_of_the_step_that_needs_it():
    class Gone:
        def status(self):
            raise errors.ServerError("no answer")

    with RowCount(Gone()) as count:
        count._thread.join(120)
        assert not count._thread.is_alive() and count() == {}

"""Lines of a server's log: times, and the tables and blocks that the server holds."""

import logging
import re

import pytest

from jfluid.ps_server import server_log
from jfluid.ps_server.store import Store
from tests.distributed.job import Job, batches, net
from tests.ps_server.job import BLOCK, TABLE


def test_a_server_says_what_it_holds(caplog):
    caplog.set_level(logging.INFO, "jfluid")
    with Job(net("distributed", "sgd"), 1) as job:
        job.begin()
        job.steps(batches(2))
    lines = [line for line in caplog.messages if " holds " in line]
    begin, end = lines
    assert re.fullmatch(
        r"server 0 of 1 listens on 127\.0\.0\.1:\d+, and holds table table \(0 rows of 4 numbers, 0\.0 MB\), "
        r"4 blocks of dense parameters \(b1, b2, w1, \.\.\.\)",
        begin,
    )
    assert re.match(r"server 0 holds at the end: table table \([1-9]\d rows of 4 numbers", end)


def test_an_empty_store_and_blocks_of_clients():
    store = Store()
    assert server_log.held(store) == "nothing"
    store.create([TABLE], [BLOCK])
    assert server_log.held(store) == "table t (0 rows of 4 numbers, 0.0 MB), 1 block of dense parameters (w)"


def test_lines_have_times_unless_the_script_logs(capsys, monkeypatch):
    root, logger = logging.getLogger(), logging.getLogger("jfluid.distributed")
    monkeypatch.setattr(root, "handlers", [])
    with server_log.on_stderr():
        logger.info("holds\x1bnothing")
    assert re.fullmatch(r"[\d-]+ [\d:,]+ INFO holds\\x1bnothing\n", capsys.readouterr().err)
    logger.info("later")
    kept = logging.StreamHandler()
    monkeypatch.setattr(root, "handlers", [kept])
    with server_log.on_stderr():
        assert logging.getLogger("jfluid").handlers == []
    assert capsys.readouterr().err == ""


@pytest.fixture(autouse=True)
def no_handlers():
    yield
    assert logging.getLogger("jfluid").handlers == []

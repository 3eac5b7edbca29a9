"""Jobs whose servers are threads of this process."""

import pytest

import jfluid as fluid
from tests.ps_server.job import TOKEN, Job


@pytest.fixture(autouse=True)
def quick_failures(monkeypatch):
    monkeypatch.setenv("JFLUID_JOB_TOKEN", "0123456789-token-of-the-tests")
    deadline = fluid.get_flags("FLAGS_rpc_deadline")
    fluid.set_flags({"FLAGS_rpc_deadline": 120000})
    yield
    fluid.set_flags(deadline)


@pytest.fixture
def servers(monkeypatch):
    """Servers without a program, that `start` starts."""
    monkeypatch.setenv("JFLUID_JOB_TOKEN", TOKEN)
    made = Job()
    yield made
    made.end()

"""Jobs whose servers are threads of this process."""

import pytest

import jfluid as fluid
from tests.ps_server.job import TOKEN, Job

# Steps that run while something else reads their arrays, which compiled steps overwrite.
COMPILED = {"test_async_steps", "test_pending_exchange"}


@pytest.fixture(autouse=True, scope="module")
def steps_by_numpy(request):
    """Most tests hold what is exchanged, and not how a step is computed: XLA would take half of their time."""
    if request.module.__name__.rpartition(".")[2] not in COMPILED:
        request.getfixturevalue("interpreted_module")


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

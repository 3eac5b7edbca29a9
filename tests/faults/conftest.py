"""Jobs whose servers are threads of this process."""

import itertools

import grpc
import pytest

from jfluid.ps_server.pipe_calls import CallError, CallPipes
from tests.distributed.conftest import quick_failures

__all__ = ["quick_failures"]


@pytest.fixture(params=[False, True], ids=["network", "shared memory"])
def share_memory(request, monkeypatch):
    """Whether large messages go through shared memory. Each such call is lost, its request or its
    answer in turn, and made again over the network, where the test has more happen to it.
    """
    monkeypatch.setenv("JFLUID_PS_SHARE_MEMORY", str(int(request.param)))
    call, number = CallPipes.call, itertools.count()

    def lost(self, *given):
        if next(number) % 2:
            call(self, *given)
        raise CallError(grpc.StatusCode.UNAVAILABLE, "lost on purpose")

    monkeypatch.setattr(CallPipes, "call", lost)
    return request.param

"""Jobs whose servers are threads of this process."""

import itertools

import grpc
import pytest

from jfluid.ps_server.pipe_calls import CallPipes
from jfluid.ps_server.transport import CallError
from tests.distributed.conftest import quick_failures

__all__ = ["quick_failures"]


@pytest.fixture(params=[False, True], ids=["network", "shared memory"])
def share_memory(request, monkeypatch):
    """Whether large messages go through shared memory. Each such call is lost, its request or its
    answer in turn, and made again over the network, where the test has more happen to it.
    """
    monkeypatch.setenv("JFLUID_PS_SHARE_MEMORY", str(int(request.param)))
    post, answer, number = CallPipes.post, CallPipes.answer, itertools.count()

    def lost_request(self, request):
        if not hasattr(self, "answers"):  # pipes carry no call behind one that is lost
            self.answers = next(number) % 2
        if self.answers:
            post(self, request)

    def lost_answer(self, *given):
        if self.answers:
            answer(self, *given)
        raise CallError(grpc.StatusCode.UNAVAILABLE, "lost on purpose")

    monkeypatch.setattr(CallPipes, "post", lost_request)
    monkeypatch.setattr(CallPipes, "answer", lost_answer)
    return request.param

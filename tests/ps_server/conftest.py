"""Fixtures of the tests of parameter servers."""

import pytest

from tests.ps_server.job import Job


@pytest.fixture
def job():
    job = Job()
    yield job
    job.end()

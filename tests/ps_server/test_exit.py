"""What a thread still has to send when its program ends is sent."""

import subprocess
import sys

import numpy as np
import pytest

from jfluid.ps_server import specs
from jfluid.ps_server.client import Client
from jfluid.ps_server.server import Server, Settings

TOKEN = "a-token-of-the-job"
SCRIPT = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from jfluid.ps_server.client import Client
from jfluid.ps_server.store import Change

client = Client(sys.argv[1:], "a-token-of-the-job")
ids = np.arange(100)

def late():
    time.sleep(0.5)
    client.push({"t": (ids, np.ones((100, 4), np.float32))}, change=Change.ADD)
client.pull({"t": ids})
ThreadPoolExecutor(1).submit(late)
"""


@pytest.mark.process
def test_a_push_under_way_when_the_program_ends():
    table = specs.TableSpec(
        name="t",
        width=4,
        initializer=specs.Constant(value=0.0),
        optimizer=specs.Sgd(learning_rate=1.0),
    )
    with (
        Server(Settings(token=TOKEN, server=0, servers=2)) as one,
        Server(Settings(token=TOKEN, server=1, servers=2)) as two,
    ):
        endpoints = [f"127.0.0.1:{server.port}" for server in (one, two)]
        client = Client(endpoints, TOKEN, heartbeat_s=0, incarnation=1)
        client.create([table])
        subprocess.run([sys.executable, "-c", SCRIPT, *endpoints], check=True, timeout=300)
        assert (client.look_up("t", np.arange(100)) == 1).all()
        client.close()

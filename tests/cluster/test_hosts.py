"""Jobs on three hosts, which are network namespaces of this machine with a network between them that
delays, loses and slows packets down.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from jfluid.launch import main, rendezvous
from scripts.cluster import hosts
from scripts.cluster.hosts import VirtualHosts
from tests import forked, forked_members
from tests.cluster.case import (
    HOSTS_ENVIRONMENT,
    SLEEPS,
    TRAINING,
    seconds_to_end,
    set_number,
    sleepers,
    steps_of,
    wait_until,
)
from tests.cluster.training import alone, losses_of
from tests.launch_case import LIMIT, write

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(hosts.missing()), reason=hosts.missing() or "-"),
]
NETWORKS = [
    {"delay": 0.02},
    {"delay": 0.001, "loss": 0.01},
    {"delay": 0.001, "rate": 100e6 / 8},
]
# A quarter of the time until launchers miss a host that has vanished (docs/clusters.md), in their options of sockets.
KEEPALIVE = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 5_000}
ENDED = 30  # seconds, at most, until such a host is missed and all processes have ended


@pytest.fixture(scope="module")
def three():
    with VirtualHosts(3, mtu=1500) as found:
        yield found


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, three):
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    three.network()
    for host in range(3):
        three.connect(host)


def run(given):
    """Be a launcher on a host, which forks the members of its gang."""
    host, arguments = given
    host.enter()
    forked_members.use()
    rendezvous._KEEPALIVE = KEEPALIVE
    sys.exit(main(arguments))


def said_by(launcher):
    """What a launcher says until it ends."""
    return "".join(launcher.communicate(LIMIT))


@pytest.fixture
def launch(three):
    """What starts a launcher on each of the hosts."""
    with ExitStack() as stack:

        def start(arguments_of, hosts=range(3)):
            started = []
            for host in hosts:
                words = ["--log_dir", f"log{host}", *arguments_of(host)]
                process = forked.Popen(run, (three.host(host), words), HOSTS_ENVIRONMENT)
                stack.callback(process.kill)
                started.append(process)
            return started

        yield start


def through_all_networks(three, launchers):
    """Let a job take two steps in each of the networks; what its launchers have said."""
    for number, network in enumerate(NETWORKS):
        three.network(**network)
        set_number("go", 2 * number + 2)
        wait_until(
            lambda: (
                min(map(steps_of, range(3))) == 2 * number + 2  # noqa: B023
                or any(launcher.poll() is not None for launcher in launchers)
            ),
            lambda: [Path(f"losses-{rank}").read_text() for rank in range(3)],
        )
    said = [said_by(launcher) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0, 0], "\n".join(said)
    return said


def test_processes_that_train_together(three, launch):
    set_number("go", 0)
    where = ["--ips", ",".join(three.addresses), "--cpus", "1"]
    launchers = launch(lambda host: [*where, TRAINING, "--steps", "6"])
    through_all_networks(three, launchers)
    np.testing.assert_allclose(losses_of(".", 3), alone(6), rtol=1e-4)


def test_servers_and_trainers_by_ipv6(three, launch):
    set_number("go", 0)
    coordinator = f"[{three.addresses6[0]}]:6000"
    where = ["--nodes", "3", "--coordinator", coordinator, "--servers", "1", "--trainers", "1"]
    # as pods of Kubernetes begin: what is to be resumed is not there yet
    cuts = ["--set", "snapshots.folder=cuts", "--set", "snapshots.resume=true"]
    launchers = launch(lambda host: [*where, *cuts, "--node-rank", str(host), TRAINING, "--steps", "6"])
    through_all_networks(three, launchers)
    np.testing.assert_allclose(losses_of(".", 3), alone(6), rtol=1e-4)


@pytest.mark.slow
def test_the_first_host_vanishes_and_the_job_ends(three, launch):
    """The host of the rendezvous; the last host vanishes in the next test."""
    script = write("train.py", SLEEPS)
    where = ["--ips", ",".join(three.addresses6), "--cpus", "1"]
    launchers = launch(lambda host: [*where, script])
    processes = sleepers(3)
    three.cut_off(0)
    # those of the lost host, too: its launcher has lost the others
    assert seconds_to_end(processes) < ENDED
    said = [said_by(launcher) for launcher in launchers]
    assert all(launcher.returncode for launcher in launchers)
    for host in (1, 2):
        assert "host 0 failed first (its launcher is gone)" in said[host], said[host]


@pytest.mark.slow
def test_a_host_that_comes_back_brings_the_job_back(three, launch):
    set_number("go", 2)
    where = ["--ips", ",".join(three.addresses), "--cpus", "1", "--max-restarts", "1"]
    words = [*where, TRAINING, "--steps", "4", "--checkpoints", "cuts"]
    launchers = launch(lambda host: words)
    wait_until(
        lambda: min(map(steps_of, range(3))) == 2 and list(Path("cuts").glob("*.1")),
        lambda: [launcher.poll() for launcher in launchers],
    )
    three.cut_off(2)
    lost = launchers.pop()
    said = said_by(lost)
    assert lost.returncode and "host 0 failed first (its launcher is gone)" in said, said
    three.connect(2)
    launchers += launch(lambda host: words, hosts=[2])
    set_number("go", 4)
    said = [said_by(launcher) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0, 0], "\n".join(said)
    for other in said[:2]:
        assert "host 2 failed (its launcher is gone); restart 1 of 1" in other, other
    assert "goes on with step 2" in said[0], said[0]
    np.testing.assert_allclose(losses_of(".", 3), alone(4), rtol=1e-4)

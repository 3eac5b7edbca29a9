"""Jobs whose connections are cut, slow, held back, and partitioned."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest

from tests.distributed.job import Job, wide_net
from tests.faults.relay import Network
from tests.faults.training import FEEDS, assert_same, trained, undisturbed


@pytest.fixture
def network():
    with Network(seed=5) as network:
        yield network


@contextlib.contextmanager
def echo(most=1 << 16):
    """The endpoint of a server that sends everything back."""

    def serve(connection):
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(most):
                connection.sendall(data)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def connected(endpoint, timeout_s=120):
    host, _, port = endpoint.rpartition(":")
    return socket.create_connection((host, int(port)), timeout_s)


def received(connection, size):
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


def test_all_bytes_come_in_order(network):
    sent = np.random.default_rng(0).bytes(3 << 20)
    with echo() as to:
        relay = network.relay(to)
        for harm in (
            lambda: None,
            lambda: relay.delay(0.0, 0.005),
            lambda: relay.dribble(20_000, 50e6),
        ):
            harm()
            with connected(relay.endpoint) as connection:
                writer = threading.Thread(target=connection.sendall, args=[sent])
                writer.start()
                assert received(connection, len(sent)) == sent
                writer.join()


def test_a_partition_holds_back_what_is_sent_until_it_heals(network):
    with echo() as to:
        relay, other = network.relay(to), network.relay(to)
        with connected(relay.endpoint, 0.3) as cut_off, connected(other.endpoint) as well:
            relay.partition()
            for connection in (cut_off, well):
                connection.sendall(b"hello")
            assert received(well, 5) == b"hello"
            with pytest.raises(TimeoutError):
                cut_off.recv(5)
            relay.heal()
            cut_off.settimeout(120)
            assert received(cut_off, 5) == b"hello"


def test_a_refusing_partition_ends_connections_and_takes_no_new_ones(network):
    with echo() as to:
        relay = network.relay(to)
        with connected(relay.endpoint) as connection:
            connection.sendall(b"hello")
            assert received(connection, 5) == b"hello"
            relay.partition(refuse=True)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(5) == b""
        with connected(relay.endpoint) as connection, contextlib.suppress(ConnectionResetError):
            assert connection.recv(5) == b""
        relay.heal()
        with connected(relay.endpoint) as connection:
            connection.sendall(b"again")
            assert received(connection, 5) == b"again"


def test_a_throttle_bounds_the_rate_of_each_direction(network):
    with echo() as to:
        relay = network.relay(to)
        relay.throttle(1e6)
        with connected(relay.endpoint) as connection:
            start = time.monotonic()
            connection.sendall(bytes(200_000))
            received(connection, 200_000)
            assert time.monotonic() - start > 0.15


def test_a_connection_is_cut_after_as_many_bytes_as_the_seed_says():
    def passed(seed):
        """How many bytes came back of each of three connections."""
        with echo() as to, Network(seed) as network:
            relay = network.relay(to, "the relay")
            relay.cut_every(1, 200)
            found = []
            for _ in range(3):
                found.append(0)
                with connected(relay.endpoint) as connection, contextlib.suppress(OSError):
                    connection.sendall(b"x")
                    while connection.recv(1):
                        found[-1] += 1
                        connection.sendall(b"x")
            assert relay.cuts == 3
            return [round(count, -1) for count in found]  # the last ones may come back or not

    assert passed(1) == passed(1) != passed(2)


# ---- jobs ----


def test_connections_are_cut(network):
    """Also between a push and its answer: the push is sent again, and applied once."""

    def through(endpoint, trainer):
        relay = network.relay(endpoint, f"trainer {trainer}, relay {len(network.relays)}")
        relay.cut_every(100_000, 600_000)
        return relay.endpoint

    assert_same(trained(through), undisturbed())
    assert all(relay.cuts for relay in network.relays)


def test_networks_are_slow(network):
    """Each trainer's way to each server in another manner."""
    ways = iter(
        [
            lambda relay: relay.delay(0.0, 0.02),
            lambda relay: relay.throttle(3e6),
            lambda relay: relay.dribble(2000, 10e6),
            lambda relay: relay.delay(0.01, 0.01),
        ]
    )

    def through(endpoint, trainer):
        relay = network.relay(endpoint)
        next(ways)(relay)
        return relay.endpoint

    assert_same(trained(through), undisturbed())


def test_a_trainer_is_partitioned_from_one_of_two_servers(network):
    """The others wait for it; when the partition heals all go on as if it had not been."""
    with Job(wide_net("sparse"), 2, 2, through=lambda endpoint, trainer: network.relay(endpoint).endpoint) as job:
        job.begin()
        cut_off = network.relays[1]  # the first trainer's to the second server
        for refuse, steps in ((False, slice(0, 2)), (True, slice(2, 4))):
            cut_off.partition(refuse)
            timer = threading.Timer(0.5, cut_off.heal)
            start = time.monotonic()
            timer.start()
            job.steps(FEEDS[steps])
            assert time.monotonic() - start > 0.4
            timer.join()
        found = job.parameters()
    assert_same(found, undisturbed())

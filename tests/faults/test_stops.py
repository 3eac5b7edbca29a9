"""Each stop gives all back: files, threads and processes are as many as before the start."""

import contextlib
import gc
import os
import socket
import sys
import threading
import time

import numpy as np
import pytest

import jfluid as fluid
from jfluid import launch, layers, profiler
from jfluid.dataset import exchange
from jfluid.feeding import reader
from jfluid.launch.nodes import Node
from jfluid.launch.rendezvous import Follower, Head
from jfluid.ps_server import specs
from jfluid.ps_server.client import Client
from jfluid.ps_server.server import Server, Settings
from jfluid.security import sockets
from tests.distributed.job import Job, batches, net
from tests.ports import free_endpoints, free_port

TOKEN, LIMIT = "a-secret-of-the-job", 120
WIDE = specs.BlockSpec(
    name="w",
    shape=(300, 300),
    initializer=specs.Constant(value=0),
    optimizer=specs.Sgd(learning_rate=1),
)


def held():
    """(files, threads, processes) of this process."""
    children = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as file:
            children += file.read().split()
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(children)


def settled():
    """What is held when that has not changed for a while."""
    gc.collect()
    found, since = held(), time.monotonic()
    while time.monotonic() < since + 0.3:
        time.sleep(0.01)
        if (now := held()) != found:
            found, since = now, time.monotonic()
    return found


def in_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)


# ---- what is started and stopped -----------------------------------------------------------------


def server():
    with Server(Settings(token=TOKEN)):
        pass


def server_with_metrics():
    with Server(Settings(token=TOKEN, metrics_port=0)) as served:
        with socket.create_connection(("127.0.0.1", served.metrics_port)):
            pass


def calls():
    """A server and a client that pushes large messages until they go through a stream."""
    with Server(Settings(token=TOKEN)) as served:
        endpoints = [f"127.0.0.1:{served.port}"]
        with Client(endpoints, TOKEN, trainer=0, timeout_s=LIMIT, heartbeat_s=0.05) as client:
            client.create([], {0: [WIDE]})
            for _ in range(8):
                client.push(blocks={"w": np.ones((300, 300), np.float32)})
                time.sleep(0.01)
            client.pull(blocks=["w"])


def client_whose_server_is_gone():
    with Server(Settings(token=TOKEN)) as served:
        client = Client([f"127.0.0.1:{served.port}"], TOKEN, trainer=0, heartbeat_s=0.05)
        client.create([], {0: [WIDE]})
    client.close()


def job_of_servers():
    with Job(net("sparse", "adam"), 2) as job:
        job.begin()
        job.steps(batches(2))


def listener_and_strangers():
    with sockets.Listener(socket.create_server(("127.0.0.1", 0)), TOKEN, "test", 1000, LIMIT) as listener:
        strangers = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(5)]
        listener.accept(1.0)
        for stranger in strangers:
            stranger.close()


def launchers_of_two_hosts():
    port = free_port()
    first = Head(Node(0, 2, None, ("127.0.0.1", port)), "job", 0, TOKEN)
    second = Follower(Node(1, 2, None, ("127.0.0.1", port)), "job", TOKEN)
    in_threads(
        lambda: first.rendezvous([1], lambda: False),
        lambda: second.rendezvous([2], lambda: False),
    )
    second.close()
    first.close()


def exchange_of_two_trainers():
    endpoints = free_endpoints(2)
    in_threads(
        *(lambda i=i: exchange.gathered(np.full(3, i), i, endpoints) for i in range(2)),
    )


def launched(*arguments):
    def run():
        with open("train.py", "w") as file:
            file.write("print('trained')\n")
        assert launch.main([*arguments, "train.py"]) == 0

    return run


def samples():
    for i in range(200):
        yield (np.full(2, i, np.float32),)


def loader(**options):
    """A loader that is given up after its first batches."""

    def run():
        x = fluid.data("x", [None, 2])
        made = fluid.io.DataLoader.from_generator([x], 2, **options)
        made.set_sample_generator(samples, batch_size=2, places=fluid.CPUPlace())
        iterator = iter(made)
        for _ in range(3):
            next(iterator)
        del iterator
        for _ in made:  # and to its end
            pass

    return run


def loader_of_programs():
    x = fluid.data("x", [None, 2])
    made = fluid.io.DataLoader.from_generator([x], 2, iterable=False)
    made.set_sample_generator(samples, batch_size=2, places=fluid.CPUPlace())
    out, exe = layers.mean(x), fluid.Executor(fluid.CPUPlace())
    made.start()
    exe.run(fetch_list=[out])
    made.reset()
    exe.close()


def readers():
    for made in (
        reader.buffered(samples, 3),
        reader.xmap_readers(lambda sample: sample, samples, 2, 3),
        reader.xmap_readers(lambda sample: sample, samples, 2, 3, order=True),
    ):
        iterator = made()
        next(iterator)
        iterator.close()


def readers_in_processes():
    for pipes in (True, False):
        iterator = reader.multiprocess_reader([samples, samples], use_pipe=pipes)()
        next(iterator)
        iterator.close()


def datasets():
    with open("a.txt", "w") as file:
        file.write("1 2\n" * 50)
    x = fluid.data("x", [None, 1])
    out, exe = layers.mean(x), fluid.Executor(fluid.CPUPlace())
    for kind in ("QueueDataset", "InMemoryDataset"):
        made = fluid.DatasetFactory().create_dataset(kind)
        made.set_use_var([x])
        made.set_batch_size(5)
        made.set_thread(2)
        made.set_pipe_command("cat")
        made.set_filelist(["a.txt", "a.txt"])
        if kind == "InMemoryDataset":
            made.preload_into_memory(2)
            made.wait_preload_done()
        exe.train_from_dataset(
            fluid.default_main_program(),
            made,
            fetch_handler=fluid.executor.FetchHandler({"out": out}, 0.01),
        )
        if kind == "InMemoryDataset":
            made.release_memory()
    exe.close()


def profiles():
    with profiler.profiler("CPU", profile_path="profile"):
        pass


STOPPED = {
    "server": server,
    "server with metrics": server_with_metrics,
    "calls through streams": calls,
    "client whose server is gone": client_whose_server_is_gone,
    "job of servers": job_of_servers,
    "listener and strangers": listener_and_strangers,
    "launchers of two hosts": launchers_of_two_hosts,
    "exchange of two trainers": exchange_of_two_trainers,
    "launcher of a script": launched(),
    "launcher of a gang": launched("--cpus", "2"),
    "loader": loader(),
    "loader in a process": loader(use_multiprocess=True),
    "loader of programs": loader_of_programs,
    "readers": readers,
    "readers in processes": readers_in_processes,
    "datasets": datasets,
    "profiles": profiles,
}


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
@pytest.mark.parametrize("name", STOPPED)
def test_a_stop_gives_all_back(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run():
        with (
            fluid.program_guard(fluid.Program(), fluid.Program()),
            fluid.unique_name.guard(),
            fluid.scope_guard(fluid.Scope()),
        ):
            STOPPED[name]()

    run()  # what is made once stays: libraries, caches, pools of XLA
    before = settled()
    for _ in range(3):
        run()
    deadline = time.monotonic() + LIMIT
    while any(now > then for now, then in zip(held(), before)):
        assert time.monotonic() < deadline, (
            f"(files, threads, processes): {held()}, and {before} before; "
            f"{sorted(thread.name for thread in threading.enumerate())}"
        )
        time.sleep(0.02)
        gc.collect()

"""Small jobs with parameter servers, as they are: what a step of them takes on this machine.

    python benchmarks/scale_jobs.py --trainers 2 --servers 1 --strategy async

trains a click model, synchronously unless told otherwise, one process for each trainer and server,
and prints seconds a step: on the clock, of the processors by a trainer and by all servers, and of a trainer's parts
(`Communicator.seconds`). benchmarks/scale_check.py holds the simulation against it.
"""

import argparse
import json
import multiprocessing
import os
import resource
import socket
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

SLOTS, VOCABULARY, WIDTH, BATCH = 26, 100_001, 10, 512
STRATEGIES = ("sync", "half_async", "async", "geo")
GEO_EVERY = 20
WARM = 2 * GEO_EVERY
_SECONDS_TO_ANSWER = 300
_TICKS = os.sysconf("SC_CLK_TCK")
# Processes are forked from one that has imported what they need: half of what they take to begin.
_FORKS = multiprocessing.get_context("forkserver")
_IMPORTED = ("jfluid", "jfluid.fleet.parameter_server.fleet", "jfluid.ps_server.client")


def network(fluid):
    """The loss of a click model."""
    layers = fluid.layers
    dense, ids = fluid.data("dense", [None, 13]), fluid.data("ids", [None, SLOTS], "int64")
    table = fluid.ParamAttr(name="table", initializer=fluid.initializer.Uniform())
    rows = fluid.embedding(ids, [VOCABULARY, WIDTH], is_sparse=True, param_attr=table)
    hidden = layers.concat([layers.reshape(rows, [-1, SLOTS * WIDTH]), dense], axis=1)
    for _ in range(3):
        hidden = layers.fc(hidden, 400, act="relu")
    predicted = layers.fc(hidden, 2, act="softmax")
    label = fluid.data("label", [None, 1], "int64")
    return layers.reduce_mean(layers.cross_entropy(predicted, label))


def batches(seed):
    """Sixteen batches."""
    random = np.random.RandomState(seed)
    for _ in range(16):
        dense = random.rand(BATCH, 13).astype("float32")
        ids = np.minimum(random.zipf(1.2, (BATCH, SLOTS)), VOCABULARY - 1).astype("int64")
        label = (dense.sum(1) > 6.5).astype("int64")[:, None]
        yield {"dense": dense, "ids": ids, "label": label}


def processor_seconds():
    """What this process has taken of the processors."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def demanded_seconds():
    """For how long this process's threads have worked, or waited for a processor."""
    threads = Path("/proc/self/task").glob("*/schedstat")
    return 1e-9 * sum(sum(map(int, each.read_text().split()[:2])) for each in threads)


def role(kind, number, endpoints, trainers, steps, strategy, parent, environment, log):
    """One process of a job. A trainer tells its parent when it is ready, trains when it is told,
    tells what it took, and ends when it is told. What it prints goes to the file `log`.
    """
    printed = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(printed, stream)
    os.environ.update(environment)
    warnings.simplefilter("ignore")
    from jfluid.incubate.fleet.base import role_maker
    from jfluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
    from jfluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy import (
        StrategyFactory,
    )

    import jfluid as fluid

    roles = role_maker.Role
    fleet.init(
        role_maker.UserDefinedRoleMaker(
            current_id=number,
            role=roles.SERVER if kind == "server" else roles.WORKER,
            worker_num=trainers,
            server_endpoints=endpoints,
        )
    )
    loss = network(fluid)
    create = getattr(StrategyFactory, "create_%s_strategy" % strategy)
    chosen = create(GEO_EVERY) if strategy == "geo" else create()
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.01), chosen).minimize(loss)
    if kind == "server":
        fleet.init_server()
        fleet.run_server()
        return
    fleet.init_worker()
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fleet.startup_program)
    feeds = list(batches(number))

    def train(count):
        for step in range(count):
            executor.run(fleet.main_program, feed=feeds[step % 16], fetch_list=[loss])

    train(WARM)
    parent.send("ready")
    parent.recv()
    parts, used, begin = fleet._communicator.seconds(), processor_seconds(), time.perf_counter()
    demanded = demanded_seconds()
    train(steps)
    took, used = time.perf_counter() - begin, processor_seconds() - used
    demanded = demanded_seconds() - demanded
    after = fleet._communicator.seconds()
    found = {
        "step": took / steps,
        "processor": used / steps,
        "demanded": demanded / steps,
        "parts": {name: (after[name] - parts.get(name, 0.0)) / steps for name in after},
    }
    parent.send(found)
    parent.recv()
    fleet.stop_worker()


def _free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found


def _used(process):
    """What another process has taken of the processors, in seconds."""
    words = Path("/proc/%d/stat" % process.pid).read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICKS


def _worked():
    """For how long this process's processors have worked, for whomever."""
    lines = Path("/proc/stat").read_text().splitlines()
    ours = {"cpu%d" % number for number in os.sched_getaffinity(0)}
    # user, nice, system, idle, waiting for a disk, interrupts of two kinds, stolen by other machines
    ticks = [list(map(int, w[1:9])) for w in map(str.split, lines) if w[:1] and w[0] in ours]
    return sum(sum(each[:3] + each[5:]) for each in ticks) / _TICKS


class _Left:
    """How many processors others leave to some processes."""

    def __init__(self, processes):
        self._processes = processes
        self._begin, self._others = time.perf_counter(), self._of_others()

    def _of_others(self):
        return _worked() - sum(map(_used, self._processes))

    def now(self):
        """On average since this object was made."""
        took = time.perf_counter() - self._begin
        others = max(self._of_others() - self._others, 0.0) / took
        return len(os.sched_getaffinity(0)) - others


def _answers(connections, log):
    """What each process tells."""
    found = []
    for connection in connections:
        try:
            if not connection.poll(_SECONDS_TO_ANSWER):
                raise EOFError
            found.append(connection.recv())
        except (EOFError, ConnectionError):
            raise SystemExit("a trainer did not answer:\n" + log.read()[-3000:]) from None
    return found


def _tell(connections):
    for connection in connections:
        connection.send("go on")


def measure(trainers, servers, steps, environment=None, strategy="sync"):
    """Seconds a step of one job. With GEO `steps` is a multiple of GEO_EVERY.

    Returns a dict: `step` on the clock, `processor` of one trainer, `demanded` by its threads together
    (while they worked or waited for a processor), `servers` of the processors by all servers
    together, `parts` of a trainer's step; and `left`: how many processors others left to the job.
    """
    endpoints = ["127.0.0.1:%d" % port for port in _free_ports(servers)]
    environment = {"CPU_NUM": "1", **(environment or {})}
    with tempfile.NamedTemporaryFile("r") as log:

        def start(kind, number):
            ours, theirs = _FORKS.Pipe()
            job = (kind, number, endpoints, trainers, steps, strategy)
            given = (*job, theirs, environment, log.name)
            process = _FORKS.Process(target=role, args=given, daemon=True)
            process.start()
            theirs.close()
            return process, ours

        started = [start("server", number) for number in range(servers)]
        started += [start("trainer", number) for number in range(trainers)]
        processes, connections = zip(*started, strict=True)
        serving, training = processes[:servers], connections[servers:]
        try:
            _answers(training, log)
            before, left = sum(map(_used, serving)), _Left(processes)
            _tell(training)
            found = _answers(training, log)
            processors = left.now()
            used = sum(map(_used, serving)) - before
            _tell(training)
            for process in processes[servers:]:
                process.join(_SECONDS_TO_ANSWER)
        finally:
            for process, connection in started:
                process.kill()
                process.join()
                connection.close()

    def mean(values):
        return float(np.mean(list(values)))

    return {
        "trainers": trainers,
        "count": servers,
        "step": mean(one["step"] for one in found),
        "processor": mean(one["processor"] for one in found),
        "demanded": mean(one["demanded"] for one in found),
        "servers": used / steps,
        "left": processors,
        "parts": {name: mean(one["parts"][name] for one in found) for name in found[0]["parts"]},
    }


_FORKS.set_forkserver_preload(list(_IMPORTED))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainers", type=int, nargs="+", default=[1])
    parser.add_argument("--servers", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--strategy", choices=STRATEGIES, default="sync")
    options = parser.parse_args()
    for trainers in options.trainers:
        for servers in options.servers:
            found = measure(trainers, servers, options.steps, strategy=options.strategy)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

"""What parameter servers cost a job: each strategy in turn with the same training without servers, and
with Fluid's (Python 3.7 syntax: Fluid 1.8.5 runs the trainers and servers of its jobs here, too).

    python benchmarks/servers.py [--fluid PYTHON]        one server, one trainer, all strategies
    python benchmarks/servers.py --jobs 1+1 2+1 4+2      trainers + servers
    python benchmarks/servers.py --where                 where a step's time goes, and a server's
    python benchmarks/servers.py --json FILE             the figures, too

A click model (26 slots of ids below a million, batches of 512, three layers of 400, SGD). Processes stay
alive and train `--steps` each, one job after the other, `--rounds` times; the ratios are medians of
rounds. Strategies run one after the other: where other programs take the cores at times, processor
time compares two of them, and the clock does not. "tcp" is a job of jfluid. GEO exchanges every 20 steps.

--where: a step of a trainer is rows + feed + compute + gradients + exchange + install; its feed is made
ready while it waits for servers, within rows or exchange. Its calls, there or in a thread beside the
steps, are encode + call + decode; of the call the servers spend parse + apply + read + reply, and the
wire (gRPC, threads, copies of messages) has the rest.
"""

import argparse
import importlib
import json
import os
import resource
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import noisy_neighbours
import numpy as np

SLOTS, BATCH, VOCABULARY, WIDTH, FEEDS = 26, 512, 1000001, 10, 16
STRATEGIES = ("sync", "half_async", "async", "geo")
GEO_EVERY = 20
WARM_UP = 2 * GEO_EVERY
_ENDS_S = 5.0  # without servers of ours, which Fluid's are not: they do not end by themselves
TICK = 1.0 / os.sysconf("SC_CLK_TCK")


# ---- the model ----


def model(fluid):
    """The loss of the click model."""
    dense = fluid.layers.data("dense", [13], dtype="float32")
    ids = [fluid.layers.data("C%d" % i, [1], dtype="int64", lod_level=1) for i in range(SLOTS)]
    label = fluid.layers.data("label", [1], dtype="int64")
    table = fluid.ParamAttr(name="table", initializer=fluid.initializer.Uniform())
    rows = [fluid.layers.embedding(i, [VOCABULARY, WIDTH], is_sparse=True, param_attr=table) for i in ids]
    hidden = fluid.layers.concat([fluid.layers.sequence_pool(r, "sum") for r in rows] + [dense], axis=1)
    for _ in range(3):
        hidden = fluid.layers.fc(hidden, 400, act="relu")
    predicted = fluid.layers.fc(hidden, 2, act="softmax")
    return fluid.layers.reduce_mean(fluid.layers.cross_entropy(predicted, label))


def batches(fluid, seed):
    """Batches that are trained again and again."""
    random = np.random.RandomState(seed)
    for _ in range(FEEDS):
        dense = random.rand(BATCH, 13).astype("float32")
        feed = {"dense": dense, "label": (dense.sum(1) > 6.5).astype("int64")[:, None]}
        for i in range(SLOTS):
            ids = np.minimum(random.zipf(1.2, (BATCH, 1)), VOCABULARY - 1).astype("int64")
            feed["C%d" % i] = fluid.create_lod_tensor(ids, [[1] * BATCH], fluid.CPUPlace())
        yield feed


# ---- a process of a job ----


def begin(engine, strategy, kind, number, endpoints, trainers):
    """(a function that trains a step on a feed, feeds, one that returns seconds by part of a step,
    one that ends); nothing of a server, when it has served.
    """
    fluid = importlib.import_module(engine)
    exe = fluid.Executor(fluid.CPUPlace())
    feeds = list(batches(fluid, number))
    if strategy == "local":
        loss = model(fluid)
        fluid.optimizer.SGD(0.01).minimize(loss)
        exe.run(fluid.default_startup_program())
        return _step(exe, fluid.default_main_program(), loss), feeds, dict, lambda: None
    makers = importlib.import_module(engine + ".incubate.fleet.base.role_maker")
    base = engine + ".incubate.fleet.parameter_server.distribute_transpiler"
    fleet = importlib.import_module(base).fleet
    factory = importlib.import_module(base + ".distributed_strategy").StrategyFactory
    create = getattr(factory, "create_%s_strategy" % strategy)
    chosen = create(GEO_EVERY) if strategy == "geo" else create()
    fleet.init(
        makers.UserDefinedRoleMaker(
            current_id=number,
            role=makers.Role.SERVER if kind == "server" else makers.Role.WORKER,
            worker_num=trainers,
            server_endpoints=endpoints.split(","),
        )
    )
    loss = model(fluid)
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.01), chosen).minimize(loss)
    if kind == "server":
        fleet.init_server()
        fleet.run_server()
        return None
    fleet.init_worker()
    exe.run(fleet.startup_program)
    program = fluid.CompiledProgram(fleet.main_program).with_data_parallel(
        loss_name=loss.name,
        build_strategy=chosen.get_build_strategy(),
        exec_strategy=chosen.get_execute_strategy(),
    )
    parts = getattr(fleet._communicator, "seconds", dict)
    return _step(exe, program, loss), feeds, parts, fleet.stop_worker


def _step(exe, program, loss):
    return lambda feed: exe.run(program, feed=feed, fetch_list=[loss.name])


def spent():
    """Processor seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def work(engine, strategy, kind, number, endpoints, trainers):
    """Be one process of a job; a trainer answers numbers of steps with what they took."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    begun = begin(engine, strategy, kind, int(number), endpoints, int(trainers))
    if begun is None:
        return
    step, feeds, parts, end = begun
    done = 0
    for line in sys.stdin:
        before, cpu, start = parts() if done else {}, spent(), time.perf_counter()
        for _ in range(int(line)):
            step(feeds[done % FEEDS])
            done += 1
        seconds, cpu, after = time.perf_counter() - start, spent() - cpu, parts()
        found = {part: after[part] - before.get(part, 0.0) for part in after}
        out.write(json.dumps({"s": seconds, "cpu_s": cpu, "parts": found}) + "\n")
        out.flush()
    end()


# ---- a job ----


def free_ports(count):
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found


def free_run(count):
    """The first of so many consecutive ports that nobody listens on."""
    while True:
        (first,) = free_ports(1)
        sockets = [socket.socket() for _ in range(count)]
        try:
            for number, each in enumerate(sockets):
                each.bind(("127.0.0.1", first + number))
            return first
        except (OSError, OverflowError):  # one is taken, or there are no more
            continue
        finally:
            for each in sockets:
                each.close()


def processor_seconds(pid):
    """Processor seconds of another process."""
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


def served_seconds(ports):
    """Seconds by part of calls, of all servers of this engine together, that answer metrics there."""
    if not ports:
        return {}
    from jfluid.security import secret

    token = secret.metrics_token(secret.job_secret())
    found = {}
    for port in ports:
        request = urllib.request.Request(
            "http://127.0.0.1:%d/metrics" % port, headers={"Authorization": "Bearer " + token}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("jfluid_ps_part_seconds_total{"):
                    part, seconds = line.split('"')[1], float(line.rsplit(" ", 1)[1])
                    found[part] = found.get(part, 0.0) + seconds
    return found


class NoAnswerError(Exception):
    """A trainer did not end its steps in time."""


class Job:
    """A job whose processes wait for numbers of steps.

    Args:
        engine: "jfluid" or "paddle.fluid".
        strategy: one of STRATEGIES; "local" trains without servers, in as many processes that know
            nothing of each other.
        limit_s: how long `train` waits, with the start of the processes, before it raises
            NoAnswerError.
        variables: of the environment of all processes.
    """

    def __init__(
        self,
        engine,
        strategy,
        trainers=1,
        servers=1,
        python=sys.executable,
        limit_s=600.0,
        **variables,
    ):
        self.trainers, self._log = trainers, tempfile.TemporaryFile("w+")
        self._rests = engine != "jfluid"
        self._limit_s = limit_s
        self._has_trained = False
        endpoints = ",".join("127.0.0.1:%d" % port for port in free_ports(servers))
        env = dict(os.environ, CPU_NUM="1", PYTHONWARNINGS="ignore", **variables)
        if engine == "jfluid":
            env["PYTHONPATH"] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        command = [python, os.path.abspath(__file__), "--role", engine, strategy]
        self._metrics = []
        if engine == "jfluid" and strategy != "local":
            first = free_run(servers)  # a server takes the port of its number from there on
            self._metrics = list(range(first, first + servers))
            env["JFLUID_PS_METRICS_PORT"] = str(first)

        def start(kind, number):
            return subprocess.Popen(
                command + [kind, str(number), endpoints, str(trainers)],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                universal_newlines=True,
            )

        count = 0 if strategy == "local" else servers
        self.serving = [start("server", i) for i in range(count)]
        self._training = [start("trainer", i) for i in range(trainers)]

    def train(self, steps):
        """Have each trainer train so many steps. Returns {"ms": of a step, "cpu_ms": processor time
        of a trainer's step, "server_cpu_ms": of each server for a step of one trainer, "parts": ms
        of a step}.
        """
        before = [processor_seconds(each.pid) for each in self.serving]
        # before the first steps servers may not listen yet
        spent_before = served_seconds(self._metrics) if self._has_trained else {}
        self._has_trained = True
        for each in self._training:
            each.stdin.write("%d\n" % steps)
            each.stdin.flush()
        end = time.monotonic() + self._limit_s
        lines = [self._answer(each.stdout, end) for each in self._training]
        if not all(lines):
            self._log.seek(0)
            raise SystemExit("a job failed:\n" + self._log.read()[-3000:])
        found = [json.loads(line) for line in lines]
        served = [processor_seconds(s.pid) - b for s, b in zip(self.serving, before)]
        each = 1e3 / steps / self.trainers
        parts = {p: each * sum(f["parts"][p] for f in found) for p in found[0]["parts"]}
        # a call waits for the slowest server: on average that of the mean server
        share = each / max(len(self._metrics), 1)
        for part, seconds in served_seconds(self._metrics).items():
            parts["server's " + part] = share * (seconds - spent_before.get(part, 0.0))
        return {
            "ms": 1e3 / steps * max(f["s"] for f in found),
            "cpu_ms": each * sum(f["cpu_s"] for f in found),
            "server_cpu_ms": [each * seconds for seconds in served],
            "parts": parts,
        }

    def rest(self, rests):
        """Stop the processes until another job has had its turn, or let them go on: an asynchronous
        trainer of Fluid that has nothing to do keeps a core busy. Ours wait, and are left alone.
        """
        if self._rests:
            for each in self._training + self.serving:
                each.send_signal(signal.SIGSTOP if rests else signal.SIGCONT)

    def _answer(self, stdout, end):
        """The line of a trainer. It writes one for each that it reads, so none waits in the file."""
        if not select.select([stdout], [], [], max(end - time.monotonic(), 0.0))[0]:
            raise NoAnswerError
        return stdout.readline()

    def end(self):
        """Have trainers end, and so servers, without waiting for them."""
        self.rest(False)
        for each in self._training:
            each.stdin.close()

    def close(self):
        """End all processes; kill those that have not ended in time."""
        self.end()
        wait_s = 60.0 if self._metrics else _ENDS_S
        end = time.monotonic() + wait_s
        for each in self._training + self.serving:
            try:
                each.wait(max(end - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
            each.stdout.close()
        self._log.close()


def in_turn(jobs, rounds, steps, machine=None):
    """Train all jobs in turn. Returns by name what each round found (see Job.train). A job of Fluid
    that does not answer is ended and left out.

    Args:
        machine: says whether something slows it (see `noisy_neighbours.py`).
    """
    found, machine = {name: [] for name in jobs}, machine or noisy_neighbours.here()

    def train(name, count):
        if name not in found:
            return
        try:
            jobs[name].rest(False)
            found[name].append(machine.undisturbed(lambda: jobs[name].train(count)))
            jobs[name].rest(True)
        except NoAnswerError:
            print("%s: no answer in time, left out" % name, file=sys.stderr)
            jobs[name].close()
            del found[name]
            if name != "fluid":
                raise SystemExit("a job did not answer") from None

    for name in jobs:
        train(name, WARM_UP)
    for found_so_far in found.values():
        found_so_far.clear()
    for turn in range(rounds):
        for name in list(jobs) if turn % 2 else list(jobs)[::-1]:
            train(name, steps)
    return found


def middle(rounds, key):
    """The median of rounds."""
    return statistics.median(found[key] for found in rounds)


def spread(ours, theirs):
    """{"ratio": the median of ours / theirs, round by round, "low", "high"}."""
    ratios = sorted(a["ms"] / b["ms"] for a, b in zip(ours, theirs))
    return {"ratio": statistics.median(ratios), "low": ratios[0], "high": ratios[-1]}


def train_all(local, strategy, trainers, servers, options):
    """Return the figures of each round by job: "local", which runs already, "tcp" and "fluid".

    Strategies run one at a time: together they would need the memory of fifty processes.
    """
    jobs = {"local": local, "tcp": Job("jfluid", strategy, trainers, servers)}
    if options.fluid:
        jobs["fluid"] = Job("paddle.fluid", strategy, trainers, servers, options.fluid, options.fluid_limit)
    try:
        return in_turn(jobs, options.rounds, options.steps)
    finally:
        mine = [job for name, job in jobs.items() if name != "local"]
        for job in mine:  # all at the same time
            job.end()
        for job in mine:
            job.close()


def measure(trainers, servers, options):
    """Figures by strategy and transport of jobs of one size."""
    alone = Job("jfluid", "local", trainers)
    try:
        every = {s: train_all(alone, s, trainers, servers, options) for s in options.strategies}
    finally:
        alone.close()
    local = [one for found in every.values() for one in found["local"]]
    figures = {"local": {k: middle(local, k) for k in ("ms", "cpu_ms")}}
    for strategy, found in every.items():
        for way in ("tcp", "fluid"):
            rounds = found.get(way)
            if rounds is None:
                continue
            one = {key: middle(rounds, key) for key in ("ms", "cpu_ms")}
            one["server_cpu_ms"] = statistics.median(sum(r["server_cpu_ms"]) for r in rounds)
            one["examples_s"] = trainers * BATCH / one["ms"] * 1e3
            one["to_local"] = spread(rounds, found["local"])
            if "fluid" in found and way != "fluid":
                one["to_fluid"] = spread(found["fluid"], rounds)
            parts = rounds[0]["parts"]
            one["parts"] = {p: statistics.median(r["parts"][p] for r in rounds) for p in parts}
            figures["%s, %s" % (strategy, way)] = one
    return figures


def show(figures, where):
    """Print the figures of jobs of one size."""
    local = figures["local"]
    print("%-20s %8.2f ms, processor %6.2f ms" % ("local", local["ms"], local["cpu_ms"]))
    for name, one in figures.items():
        if name == "local":
            continue
        line = "%-20s %8.2f ms, processor %6.2f + servers %5.2f ms (%.2f x), %7.0f examples/s" % (
            name,
            one["ms"],
            one["cpu_ms"],
            one["server_cpu_ms"],
            (one["cpu_ms"] + one["server_cpu_ms"]) / local["cpu_ms"],
            one["examples_s"],
        )
        line += ", %.2f x local (%.2f to %.2f)" % tuple(one["to_local"][k] for k in _SPREAD)
        if "to_fluid" in one:
            line += ", Fluid takes %.2f x (%.2f to %.2f)" % tuple(one["to_fluid"][k] for k in _SPREAD)
        print(line)
        if where and "rows" in one["parts"]:
            for names in (_STEP, _CALL, _SERVER):
                print("    " + " + ".join("%s %.2f" % (p, one["parts"].get(p, 0.0)) for p in names))
    sys.stdout.flush()


_SPREAD = ("ratio", "low", "high")
_STEP = ("rows", "feed", "compute", "gradients", "exchange", "install")
_CALL = ("encode", "call", "decode")
_SERVER = ("server's parse", "server's apply", "server's read", "server's reply")


def main():
    if sys.argv[1:2] == ["--role"]:
        work(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--fluid", metavar="PYTHON", help="an interpreter that can import paddle.fluid")
    add("--fluid-limit", type=float, default=120.0, help="seconds of a round of Fluid's job")
    add("--jobs", nargs="+", default=["1+1"], metavar="TRAINERS+SERVERS")
    add("--strategies", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    add("--rounds", type=int, default=5)
    add("--steps", type=int, default=2 * GEO_EVERY, help="of a round; GEO: a multiple of 20")
    add("--where", action="store_true", help="also where a step's time goes")
    add("--json", metavar="FILE", help="also write the figures to a file")
    options = parser.parse_args()
    every = {}
    for size in options.jobs:
        trainers, servers = map(int, size.split("+"))
        print("%d trainers, %d servers, %d cores" % (trainers, servers, os.cpu_count()))
        every[size] = measure(trainers, servers, options)
        show(every[size], options.where)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(every, file, indent=1)


if __name__ == "__main__":
    main()

"""Jobs in one process: servers are threads, trainers are the test, with programs, scopes and
executors of their own.
"""

import contextlib
import functools
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import jfluid as fluid
import jfluid.ps_server.kernels  # Numba cannot be imported by two threads at once
from jfluid import layers
from jfluid.distributed import checkpoint
from jfluid.distributed.programs import trainer_program
from jfluid.distributed.wire import connections
from tests.ports import free_endpoints

VOCABULARY, ROWS = 40, 12  # of `net`
HEIGHT, WIDTH, SLOTS = 97, 4, 2  # of `click_model`
WIDE, WIDE_ROWS, WIDE_IDS = 256, 96, 16  # of `wide_net`
OPTIMIZERS = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "momentum": lambda: fluid.optimizer.Momentum(0.05, 0.9),
    "adam": lambda: fluid.optimizer.Adam(0.01),
    "adagrad": lambda: fluid.optimizer.Adagrad(0.05, initial_accumulator_value=0.1),
    "rmsprop": lambda: fluid.optimizer.RMSProp(0.01),
    "lamb": lambda: fluid.optimizer.Lamb(0.01),
    "decayed": lambda: fluid.optimizer.Adam(0.01, regularization=fluid.regularizer.L2Decay(0.01)),
    "decay": lambda: fluid.optimizer.Adam(layers.exponential_decay(0.05, 3, 0.5)),
}


# ---- programs: a function that builds one into the default programs gives (loss, whatever else)
# ----


def numbers(*shape):
    """A parameter that begins as the same small numbers in every process."""
    values = (np.random.RandomState(sum(shape)).rand(*shape).astype("float32") - 0.5) * 0.4
    return fluid.initializer.NumpyArrayInitializer(values)


def net(kind, optimizer, servers=True, own_state=False):
    """What builds (loss, prediction) of a regression on x [N, 6], ids [N, 1], y [N, 1]; its table
    is "dense", "sparse" or "distributed" (sparse without servers). With `own_state` trainers have
    running statistics and random numbers."""

    def build():
        ids = fluid.data("ids", [None, 1], dtype="int64")
        first = fluid.initializer.Constant(0.1) if kind == "distributed" else numbers(VOCABULARY, 4)
        rows = fluid.embedding(
            ids,
            [VOCABULARY, 4],
            is_sparse=kind != "dense",
            is_distributed=servers and kind == "distributed",
            param_attr=fluid.ParamAttr("table", initializer=first),
        )
        x = layers.concat([fluid.data("x", [None, 6]), layers.reshape(rows, [-1, 4])], axis=1)
        if own_state:
            fluid.default_main_program().random_seed = 7
            x = layers.dropout(layers.batch_norm(x, momentum=0.8), 0.2)
        hidden = layers.fc(
            x,
            8,
            act="tanh",
            param_attr=fluid.ParamAttr("w1", initializer=numbers(10, 8)),
            bias_attr="b1",
        )
        predicted = layers.fc(hidden, 1, param_attr=fluid.ParamAttr("w2", initializer=numbers(8, 1)), bias_attr="b2")
        loss = layers.mean(layers.square_error_cost(predicted, fluid.data("y", [None, 1])))
        OPTIMIZERS[optimizer]().minimize(loss)
        return loss, predicted

    return build


def batch(step):
    """A batch of `net`. Some ids are in the rows of several trainers."""
    random = np.random.RandomState(1000 + step)
    x, ids = random.rand(ROWS, 6).astype("float32"), random.randint(0, VOCABULARY // 2, [ROWS, 1])
    return {
        "x": x,
        "ids": ids,
        "y": (x.sum(1, keepdims=True) - 3 + 0.1 * (ids % 3)).astype("float32"),
    }


def batches(*steps):
    """Batches of `net`; `steps` as of `range`."""
    return [batch(step) for step in range(*steps)]


def wide_net(kind, optimizer="adam"):
    """What builds (loss, prediction) of a regression on x [N, 6], ids [N, 16], y [N, 1], where
    messages between two trainers and two servers have more than 64 KiB; its table is as that of
    `net`."""

    def build():
        ids = fluid.data("ids", [None, WIDE_IDS], dtype="int64")
        first = fluid.initializer.Constant(0.1) if kind == "distributed" else numbers(10 * WIDE, 64)
        rows = fluid.embedding(
            ids,
            [10 * WIDE, 64],
            is_sparse=kind != "dense",
            is_distributed=kind == "distributed",
            param_attr=fluid.ParamAttr("table", initializer=first),
        )
        x = layers.concat([fluid.data("x", [None, 6]), layers.reduce_mean(rows, dim=1)], axis=1)
        for name, size in (("w1", 70), ("w2", WIDE)):
            weight = fluid.ParamAttr(name, initializer=numbers(size, WIDE))
            x = layers.fc(x, WIDE, act="tanh", param_attr=weight, bias_attr=f"{name}_bias")
        predicted = layers.fc(
            x,
            1,
            param_attr=fluid.ParamAttr("w3", initializer=numbers(WIDE, 1)),
            bias_attr="w3_bias",
        )
        loss = layers.mean(layers.square_error_cost(predicted, fluid.data("y", [None, 1])))
        OPTIMIZERS[optimizer]().minimize(loss)
        return loss, predicted

    return build


def wide_batch(step):
    """A batch of `wide_net`."""
    random = np.random.RandomState(1000 + step)
    x, ids = (
        random.rand(WIDE_ROWS, 6).astype("float32"),
        random.randint(0, 5 * WIDE, [WIDE_ROWS, WIDE_IDS]),
    )
    return {
        "x": x,
        "ids": ids,
        "y": (x.sum(1, keepdims=True) - 3 + 0.1 * (ids[:, :1] % 3)).astype("float32"),
    }


def share(feed, trainer, trainers):
    """One trainer's rows of a batch."""
    return {n: v[trainer * len(v) // trainers : (trainer + 1) * len(v) // trainers] for n, v in feed.items()}


def click_model(optimizer, distributed=False, ragged=True, read=False):
    """(loss, prediction, data, loader) of a click model: pooled rows of one table, and dense
    features.
    """

    def uniform(seed, name=None):
        return fluid.ParamAttr(name, initializer=fluid.initializer.Uniform(-0.3, 0.3, seed=seed))

    dense = fluid.data("dense", [None, 3], "float32")
    slots = [fluid.data(f"slot{i}", [None, 1], "int64", lod_level=int(ragged)) for i in range(SLOTS)]
    label = fluid.data("label", [None, 1], "int64")
    data = [dense, *slots, label]
    loader = fluid.io.DataLoader.from_generator(data, capacity=2, iterable=False) if read else None
    rows = [
        layers.embedding(
            s,
            [HEIGHT, WIDTH],
            is_sparse=True,
            is_distributed=distributed,
            param_attr=uniform(3, "table"),
        )
        for s in slots
    ]
    pooled = [layers.sequence_pool(r, "sum") for r in rows] if ragged else rows
    hidden = layers.fc(layers.concat([*pooled, dense], axis=1), 8, act="relu", param_attr=uniform(5))
    predict = layers.fc(hidden, 2, act="softmax", param_attr=uniform(7))
    loss = layers.mean(layers.cross_entropy(predict, label))
    optimizer().minimize(loss)
    return loss, predict, data, loader


def clicks(step, size=8, ragged=True):
    """A batch of `click_model`; in each slot sequences of 1 to 3 ids."""
    random = np.random.default_rng(step)
    dense = random.random((size, 3), dtype=np.float32)
    feed = {"dense": dense, "label": (dense.sum(1, keepdims=True) > 1.5).astype(np.int64)}
    for i in range(SLOTS):
        lengths = random.integers(1, 4, size) if ragged else np.ones(size, np.int64)
        ids = random.integers(0, HEIGHT, (int(lengths.sum()), 1))
        feed[f"slot{i}"] = fluid.create_lod_tensor(ids, [lengths.tolist()]) if ragged else ids
    return feed


# ---- jobs ----


@contextlib.contextmanager
def programs():
    """Empty default programs, and names from 0."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        yield


def transpile(build, endpoints, trainer=0, trainers=1, sync=True, smallest=8, **config):
    """(transpiler, the trainer's startup program, what `build` returned); `config` is of
    DistributeTranspilerConfig.
    """
    with programs():
        built = build()
        settings = fluid.DistributeTranspilerConfig()
        for name, value in {"wait_port": False, "sync_mode": sync, **config}.items():
            setattr(settings, name, value)
        transpiler = fluid.DistributeTranspiler(settings)
        transpiler.config.min_block_size = smallest
        transpiler.transpile(trainer, pservers=",".join(endpoints), trainers=trainers, sync_mode=sync)
        return transpiler, fluid.default_startup_program(), built


@dataclass
class Trainer:
    """A trainer's programs and what it runs them with.

    Attributes:
        built: what was returned by what built the program; first its loss.
        endpoints: what it takes for the servers'.
    """

    number: int
    main: fluid.Program
    startup: fluid.Program
    built: Any
    endpoints: list[str]
    scope: fluid.Scope = field(default_factory=fluid.Scope)
    executor: fluid.Executor = field(default_factory=lambda: fluid.Executor(fluid.CPUPlace()))

    def run(self, feed, fetches=None):
        return self.executor.run(self.main, feed=feed, fetch_list=fetches or [self.built[0]], scope=self.scope)

    def parameters(self):
        return parameters(self.main, self.scope)


def parameters(program, scope=None):
    """All parameters of a program by name: of a scope (the global one), and tables that trainers
    have not whole of servers.
    """
    scope, asked = scope or fluid.global_scope(), trainer_program.read(program)
    tables = served(program, asked.tables) if asked else {}
    return {
        p.name: np.array(scope.find_var(p.name).get_tensor()) for p in program.all_parameters() if p.name not in tables
    } | tables


def served(program, names=None):
    """Parameters (all by default) of a trainer's program by name, as its servers have them."""
    asked = trainer_program.read(program)
    connection = connections.connect(asked)
    names = [p.name for p in program.all_parameters()] if names is None else names
    pieces = [piece.name for n in names if n not in asked.tables for piece in connection.params[n].pieces]
    pulled = connection.client.pull(blocks=pieces).blocks if pieces else {}
    return {
        n: connection.client.look_up(n, np.arange(program.global_block().var(n).shape[0]))
        if n in asked.tables
        else connection.params[n].join(pulled)
        for n in names
    }


def listens(endpoint):
    host, _, port = endpoint.rpartition(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0


class Job:
    """A job with servers. A trainer that is not closed when the job ends says goodbye.

    Args:
        build: builds the program.
        load: a folder that the servers begin with.
        through: `through(endpoint, trainer)` is what a trainer takes a server's endpoint for.
        options: of `transpile`.
    """

    def __init__(self, build, servers=1, trainers=1, load=None, through=None, **options):
        self.endpoints = free_endpoints(servers)
        self._build, self._load, self._options = build, load, {"trainers": trainers, **options}
        self.errors = []
        self._threads = [threading.Thread(target=self._serve, daemon=True, args=self.server(n)) for n in range(servers)]
        self._through = through or (lambda endpoint, trainer: endpoint)
        self.trainers = [self.trainer(number) for number in range(trainers)]

    def server(self, number):
        """(program, startup program) of a server."""
        return self._transpiler.get_pserver_programs(self.endpoints[number])

    @functools.cached_property
    def _transpiler(self):
        return transpile(self._build, self.endpoints, **self._options)[0]

    def trainer(self, number):
        """A new trainer."""
        endpoints = [self._through(endpoint, number) for endpoint in self.endpoints]
        transpiler, startup, built = transpile(self._build, endpoints, number, **self._options)
        return Trainer(number, transpiler.get_trainer_program(wait_port=False), startup, built, endpoints)

    def _serve(self, program, startup):
        try:
            executor, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
            executor.run(startup, scope=scope)
            if self._load is not None:
                checkpoint.load(self._load, program, executor, scope)
            executor.run(program, scope=scope)
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        for endpoint, thread in zip(self.endpoints, self._threads, strict=True):
            # a first call of a server that does not listen yet is called again only after half a second
            while thread.is_alive() and not listens(endpoint):
                time.sleep(0.005)
        self._pool = ThreadPoolExecutor(len(self.trainers))
        return self

    def __exit__(self, kind, *_):
        for trainer in self.trainers:
            if kind is None:
                trainer.executor.close()
            elif connection := connections._connections.pop((tuple(trainer.endpoints), trainer.number), None):
                connection.client.close()
        if kind is None:
            for thread in self._threads:
                # it takes half a minute where all that a trainer said last was lost
                thread.join(180)
                assert not thread.is_alive(), "a server has not ended with its trainers"
            assert self.errors == []
        self._pool.shutdown(wait=kind is None)

    def each(self, function):
        """`function(trainer)` of all, at the same time. Raises what a server raised."""
        futures = [self._pool.submit(function, trainer) for trainer in self.trainers]
        while wait(futures, 0.2).not_done:
            if self.errors:
                raise self.errors[0]
        return [future.result() for future in futures]

    def begin(self):
        self.each(lambda t: t.executor.run(t.startup, scope=t.scope))

    def steps(self, feeds):
        """The losses of batches, of which each trainer takes its share: the mean over all
        trainers.
        """

        def train(trainer):
            return [trainer.run(share(feed, trainer.number, len(self.trainers)))[0] for feed in feeds]

        feeds = list(feeds)
        return np.mean(self.each(train), axis=0).reshape(-1)

    def save(self, folder):
        """Save everything in a folder; its path."""
        trainer = self.trainers[0]
        with fluid.scope_guard(trainer.scope):
            fluid.io.save_persistables(trainer.executor, str(folder), trainer.main)
        return str(folder)

    def parameters(self):
        """All parameters as the first trainer has them, and tables as servers have them."""
        return self.trainers[0].parameters()


@contextlib.contextmanager
def trainer_of(build, sync=True, **options):
    """A job of one server and one trainer, whose scope is the global one, that ran its startup
    program.

    Gives (executor, program, what `build` returned).
    """
    with Job(build, sync=sync, **options) as job:
        job.begin()
        (trainer,) = job.trainers
        with fluid.scope_guard(trainer.scope):
            yield trainer.executor, trainer.main, trainer.built


def alone(build, feeds, load=None, save=None):
    """(losses, parameters) of one process without servers; `load` and `save` are folders."""
    with programs():
        loss, *_ = build()
        scope, executor = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
        with fluid.scope_guard(scope):
            executor.run(fluid.default_startup_program())
            if load is not None:
                fluid.io.load_persistables(executor, load, fluid.default_main_program())
            losses = [executor.run(feed=feed, fetch_list=[loss])[0] for feed in feeds]
            if save is not None:
                fluid.io.save_persistables(executor, save)
        return np.array(losses).reshape(-1), parameters(fluid.default_main_program(), scope)

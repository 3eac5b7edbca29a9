"""Whole jobs in one process: servers and trainers are threads, with programs, scopes and executors of their own."""
import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np

import jfluid as fluid
from jfluid.distributed import links

VOCABULARY, ROWS = 40, 12
OPTIMIZERS = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "momentum": lambda: fluid.optimizer.Momentum(0.05, 0.9),
    "adam": lambda: fluid.optimizer.Adam(0.01),
    "adagrad": lambda: fluid.optimizer.Adagrad(0.05, initial_accumulator_value=0.1),
    "rmsprop": lambda: fluid.optimizer.RMSProp(0.01),
    "lamb": lambda: fluid.optimizer.Lamb(0.01),
    "decayed": lambda: fluid.optimizer.Adam(0.01, regularization=fluid.regularizer.L2Decay(0.01)),
    "decay": lambda: fluid.optimizer.Adam(fluid.layers.exponential_decay(0.05, 3, 0.5)),
}


def numbers(*shape):
    """A parameter that begins as the same small numbers in every process."""
    values = (np.random.RandomState(sum(shape)).rand(*shape).astype("float32") - 0.5) * 0.4
    return fluid.initializer.NumpyArrayInitializer(values)


def net(kind, servers=True):
    """(loss, prediction) of a click model on x [N, 6], ids [N, 1], y [N, 1]; its table is "dense", "sparse" or "distributed"
    (sparse without servers)."""
    ids = fluid.data("ids", [None, 1], dtype="int64")
    first = fluid.initializer.Constant(0.1) if kind == "distributed" else numbers(VOCABULARY, 4)
    rows = fluid.embedding(ids, [VOCABULARY, 4], is_sparse=kind != "dense", is_distributed=servers and kind == "distributed",
                           param_attr=fluid.ParamAttr("table", initializer=first))
    x = fluid.layers.concat([fluid.data("x", [None, 6]), fluid.layers.reshape(rows, [-1, 4])], axis=1)
    hidden = fluid.layers.fc(x, 8, act="tanh", param_attr=fluid.ParamAttr("w1", initializer=numbers(10, 8)), bias_attr="b1")
    predicted = fluid.layers.fc(hidden, 1, param_attr=fluid.ParamAttr("w2", initializer=numbers(8, 1)), bias_attr="b2")
    return fluid.layers.mean(fluid.layers.square_error_cost(predicted, fluid.data("y", [None, 1]))), predicted


def batch(step, trainer=0, trainers=1):
    """One trainer's rows of a batch. Some ids are in the rows of several trainers."""
    random = np.random.RandomState(1000 + step)
    x, ids = random.rand(ROWS, 6).astype("float32"), random.randint(0, VOCABULARY // 2, [ROWS, 1])
    y = (x.sum(1, keepdims=True) - 3 + 0.1 * (ids % 3)).astype("float32")
    mine = slice(trainer * ROWS // trainers, (trainer + 1) * ROWS // trainers)
    return {"x": x[mine], "ids": ids[mine], "y": y[mine]}


def ports(count):
    """Free ports of this machine."""
    with contextlib.ExitStack() as sockets:
        found = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


@contextlib.contextmanager
def programs():
    """Empty default programs, and names from 0."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        yield


@dataclass
class Trainer:
    """A trainer's programs and what it runs them with."""

    number: int
    main: fluid.Program
    startup: fluid.Program
    predicted: str
    loss: str
    scope: fluid.Scope = field(default_factory=fluid.Scope)
    executor: fluid.Executor = field(default_factory=lambda: fluid.Executor(fluid.CPUPlace()))

    def run(self, feed, fetches=None):
        return self.executor.run(self.main, feed=feed, fetch_list=fetches or [self.loss], scope=self.scope)


class Job:
    """A job with servers.

    Args:
        kind, optimizer: of `net` and `OPTIMIZERS`.
        load: a folder that the servers begin with.
        config: fields of DistributeTranspilerConfig.
    """

    def __init__(self, kind, optimizer, servers=1, trainers=1, sync=True, load=None, smallest=8, **config):
        self.endpoints = [f"127.0.0.1:{port}" for port in ports(servers)]
        self._kind, self._optimizer, self._count, self._sync = kind, optimizer, trainers, sync
        self._smallest, self._config, self._load = smallest, config, load
        self.errors = []
        self.scopes = [fluid.Scope() for _ in range(servers)]
        made = [self.transpiled().get_pserver_programs(endpoint) for endpoint in self.endpoints]
        self._threads = [threading.Thread(target=self._serve, daemon=True, args=[number, *pair])
                         for number, pair in enumerate(made)]
        self.trainers = [self._trainer(number) for number in range(trainers)]

    def transpiled(self, trainer=0):
        """A transpiler of the net, in new default programs; `self.made` is (main, startup, predicted, loss)."""
        with programs():
            loss, predicted = net(self._kind)
            OPTIMIZERS[self._optimizer]().minimize(loss)
            config = fluid.DistributeTranspilerConfig()
            for name, value in {"wait_port": False, "sync_mode": self._sync, **self._config}.items():
                setattr(config, name, value)
            transpiler = fluid.DistributeTranspiler(config)
            transpiler.config.min_block_size = self._smallest
            self.made = fluid.default_main_program(), fluid.default_startup_program(), predicted.name, loss.name
            transpiler.transpile(trainer, pservers=",".join(self.endpoints), trainers=self._count, sync_mode=self._sync)
        return transpiler

    def _trainer(self, number):
        self.transpiled(number).get_trainer_program(wait_port=False)
        return Trainer(number, *self.made)

    def _serve(self, number, program, startup):
        try:
            executor = fluid.Executor(fluid.CPUPlace())
            executor.run(startup, scope=self.scopes[number])
            if self._load is not None:
                from jfluid.distributed import checkpoint
                checkpoint.load(self._load, program, executor, self.scopes[number])
            executor.run(program, scope=self.scopes[number])
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        self._pool = ThreadPoolExecutor(len(self.trainers))
        return self

    def __exit__(self, kind, *_):
        for trainer in self.trainers:
            if kind is None:
                trainer.executor.close()
            elif link := links._links.pop((tuple(self.endpoints), trainer.number), None):
                link.client.close()
        if kind is None:
            for thread in self._threads:
                thread.join(30)
                assert not thread.is_alive()
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

    def steps(self, numbers):
        """The losses of some steps: the mean over all trainers, whose rows are as many."""
        def train(trainer):
            return [trainer.run(batch(i, trainer.number, len(self.trainers)))[0] for i in numbers]
        return np.mean(self.each(train), axis=0).reshape(-1)

    def rows(self, ids=None):
        """Rows of the table, at the servers or in the trainer."""
        ids = np.arange(VOCABULARY) if ids is None else ids
        trainer = self.trainers[0]
        if self._kind == "dense":
            return np.array(trainer.scope.find_var("table").get_tensor())[ids]
        link = links._links[tuple(self.endpoints), trainer.number]
        return link.client.look_up("table", ids)

    def parameters(self):
        """All parameters as the first trainer has them, and rows from the servers."""
        scope = self.trainers[0].scope
        return {n: np.array(scope.find_var(n).get_tensor()) for n in ("w1", "b1", "w2", "b2")} | {"table": self.rows()}


def alone(kind, optimizer, steps, load=None, save=None):
    """(losses, parameters) of one process without servers; `load` and `save` are folders."""
    with programs():
        loss, _ = net(kind, servers=False)
        OPTIMIZERS[optimizer]().minimize(loss)
        scope, executor = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
        with fluid.scope_guard(scope):
            executor.run(fluid.default_startup_program())
            if load is not None:
                fluid.io.load_persistables(executor, load, fluid.default_main_program())
            losses = [executor.run(feed=batch(i), fetch_list=[loss])[0] for i in steps]
            if save is not None:
                fluid.io.save_persistables(executor, save)
    names = ("w1", "b1", "w2", "b2", "table")
    return np.array(losses).reshape(-1), {n: np.array(scope.find_var(n).get_tensor()) for n in names}

"""A job with one server in a thread of this process: the trainer's side is the test."""
import contextlib
import socket
import threading

import numpy as np

import jfluid as fluid
from jfluid import layers

ROWS, WIDTH, SLOTS = 97, 4, 2


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def uniform(seed):
    return fluid.ParamAttr(initializer=fluid.initializer.Uniform(-0.3, 0.3, seed=seed))


def table(seed):
    return fluid.ParamAttr(name="table", initializer=fluid.initializer.Uniform(-0.3, 0.3, seed=seed))


def click_model(optimizer, distributed=False, ragged=True, read=False):
    """A click model: pooled rows of one table, and dense features; returns the loss, the prediction and its data."""
    dense = fluid.data("dense", [None, 3], "float32")
    slots = [fluid.data(f"slot{i}", [None, 1], "int64", lod_level=int(ragged)) for i in range(SLOTS)]
    label = fluid.data("label", [None, 1], "int64")
    data = [dense, *slots, label]
    loader = None
    if read:
        loader = fluid.io.DataLoader.from_generator(data, capacity=2, iterable=False)
    rows = [layers.embedding(s, [ROWS, WIDTH], is_sparse=True, is_distributed=distributed, param_attr=table(3))
            for s in slots]
    pooled = [layers.sequence_pool(r, "sum") for r in rows] if ragged else rows
    hidden = layers.fc(layers.concat([*pooled, dense], axis=1), 8, act="relu", param_attr=uniform(5))
    predict = layers.fc(hidden, 2, act="softmax", param_attr=uniform(7))
    loss = layers.mean(layers.cross_entropy(predict, label))
    optimizer().minimize(loss)
    return loss, predict, data, loader


def batch(step, size=8, ragged=True):
    """One batch; in each slot sequences of 1 to 3 ids."""
    random = np.random.default_rng(step)
    dense = random.random((size, 3), dtype=np.float32)
    feed = {"dense": dense, "label": (dense.sum(1, keepdims=True) > 1.5).astype(np.int64)}
    for i in range(SLOTS):
        lengths = random.integers(1, 4, size) if ragged else np.ones(size, np.int64)
        ids = random.integers(0, ROWS, (int(lengths.sum()), 1))
        feed[f"slot{i}"] = fluid.create_lod_tensor(ids, [lengths.tolist()]) if ragged else ids
    return feed


@contextlib.contextmanager
def job(build, sync=True):
    """The trainer's program of what `build` builds, and an executor that ran its startup program; a server serves until then.

    Gives (executor, program, what `build` returned).
    """
    endpoint = f"127.0.0.1:{free_port()}"
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        built = build()
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, main, endpoint, 1, sync, startup)
    serving, server_startup = transpiler.get_pserver_programs(endpoint)
    server = fluid.Executor(fluid.CPUPlace())
    server.run(server_startup, scope=scope)
    thread = threading.Thread(target=server.run, args=[serving], kwargs={"scope": scope}, daemon=True)
    thread.start()
    trainer = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        program = transpiler.get_trainer_program()
        trainer.run(startup)
        try:
            yield trainer, program, built
        finally:
            trainer.close()
            thread.join(20)
    assert not thread.is_alive()

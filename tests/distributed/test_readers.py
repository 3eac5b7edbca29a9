"""Trainers of parameter servers that read from datasets and loaders, against those that are fed."""

import functools

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.distributed.trainer.communicator import Communicator
from jfluid.transpiler.config import DistributedMode
from tests.distributed.job import (
    HEIGHT,
    SLOTS,
    alone,
    click_model,
    clicks,
    parameters,
    served,
    trainer_of,
)
from tests.distributed.test_replicas import assert_same, in_replicas, joined

MODEL = functools.partial(click_model, functools.partial(fluid.optimizer.Adam, 0.02), True)
STEPS = 4


def as_rows(feed):
    """A batch as a list of examples."""
    offsets = {n: v.lod()[0] for n, v in feed.items() if isinstance(v, fluid.LoDTensor)}
    arrays = {n: np.array(v) for n, v in feed.items()}
    return [
        {n: arrays[n][offsets[n][i] : offsets[n][i + 1]] if n in offsets else a[i] for n, a in arrays.items()}
        for i in range(len(arrays["label"]))
    ]


@pytest.fixture(scope="module")
def fed():
    """The losses and the state of a trainer that is fed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JFLUID_JOB_TOKEN", "0123456789-token-of-the-tests")
        with (
            fluid.program_guard(fluid.Program(), fluid.Program()),
            trainer_of(MODEL) as (executor, program, (loss, *_)),
        ):
            losses = [np.mean(executor.run(program, feed=clicks(step), fetch_list=[loss])[0]) for step in range(STEPS)]
            return losses, parameters(program)


def read_all(executor, run, loss, reader):
    """The losses of an epoch."""
    losses = []
    reader.start()
    try:
        while True:
            losses.append(np.mean(executor.run(run, fetch_list=[loss])[0]))
    except fluid.core.EOFException:
        reader.reset()
    return losses


def a_dataset(data, folder):
    """A dataset of one file, which holds all batches of clicks."""
    path = folder / "part-0"
    path.write_text(
        "".join(
            " ".join(
                f"{r[n].size} " + " ".join(map(repr, r[n].reshape(-1).tolist()))
                for n in ("dense", *(f"slot{i}" for i in range(SLOTS)), "label")
            )
            + "\n"
            for step in range(STEPS)
            for r in as_rows(clicks(step))
        )
    )
    dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
    dataset.set_use_var(data)
    dataset.set_batch_size(8)
    dataset.set_filelist([str(path)])
    return dataset


# test_prefetch.py reads a dataset on one device
@pytest.mark.parametrize("replicas", [pytest.param(None, marks=pytest.mark.nightly), 2])
def test_dataset(replicas, fed, tmp_path):
    with trainer_of(MODEL) as (executor, program, (loss, _, data, _)):
        dataset = a_dataset(data, tmp_path)
        run = program if replicas is None else in_replicas(program, loss, replicas)
        executor.train_from_dataset(run, dataset, fetch_list=[loss], print_period=1)
        assert_same(([0.0], parameters(program)), ([0.0], fed[1]))


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_loader(replicas, fed):
    with trainer_of(functools.partial(MODEL, read=True)) as (
        executor,
        program,
        (loss, _, data, loader),
    ):
        names = [v.name for v in data]
        size = 8 // (replicas or 1)

        def examples():
            for step in range(STEPS):
                rows = as_rows(clicks(step))
                for begin in range(0, 8, size):
                    yield [tuple(r[n] for n in names) for r in rows[begin : begin + size]]

        loader.set_sample_list_generator(examples, places=[fluid.CPUPlace()])
        run = program if replicas is None else in_replicas(program, loss, replicas)
        assert_same((read_all(executor, run, loss, loader), parameters(program)), fed)


# ---- readers of the program, under each strategy ----

WIDTH = 4
STRATEGIES = {  # (what the transpiler is told, the communicator's mode, and what that is told)
    "sync": ({"sync": True}, None, {}),
    "half-async": ({"sync": False}, None, {}),
    "async": (
        {"sync": False, "runtime_split_send_recv": True},
        DistributedMode.ASYNC,
        {
            "envs": {
                "communicator_max_merge_var_num": 2,
                "communicator_min_send_grad_num_before_recv": 3,
            }
        },
    ),
    "geo": (
        {
            "sync": False,
            "runtime_split_send_recv": True,
            "geo_sgd_mode": True,
            "geo_sgd_need_push_nums": 2,
        },
        DistributedMode.GEO,
        {"kwargs": {"trainers": 1, "push_nums": 2}},
    ),
}


def linear(kind=None):
    """A loss that is linear in its parameters: where they end does not depend on when gradients
    arrive.

    Returns (loss, the reader of a `kind`).
    """
    reader = None
    if kind == "py_reader":
        reader = layers.py_reader(2, [[-1, WIDTH], [-1, 1]], ["float32", "int64"], [0, 1])
        x, ids = layers.read_file(reader)
    else:
        x, ids = fluid.data("x", [None, WIDTH]), fluid.data("ids", [None, 1], "int64", lod_level=1)
        if kind == "py_reader_by_data":
            reader = layers.create_py_reader_by_data(2, [x, ids])
            x, ids = layers.read_file(reader)
        elif kind == "PyReader":
            reader = fluid.io.PyReader(feed_list=[x, ids], capacity=2, iterable=False)
        elif kind == "DataLoader":
            reader = fluid.io.DataLoader.from_generator([x, ids], capacity=2, iterable=False)
    rows = layers.embedding(
        ids,
        [HEIGHT, WIDTH],
        is_sparse=True,
        param_attr=fluid.ParamAttr("table", initializer=fluid.initializer.Constant(0.1)),
    )
    found = layers.reduce_sum(layers.sequence_pool(rows, "sum") * x, 1, keep_dim=True)
    loss = layers.mean(found + layers.fc(x, 1, param_attr=fluid.initializer.Constant(0.2)))
    fluid.optimizer.SGD(0.5).minimize(loss)
    return loss, reader


def linear_batch(step):
    random = np.random.default_rng(step)
    lengths = random.integers(1, 4, 6).tolist()
    return {
        "x": random.random((6, WIDTH), dtype=np.float32),
        "ids": fluid.create_lod_tensor(random.integers(0, HEIGHT, (sum(lengths), 1)), [lengths]),
    }


@pytest.mark.parametrize(
    "kind, strategy, replicas",
    [
        ("DataLoader", "geo", 2),
        pytest.param("DataLoader", "half-async", None, marks=pytest.mark.nightly),
        ("PyReader", "async", 2),
        ("py_reader", "sync", 2),
        pytest.param("py_reader", "geo", None, marks=pytest.mark.nightly),
        ("py_reader_by_data", "half-async", None),
        pytest.param("py_reader_by_data", "sync", None, marks=pytest.mark.nightly),
    ],
)
def test_what_a_program_reads_equals_what_it_is_fed(kind, strategy, replicas):
    """Two epochs, against one process without servers."""
    options, mode, told = STRATEGIES[strategy]
    feeds = [linear_batch(step) for step in range(STEPS)]
    whole = (
        feeds
        if replicas is None
        else [{n: joined([f[n] for f in pair]) for n in pair[0]} for pair in zip(feeds[::2], feeds[1::2], strict=True)]
    )
    losses, expected = alone(linear, whole * 2)
    with trainer_of(functools.partial(linear, kind), **options) as (
        executor,
        program,
        (loss, reader),
    ):
        if kind in ("DataLoader", "PyReader"):
            read = reader.set_batch_generator if kind == "DataLoader" else reader.decorate_batch_generator
            read(lambda: ((f["x"], f["ids"]) for f in feeds), places=[fluid.CPUPlace()])
        else:
            reader.decorate_batch_generator(lambda: ((f["x"], f["ids"]) for f in feeds))
        run = program if replicas is None else in_replicas(program, loss, replicas)
        communicator = None if mode is None else Communicator(program, mode, **told)
        if communicator is not None:
            communicator.start()
        with pytest.raises(errors.ReaderError, match="start"):
            executor.run(run, fetch_list=[loss])
        found = read_all(executor, run, loss, reader) + read_all(executor, run, loss, reader)
        if communicator is not None:
            communicator.stop()
        assert len(found) == len(losses)
        if strategy != "async":  # whose trainer computes with what has come so far
            np.testing.assert_allclose(found, losses, rtol=1e-4)
        assert_same(([0], served(program)), ([0], expected))
        assert_same(([0], parameters(program)), ([0], expected))

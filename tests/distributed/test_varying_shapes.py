"""Trainers with parameter servers pad batches that change shape; servers get the rows and gradients of true sizes.

Synchronous trainers that are started again pad as before: the history of sizes is a part of a trainer's state.
"""

import functools

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.compile.runtime.size_history import SizeHistories
from jfluid.distributed.programs import trainer_program
from jfluid.distributed.trainer.communicator import Communicator
from jfluid.distributed.wire import connections
from jfluid.transpiler.config import DistributedMode
from tests.distributed.job import HEIGHT, OPTIMIZERS, SLOTS, Job, click_model, numbers
from tests.distributed.test_local_state import killed
from tests.dynamic_shapes.test_placements import MOST, compilations
from tests.slow_tests import nightly_but

SIZES = [(3 + (5 * step) % 7, 4 + (11 * step) % 29) for step in range(40)]  # all different
TABLE, WIDTH = 200, 4


@functools.cache
def network(kind):
    """What builds a loss over ids [N, length]; the rows are in a table of servers."""

    def build():
        ids = fluid.data("ids", [None, None], dtype="int64")
        first = fluid.initializer.Constant(0.1) if kind == "distributed" else numbers(TABLE, WIDTH)
        table = fluid.ParamAttr("table", initializer=first)
        rows = fluid.embedding(
            ids, [TABLE, WIDTH], is_sparse=True, is_distributed=kind == "distributed", param_attr=table
        )
        if kind == "divided":  # other lengths lead to other windows: the pooling keeps exact shapes
            pooled = layers.adaptive_pool2d(layers.unsqueeze(rows, [1]), [1, WIDTH], pool_type="avg")
        else:
            pooled = layers.reduce_mean(rows, dim=1)
        hidden = layers.fc(
            layers.reshape(pooled, [-1, WIDTH]),
            5,
            act="tanh",
            param_attr=fluid.ParamAttr("w", initializer=numbers(WIDTH, 5)),
        )
        predicted = layers.fc(hidden, 1, param_attr=fluid.ParamAttr("v", initializer=numbers(5, 1)))
        loss = layers.mean(layers.square_error_cost(predicted, fluid.data("y", [None, 1])))
        fluid.optimizer.SGD(0.5).minimize(loss)
        return loss, predicted

    return build


def feeds(steps=40):
    random = np.random.RandomState(0)
    for count, length in SIZES[:steps]:
        ids = random.randint(1, TABLE, (count, length))
        yield {"ids": ids, "y": (ids.mean(1, keepdims=True) / TABLE).astype("float32")}


def trained(kind, padded, mode, steps):
    """Losses, predictions and parameters of a trainer, and the number of compilations."""
    before = fluid.get_flags(["FLAGS_dynamic_shapes", "FLAGS_interpret_first_steps"])
    # NumPy interprets the exact shapes, for each of which XLA would compile a program
    fluid.set_flags({"FLAGS_dynamic_shapes": padded, "FLAGS_interpret_first_steps": not padded})
    try:
        settings = {"geo_sgd_mode": True, "geo_sgd_need_push_nums": 5} if mode == "geo" else {}
        split = {} if mode == "synchronous" else {"runtime_split_send_recv": mode == "geo"}
        with Job(network(kind), 2, sync=mode == "synchronous", **settings, **split) as job:
            job.begin()
            (trainer,) = job.trainers
            geo = Communicator(trainer.main, DistributedMode.GEO, {"trainers": 1, "push_nums": 5})
            if mode == "geo":
                geo.start()
            with compilations() as compiled:
                found = [trainer.run(feed, list(trainer.built)) for feed in feeds(steps)]
            if mode == "geo":
                geo.stop()
            return found, job.parameters(), len(compiled)
    finally:
        fluid.set_flags(before)


WAYS = [
    ("sparse", "asynchronous"),
    ("distributed", "asynchronous"),
    ("sparse", "synchronous"),
    ("distributed", "synchronous"),
    ("sparse", "geo"),
]


@pytest.mark.parametrize("steps", [14, pytest.param(len(SIZES), marks=pytest.mark.nightly)])
@pytest.mark.parametrize("way", nightly_but(WAYS[3:], WAYS), ids="-".join)
def test_trainers_pad(way, steps):
    kind, mode = way
    expected, state, _ = trained(kind, False, mode, steps)
    found, padded_state, compiled = trained(kind, True, mode, steps)
    assert 0 < compiled <= MOST < steps
    for values, others in zip(found, expected, strict=True):
        for value, other in zip(values, others, strict=True):
            np.testing.assert_allclose(value, other, 1e-4, 1e-6)
    for name, value in state.items():
        np.testing.assert_allclose(padded_state[name], value, 1e-4, 1e-6, err_msg=name)
    untouched = np.setdiff1d(np.arange(TABLE), np.concatenate([feed["ids"].reshape(-1) for feed in feeds(steps)]))
    if kind == "sparse":
        np.testing.assert_array_equal(padded_state["table"][untouched], numbers(TABLE, WIDTH)._value[untouched])


def sentences():
    """Batches of `click_model` with sequences of different lengths."""
    random = np.random.RandomState(0)
    for step in range(7):
        feed = {"dense": random.rand(8, 3).astype("float32")}
        feed["label"] = (feed["dense"].sum(1, keepdims=True) > 1.5).astype("int64")
        for i in range(SLOTS):
            lengths = random.randint(1, 3 + (7 * step) % 23, 8)
            ids = random.randint(0, HEIGHT, (int(lengths.sum()), 1))
            feed[f"slot{i}"] = fluid.create_lod_tensor(ids, [lengths.tolist()])
        yield feed


def clicked():
    return click_model(OPTIMIZERS["adam"])[:2]


def padded_sizes(trainer):
    """What the sizes of further batches follow from, by step."""
    return dict(connections.connect(trainer_program.read(trainer.main)).sizes)


STREAMS = {  # (network, batches, steps until the trainer is killed, all steps)
    "exact shapes": (network("sparse"), feeds, 2, 16),
    "few buckets": (network("distributed"), feeds, 5, 16),
    "buckets": (network("sparse"), feeds, 14, 16),
    "divided": (network("divided"), feeds, 4, 6),
    "sequences": (clicked, sentences, 5, 7),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`run(build, stream, stops)`: (losses, sizes, parameters) of a job whose trainer is killed at all stops but the
    last.
    """

    def run(build, stream, stops):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JFLUID_JOB_TOKEN", "0123456789-token-of-the-tests")
            patch.setenv("JFLUID_PS_SNAPSHOT_FOLDER", str(tmp_path_factory.mktemp("snapshots")))
            with Job(build, servers=2) as job:
                job.begin()
                losses, begin = [], 0
                for stop in stops:
                    if begin:
                        killed(job)
                        job.begin()
                    losses += [job.trainers[0].run(feed)[0].item() for feed in list(stream())[begin:stop]]
                    begin = stop
                return losses, padded_sizes(job.trainers[0]), job.parameters()

    return run


@pytest.fixture(scope="module")
def undisturbed(run):
    """What `run` returns of a job of which no trainer is killed."""
    return functools.cache(lambda build, stream, steps: run(build, stream, [steps]))


@pytest.mark.filterwarnings("ignore:one operator of this program")
@pytest.mark.parametrize("case", nightly_but(list(STREAMS)[1:], STREAMS))
def test_a_synchronous_trainer_that_is_started_again_pads_to_the_same_sizes(case, run, undisturbed):
    """Losses and parameters are the same bits, although the new process has seen the latest batches only."""
    build, stream, killed_after, steps = STREAMS[case]
    losses, sizes, parameters = undisturbed(build, stream, steps)
    same, again, others = run(build, stream, [killed_after, steps])
    assert same == losses and again == sizes
    (history,) = sizes.values()
    traced = [own for segment in history.segments.values() for own in segment.traced]
    known = [len(own.buckets.known) for own in traced]
    assert len(history.sequences) > 0 if stream is sentences else sum(known) > 1
    assert [s.refused_at is not None for s in history.segments.values()].count(True) in (0, 2)
    for name, value in parameters.items():
        np.testing.assert_array_equal(others[name], value, err_msg=name)


def test_without_its_history_a_trainer_pads_to_other_sizes(run, undisturbed, monkeypatch):
    """The test above compares what differs otherwise."""
    monkeypatch.setattr(SizeHistories, "recall", lambda self, histories: None)
    build, stream, killed_after, steps = STREAMS["buckets"]
    _, sizes, _ = undisturbed(build, stream, steps)
    assert run(build, stream, [killed_after, steps])[1] != sizes

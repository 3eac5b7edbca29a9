"""Servers update tables by the operators of their programs, whatever these are: a job equals one
process.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.distributed.server import program_store
from jfluid.distributed.server.program_store import ProgramBlock, ProgramStore
from jfluid.distributed.tables.row_updates import UpdateByFunction, UpdateByRule
from jfluid.ps_server.store import BlockUpdate, Change, RowsUpdate
from tests.distributed.job import Job, alone, transpile
from tests.slow_tests import nightly_but

HEIGHT, WIDTH, STEPS = 12, 4, 6
L1, L2 = fluid.regularizer.L1Decay, fluid.regularizer.L2Decay
clip, opt = fluid.clip, fluid.optimizer


def net(optimizer, distributed=False, constant=False, **attr):
    """What builds a net over a table; some rows are in no batch unless it is distributed."""

    def build():
        ids = fluid.data("ids", [None, 1], dtype="int64")
        first = (
            fluid.initializer.Constant(0.3)
            if distributed or constant
            else fluid.initializer.NumpyArrayInitializer(
                np.random.RandomState(5).randn(HEIGHT, WIDTH).astype("float32")
            )
        )
        rows = layers.embedding(
            ids,
            [HEIGHT, WIDTH],
            is_sparse=True,
            is_distributed=distributed,
            param_attr=fluid.ParamAttr(name="table", initializer=first, **attr),
        )
        weight = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(0.5))
        predicted = layers.fc(rows, 1, param_attr=weight)
        loss = layers.mean(layers.square_error_cost(predicted, fluid.data("y", [None, 1])))
        optimizer().minimize(loss)
        return (loss,)

    return build


def feeds(every_row=False):
    rng = np.random.RandomState(3)
    for step in range(STEPS):
        some = [0, 1, 3] if step == 4 else [0, 1, 3, 6, 7, 9, 11]  # those of one server only, once
        ids = rng.permutation(HEIGHT) if every_row else rng.choice(some, 8)
        yield {
            "ids": ids.reshape(-1, 1).astype("int64"),
            "y": rng.randn(len(ids), 1).astype("float32"),
        }


def in_job(build, feeds):
    """(losses, parameters) of a job of one trainer and two servers."""
    with Job(build, servers=2, smallest=2) as job:
        job.begin()
        return job.steps(feeds), job.parameters()


def assert_same(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)
    assert found[1].keys() == expected[1].keys() >= {"table", "w"}
    for name, value in expected[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-5, atol=1e-6, err_msg=name)


ONE_BY_ONE = {
    "clip by value": (lambda: opt.Adagrad(0.2, grad_clip=clip.GradientClipByValue(0.02)), {}),
    "clip by norm, momentum": (
        lambda: opt.Momentum(0.2, 0.9, grad_clip=clip.GradientClipByNorm(0.05)),
        {},
    ),
    "clip by the global norm": (
        lambda: opt.Adam(0.1, grad_clip=clip.GradientClipByGlobalNorm(0.05)),
        {},
    ),
    "scaled schedule": (
        lambda: opt.Momentum(layers.exponential_decay(0.3, 2, 0.7), 0.9),
        {"learning_rate": 0.5},
    ),
    "scaled rate and clip": (
        lambda: opt.RMSProp(0.05, grad_clip=clip.GradientClipByValue(0.02)),
        {"learning_rate": 2.0},
    ),
    "L1 of a parameter": (lambda: opt.Adagrad(0.2), {"regularizer": L1(0.05)}),
    "L2, Adam": (lambda: opt.Adam(0.1, regularization=L2(0.1)), {}),
    "L2 and clip": (
        lambda: opt.Momentum(0.1, 0.9, regularization=L2(0.1), grad_clip=clip.GradientClipByNorm(0.1)),
        {},
    ),
    "L2, Adamax": (lambda: opt.Adamax(0.1, regularization=L2(0.1)), {"learning_rate": 0.5}),
    "L2, Adadelta": (lambda: opt.Adadelta(0.1, rho=0.8, regularization=L2(0.1)), {}),
    "L2, DecayedAdagrad": (lambda: opt.DecayedAdagrad(0.1, regularization=L2(0.1)), {}),
    "L2, FTRL": (lambda: opt.Ftrl(0.2, l1=0.01, l2=0.01, regularization=L2(0.1)), {}),
    "betas as variables": (
        lambda: opt.Adam(0.1, beta1=layers.create_global_var([1], 0.8, "float32", persistable=True)),
        {},
    ),
    "Lamb": (lambda: opt.Lamb(0.05), {}),
}


# Before each change: clips, schedules, decay and rates, each with one optimizer. The remaining optimizers are those of
# tests/ps_server/test_optimizers.py, and of `net` in other tests of this folder.
KEPT = (
    "clip by norm, momentum",
    "scaled schedule",
    "scaled rate and clip",
    "L1 of a parameter",
    "L2, Adamax",
    "betas as variables",
)


@pytest.mark.parametrize("case", nightly_but(KEPT, ONE_BY_ONE))
def test_a_job_equals_one_process(case):
    optimizer, attr = ONE_BY_ONE[case]
    assert_same(in_job(net(optimizer, **attr), feeds()), alone(net(optimizer, **attr), feeds()))


@pytest.mark.parametrize("case", nightly_but(KEPT[2:5:2], KEPT[2:5]))
def test_a_distributed_table_equals_one_process_where_all_rows_are_used(case):
    optimizer, attr = ONE_BY_ONE[case]
    one = alone(net(optimizer, constant=True, **attr), feeds(every_row=True))
    assert_same(in_job(net(optimizer, distributed=True, **attr), feeds(every_row=True)), one)


# ---- one server, without the wire ----


def stored(build, **options):
    """A server's store, of a program that `build` builds; `options` are of `transpile`."""
    made, *_ = transpile(build, ["127.0.0.1:6174"], smallest=2, **options)
    program, startup = made.get_pserver_programs("127.0.0.1:6174")
    scope, exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    return ProgramStore(program, scope, exe.engine)


def store_of(optimizer, trainers=1, sync=True, config=None, **options):
    return stored(net(optimizer, **options), trainers=trainers, sync=sync, **config or {})


def push(ids, value=0.1, change=Change.GRADIENT, learning_rate=None):
    return RowsUpdate(
        "table",
        change,
        np.array(ids, np.int64),
        np.full((len(ids), WIDTH), value, np.float32),
        learning_rate,
    )


@pytest.mark.parametrize(
    ("case", "kind", "distributed"),
    [
        ("clip by value", UpdateByRule, False),
        ("clip by norm, momentum", UpdateByRule, False),
        ("scaled schedule", UpdateByRule, True),
        ("L2, Adam", UpdateByFunction, False),
        ("betas as variables", UpdateByFunction, False),
        ("Lamb", UpdateByFunction, False),
        ("L2, Adam", UpdateByFunction, True),
    ],
)
def test_rules_are_kept_where_the_gradient_is_sparse(case, kind, distributed):
    optimizer, attr = ONE_BY_ONE[case]
    store = store_of(optimizer, distributed=distributed, **attr)
    assert type(store._row_updates["table"]) is kind
    assert (store.tables["table"].spec.optimizer.type == "program") is (kind is UpdateByFunction)


def test_any_of_the_pieces_may_be_updated_together_and_few_sets_are_remembered():
    def build():
        x = fluid.data("x", [None, 3])
        loss = layers.mean(sum(layers.fc(x, 2, bias_attr=False, param_attr=f"w{i}") for i in range(5)))
        opt.SGD(0.5).minimize(loss)
        return (loss,)

    store = stored(build, trainers=1, sync=False)
    pieces = {name: store.block(name) for name in store.blocks if name.startswith("w")}
    expected = {name: np.array(block.read()[0]) for name, block in pieces.items()}
    random = np.random.RandomState(0)
    for _ in range(40):
        some = [name for name in pieces if random.rand() < 0.5]
        random.shuffle(some)
        given = {n: random.rand(*pieces[n].shape).astype(np.float32) for n in some}
        store.apply([], [BlockUpdate(n, Change.GRADIENT, g) for n, g in given.items()], trainer=0)
        for name, gradient in given.items():
            expected[name] -= np.float32(0.5) * gradient
    assert len(pieces) >= 5 and 1 < len(store._ways) <= program_store._MOST_WAYS
    for name, value in expected.items():
        np.testing.assert_array_equal(pieces[name].read()[0], value)


def test_of_a_distributed_table_decay_moves_the_rows_with_a_gradient(caplog):
    store = store_of(lambda: opt.SGD(0.5, regularization=L2(0.1)), distributed=True)
    assert "weight decay (scale, sum, sgd) moves the rows of an update that have a gradient" in caplog.text
    table = store.tables["table"]
    table.look_up(np.array([4, 1 << 40]))
    store.apply([push([1 << 40, 7])], [])
    values = table.look_up(np.array([4, 7, 1 << 40]), train=False)
    np.testing.assert_allclose(values[:, 0], [0.3, *[0.3 - 0.5 * (0.1 + 0.1 * 0.3)] * 2], rtol=1e-6)
    assert len(table) == 3 and table.step == 1


def test_of_a_stretch_decay_moves_all_rows():
    store = store_of(lambda: opt.SGD(0.5, regularization=L2(0.1)), constant=True)
    store.apply([push([7])], [])
    values = store.tables["table"].look_up(np.array([4, 7]), train=False)
    np.testing.assert_allclose(values[:, 0], [0.3 * 0.95, 0.3 * 0.95 - 0.05], rtol=1e-6)


def test_what_cannot_be_applied_is_refused_before_anything_changes():
    store = store_of(lambda: opt.Adamax(0.1, regularization=L2(0.1)))
    before = store.tables["table"].look_up(np.arange(HEIGHT), train=False)
    dense = BlockUpdate("w", Change.GRADIENT, np.ones((WIDTH, 1), np.float32))
    for wrong, why in (
        (push([3, HEIGHT]), r"table table: ids: expected some of 0 \.\.\. 11, found 3 \.\.\. 12"),
        (push([-1]), r"found -1 \.\.\. -1"),
        (push([1], learning_rate=0.5), "learning_rate: expected none"),
    ):
        with pytest.raises(errors.ServerError, match=why):
            store.check([push([2]), wrong], [dense])
    with pytest.raises(errors.ServerError, match="table is a table: it takes gradients by rows"):
        store.check([], [dense, BlockUpdate("table", Change.GRADIENT, before)])
    np.testing.assert_array_equal(store.tables["table"].look_up(np.arange(HEIGHT), train=False), before)
    store.check([push([3], change=Change.ADD, learning_rate=0.5)], [dense])


def test_an_update_that_fails_leaves_rows_and_numbers(monkeypatch):
    store = store_of(lambda: opt.Adamax(0.1, regularization=L2(0.1)))
    table = store.tables["table"]
    (power,) = [n for n in store._row_updates["table"]._parts.numbers if "beta1_pow" in n]
    before = table.look_up(np.arange(HEIGHT), train=False), np.array(store.tensor(power))
    monkeypatch.setattr(table, "_checked_values", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.apply([push([3])], [])
    monkeypatch.undo()
    np.testing.assert_array_equal(table.look_up(np.arange(HEIGHT), train=False), before[0])
    np.testing.assert_array_equal(np.array(store.tensor(power)), before[1])
    store.apply([push([3])], [])
    assert table.step == 1 and np.array(store.tensor(power)) != before[1]


def test_differences_of_several_trainers_at_once_are_all_added():
    store = store_of(lambda: opt.SGD(0.1), sync=False)
    (name, block), *_ = [(n, b) for n, b in store.blocks.items() if isinstance(b, ProgramBlock)]
    before, one = np.array(block.read()[0]), np.ones(block.shape, np.float32)
    read = block.read

    def slow_read():
        value = read()
        time.sleep(0.001)  # as long as others need to come between
        return value

    block.read = slow_read
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: store.apply([], [BlockUpdate(name, Change.ADD, one)]), range(40)))
    np.testing.assert_allclose(read()[0], before + 40, rtol=1e-6)


def test_counts_take_additions_only():
    store = store_of(lambda: opt.SGD(layers.exponential_decay(0.3, 2, 0.7)), sync=False)
    (count,) = store._counts
    store.check([], [BlockUpdate(count, Change.ADD, np.ones(1, np.float32))])
    with pytest.raises(errors.ServerError, match="is a count: it takes additions only"):
        store.check([], [BlockUpdate(count, Change.ASSIGN, np.ones(1, np.float32))])


@pytest.mark.parametrize(
    "optimizer, first, reason",
    [
        (lambda: opt.Lamb(0.05), "constant", "lamb needs the whole of it"),
        (ONE_BY_ONE["clip by norm, momentum"][0], "constant", "clip_by_norm needs the whole"),
        (lambda: opt.SGD(0.1), "array", "assign_value initializes all rows at once"),
    ],
    ids=["lamb", "clip by norm", "array"],
)
def test_a_table_that_cannot_be_distributed_is_whole(optimizer, first, reason):
    constant = first == "constant"
    build = net(optimizer, distributed=constant, constant=constant)
    if not constant:
        plain = build

        def build():
            built = plain()
            block = fluid.default_main_program().global_block()
            look_up = next(op for op in block.ops if op.type == "lookup_table")
            look_up._set_attr("is_distributed", True)
            return built

    expected = alone(net(optimizer, constant=constant), feeds())
    with pytest.warns(RuntimeWarning, match=f"table table is not distributed: {reason}"):
        found = in_job(build, feeds())
    assert_same(found, expected)


def test_tables_too_large_to_be_whole_are_refused():
    def build():
        ids = fluid.data("ids", [None, 1], dtype="int64")
        rows = layers.embedding(ids, [1 << 34, 4], is_sparse=True, is_distributed=True)
        loss = layers.mean(rows)
        opt.Lamb(0.1).minimize(loss)
        return (loss,)

    with pytest.raises(errors.UnsupportedError, match="lamb needs the whole.*it has 256 GiB"):
        transpile(build, ["127.0.0.1:6174"])


# ---- DC-ASGD ----


def corrected():
    """A net whose gradient of v [3, 1] is the mean of x."""
    loss = layers.mean(
        layers.fc(
            fluid.data("x", [None, 3]),
            1,
            bias_attr=False,
            param_attr=fluid.ParamAttr(name="v", initializer=fluid.initializer.Constant(1.0)),
        )
    )
    opt.SGD(0.1).minimize(loss)
    return (loss,)


def compensated(value, gradient, got):
    return value - 0.1 * (gradient + gradient * gradient * (value - got))


def corrected_store():
    return stored(corrected, trainers=2, sync=False, enable_dc_asgd=True)


def test_late_gradients_are_corrected_by_how_far_the_parameter_has_moved():
    store, rng = corrected_store(), np.random.RandomState(0)
    value = np.ones((3, 1), np.float32)
    got = {0: value, 1: value}
    for step, (trainer, pulls) in enumerate([(0, True), (0, True), (1, False), (0, False), (1, True), (1, True)]):
        gradient = rng.randn(3, 1).astype("float32")
        store.apply([], [BlockUpdate("v", Change.GRADIENT, gradient)], trainer)
        value = compensated(value, gradient, got[trainer])
        if pulls:
            np.testing.assert_allclose(store.read([store.block("v")], trainer)[0][0], value, rtol=1e-5)
            got[trainer] = value
        if step == 2:  # what trainers computed with is part of the state
            state, store = store.block("v").state(), corrected_store()
            store.block("v").restore(state)
    np.testing.assert_allclose(store.read([store.block("v")])[0][0], value, rtol=1e-5)


def test_gradients_of_no_trainer_cannot_be_corrected():
    store = corrected_store()
    with pytest.raises(errors.ServerError, match="enable_dc_asgd corrects the gradients of one trainer"):
        store.apply([], [BlockUpdate("v", Change.GRADIENT, np.ones((3, 1), np.float32))])
    np.testing.assert_array_equal(store.read([store.block("v")])[0][0], np.ones((3, 1)))


def test_two_trainers_are_corrected_each_for_itself():
    rng, value = np.random.RandomState(1), np.ones((3, 1), np.float32)
    got = {0: value, 1: value}
    with Job(corrected, trainers=2, sync=False, enable_dc_asgd=True) as job:
        job.begin()
        for number in (0, 0, 1, 0, 1, 1):
            trainer, x = job.trainers[number], rng.randn(4, 3).astype("float32")
            trainer.run({"x": x})
            value = got[number] = compensated(value, x.mean(0).reshape(3, 1), got[number])
            np.testing.assert_allclose(trainer.parameters()["v"], value, rtol=1e-5)

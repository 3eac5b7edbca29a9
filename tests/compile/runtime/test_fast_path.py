"""A step that is run again as it was takes a short way through the Executor; whatever differs takes
the long one.
"""

import gc
import os
import sys
import traceback
import weakref

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.compile.runtime import fast_path, feeds

X = np.arange(12, dtype="float32").reshape(3, 4)


class Counted:
    """An Executor that trains w by the mean of x @ w, and how many of its runs took the long
    way.
    """

    def __init__(self, monkeypatch):
        self.long = 0
        self.exe = fluid.Executor(fluid.CPUPlace())
        x = fluid.data("x", [None, 4])
        weight = fluid.ParamAttr("w", fluid.initializer.Constant(0.5))
        self.hidden = fluid.layers.fc(x, 2, param_attr=weight, bias_attr=False)
        self.loss = fluid.layers.mean(self.hidden)
        fluid.optimizer.SGD(0.1).minimize(self.loss)
        self.exe.run(fluid.default_startup_program())
        check = feeds.checked

        def counted(program, feed):
            self.long += 1
            return check(program, feed)

        monkeypatch.setattr(feeds, "checked", counted)

    def run(self, x=X, fetch=None, **options):
        """(the first fetch, whether the run took the long way)."""
        before = self.long
        value, *_ = self.exe.run(feed={"x": x}, fetch_list=[self.loss] if fetch is None else fetch, **options)
        return np.asarray(value), self.long > before


@pytest.fixture
def net(monkeypatch):
    net = Counted(monkeypatch)
    assert net.run()[1]
    return net


def weight():
    return fluid.global_scope().find_var("w").get_tensor()


def test_the_short_way_trains_as_the_long_one(net):
    step = 0.1 * np.repeat(X.sum(0)[:, None], 2, 1) / 6
    for i in range(1, 4):
        loss, long = net.run()
        assert not long
        np.testing.assert_allclose(loss, [(X @ (0.5 - i * step)).mean()], rtol=1e-5)
    np.testing.assert_allclose(np.array(weight()), 0.5 - 4 * step, rtol=1e-5)


def test_shapes_that_have_run_take_the_short_way(net, monkeypatch):
    monkeypatch.setattr(fast_path, "_MOST_SHAPES", 2)
    batches = [X, X[:2], X[:1], X[1:]]
    assert [net.run(x)[1] for x in batches] == [False, True, True, False]
    losses = []
    for x in batches:
        before = np.array(weight())
        loss, long = net.run(x)
        assert not long
        losses.append((loss.item(), (x @ before).mean()))
    np.testing.assert_allclose(*zip(*losses), rtol=1e-5)
    assert net.run(np.ones((5, 4), "float32"))[1]  # one of the two shapes besides the first is forgotten
    assert [net.run(x)[1] for x in (X, X[:1], np.ones((5, 4), "float32"), X[:2])] == [False, False, False, True]


def test_another_program_version_forgets_all_shapes(net):
    net.run(X[:2])
    fluid.layers.scale(net.loss, 2.0)
    assert [net.run(x)[1] for x in (X, X[:2], X, X[:2])] == [True, True, False, False]


def test_other_batches_take_the_long_way(net):
    assert not net.run(X + 1)[1]
    assert net.run(X[:2])[1] and not net.run(X[:2])[1]
    with pytest.raises(errors.FeedError, match="feed x: expected dtype float32, found float64"):
        net.run(X.astype("float64"))
    with pytest.raises(errors.FeedError, match="x: expected rank 2"):
        net.run(X[0])
    with pytest.raises(errors.FeedError, match="the program reads x"):
        net.exe.run(feed={}, fetch_list=[net.loss])
    with pytest.warns(UserWarning, match="feed y: the program has no such variable"):
        net.exe.run(feed={"x": X, "y": X}, fetch_list=[net.loss])
    assert net.exe.run(feed=[{"x": X}], fetch_list=[net.loss])[0].shape == (1,)
    assert not net.run()[1]


def test_what_was_set_in_between_is_seen(net):
    weight().set(np.ones((4, 2), "float32"))
    loss, long = net.run()
    assert not long
    np.testing.assert_allclose(loss, [X.sum(1).mean()], rtol=1e-6)
    weight().set(np.ones((5, 2), "float32"))
    with pytest.raises(errors.ProgramError, match=r"w: the scope holds shape \[5, 2\]"):
        net.run()


def test_other_fetches_programs_and_scopes_take_the_long_way(net):
    assert net.run(fetch=["x"])[1] and net.run(fetch=[net.hidden])[1]
    assert not net.run(fetch=[net.hidden])[1] and not net.run()[1]  # each has a step that is kept
    assert net.run(return_numpy=False)[1] and not net.run()[1]
    scope = fluid.Scope()
    net.exe.run(fluid.default_startup_program(), scope=scope)
    loss, long = net.run(scope=scope)
    assert long
    np.testing.assert_allclose(loss, [(X.sum(1) * 0.5).mean()], rtol=1e-6)
    net.run()
    more = fluid.layers.scale(net.loss, 3.0)
    loss, long = net.run()
    assert long
    np.testing.assert_allclose(net.run(fetch=[more])[0] < loss * 3, [True])


def test_a_flag_that_was_set_is_seen(net):
    weight().set(np.full((4, 2), np.inf, "float32"))
    assert not np.isfinite(net.run()[0])
    fluid.set_flags({"FLAGS_check_nan_inf": True})
    try:
        with pytest.raises(errors.OpError, match="FLAGS_check_nan_inf"):
            net.run()
    finally:
        fluid.set_flags({"FLAGS_check_nan_inf": False})


def test_programs_that_draw_draw_anew(net):
    drawn = fluid.layers.uniform_random([2])
    found = [net.run(fetch=[drawn, net.loss]) for _ in range(3)]
    assert len({tuple(value) for value, _ in found}) == 3
    fetch = [drawn]
    again = [net.run(fetch=fetch) for _ in range(3)]
    assert [long for _, long in again] == [True, False, False]
    assert len({tuple(value) for value, _ in again}) == 3


def test_replicas_take_the_short_way(net, monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(net.loss.name)
    rows, fetch = np.concatenate([X, X[:1] * 2]), [net.loss, "w"]
    found = []
    for x in (rows, rows, rows + 1, rows[:3], rows):
        before = net.long
        loss, w = net.exe.run(program, feed={"x": x}, fetch_list=fetch)
        found.append((net.long > before, loss.shape, w.shape))
    assert [long for long, *_ in found] == [True, False, False, True, False]
    assert {tuple(shapes) for _, *shapes in found} == {((2,), (8, 2))}
    (alone,) = net.exe.run(feed={"x": rows[:2]}, fetch_list=[net.loss])
    merged = net.exe.run(program, feed={"x": rows}, fetch_list=fetch, return_merged=False)
    assert len(merged[0]) == 2 and merged[0][0].shape == alone.shape


def test_batches_of_a_loader_take_the_short_way(net):
    loader = fluid.io.DataLoader.from_generator([net.hidden.block.var("x")], capacity=2)
    loader.set_batch_generator(lambda: iter([(X,), (X + 1,), (X[:2],)]), fluid.CPUPlace())
    long, fetch = [], [net.loss]
    for feed in loader():
        before, start = net.long, np.array(weight())
        (loss,) = net.exe.run(feed=feed, fetch_list=fetch)
        x = np.asarray(feed[0]["x"])
        np.testing.assert_allclose(loss, [(x @ start).mean()], rtol=1e-5)
        long.append(net.long > before)
    assert long == [True, False, True]


def test_sequences_take_the_short_way(net):
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup):
        ids = fluid.data("ids", [None, 1], lod_level=1)
        weight = fluid.ParamAttr("v", fluid.initializer.Constant(1.0))
        rows = fluid.layers.fc(ids, 1, param_attr=weight, bias_attr=False)
        total = [fluid.layers.sequence_pool(rows, "sum")]
    net.exe.run(startup)

    def run(lengths, rows=None):
        values = np.ones((sum(lengths) if rows is None else rows, 1), "float32")
        before, tensor = net.long, fluid.LoDTensor(values, [np.cumsum([0, *lengths])])
        (found,) = net.exe.run(program, feed={"ids": tensor}, fetch_list=total)
        return found.ravel().tolist(), net.long > before

    assert run([2, 1]) == ([2, 1], True)
    assert run([3, 1]) == ([3, 1], False)
    assert run([1, 1, 4]) == ([1, 1, 4], False)  # compiled anew, for three sequences
    with pytest.raises(errors.FeedError, match="does not describe its 3 rows"):
        run([2, 2], rows=3)


@pytest.mark.parametrize("levels", [1, 2])
def test_sequences_of_replicas_take_the_short_way(net, monkeypatch, levels):
    """What each replica has is what the long way gives it, also where sequences are of one length."""
    monkeypatch.setenv("CPU_NUM", "2")
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup):
        ids = [fluid.data(n, [None, 1], lod_level=levels) for n in ("a", "b")]
        weight = fluid.ParamAttr("v", fluid.initializer.Constant(1.0))
        rows = [fluid.layers.fc(x, 1, param_attr=weight, bias_attr=False) for x in ids]
        for _ in range(levels):
            rows = [fluid.layers.sequence_pool(x, "sum") for x in rows]
        totals = rows
    net.exe.run(startup)
    parallel = fluid.CompiledProgram(program).with_data_parallel()

    def run(lengths):
        lod = [np.cumsum([0, *lengths])]
        if levels == 2:
            lod.insert(0, np.arange(len(lengths) + 1))  # a sequence of one sequence each
        rows = np.arange(1.0, sum(lengths) + 1, dtype="float32").reshape(-1, 1)
        feed = {n: fluid.LoDTensor(rows * k, lod) for n, k in (("a", 1), ("b", 10))}
        before = net.long
        a, b = net.exe.run(parallel, feed=feed, fetch_list=totals)
        sums = [rows[i:j].sum() for i, j in zip(lod[-1], lod[-1][1:])]
        assert a.ravel().tolist() == sums and b.ravel().tolist() == [10 * s for s in sums]
        return net.long > before

    assert run([2, 1, 3, 1])
    assert not run([1, 3, 1, 2])
    assert not run([0, 9, 1, 1])
    assert not run([2, 2, 2, 2])
    assert run([2, 1, 3])  # replicas have two and one
    assert run([2, 1, 3, 1]) is False


def test_a_closed_executor_says_so(net):
    net.exe.close()
    with pytest.raises(errors.JFluidError, match="closed"):
        net.run()


def test_a_dropped_scope_is_let_go(net):
    scope = fluid.Scope()
    net.exe.run(fluid.default_startup_program(), scope=scope)
    assert net.run(scope=scope)[1] and not net.run(scope=scope)[1]
    tensor = weakref.ref(scope.find_var("w").get_tensor())
    del scope
    gc.collect()
    assert tensor() is None
    assert not net.run()[1]  # that of the other scope stays


def programs():
    """Return a training program, its evaluation, its startup program, the loss, a hidden layer."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x = fluid.data("x", [None, 4])
        hidden = layers.fc(x, 2)
        loss = layers.mean(hidden)
        evaluation = main.clone(for_test=True)
        fluid.optimizer.SGD(0.1).minimize(loss)
    return main, evaluation, startup, loss, hidden


def prepared(monkeypatch, exe):
    """Return a list to which each preparation of a step adds an element."""
    found, before = [], exe.engine.prepare

    def prepare(*args, **kwargs):
        found.append(args)
        return before(*args, **kwargs)

    monkeypatch.setattr(exe.engine, "prepare", prepare)
    return found


def test_programs_in_turn_are_prepared_once(monkeypatch):
    main, evaluation, startup, loss, _ = programs()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    feed = {"x": np.ones((2, 4), "float32")}
    turns = prepared(monkeypatch, exe)
    values = []
    for _ in range(5):
        values.append(float(exe.run(main, feed=feed, fetch_list=[loss])[0]))
        values.append(float(exe.run(evaluation, feed=feed, fetch_list=[loss])[0]))
    assert len(turns) == 2
    assert values[2::2] == values[1:-1:2]  # a step starts from what the evaluation has seen


def test_fetches_and_scopes_have_steps_of_their_own(monkeypatch):
    main, _, startup, loss, hidden = programs()
    exe = fluid.Executor(fluid.CPUPlace())
    feed = {"x": np.ones((2, 4), "float32")}
    scopes = [fluid.Scope(), fluid.Scope()]
    for scope in scopes:
        exe.run(startup, scope=scope)
    turns = prepared(monkeypatch, exe)
    for _ in range(4):
        for scope in scopes:
            exe.run(main, feed=feed, fetch_list=[loss], scope=scope)
            exe.run(main, feed=feed, fetch_list=[loss, hidden], scope=scope)
    assert len(turns) == 4


def test_the_table_is_bounded_and_keeps_no_scope():
    main, _, startup, loss, _ = programs()
    exe = fluid.Executor(fluid.CPUPlace())
    feed = {"x": np.ones((2, 4), "float32")}
    scopes = []
    for _ in range(fast_path._MOST + 3):
        scope = fluid.Scope()
        exe.run(startup, scope=scope)
        exe.run(main, feed=feed, fetch_list=[loss], scope=scope)
        scopes.append(weakref.ref(scope))
        del scope
    gc.collect()
    assert len(exe.engine.fast_paths._all) <= fast_path._MOST
    assert not any(scope() for scope in scopes)


def frames_of(run):
    """The names of the package's functions on the stack where it is deepest during `run`."""
    deepest = []

    def watch(frame, event, _):
        nonlocal deepest
        if event == "call" and f"{os.sep}jfluid{os.sep}" in frame.f_code.co_filename:
            stack = [f.f_code.co_qualname for f, _ in traceback.walk_stack(frame) if "jfluid" in f.f_code.co_filename]
            deepest = max(deepest, [name for name in stack if not name.startswith("<")], key=len)

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return deepest


def test_a_step_is_few_calls_deep(net):
    assert len(frames_of(lambda: net.run(np.ones((5, 4), "float32"), [net.hidden]))) <= 40  # with tracing
    assert len(frames_of(lambda: net.run(use_prune=True))) <= 40
    net.run()
    assert len(frames_of(net.run)) <= 15

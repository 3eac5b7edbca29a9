"""Slots: feeds in sequences of one type are checked in one pass and go to XLA as one array, which gives
each of them what it would have alone.
"""

import sys

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.compile.runtime import slots
from jfluid.compile.runtime.padding import SequenceBuckets
from jfluid.lod_tensor import LoDTensor
from jfluid.parallel.replica_feeds import Stacker

pytestmark = pytest.mark.usefixtures("interpreted_steps")

COUNT = 26


def _tensor(lengths, start=0, dtype="int64"):
    rows = np.arange(start, start + sum(lengths), dtype=dtype)[:, None]
    return LoDTensor(rows, [np.cumsum([0, *lengths])])


def _joined(feed):
    (group,) = slots.of(feed)
    return slots.SlotBuckets().pad_with_slots({}, [group.read(feed)])


LENGTHS = {
    "of one length": [[2, 2, 2]] * 3,
    "alike": [[1, 2, 4]] * 3,
    "some of one length": [[1, 2, 4], [3, 3, 3], [20, 0, 7]],
    "empty ones": [[0, 0, 0], [1, 0, 0], [0, 0, 5]],
    "only one": [[3, 1, 2]],
    "only one of one length": [[2, 2, 2]],
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_each_slot_has_what_it_has_alone(lengths):
    feed = {f"s{i}": _tensor(own, 100 * i) for i, own in enumerate(lengths)}
    found = slots.opened(_joined(feed))
    expected = SequenceBuckets().pad(feed)
    assert found.keys() == expected.keys()
    for name, alone in expected.items():
        one = found[name]
        rows = len(feed[name])
        np.testing.assert_array_equal(one.values[:rows], alone.values[:rows])
        assert one.values.shape == alone.values.shape
        padding = one.values[rows:].tolist()
        assert all(row in (feed[name].value.tolist() or [[0]]) for row in padding)
        assert (one.exact, one.last.longest) == (alone.exact, alone.last.longest)
        assert one.last.uniform == alone.last.uniform
        if not alone.last.uniform:
            np.testing.assert_array_equal(one.last.given, alone.last.given)


@pytest.mark.parametrize("replicas", [None, 2])
def test_sizes_are_chosen_as_those_of_other_sequences(replicas):
    """Whether they are found among the known ones or chosen anew, in a stream of batches."""
    random, chosen, stacker = np.random.RandomState(0), SequenceBuckets(), Stacker(joins=2)
    buckets, known, seen = slots.SlotBuckets(), 0, set()
    for i in range(200):
        lengths = random.randint(1, 2 + i % 7, (3, 4))
        feed = {f"s{k}": _tensor(own.tolist()) for k, own in enumerate(lengths)}
        batches = slots.read(slots.of(feed, replicas), feed)
        if replicas is None:
            known += buckets.known_layouts(batches) is not None
            (found,) = buckets.pad_with_slots({}, batches).values()
        else:
            (found,) = stacker.divided({}, 2, batches).values()
        sizes = chosen.choose(slots.needed(batches))
        assert found.layout.sizes == tuple(sizes.values())
        seen.add(found.layout.sizes)
        for name, own in found.parts().items():
            rows = feed[name].value
            per = [rows] if replicas is None else np.split(rows, [int(lengths[int(name[1]), :2].sum())])
            values = [own.values] if replicas is None else own.values
            for mine, given in zip(values, per, strict=True):
                np.testing.assert_array_equal(mine[: len(given)], given)
            if own.last.given is not None:
                each = lengths[int(name[1])] if replicas is None else np.split(lengths[int(name[1])], 2)
                np.testing.assert_array_equal(np.diff(own.last.given), each)
    assert len(seen) > 3 and (known > 100 or replicas)


def test_the_array_is_where_xla_reads_it_in_place():
    found = _joined({n: _tensor([1, 2, 3000]) for n in "abc"})["a"]
    assert found.values.ctypes.data % 64 == 0 and found.values.flags.c_contiguous


def test_slots_are_of_one_type_and_number_of_sequences():
    feed = {
        "a": _tensor([1, 2]),
        "b": _tensor([2, 2]),
        "other type": _tensor([1, 2], dtype="float32"),
        "other number": _tensor([1, 2, 3]),
        "levels": LoDTensor(np.zeros((2, 1), "int64"), [[0, 1], [0, 2]]),
        "dense": np.zeros((2, 1), "int64"),
    }
    expected = [("a", "b"), ("other type",), ("other number",)]
    assert [s.names for s in slots.of(feed)] == expected


WRONG = {
    "missing": {"a": None},
    "an array": {"a": np.zeros((3, 1), "int64")},
    "another type": {"a": _tensor([1, 2], dtype="int32")},
    "another rank": {"a": LoDTensor(np.zeros(3, "int64"), [[0, 1, 3]])},
    "another row": {"a": LoDTensor(np.zeros((3, 2), "int64"), [[0, 1, 3]])},
    "no lod": {"a": LoDTensor(np.zeros((3, 1), "int64"))},
    "more levels": {"a": LoDTensor(np.zeros((3, 1), "int64"), [[0, 2], [0, 1, 3]])},
    "too few rows": {"a": LoDTensor(np.zeros((2, 1), "int64"), [[0, 1, 3]])},
    "another number of sequences": {"a": _tensor([1, 1, 1])},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_what_differs_is_seen(change):
    feed = {n: _tensor([1, 2]) for n in "abc"}
    (group,) = slots.of(feed)
    for _ in range(2):
        assert group.read(feed) is not None
        assert group.read(feed | change) is None


@pytest.fixture
def click_model():
    """Runs a step of a model of many slots; gives the sums that it fetches."""
    names = [f"slot_{i}" for i in range(COUNT)]
    ids = [fluid.data(n, [None, 1], "int64", lod_level=1) for n in names]
    table = fluid.ParamAttr("table", fluid.initializer.Constant(1.0))
    rows = [fluid.layers.sequence_pool(fluid.layers.embedding(x, [50, 2], param_attr=table), "sum") for x in ids]
    fetches = [fluid.layers.reduce_sum(fluid.layers.concat(rows, 1), dim=0)]
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())

    def run(lengths, **changed):
        feed = {n: _tensor(own) for n, own in zip(names, lengths)} | changed
        return exe.run(feed=feed, fetch_list=fetches)[0]

    return exe, run


def _lengths(seed):
    return np.random.RandomState(seed).randint(0, 4, (COUNT, 5)).tolist()


def test_a_step_takes_one_argument_for_all_slots(click_model):
    exe, run = click_model
    for seed in (0, 1, 1):
        lengths = _lengths(seed)
        np.testing.assert_array_equal(run(lengths), np.repeat(np.sum(lengths, 1), 2))
    segment = list(exe.engine._steps.values())[-1].whole
    given, plain = [], segment.exact.plain
    segment.exact.plain = lambda donated, kept, key: given.append(kept) or plain(donated, kept, key)
    run(_lengths(1))
    assert sum(isinstance(v, slots.Joined) for v in given[0]) == 1
    assert sum(v is None for v in given[0]) == COUNT - 1


@pytest.mark.parametrize("replicas", [None, 2])
def test_a_program_may_read_only_some_of_the_slots_that_are_fed(replicas):
    """As when a program is pruned and fed whole batches: the first slot comes for all of them."""
    ids = [fluid.data(name, [None, 1], "int64", lod_level=1) for name in "abcd"]
    sums = [fluid.layers.sequence_pool(fluid.layers.cast(x, "float32"), "sum") for x in ids[1:3]]
    program, exe = fluid.default_main_program(), fluid.Executor()
    if replicas:
        program = fluid.CompiledProgram(program).with_data_parallel(places=fluid.cpu_places(replicas))
    for fed in ("abc", "a", "bcd", "abcd"):
        feed = {n: _tensor([1, 2, 3, 2], start=ord(n)) for n in fed + "bc"}
        found = exe.run(program, feed=feed, fetch_list=sums)
        for name, value in zip("bc", found, strict=True):
            rows = np.split(np.arange(ord(name), ord(name) + 8), [1, 3, 6])
            np.testing.assert_array_equal(value[:, 0], [r.sum() for r in rows])


def test_wrong_slots_are_refused_as_at_first(click_model):
    _, run = click_model
    lengths = _lengths(0)
    for _ in range(2):
        run(lengths)
        with pytest.raises(errors.FeedError, match="feed slot_3: expected dtype int64"):
            run(lengths, slot_3=_tensor(lengths[3], dtype="int32"))
        short = LoDTensor(np.zeros((1, 1), "int64"), [[0, 1, 2, 3, 4, 5]])
        with pytest.raises(errors.FeedError, match="slot_4.*does not describe its 1 rows"):
            run(lengths, slot_4=short)


def test_many_slots_take_few_calls():
    feed = {f"s{i}": _tensor(own) for i, own in enumerate([[1] * 5] * COUNT)}
    (group,), buckets, calls = slots.of(feed), slots.SlotBuckets(), []

    def work():
        return buckets.pad_with_slots({}, [group.read(feed)])

    work()
    sys.setprofile(lambda frame, event, called: calls.append((event, called)))
    try:
        work()
    finally:
        sys.setprofile(None)
    appends = [c for _, c in calls if getattr(c, "__name__", "") == "append"]  # of no cost
    assert sum(e in ("call", "c_call") for e, _ in calls) - len(appends) < 3 * COUNT


def test_slots_of_a_program_that_needs_exact_rows_or_the_host():
    x, y = (fluid.data(n, [None, 1], "int64", lod_level=1) for n in "xy")
    turned = [fluid.layers.reverse(x, axis=0), fluid.layers.scale(fluid.layers.Print(y), 2.0)]
    exe = fluid.Executor(fluid.CPUPlace())
    feed = {n: _tensor([1, 2, 4], i) for i, n in enumerate("xy")}
    for fetches in (turned[:1], turned):
        with pytest.warns(RuntimeWarning, match="operator reverse"):
            exe.run(feed=feed, fetch_list=fetches, return_numpy=False)
        found = exe.run(feed=feed, fetch_list=fetches, return_numpy=False)
        for value, rows in zip(found, (np.array(feed["x"])[::-1], np.array(feed["y"]) * 2)):
            np.testing.assert_array_equal(np.array(value), rows)

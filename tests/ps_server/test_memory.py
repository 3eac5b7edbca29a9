"""Memory that ends, and interrupts, while a table changes: rows are whole, or absent."""

import functools
import itertools

import numpy as np
import pytest

from jfluid.ps_server import index, kernels, shard, specs
from jfluid.ps_server.store import Change, RowsUpdate, Store
from jfluid.ps_server.table import SparseTable

WIDTH, ROWS = 4, 500
IDS = np.random.RandomState(0).randint(-(2**63), 2**63 - 1, ROWS, np.int64)
COUNTED = specs.CountEntry(count=2)


def new(optimizer=None, **more):
    return SparseTable(
        specs.TableSpec(
            name="t",
            width=WIDTH,
            shards=2,
            initializer=specs.Constant(value=7),
            optimizer=optimizer or specs.Adagrad(learning_rate=0.1, initial_accumulator_value=3),
            **more,
        )
    )


def gradients(ids):
    return np.outer(ids % 10 + 1, np.ones(WIDTH)).astype(np.float32)


@functools.cache
def records(count):
    """The rows of the first ids, as a snapshot holds them."""
    source, ids = new(), IDS[:count]
    source.look_up(ids)
    source.push(ids, gradients(ids))
    with source.view() as view:
        return [np.concatenate(parts) for parts in zip(*view.blocks(), strict=True)]


PROGRAM = specs.Program(learning_rate=0.1, slots=(specs.SlotSpec(name="sum", initial=3),))
# name -> (the table, what gives rows to ids)
WAYS = {
    "look_up": (new, lambda t, ids: t.look_up(ids)),
    "push": (new, lambda t, ids: t.push(ids, gradients(ids), merged=True)),
    "add": (new, lambda t, ids: t.add(ids, gradients(ids))),
    "assign": (new, lambda t, ids: t.assign(ids, gradients(ids))),
    "assign_slots": (new, lambda t, ids: t.assign_slots(ids, {"moment": gradients(ids)})),
    "put": (new, lambda t, ids: t.put(*records(len(ids)))),
    "update": (
        lambda: new(PROGRAM),
        lambda t, ids: t.update(ids, gradients(ids), lambda v, s, g: (v - g, s)),
    ),
    "waiting": (lambda: new(entry=specs.CountEntry(count=9)), lambda t, ids: t.look_up(ids)),
    "admitted": (
        lambda: new(entry=COUNTED),
        lambda t, ids: t.look_up(ids, np.full(len(ids), 2, np.uint32)),
    ),
}


@pytest.fixture
def scarce(monkeypatch):
    """Pages of a few rows, and a switch: how many pieces of memory there are still to be had (-1:
    any number).
    """

    class Scarce:
        left = -1

        def spend(self):
            if not self.left:
                raise MemoryError("no memory for a page")
            self.left -= 1

    records(100), records(ROWS)
    switch, zeros, add = Scarce(), shard._zeros, shard._Pages.add

    def pages(self, size, dtype):
        switch.spend()
        add(self, size, dtype)
        self.arrays[-1].view(np.uint8)[:] = 0xA5  # as what malloc gives

    def entries(capacity):
        switch.spend()
        return zeros(capacity)

    monkeypatch.setattr(shard, "_PAGE_BYTES", 1 << 10)
    monkeypatch.setattr(shard, "_FEW", 16)
    monkeypatch.setattr(shard._Pages, "add", pages)
    monkeypatch.setattr(shard, "_zeros", entries)
    return switch


def state(t, ids):
    return {
        "rows": len(t),
        "waiting": t.waiting,
        "step": t.step,
        "values": t.look_up(ids, train=False),
        **t.slots(ids),
    }


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)


@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_memory_ends_in_changes_nothing(scarce, way):
    make, act = WAYS[way]
    t, twin = make(), make()
    for table in (t, twin):
        act(table, IDS[:100])
    before = state(t, IDS)
    for pieces in range(40):  # one more each time
        scarce.left = pieces
        try:
            act(t, IDS)
        except MemoryError:
            scarce.left = -1
            assert_same(state(t, IDS), before)
        else:
            break
    scarce.left = -1
    assert pieces > 2
    act(twin, IDS)
    assert_same(state(t, IDS), state(twin, IDS))
    assert t.nbytes <= 2 * twin.nbytes  # memory of the attempts was used


def test_all_tables_of_a_call_or_none(scarce):
    store = Store()
    for name in "ab":
        store.create_table(new().spec.model_copy(update={"name": name}))
    rows = [RowsUpdate(name, Change.GRADIENT, IDS, gradients(IDS)) for name in "ab"]
    scarce.left = 0
    for left in itertools.count():
        scarce.left = left
        try:
            store.apply(rows, [])
            break
        except MemoryError:
            assert all(len(t) == t.step == 0 for t in store.tables.values())
    assert left > 10 and all(len(t) == ROWS and t.step == 1 for t in store.tables.values())


@pytest.mark.parametrize("way", ["look_up", "assign", "put", "admitted"])
def test_an_interrupt_behind_an_insertion_leaves_whole_rows(monkeypatch, way):
    make, act = WAYS[way]
    t, locate, calls = make(), index.locate, itertools.count()

    def interrupted(*arguments):
        done = locate(*arguments)
        if next(calls) == 1:
            raise KeyboardInterrupt  # between the machine code and what Python makes of its result
        return done

    monkeypatch.setattr(index, "locate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        act(t, IDS)
    with t.view() as view:
        there = np.concatenate([IDS[:0], *(heads["id"] for heads, _ in view.blocks())])
    assert len(np.unique(there)) == len(there) == len(t)
    act(twin := make(), IDS)
    found, after = t.look_up(there, train=False), twin.look_up(there, train=False)
    assert ((found == 7) | (found == after)).all()
    act(t, IDS)
    assert_same(state(t, IDS) | {"step": 0}, state(twin, IDS) | {"step": 0})


def test_shrinking_without_memory_for_a_new_index_keeps_the_rows_right(scarce):
    t = new()
    t.push(IDS, gradients(IDS), merged=True)
    kept = IDS[::3]
    t.push(kept, gradients(kept), merged=True)
    expected, scarce.left = t.look_up(kept, train=False), 0
    assert t.shrink(1) == ROWS - len(kept) and len(t) == len(kept)
    np.testing.assert_array_equal(t.look_up(kept, train=False), expected)
    scarce.left = -1
    assert (t.look_up(IDS[1::3]) == 7).all() and len(t) == len(kept) + len(IDS[1::3])


def test_a_cut_has_all_rows_when_memory_ends_while_one_is_put_aside(monkeypatch):
    t = new()
    t.assign(IDS, gradients(IDS))
    read = shard.Shard.read

    def ended(self, rows):
        raise MemoryError("no memory for a copy")

    with t.view() as view:
        monkeypatch.setattr(shard.Shard, "read", ended)
        with pytest.raises(MemoryError):
            t.assign(IDS, np.zeros((ROWS, WIDTH), np.float32))
        monkeypatch.setattr(shard.Shard, "read", read)
        t.assign(IDS[::2], np.ones((len(IDS[::2]), WIDTH), np.float32))
        parts = list(view.blocks())
    heads, bodies = (np.concatenate(part) for part in zip(*parts, strict=True))
    found = dict(zip(heads["id"].tolist(), bodies[:, 0].tolist()))
    assert found == dict(zip(IDS.tolist(), gradients(IDS)[:, 0].tolist()))


def test_rows_are_not_inserted_without_room():
    t = new()
    with pytest.raises(RuntimeError, match="there is room for 0 rows, which is 3 too few"):
        t._shards[0].insert(IDS[:3], np.arange(3), 0)
    assert len(t) == 0 and t._reservations.state[kernels.HELD].sum() == 0

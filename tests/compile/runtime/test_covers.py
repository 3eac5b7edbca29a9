"""Batches of sequences that run at larger sizes: how many compilations a stream takes, and its results."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.numpy_steps import beside
from jfluid.compile.runtime import executables, library_fusions
from jfluid.compile.runtime.padding import Size, fill, trimmed
from jfluid.compile.runtime.slots import Joined, Layout
from jfluid.compile.runtime.wider_slots import fit, layouts_of, roomy, widened
from tests.kept_steps import calls_of, finish, folder

__all__ = ["folder"]

LENGTHS = [np.random.RandomState(at).randint(2, 40, 4).tolist() for at in range(30)]


@pytest.fixture
def work(monkeypatch):
    """The names of what is done for the steps: a trace, a compilation, an interpreted step."""
    return calls_of(
        monkeypatch, [(executables.Executables, "trace"), (library_fusions, "compiled"), (beside.Beside, "run")]
    )


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Begin compilations at the first interpreted step."""
    monkeypatch.setattr(beside, "_PAYS", 0.0)
    monkeypatch.setattr(beside, "_FIRST_CALL", 0.0)


def losses(interpreted=True, batches=LENGTHS, waits=True):
    """The losses of a tagger for batches of sequences; with `waits`, each step finds what was begun compiled."""
    layers = fluid.layers
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        main.random_seed = startup.random_seed = 5
        words, label = (fluid.data(n, [None, 1], "int64", lod_level=1) for n in ("words", "label"))
        x = layers.dynamic_gru(layers.fc(layers.embedding(words, [50, 8]), 24), 8)
        best, _ = layers.topk(layers.sequence_pool(x, "max"), 2)
        cost = layers.mean(layers.cross_entropy(layers.fc(x, 5, act="softmax"), label)) + layers.mean(best)
        fluid.optimizer.SGD(0.1).minimize(cost)
    random, found = np.random.RandomState(0), []
    old = fluid.get_flags("FLAGS_interpret_first_steps")
    fluid.set_flags({"FLAGS_interpret_first_steps": interpreted})
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        for lengths in batches:
            feed = {}
            for name, most in (("words", 50), ("label", 5)):
                values = random.randint(0, most, (sum(lengths), 1))
                feed[name] = fluid.create_lod_tensor(values, [lengths], fluid.CPUPlace())
            results = executor.run(main, feed, [cost, x], return_numpy=False)
            assert len(np.asarray(results[1])) == sum(lengths) and results[1].recursive_sequence_lengths() == [lengths]
            found.append(float(np.ravel(results[0])[0]))
            if waits:
                finish()
    fluid.set_flags(old)
    return found


def test_one_compilation_serves_many_lengths(work, monkeypatch):
    batches = LENGTHS[:20]
    expected = losses(interpreted=False, batches=batches)
    work.clear()
    np.testing.assert_allclose(losses(batches=batches), expected, rtol=1e-4)
    assert work.count("compiled") <= 5  # with the startup program
    assert work.count("run") < len(batches) / 2  # most steps run compiled


def test_narrow_sizes_are_compiled_once_they_pay(work, monkeypatch):
    batches = [[30, 40, 35, 20], [3, 2, 4, 2], *[[3, 3, 4, 2]] * 4]
    compiled = []
    for pays in (False, True):  # by the clock otherwise
        monkeypatch.setattr(executables.Covers, "pays", lambda self, own, cover: pays)  # noqa: B023
        work.clear()
        losses(batches=batches)
        compiled.append(work.count("compiled"))
    assert compiled[1] == compiled[0] + 1


def test_a_second_start_runs_at_the_sizes_on_disk(folder, work, monkeypatch):
    expected = losses()
    finish()
    work.clear()
    np.testing.assert_allclose(losses(), expected, rtol=1e-4)
    assert "trace" not in work and "compiled" not in work and "run" not in work


def layout(rows, longest, uniform=False):
    return Layout(("a", "b"), (Size(rows, (2,), (longest,), uniform), Size(8, (2,), (4,))))


def test_rows_move_to_a_wider_layout():
    narrow, wide = layout(6, 3, True), layout(10, 5)
    values = np.arange(14.0)[:, None]
    value = Joined(values, np.array([[0, 3, 7]], np.int32), narrow)
    (_, (moved,), key) = widened(((), (value,), None), (wide,))
    assert key is None and moved.layout == wide and moved.values.shape == (18, 1)
    assert moved.values[:6].ravel().tolist() == values[:6].ravel().tolist()
    assert moved.values[10:].ravel().tolist() == values[6:].ravel().tolist()
    assert moved.offsets.tolist() == [[0, 3, 6], [0, 3, 7]]
    assert layouts_of(((), (value,), None)) == (narrow,)


def test_layouts_fit_by_their_sizes():
    narrow, wide = (layout(6, 3),), (layout(10, 5),)
    assert fit(narrow, wide) and not fit(wide, narrow) and fit((layout(6, 3, True),), wide)
    assert not fit((layout(10, 5),), (layout(10, 5, True),))
    assert all(fit(own, roomy([narrow, wide])) for own in (narrow, wide))
    assert roomy([narrow, (None,)]) is None


# Paragraphs of sentences of words: lengths of the sentences, by paragraph.
PARAGRAPHS = [
    [random.randint(1, 9, random.randint(1, 7)).tolist() for _ in range(3)]
    for random in map(np.random.RandomState, range(20))
]


def two_levels(interpreted=True):
    """The losses of a program that pools words to sentences, and sentences to paragraphs."""
    layers = fluid.layers
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        main.random_seed = startup.random_seed = 5
        words = fluid.data("words", [None, 1], "int64", lod_level=2)
        x = layers.fc(layers.embedding(words, [50, 8]), 8, act="tanh")
        best, _ = layers.topk(layers.sequence_pool(x, "average"), 2)
        cost = layers.mean(layers.sequence_pool(best, "max"))
        fluid.optimizer.SGD(0.1).minimize(cost)
    random, found = np.random.RandomState(0), []
    old = fluid.get_flags("FLAGS_interpret_first_steps")
    fluid.set_flags({"FLAGS_interpret_first_steps": interpreted})
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        for paragraphs in PARAGRAPHS:
            sentences = [length for own in paragraphs for length in own]
            lengths = [list(map(len, paragraphs)), sentences]
            ids = random.randint(0, 50, (sum(sentences), 1))
            feed = {"words": fluid.create_lod_tensor(ids, lengths, fluid.CPUPlace())}
            loss, rows = executor.run(main, feed, [cost, x], return_numpy=False)
            assert len(np.asarray(rows)) == len(ids) and rows.recursive_sequence_lengths() == lengths
            found.append(float(np.ravel(loss)[0]))
            finish()
    fluid.set_flags(old)
    return found


def test_one_compilation_serves_sequences_of_two_levels(folder, work):
    expected = two_levels(interpreted=False)
    before = work.count("compiled")
    work.clear()
    np.testing.assert_allclose(two_levels(), expected, rtol=1e-4)
    assert work.count("compiled") <= 4 < before
    assert work.count("run") < len(PARAGRAPHS) / 2  # most steps run compiled
    finish()
    work.clear()
    np.testing.assert_allclose(two_levels(), expected, rtol=1e-4)
    assert "trace" not in work and "compiled" not in work and "run" not in work


def test_two_levels_move_to_a_larger_size():
    lod = [np.array([0, 1, 3], np.int32), np.array([0, 2, 5, 6], np.int32)]
    rows = np.arange(6.0)[:, None]
    value = fill(rows, lod, Size(8, (2, 4), (2, 4)), False)
    (own,) = layouts_of(((), (value,), None)) or ()
    assert own == Size(8, (2, 4), (2, 4))
    wide = Size(10, (2, 8), (4, 4))
    (_, (moved,), _) = widened(((), (value,), None), (wide,))
    assert layouts_of(((), (moved,), None)) == (wide,)
    assert trimmed(moved)._lod[1].tolist() == [0, 2, 5, 6] and np.array_equal(np.asarray(trimmed(moved)), rows)
    assert fit((own,), (wide,)) and not fit((wide,), (own,))
    assert not fit((Size(8, (2, 4), (2, 4)),), (Size(8, (2, 4), (3, 1)),))  # level by level
    assert not fit((own,), (Size(10, (3, 8), (4, 4)),)) and not fit((own,), (None,))
    assert fit((wide,), roomy([(own,), (wide,)]))


def test_a_first_batch_gets_room_for_later_batches(work):
    """One trace serves a stream of batches with lengths as random as those of the first batch."""
    losses(batches=[[20, 11, 35, 2], [39, 15, 30, 16], [8, 20, 38, 25], [30, 28, 12, 39]], waits=False)
    assert work.count("trace") == 2  # with the startup program


def test_a_batch_that_comes_again_gets_no_room(work, monkeypatch):
    sizes = []
    note = executables.Covers.note
    monkeypatch.setattr(
        executables.Covers, "note", lambda self, own, seconds: (sizes.append(own), note(self, own, seconds))
    )
    losses(batches=[[20, 11, 35, 2]] * 4)
    ((layout,),) = [[own for own in layouts if own] for layouts in sizes]
    assert [size.rows for size in layout.sizes] == [80, 80]

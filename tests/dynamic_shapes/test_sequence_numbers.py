"""Streams of batches whose number of sequences varies: compilations, and results beside exact sizes."""

import itertools

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.compile.dynamic_shapes.buckets import MOST
from jfluid.compile.numpy_steps import beside
from jfluid.compile.runtime import executables, library_fusions
from jfluid.compile.runtime.slots import SlotBuckets
from tests.dynamic_shapes.interpreted import interpreted
from tests.dynamic_shapes.test_placements import compilations
from tests.kept_steps import calls_of, finish, folder
from tests.slow_tests import nightly_but

__all__ = ["folder"]

NUMBERS = np.random.RandomState(1).permutation(np.arange(2, 16)).tolist()
FEW = [4, 7, 5]


def sequences(random, lengths, most):
    return fluid.create_lod_tensor(random.randint(0, most, (sum(lengths), 1)), [lengths], fluid.CPUPlace())


def lengths_of(random, number, most=9):
    return random.randint(1, most, number).tolist()


def words(level=1):
    return fluid.data("words", [None, 1], "int64", lod_level=level)


def classifier():
    label = fluid.data("label", [None, 1], "int64")
    embedded = layers.embedding(words(), [50, 4])
    guess = layers.fc(layers.sequence_pool(embedded, "average"), 3, act="softmax")
    cost = layers.mean(layers.cross_entropy(guess, label))

    def feed(random, number):
        lengths = lengths_of(random, number)
        return {"words": sequences(random, lengths, 50), "label": random.randint(0, 3, (number, 1))}

    return feed, [cost, layers.accuracy(guess, label), guess, embedded]


def tagger():
    tags = fluid.data("tags", [None, 1], "int64", lod_level=1)
    embedded = layers.embedding(words(), [50, 4])
    states = [layers.dynamic_gru(layers.fc(embedded, 12), 4), layers.dynamic_lstm(layers.fc(embedded, 16), 16)[0]]
    scores = layers.fc(states, 3)
    costs = layers.linear_chain_crf(scores, tags, fluid.ParamAttr("transition"))
    path = layers.crf_decoding(scores, fluid.ParamAttr("transition"))

    def feed(random, number):
        lengths = lengths_of(random, number)
        return {"words": sequences(random, lengths, 50), "tags": sequences(random, lengths, 3)}

    return feed, [layers.mean(costs), costs, path]


def recurrent():
    label = fluid.data("label", [None, 4])
    embedded, rnn = layers.embedding(words(), [50, 4]), layers.DynamicRNN()
    with rnn.block():
        word, state = rnn.step_input(embedded), rnn.memory(shape=[4], value=0.5)
        new = layers.fc([word, state], 4, act="tanh")
        rnn.update_memory(state, new)
        rnn.output(new)
    states = rnn()
    cost = layers.reduce_mean(layers.square_error_cost(layers.sequence_last_step(states), label))

    def feed(random, number):
        return {
            "words": sequences(random, lengths_of(random, number), 50),
            "label": random.rand(number, 4).astype("float32"),
        }

    return feed, [cost, states]


def paragraphs():
    target = fluid.data("target", [None, 1])
    mean = layers.sequence_pool(layers.embedding(words(2), [50, 4]), "average")
    normed = layers.batch_norm(layers.sequence_pool(mean, "max"))
    cost = layers.mean(layers.square_error_cost(layers.fc(normed, 1), target))

    def feed(random, number):
        inner = lengths_of(random, number, 4)
        lengths = [inner, lengths_of(random, sum(inner), 5)]
        ids = random.randint(0, 50, (sum(lengths[1]), 1))
        return {
            "words": fluid.create_lod_tensor(ids, lengths, fluid.CPUPlace()),
            "target": random.rand(number, 1).astype("float32"),
        }

    return feed, [cost, mean]


def steps(network, interprets, numbers=NUMBERS):
    """What a stream gives: a list of the fetches with their lods for each step, and the last one of parameters."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    old, random = fluid.get_flags("FLAGS_interpret_first_steps"), np.random.RandomState(0)
    fluid.set_flags({"FLAGS_interpret_first_steps": interprets})
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
        feed, fetches = network()
        fluid.optimizer.Adam(0.01).minimize(fetches[0])
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        finish()
        found = []
        with compilations() as compiled:
            for number in numbers:
                results = executor.run(main, feed(random, number), fetches, return_numpy=False)
                found.append([np.asarray(own) for value in results for own in (value, *value.lod())])
                finish()
        scope = fluid.global_scope()
        found.append([np.asarray(scope.find_var(own.name).get_tensor()) for own in main.all_parameters()])
    fluid.set_flags(old)
    return found, len(compiled)


def hold(found, others):
    assert list(map(len, found)) == list(map(len, others))
    for one, other in zip(itertools.chain(*found), itertools.chain(*others)):
        assert one.shape == other.shape and one.dtype == other.dtype
        np.testing.assert_allclose(one, other, 2e-3, 1e-5)


@pytest.fixture
def expected(monkeypatch):
    """Runs a stream at exact sizes."""

    def run(network, numbers=NUMBERS):
        with monkeypatch.context() as patch:
            patch.setattr(SlotBuckets, "exact", True, raising=False)
            patch.setattr(SlotBuckets, "__setattr__", lambda self, n, v: n == "exact" or object.__setattr__(self, n, v))
            return interpreted(steps, network, True, numbers)[0]

    return run


@pytest.mark.parametrize(
    "network, numbers",
    [
        *[(network, FEW) for network in (tagger, recurrent, paragraphs)],
        *[pytest.param(n, NUMBERS, marks=pytest.mark.nightly) for n in (classifier, tagger, recurrent, paragraphs)],
    ],
)
def test_interpreted_steps(network, numbers, expected, monkeypatch):
    """Before each change few numbers: `test_steps_that_wait` has many, and the bound."""
    exact = expected(network, numbers)
    monkeypatch.setattr(beside, "_PAYS", 0.0)
    monkeypatch.setattr(beside, "_FIRST_CALL", 0.0)
    found, compiled = steps(network, True, numbers)
    hold(found, exact)
    assert compiled <= min(MOST, len(numbers) - 1)


@pytest.mark.parametrize("network", nightly_but(["classifier"], [classifier, recurrent]))
def test_steps_that_wait(network, expected):
    """The numbers of the first steps are compared: exact ones are traced for each size."""
    found, compiled = steps(network, False)
    hold(found[:5], expected(network, NUMBERS[:5])[:5])
    assert compiled <= MOST < len(set(NUMBERS))


def test_a_second_start_compiles_nothing(folder, monkeypatch):
    work = calls_of(
        monkeypatch, [(executables.Executables, "trace"), (library_fusions, "compiled"), (beside.Beside, "run")]
    )
    monkeypatch.setattr(beside, "_PAYS", 0.0)
    monkeypatch.setattr(beside, "_FIRST_CALL", 0.0)
    numbers = [5, 9, 4, 8]
    exact, _ = steps(classifier, True, numbers)
    assert "compiled" in work
    work.clear()
    found, _ = steps(classifier, True, numbers)
    hold(found, exact)
    assert "compiled" not in work and work.count("run") == 1  # the first batch, whose number is exact


def test_one_number_stays_exact(monkeypatch):
    """Only a second number makes room for more sequences, and the first number keeps its executables."""
    chosen, choose = [], SlotBuckets.choose

    def noted(self, need):
        chosen.append(choose(self, need))
        return chosen[-1]

    monkeypatch.setattr(SlotBuckets, "choose", noted)
    steps(classifier, True, [8, 8, 8, 5, 8, 5])
    counted = [{size.counted for size in sizes.values()} for sizes in chosen]
    assert {True} in counted and counted[0] == {False}
    assert all(sizes["words"].numbers == (8,) for sizes in chosen)  # room for 8 at least


def unsupported():
    feed, (cost, _, guess, _) = classifier()
    return feed, [cost + layers.reduce_sum(layers.diag(layers.reduce_sum(guess, dim=1))), guess]


def test_an_operator_that_needs_exact_rows_keeps_exact_numbers(expected):
    numbers = [4, 6, 5, 7, 8]
    exact = expected(unsupported, numbers)
    with pytest.warns(RuntimeWarning, match="for each number of sequences, because of an operator"):
        found, _ = steps(unsupported, True, numbers)
    hold(found, exact)

"""Imperative steps that call a cell as often as a sentence has words."""

import threading
from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jfluid as fluid
from jfluid import dygraph, layers
from jfluid.compile.dynamic_shapes.buckets import Buckets
from jfluid.compile.dynamic_shapes.traced import Traced
from jfluid.compile.numpy_steps import beside
from jfluid.dygraph import loop_reroll
from jfluid.dygraph.lazy_graph import graph_on
from jfluid.dygraph.shape_streams import RerolledSegment
from jfluid.initializer import NumpyArrayInitializer
from tests.dynamic_shapes.interpreted import interpreted

LENGTHS = [5, 9]  # the last one is padded
WIDTH, WORDS, BATCH = 5, 11, 3


@pytest.fixture(autouse=True)
def flag():
    yield
    fluid.set_flags({"FLAGS_dynamic_shapes": True})


def linear(random, rows, columns, act=None):
    weight = random.randn(rows, columns).astype("float32") * 0.4
    return dygraph.Linear(rows, columns, param_attr=NumpyArrayInitializer(weight), act=act)


class Cell:
    """A recurrent cell over words, and the parameters of all that a step calls."""

    def __init__(self, random):
        table = random.randn(WORDS, WIDTH).astype("float32")
        self.table = dygraph.Embedding([WORDS, WIDTH], param_attr=NumpyArrayInitializer(table))
        self.cell = linear(random, 2 * WIDTH, WIDTH, "tanh")
        self.out = linear(random, WIDTH, WORDS)
        parts = (self.table, self.cell, self.out)
        self.parameters = [p for part in parts for p in part.parameters()]

    def states(self, words):
        x = self.table(dygraph.to_variable(words))
        h = layers.zeros([BATCH, WIDTH], "float32")
        found = []
        for i in range(words.shape[1]):
            h = self.cell(layers.concat([x[:, i], h], 1))
            found.append(h)
        return found


def language_model(net, words):
    """The loss of each word as it comes; labels are given word by word."""
    loss = 0.0
    for i, h in enumerate(net.states(words)):
        label = dygraph.to_variable(words[:, i : i + 1])
        loss = loss + layers.mean(layers.softmax_with_cross_entropy(net.out(h), label))
    return loss, [loss]


def both_directions(net, words):
    """A loss that a loop back over the states of another adds up; the script holds all states."""
    states, loss = net.states(words), 0.0
    back = layers.zeros([BATCH, WIDTH], "float32")
    for h in reversed(states):
        back = net.cell(layers.concat([h, back], 1))
        loss = loss + layers.mean(net.out(back + h))
    return loss, [loss, back, *states]


class Joined(NamedTuple):
    """A step with attention over the states of a loop, in a second loop that is one word longer.

    Attributes:
        reads: how the first loop gets its words.
        joins: how its states become one array.
        axis: dimension of the joined array that counts the states.
        rate: rate of dropout in both loops.
        backwards: True for a first loop that begins with the last word.
    """

    reads: str
    joins: str
    axis: int
    rate: float
    backwards: bool

    def __call__(self, net, words):
        fluid.default_main_program().random_seed = 3
        x, length = net.table(dygraph.to_variable(words)), words.shape[1]
        h, states = layers.zeros([BATCH, WIDTH], "float32"), []
        for word in self._words(x, length):
            h = self._dropped(net.cell(layers.concat([word, h], 1)))
            states.append(h)
        heard, loss = self._joined(states), 0.0
        states = None  # only their array is kept
        for i in range(length + 1):
            weights = layers.softmax(layers.matmul(layers.unsqueeze(h, [1]), heard, transpose_y=True))
            seen = layers.squeeze(layers.matmul(weights, heard), [1])
            h = self._dropped(net.cell(layers.concat([seen, h], 1)))
            label = dygraph.to_variable(words[:, i % length : i % length + 1])
            loss = loss + layers.mean(layers.softmax_with_cross_entropy(net.out(h), label))
        return loss / float(length + 1), [loss, heard, h]

    def _words(self, x, length):
        if self.reads == "unstack":
            found = layers.unstack(x, axis=1)
        elif self.reads == "split":
            found = [layers.squeeze(part, [1]) for part in layers.split(x, length, dim=1)]
        else:
            found = [x[:, i] for i in range(length)]
        return found[::-1] if self.backwards else found

    def _dropped(self, h):
        return layers.dropout(h, self.rate, dropout_implementation="upscale_in_train") if self.rate else h

    def _joined(self, states):
        """The states as [batch, length, width]."""
        if self.joins == "stack":
            own = layers.stack(states, axis=self.axis)
            order = {0: [1, 0, 2], 1: [0, 1, 2], 2: [0, 2, 1]}[self.axis]
            return layers.transpose(own, order)
        if self.axis == 0:
            own = layers.concat(states, 0)
            return layers.transpose(layers.reshape(own, [-1, BATCH, WIDTH]), [1, 0, 2])
        return layers.reshape(layers.concat(states, 1), [BATCH, -1, WIDTH])


def trained(step, lengths, padded):
    """What steps over sentences of these lengths give, and how many steps were compiled as they are."""
    fluid.set_flags({"FLAGS_dynamic_shapes": padded})
    pending = graph_on(fluid.CPUPlace().device())
    random, found = np.random.RandomState(0), []
    with dygraph.guard(fluid.CPUPlace()):
        net = Cell(random)
        for p in net.parameters:
            p.numpy()
        before = pending.compiled
        for length in lengths:
            words = random.randint(0, WORDS, (BATCH, length))
            loss, held = step(net, words)
            loss.backward()
            found += [v.numpy() for v in held] + [p.gradient() for p in net.parameters]
            for p in net.parameters:
                p.clear_gradient()
        return found, pending.compiled - before


def rolled():
    """The streams of steps with loops."""
    streams = graph_on(fluid.CPUPlace().device())._streams._streams.values()
    return [stream for segment, stream in streams if isinstance(segment, RerolledSegment)]


def check(step, lengths=LENGTHS):
    """Compare a step with loops of XLA with the same step unrolled, for sentences of some lengths."""
    before = len(rolled())
    found, compiled = trained(step, lengths, True)
    new = rolled()[before:]
    assert len(new) == 1, [s._refused for s in new]
    assert not new[0]._refused
    assert compiled <= 1
    assert 1 <= len(new[0]._traces[-1].executables) <= 3
    expected, _ = interpreted(trained, step, lengths, False)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(language_model, marks=pytest.mark.nightly),  # `slice_stack` has such a loop too
        both_directions,
        Joined("slice", "stack", 1, 0.3, False),
        Joined("unstack", "concat", 1, 0.0, True),
        pytest.param(Joined("split", "stack", 0, 0.0, True), marks=pytest.mark.nightly),
    ],
    ids=["language_model", "both_directions", "slice_stack", "unstack_concat", "split_stack"],
)
def test_steps_of_every_length(step):
    check(step)


joined_steps = st.builds(
    lambda reads, joins, rate, backwards: Joined(reads, *joins, rate, backwards),
    st.sampled_from(["slice", "unstack", "split"]),
    st.sampled_from([("stack", 0), ("stack", 1), ("stack", 2), ("concat", 0), ("concat", 1)]),
    st.sampled_from([0.0, 0.4]),
    st.booleans(),
)


@pytest.mark.nightly
@settings(max_examples=8, deadline=None)
@given(joined_steps, st.permutations(range(5, 14)))
def test_random_steps_of_every_length(step, lengths):
    graph_on(fluid.CPUPlace().device())._streams._streams.clear()
    check(step, lengths[:6])


def calls(number, lag=1, listed=()):
    """Calls of a loop of two, in which the first reads what an iteration before gave."""
    found = [loop_reroll.Op(9, (), (), 0, 1)]
    for i in range(number):
        before = max(2 * (i - lag) + 2, 0)
        found.append(loop_reroll.Op(1, (before,), ("f",), 2 * i + 1, 1))
        found.append(loop_reroll.Op(2, (2 * i + 1, -1), ("f", "f"), 2 * i + 2, 1))
    inputs = tuple(2 * i + 2 for i in range(number) if i not in listed)
    row = loop_reroll.RowCall("sum", 4, range(len(inputs)), False)
    found.append(loop_reroll.Op(3, inputs, ("f",) * len(inputs), 2 * number + 1, 1, (), row))
    return found


def outline(*args, **kwargs):
    ops = calls(*args, **kwargs)
    return loop_reroll.outline_of(ops, loop_reroll.spans_of(ops), [ops[-1].first])


def test_loops_are_found():
    assert loop_reroll.spans_of(calls(7)) == [loop_reroll.Span(1, 2, 7)]
    assert outline(7).key == outline(11).key
    assert outline(7).counts == [7]


def test_iterations_that_have_no_outline():
    assert outline(7, lag=2) is None  # reads two iterations before
    assert outline(9, listed=[4]) is None  # one in the middle is left out
    assert loop_reroll.spans_of(calls(2)) == []


def recorded(monkeypatch):
    """A list that gets the sizes of each trace of a step with loops."""
    found, own = [], RerolledSegment.results

    def results(self, env, seeds):
        found.append({name: value.shape for name, value in env.items() if name.startswith("k")})
        return own(self, env, seeds)

    monkeypatch.setattr(RerolledSegment, "results", results)
    return found


def begin_anew():
    """Forget all steps, as a new process would."""
    graph = graph_on(fluid.CPUPlace().device())
    streams = graph._streams
    for memory in (graph._whole, graph._seen, streams._streams, streams._firsts, streams._outlines):
        memory.clear()
    graph._recent, graph._one_by_one = [], False


def test_steps_are_padded_once_all_lengths_have_varied(monkeypatch):
    begin_anew()
    traces = recorded(monkeypatch)
    trained(language_model, [5, 7], True)
    (stream,) = rolled()
    assert len(traces) == 3 and not stream._exact  # two samples, and the batch that checks the samples
    trained(language_model, [6, 9, 8, 11], True)
    assert len(traces) == 3


@pytest.fixture
def interprets(monkeypatch, tmp_path):
    """Switch the interpreter on, with a folder of its own for executables; the first padded step is compiled."""
    before = fluid.get_flags(["FLAGS_compilation_cache_dir", "FLAGS_interpret_first_steps"])
    of_jax = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    fluid.set_flags({"FLAGS_compilation_cache_dir": str(tmp_path), "FLAGS_interpret_first_steps": True})
    monkeypatch.setattr(Traced, "pays", lambda self, seconds: True)
    monkeypatch.setattr(Buckets, "refine", lambda self: False)
    yield
    fluid.set_flags(before)
    jax.config.update("jax_compilation_cache_dir", of_jax)


def test_a_second_process_knows_that_lengths_vary(interprets, monkeypatch):
    begin_anew()
    trained(language_model, [6, 9, 7], True)
    for thread in threading.enumerate():
        if thread.name == beside.THREAD:
            thread.join()
    begin_anew()
    traces = recorded(monkeypatch)
    trained(language_model, [8], True)
    assert not traces and len(rolled()) == 1

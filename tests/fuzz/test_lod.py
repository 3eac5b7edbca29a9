"""Operators of sequences, on offsets and lengths that come from data: each gives what it gives without machine code, or
the same error, also where numbers are none or infinite; and sequences never reach beyond their rows.

Programs are few, and of few shapes, so that a case costs a run of each and nothing is compiled for it.
"""

import contextlib
import functools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jfluid as fluid
from jfluid import errors
from jfluid.machine_code import kernel_registry
from jfluid.ops import ragged_dispatch, registry
from jfluid.ops.ragged import Ragged
from tests.dynamic_shapes.interpreted import interpreting
from tests.fuzz.harness import fuzzed

layers = fluid.layers
WIDTH = 16  # that machine code is made for
SEQUENCES, ROWS, STEPS, TAGS = 3, 8, 4, 5
SPECIAL = [np.nan, np.inf, -np.inf]


@pytest.fixture(autouse=True)
def flag():
    yield
    fluid.set_flags({"FLAGS_cpu_kernels": True})


def data(name, dtype="int64", width=1):
    """Data of which a program reads a row for each sequence."""
    return fluid.data(name, [SEQUENCES, width], dtype)


def rnn(x):
    loop = layers.DynamicRNN()
    with loop.block():
        now, before = loop.step_input(x), loop.memory(shape=[WIDTH], value=0.5)
        after = layers.tanh(now + before)
        loop.update_memory(before, after)
        loop.output(after)
    return loop()


def static_rnn(x):
    steps = layers.transpose(layers.sequence_pad(x, zero(), maxlen=ROWS)[0], [1, 0, 2])
    first = layers.fill_constant([SEQUENCES, WIDTH], "float32", 0.0)
    loop = layers.StaticRNN()
    with loop.step():
        now, before = loop.step_input(steps), loop.memory(init=first)
        after = layers.tanh(now + before)
        loop.update_memory(before, after)
        loop.step_output(after)
    return loop()


def zero():
    return layers.fill_constant([1], "float32", 0.0)


def pooled(kind):
    return lambda x: layers.sequence_pool(x, kind, pad_value=7.0)


def narrow(build):
    """An operator on rows of one number."""
    return lambda x: build(layers.slice(x, [1], [0], [1]))


def labels(x):
    """A label of each row of x, in its sequences; from data."""
    return layers.lod_reset(fluid.data("labels", [ROWS, 1], "int64"), x)


def few(x, number=TAGS):
    return layers.slice(x, [1], [0], [number])


def two_levels(build):
    """An operator on sequences of sequences: the first of data has those before the last."""
    return lambda x: build(layers.lod_reset(x, fluid.data("deep", [None, 1], lod_level=2)))


def searched(x):
    """The best words after each row, which the host looks for."""
    chances = few(x)
    before = labels(x)
    scores, words = layers.topk(layers.softmax(chances), 3)
    found = layers.beam_search(before, layers.slice(chances, [1], [0], [1]), words, scores, 2, 0, level=0)
    return found[1]


# On rows [ROWS, WIDTH] in SEQUENCES sequences.
OPERATORS = {
    **{f"pool {kind}": pooled(kind) for kind in ("max", "sum", "average", "sqrt", "first", "last")},
    "narrow max": narrow(pooled("max")),
    "softmax": narrow(layers.sequence_softmax),
    "conv": lambda x: layers.sequence_conv(x, WIDTH, bias_attr=False),
    "row_conv": lambda x: layers.row_conv(x, 2),
    "reverse": layers.sequence_reverse,
    "expand": lambda x: layers.sequence_expand(data("given", "float32", WIDTH), x),
    "expand_as": lambda x: layers.sequence_expand_as(data("given", "float32", WIDTH), x) + x,
    "concat": lambda x: layers.sequence_concat([x, x]),
    "slice": lambda x: layers.sequence_slice(x, data("first"), data("second")),
    "pad": lambda x: layers.sequence_pad(x, zero(), maxlen=STEPS)[0],
    "reshape": lambda x: layers.sequence_reshape(x, 2 * WIDTH),
    "enumerate": lambda x: layers.cast(layers.sequence_enumerate(labels(x), 3, 9), "float32"),
    "scatter": lambda x: layers.sequence_scatter(
        data("given", "float32", WIDTH), labels(x), layers.slice(x, [1], [0], [1])
    ),
    "position": lambda x: layers.add_position_encoding(x, 1.0, 1.0),
    "lstm": lambda x: layers.dynamic_lstm(layers.concat([x] * 4, 1), 4 * WIDTH)[0],
    "lstm back": lambda x: layers.dynamic_lstm(
        layers.concat([x] * 4, 1), 4 * WIDTH, is_reverse=True, use_peepholes=False
    )[1],
    "lstmp": lambda x: layers.dynamic_lstmp(layers.concat([x] * 4, 1), 4 * WIDTH, WIDTH)[0],
    "gru": lambda x: layers.dynamic_gru(layers.concat([x] * 3, 1), WIDTH),
    "gru back": lambda x: layers.dynamic_gru(layers.concat([x] * 3, 1), WIDTH, is_reverse=True, origin_mode=True),
    "rnn": rnn,
    "static rnn": static_rnn,
    "crf": lambda x: layers.linear_chain_crf(few(x), labels(x), fluid.ParamAttr("transition")),
    "decoding": lambda x: layers.cast(
        layers.crf_decoding(few(x), fluid.ParamAttr("path"))
        if layers.create_parameter([TAGS + 2, TAGS], "float32", attr=fluid.ParamAttr("path"))
        else None,
        "float32",
    ),
    "ctc": lambda x: layers.warpctc(few(x), layers.cast(labels(x), "int32")),
    "ctc of lengths": lambda x: layers.warpctc(
        layers.transpose(layers.sequence_pad(few(x), zero(), maxlen=ROWS)[0], [1, 0, 2]),
        layers.cast(fluid.data("padded", [SEQUENCES, STEPS], "int64"), "int32"),
        input_length=layers.reshape(data("first"), [-1]),
        label_length=layers.reshape(data("second"), [-1]),
    ),
    "greedy": lambda x: layers.cast(layers.ctc_greedy_decoder(few(x), 0), "float32"),
    "distance": lambda x: layers.edit_distance(labels(x), labels(x), normalized=True)[0],
    "distance of lengths": lambda x: layers.edit_distance(
        fluid.data("padded", [SEQUENCES, STEPS], "int64"),
        fluid.data("others", [SEQUENCES, STEPS], "int64"),
        input_length=layers.reshape(data("first"), [-1]),
        label_length=layers.reshape(data("second"), [-1]),
    )[0],
    "unpad": lambda x: layers.sequence_pool(
        layers.sequence_unpad(layers.sequence_pad(x, zero(), maxlen=ROWS)[0], layers.reshape(data("first"), [-1])),
        "max",
    ),
    "deep max": two_levels(pooled("max")),
    "deep expand": two_levels(
        lambda x: layers.sequence_expand(layers.sequence_pool(layers.sequence_pool(x, "sum"), "sum"), x, ref_level=0)
    ),
    "deep rnn": two_levels(lambda x: layers.sequence_pool(rnn_of_steps(x), "max")),
    "append": lambda x: layers.sequence_pool(
        layers.lod_append(x, layers.reshape(data("appended", "int32", 3), [-1])), "max"
    ),
    "search": searched,
}


def rnn_of_steps(x):
    loop = layers.DynamicRNN()
    with loop.block():
        loop.output(layers.sequence_pool(loop.step_input(x), "max"))
    return loop()


class Program:
    """A program of an operator, with the gradient of its input, and the names of what it is fed."""

    def __init__(self, name, resets):
        self.main, start = fluid.Program(), fluid.Program()
        self.main.random_seed = start.random_seed = 1
        self.scope, self.executor = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
        with fluid.program_guard(self.main, start), fluid.unique_name.guard():
            x = fluid.data("x", [None, WIDTH], lod_level=1)
            x.stop_gradient = False
            lod = layers.lod_reset(x, fluid.data("z", [SEQUENCES + 1], "int32")) if resets else x
            out = OPERATORS[name](lod)
            self.fetches = [out]
            if out.dtype == fluid.core.VarDesc.VarType.FP32 and not out.stop_gradient:
                found = fluid.gradients([layers.reduce_sum(out * 0.5)], [x])
                self.fetches += [g for g in found if g is not None]
        self.names = {v.name for v in self.main.list_vars() if v.is_data}
        with fluid.scope_guard(self.scope):
            self.executor.run(start)

    def run(self, feed, kernels):
        """What a step fetches, each with its lod; or what is wrong. Without machine code NumPy interprets the step."""
        fluid.set_flags({"FLAGS_cpu_kernels": kernels})
        feed = {n: v for n, v in feed.items() if n in self.names}
        try:
            with fluid.scope_guard(self.scope), contextlib.nullcontext() if kernels else interpreting():
                found = self.executor.run(self.main, feed=feed, fetch_list=self.fetches, return_numpy=False)
        except errors.JFluidError as error:
            return f"{type(error).__name__}: {error}"
        return [(v.lod(), np.array(v)) for v in found]


program = functools.cache(Program)

hostile = st.one_of(st.integers(-3, ROWS + 3), st.sampled_from([2**31 - 1, -(2**31), 1_000_000, -100]))


@st.composite
def offsets(draw):
    """Offsets of SEQUENCES sequences of ROWS rows; some fit, and others do not."""
    found = [0, *sorted(draw(st.lists(st.integers(0, ROWS), min_size=2, max_size=2))), ROWS]
    if draw(st.integers(0, 3)) == 0:
        found[draw(st.integers(0, SEQUENCES))] = draw(hostile)
    return found


@st.composite
def rows(draw):
    """Rows of small numbers, among which are some that are none or infinite."""
    values = np.random.RandomState(draw(st.integers(0, 2**16))).randn(ROWS, WIDTH)
    places = st.tuples(st.integers(0, ROWS - 1), st.integers(0, WIDTH - 1), st.sampled_from(SPECIAL))
    for row, column, number in draw(st.lists(places, max_size=3)):
        values[row, column] = number
    return values.astype("float32")


def whole(shape, numbers, dtype="int64"):
    size = int(np.prod(shape))
    listed = st.lists(numbers, min_size=size, max_size=size)
    return listed.map(lambda values: np.array(values, dtype).reshape(shape))


lengths = st.one_of(st.integers(0, STEPS), st.integers(0, STEPS), st.integers(-2, ROWS + 2), st.just(2**32 + 1))
FEEDS = st.fixed_dictionaries(
    {
        "z": offsets().map(lambda z: np.array(z, "int32")),
        "labels": whole((ROWS, 1), st.sampled_from([0, 1, 2, 3, 4])) | whole((ROWS, 1), st.integers(-1, TAGS + 1)),
        "given": whole((SEQUENCES, WIDTH), st.sampled_from([0.5, -1.0, 3.0]), "float32"),
        "first": whole((SEQUENCES, 1), lengths),
        "second": whole((SEQUENCES, 1), lengths),
        "padded": whole((SEQUENCES, STEPS), st.integers(0, TAGS - 1)),
        "others": whole((SEQUENCES, STEPS), st.integers(0, TAGS - 1)),
        "appended": whole((SEQUENCES, 3), st.just(0), "int32"),
    }
)


def fits(z):
    return z[0] == 0 and z[-1] == ROWS and (np.diff(z.astype("int64")) >= 0).all()


def same(name, feed, resets):
    """Run a program with machine code and without it, and return what it gave."""
    made = program(name, resets)
    found, without = made.run(feed, True), made.run(feed, False)
    if isinstance(found, str) or isinstance(without, str):
        assert found == without
        return found
    for (lod, values), (others, expected) in zip(found, without, strict=True):
        assert lod == others
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(values[~finite], expected[~finite])
        np.testing.assert_allclose(values[finite], expected[finite], rtol=2e-4, atol=2e-5)
    return found


machine_code = pytest.mark.skipif(
    not kernel_registry.supports("lstm"), reason="machine code is made for CPUs with AVX2"
)


@machine_code
@fuzzed(30)
@given(name=st.sampled_from(sorted(OPERATORS)), x=rows(), feed=FEEDS, deep=offsets(), data=st.data())
def test_offsets_from_data_give_the_same_with_machine_code_and_without(name, x, feed, deep, data):
    feed |= {"x": fluid.LoDTensor(x, [[0, 2, 2, ROWS]])}
    if "deep" in name:
        inner = [
            0,
            *sorted(data.draw(st.lists(st.integers(0, ROWS), min_size=4, max_size=4))),
            ROWS,
        ]
        outer = [0, *sorted(data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=1))), 5]
        feed["deep"] = fluid.LoDTensor(np.zeros((ROWS, 1), "float32"), [outer, inner])
    if name == "append":
        feed["appended"] = np.array(
            [0, *sorted(data.draw(st.lists(hostile, min_size=7, max_size=7))), ROWS], "int32"
        ).reshape(3, 3)
    found = same(name, feed, True)
    if not fits(feed["z"]):
        assert found.startswith("OperandError: operator lod_reset ")
        assert f"[{', '.join(map(str, feed['z']))}]" in found


@machine_code
@fuzzed(25)
@given(
    name=st.sampled_from(
        [
            "pool max",
            "narrow max",
            "lstm",
            "lstm back",
            "lstmp",
            "gru",
            "gru back",
            "rnn",
            "softmax",
            "pad",
        ]
    ),
    x=rows(),
    sizes=st.lists(st.integers(0, ROWS), min_size=SEQUENCES, max_size=SEQUENCES).filter(
        lambda sizes: sum(sizes) <= ROWS
    ),
)
def test_sequences_that_are_fed_give_the_same_with_machine_code_and_without(name, x, sizes):
    lod = [np.cumsum([0, *sizes])]
    found = same(name, {"x": fluid.LoDTensor(x[: sum(sizes)], lod)}, False)
    assert isinstance(found, list) or (name == "pad" and max(sizes) > STEPS)


# --- offsets within a step ---


def ragged_levels(values):
    for value in jax.tree.leaves(values, is_leaf=lambda v: isinstance(v, Ragged)):
        if isinstance(value, Ragged):
            yield value


def check(value):
    """Whether each level of a value starts at 0, never falls and ends within what it groups."""
    below = [level.number for level in value.levels[1:]] + [value.capacity]
    for level, most in zip(value.levels, below):
        found = np.asarray(level.offsets, "int64")
        assert found[0] == 0 and (np.diff(found) >= 0).all() and found[-1] <= most
        assert np.diff(found).max(initial=0) <= level.longest


@functools.cache
def called(operator, attrs):
    definition = registry.get(operator)
    kwargs = {
        n: dict(attrs).get(n, a.default)
        for n, a in definition.attrs.items()
        if n in dict(attrs) or a.default is not None
    }
    return jax.jit(lambda *inputs: ragged_dispatch.call(definition, list(inputs), kwargs))


# Operators that make levels, of x in sequences, x, three numbers, three others and sequences of other numbers
MADE = {
    "lod_reset": lambda x, v, a, b, y: (x, y),
    "lod_reset of offsets": lambda x, v, a, b, y: (v, a),
    "lod_reset that appends": lambda x, v, a, b, y: (x, a),
    "sequence_slice": lambda x, v, a, b, y: (x, a, b),
    "sequence_unpad": lambda x, v, a, b, y: (v.reshape(-1, 2, WIDTH)[:3], a),
    "sequence_concat": lambda x, v, a, b, y: ([x, x],),
    "sequence_expand": lambda x, v, a, b, y: (x, y),
    "sequence_expand_as": lambda x, v, a, b, y: (v[:3], y),
    "sequence_reverse": lambda x, v, a, b, y: (x,),
    "sequence_reshape": lambda x, v, a, b, y: (x,),
    "sequence_erase": lambda x, v, a, b, y: (x.like(a.repeat(3)[:8, None]),),
    "ctc_align": lambda x, v, a, b, y: (x.like(a.repeat(3)[:8, None]), None),
    "im2sequence": lambda x, v, a, b, y: (
        v.reshape(1, 1, ROWS, WIDTH).repeat(3, 0),
        np.stack([a, b], 1).astype("float32"),
    ),
    "split_lod_tensor": lambda x, v, a, b, y: (x, a[:, None] > 1),
}
ATTRS = {
    "lod_reset that appends": (("append", True),),
    "sequence_reshape": (("new_dim", 2 * WIDTH),),
    "sequence_erase": (("tokens", (0, 1)),),
    "im2sequence": (
        ("kernels", (2, 2)),
        ("strides", (1, 1)),
        ("paddings", (0, 0, 0, 0)),
        ("out_stride", (1, 1)),
    ),
}


@fuzzed(20)
@given(
    name=st.sampled_from(sorted(MADE)),
    z=whole((SEQUENCES + 1,), hostile, "int32"),
    a=whole((SEQUENCES,), hostile | st.just(2**40)),
    b=whole((SEQUENCES,), hostile | st.just(-(2**40))),
    other=whole((SEQUENCES + 1,), hostile, "int32"),
)
def test_whatever_the_offsets_sequences_stay_within_their_rows(name, z, a, b, other):
    with jax.enable_x64(True):
        values = np.ones((ROWS, WIDTH), "float32")
        x, y = (called("lod_reset", ())(values, v)[0] for v in (z, other))
        for made in (x, y):
            check(made)
        outs = called(name.split()[0], ATTRS.get(name, ()))(*MADE[name](x, values, a, b, y))
        for value in ragged_levels(outs):
            check(value)

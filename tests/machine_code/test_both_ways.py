"""Programs with machine code and with XLA's code alone, over shapes and values that hypothesis draws: the same numbers
(to rounding), no numbers and infinities at the same places, the same errors.
"""

import contextlib

import jax
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import jfluid as fluid
from jfluid import errors
from jfluid.compile.rewrites import image_convolution
from jfluid.machine_code import kernel_registry
from tests.fuzz.harness import fuzzed

pytestmark = [
    pytest.mark.skipif(not kernel_registry.supports("product"), reason="machine code is made for CPUs with AVX-512"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of what is no number
]
L = fluid.layers
SEEDS = st.integers(0, 2**32 - 1)
VALUES = st.sampled_from(["plain", "plain", "nan", "inf", "huge", "tiny", "zero"])
called: set[str] = set()


@pytest.fixture(scope="module", autouse=True)
def watched():
    """Notes in `called` what machine code programs are compiled with."""
    real = jax.ffi.ffi_call

    def call(name, *arguments, **options):
        called.add(name)
        return real(name, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.ffi, "ffi_call", call)
        chosen = fluid.get_flags("FLAGS_compilation_cache_dir")
        fluid.set_flags({"FLAGS_compilation_cache_dir": ""})
        yield
        fluid.set_flags({**chosen, "FLAGS_cpu_kernels": True})


def array(rng, shape, kind):
    """An array in which some values are of a kind."""
    found = rng.standard_normal(shape).astype("float32")
    flat = found.reshape(-1)
    if flat.size and kind != "plain":
        value = {"nan": np.nan, "inf": np.inf, "huge": 1e9, "tiny": 1e-39, "zero": 0.0}[kind]
        flat[rng.randint(0, flat.size, 1 + flat.size // 50)] = value
    return found


def results(net, feeds, on):
    """What a first step of training gives with each feed, gradients and parameters with it, by name; or its error."""
    fluid.set_flags({"FLAGS_cpu_kernels": on})
    main, start = fluid.Program(), fluid.Program()
    main.random_seed = start.random_seed = 7
    executor, found = fluid.Executor(fluid.CPUPlace()), []
    for feed in feeds:
        try:
            if not found:
                with fluid.program_guard(main, start), fluid.unique_name.guard():
                    outs = net()
                    fluid.optimizer.SGD(0.01).minimize(L.reduce_sum(L.square(outs[0])))
            parameters = [p.name for p in main.all_parameters()]
            names = [n for n in (*parameters, *feed) if main.global_block().has_var(f"{n}@GRAD")]
            fetches = [*(o.name for o in outs), *(f"{n}@GRAD" for n in names), *parameters]
            with fluid.scope_guard(fluid.Scope()):
                executor.run(start)
                values = executor.run(main, feed=feed, fetch_list=fetches, return_numpy=False)
        except errors.JFluidError as error:
            found.append(f"{type(error).__name__}: {error}")
        else:
            found.append({n: np.array(getattr(v, "get_tensor", lambda v=v: v)()) for n, v in zip(fetches, values)})
    return found


def hold_both(net, feed, kind="plain"):
    """Hold a step with machine code against that without."""
    hold_each(net, {kind: feed})


def hold_each(net, feeds):
    """Hold a step with each feed, by the kind of its values. Beside huge numbers all others are rounding."""
    before = called.copy()
    expected = results(net, feeds.values(), False)
    assert called == before
    for kind, one, other in zip(feeds, expected, results(net, feeds.values(), True), strict=True):
        if isinstance(one, str) or isinstance(other, str):
            assert other == one
        else:
            same(one, other, kind)


def same(expected, found, kind):
    for name, one in expected.items():
        other, what = found[name], f"{name}, {kind}"
        assert one.shape == other.shape, what
        np.testing.assert_array_equal(np.isnan(other), np.isnan(one), what)
        np.testing.assert_array_equal(np.isinf(other), np.isinf(one), what)
        finite = np.isfinite(one)
        np.testing.assert_array_equal(np.sign(other[~finite]), np.sign(one[~finite]), what)
        if kind == "huge":
            continue
        scale = np.abs(one[finite]).max(initial=1e-30)
        np.testing.assert_allclose(other[finite], one[finite], rtol=0, atol=1e-4 * scale, err_msg=what)


def data(name, value):
    """A variable for a value, to which gradients flow."""
    found = fluid.data(name, [None, *value.shape[1:]], str(value.dtype))
    found.stop_gradient = value.dtype != np.float32
    return found


@fuzzed(6)
@given(
    st.integers(28, 70),
    st.integers(150, 300),
    st.one_of(st.integers(64, 140), st.integers(1, 16)),
    st.sampled_from(["relu", "tanh", "sigmoid", None]),
    st.sampled_from(["column", "row", "all", "one", "none", "wrong"]),
    st.booleans(),
    SEEDS,
    VALUES,
)
def test_products_and_what_is_done_to_them(rows, depth, columns, act, bias, turned, seed, kind):
    rng = np.random.RandomState(seed)
    x = array(rng, (depth, rows) if turned else (rows, depth), kind)
    shape = {
        "column": [columns],
        "row": [rows, 1],
        "all": [rows, columns],
        "one": [1],
        "wrong": [columns + 1],
    }.get(bias)

    def net():
        w = L.create_parameter([depth, columns], "float32", name="w")
        y = L.matmul(fluid.data("x", list(x.shape)), w, transpose_x=turned)
        if shape:
            y = L.elementwise_add(y, L.create_parameter(shape, "float32", name="b"))
        y = getattr(L, act)(y) if act else y
        return [L.fc(y, 64), y]

    hold_both(net, {"x": x}, kind)


@fuzzed(6)
@example((1, 1), (1, 9), 16, (1, 2), 1, 0, (1, 1), 0, "nan")  # columns of few channels are not mixed
@given(
    st.tuples(st.integers(1, 3), st.sampled_from([1, 3, 4, 16, 20])),
    st.tuples(st.integers(1, 14), st.integers(1, 30)),
    st.sampled_from([8, 16, 17, 20, 32, 48]),
    *[st.tuples(st.integers(1, 5), st.integers(1, 5))] * 1,
    st.integers(1, 3),
    st.integers(0, 5),
    st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)]),
    SEEDS,
    VALUES,
)
def test_convolutions(images, size, filters, kernel, stride, padding, other, seed, kind):
    dilation, groups = other
    x = array(np.random.RandomState(seed), (*images, *size), kind)

    def net():
        y = L.conv2d(data("x", x), filters, kernel, stride, padding, dilation, groups, bias_attr=False)
        return [L.conv2d(y, 16, 3, padding=1, act="relu"), y]

    hold_both(net, {"x": x}, kind)


@fuzzed(3)
@given(
    st.integers(2, 4),
    st.sampled_from([16, 15, 17, 31, 32, 33, 50]),
    st.integers(34, 50),
    st.sampled_from(["relu", None]),
    st.integers(2, 3),
    SEEDS,
    VALUES,
)
def test_sums_of_channels_and_windows(images, channels, size, act, window, seed, kind):
    x = array(np.random.RandomState(seed), (images, 4, 2 * size, size), kind)

    def net():
        y = L.conv2d(data("x", x), channels, 3, padding=1, bias_attr=False)
        y = L.batch_norm(y, act=act)
        return [L.pool2d(y, window, pool_stride=window), y]

    hold_both(net, {"x": x}, kind)


@fuzzed(4)
@given(
    st.integers(200, 700),
    st.integers(1, 60),
    st.sampled_from([1, 7, 16, 33]),
    st.booleans(),
    st.sampled_from(["SGD", "Adagrad", "Adam", "Lazy"]),
    st.lists(st.sampled_from([-1, 60, 2**31, 2**32 + 1, -(2**63), 2**62]), max_size=4),
    st.integers(1, 3),
    SEEDS,
)
def test_rows_of_tables(count, height, width, sparse, optimizer, wild, slots, seed):
    rng = np.random.RandomState(seed)
    feed = {f"i{n}": rng.randint(0, height, (count, 1)).astype("int64") for n in range(slots)}
    for n, id_ in enumerate(wild):
        feed[f"i{n % slots}"][n] = id_

    def net():
        ids = [fluid.data(name, [None, 1], "int64") for name in feed]
        own = fluid.ParamAttr("table")
        rows = [L.embedding(i, [height, width], is_sparse=sparse, param_attr=own) for i in ids]
        return [L.fc(L.concat(rows, axis=1), 8), *rows]

    with one_of(optimizer):
        hold_both(net, feed)


@contextlib.contextmanager
def one_of(optimizer):
    """A context in which steps train by another optimizer than SGD."""
    kinds = {
        "Adam": fluid.optimizer.Adam,
        "Lazy": lambda rate: fluid.optimizer.Adam(rate, lazy_mode=True),
        "Adagrad": fluid.optimizer.Adagrad,
        "SGD": fluid.optimizer.SGD,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fluid.optimizer, "SGD", kinds[optimizer])
        yield


@fuzzed(4)
@example("gru", [3, 5, 4], 16, 0, False, 1, "plain")
@example("lstm", [3, 5, 4], 16, 0, True, 1, "nan")
@given(
    st.sampled_from(["lstm", "gru"]),
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
    st.sampled_from([8, 16, 48]),
    st.sampled_from([0, 0, 1, -1]),
    st.booleans(),
    SEEDS,
    VALUES,
)
def test_states_of_sequences(loop, lengths, width, more, backwards, seed, kind):
    rng, count = np.random.RandomState(seed), {"lstm": 4, "gru": 3}[loop]
    x = fluid.create_lod_tensor(array(rng, (sum(lengths), count * width), kind), [lengths], fluid.CPUPlace())
    state = array(rng, (max(len(lengths) + more, 1), width), "plain")

    def net():
        rows = fluid.data("x", [None, count * width], lod_level=1)
        h = fluid.data("h", [None, width])
        if loop == "lstm":
            y, _ = L.dynamic_lstm(rows, 4 * width, h_0=h, c_0=h, is_reverse=backwards)
        else:
            y = L.dynamic_gru(rows, width, h_0=h, is_reverse=backwards)
        return [L.sequence_pool(y, "sum"), y]

    hold_both(net, {"x": x, "h": state}, kind)


def test_images_that_windows_reach_beside_go_to_xla():
    """More zeros before images than windows read, of which fewer are behind them than none."""
    x, w = np.ones((2, 16, 12, 12), "float32"), np.ones((16, 16, 3, 3), "float32")

    def convolve(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), ((0, 0), (20, -15)))

    params = jax.make_jaxpr(convolve)(x, w).eqns[0].params
    before = called.copy()
    last = np.moveaxis(x, 1, -1)
    found = jax.jit(lambda x, w: image_convolution.forward(x, image_convolution.Filter(w), params))
    np.testing.assert_allclose(np.moveaxis(found(last, w), -1, 1), convolve(x, w), rtol=1e-6)
    assert called == before


@pytest.mark.slow  # as the tests that it counts on
def test_machine_code_ran():
    """The last test: the others compared something."""
    some = {"convolution_forward", "convolution_gradient", "product", "row", "lstm", "gru"}
    assert not {part for part in some if not any(part in name for name in called)}
    assert called <= set(kernel_registry.kernels())

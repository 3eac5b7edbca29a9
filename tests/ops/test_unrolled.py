"""The length of an operator's trace does not follow the numbers that a program gives."""

import ast
import re
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import jfluid
import jfluid as fluid
from jfluid import errors
from jfluid.check_device import cases
from jfluid.ops import hashing, unrolled
from jfluid.ops.ragged import Ragged
from tests.op_case import check
from tests.slow_tests import nightly_but

FOLDER = Path(jfluid.__file__).parent / "ops"
MANY = 7  # more than `loops` has written out
RNG = np.random.RandomState(3)

# Counts that are bounded by what a program writes out itself, or by a check before: (file, function, count).
BOUNDED = {
    ("conv.py", "_weights", "flat.shape[1]"),  # a depthwise window of at most 128 elements
    ("gradients.py", "_flatten", "n"),  # arrays of a slot
    ("hashing.py", "xxh32", "count % 4"),
    ("hashing.py", "xxh64", "count % 4"),
    ("indexing.py", "_listed", "count"),  # axes that the attribute lists
    ("indexing.py", "_split_index", "index.shape[-1]"),  # below the rank of the indexed array
    ("patches.py", "spp", "pyramid_height"),
    ("pool.py", "_max_at", "count"),  # spatial dimensions
    ("pyramid_hash.py", "__init__", "2 longest + 1"),  # `_check`
    ("pyramid_hash.py", "__init__", "size"),
    ("ragged_dispatch.py", "_over_arrays", "max((a.capacity for a in arrays))"),
    ("recurrent.py", "cudnn_lstm", "directions"),
    ("recurrent.py", "cudnn_lstm", "num_layers"),  # a matrix and a bias of the weights each
    ("detection/anchors.py", "density_prior_box", "density"),  # boxes of a cell
    ("detection/fpn.py", "distribute_fpn_proposals", "min_level min_level + levels"),
    ("detection/suppress.py", "greedy", "together"),  # a constant of the module
    ("detection/suppress.py", "block", "together"),
    ("beam.py", "_sentences", "rows[first] rows[last]"),  # on the host: hypotheses of the data
    ("beam.py", "beam_search_decode", "sources"),  # on the host: sentences of the data
    ("unrolled.py", "repeat", "count"),
    ("unrolled.py", "joined", "count"),
}
SMALL = re.compile(r"[\d\s+\-*()]*|.*\b(ndim|rank|len|axis|axes|times)\b.*")


def counts():
    """Yield (file, function, arguments) of each `range` that Python walks through in an operator."""
    for path in sorted(FOLDER.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "range":
                    arguments = " ".join(map(ast.unparse, node.args))
                    if not SMALL.fullmatch(arguments):
                        yield path.relative_to(FOLDER).as_posix(), function.name, arguments


def test_each_count_of_a_written_loop_is_bounded():
    """A new `range(...)` in an operator uses `unrolled`, or is named here with what bounds it."""
    found = set(counts())
    assert sorted(found - BOUNDED) == []
    assert sorted(BOUNDED - found) == []


def equations(jaxpr) -> int:
    return sum(1 + sum(map(equations, jaxprs_in_params(e.params))) for e in jaxpr.eqns)


def traced_length(computation, structs, keywords) -> int | None:
    """Return how many equations a case's trace has; None where the operator refuses."""
    before, computation._keywords = computation._keywords, keywords
    try:
        jaxpr = jax.make_jaxpr(computation)(structs)
    except Exception:
        return None
    finally:
        computation._keywords = before
    return equations(jaxpr.jaxpr)


def ones(out):
    """Gradients of a case's outputs that no array is made for."""
    if isinstance(out, list):
        return [ones(o) for o in out]
    rows = out.values if isinstance(out, Ragged) else out
    return None if rows is None or not jnp.issubdtype(rows.dtype, jnp.floating) else jnp.ones(rows.shape, rows.dtype)


def larger(structs, places, factor):
    """Return the shapes with `factor` times the size in the places (argument, axis)."""
    return [
        jax.ShapeDtypeStruct([d * (factor if (i, a) in places else 1) for a, d in enumerate(s.shape)], s.dtype)
        for i, s in enumerate(structs)
    ]


def alterations(structs, keywords, both):
    """Yield (what is altered, function of a factor to shapes and attributes)."""
    places: dict[int, set] = {}
    for i, struct in enumerate(structs):
        for axis, size in enumerate(struct.shape):
            places.setdefault(size, set()).add((i, axis))
    groups = [{p for group in places.values() for p in group}, *places.values()]
    attributes = [n for n, v in keywords.items() if isinstance(v, int) and not isinstance(v, bool)]
    for group in groups:
        yield f"sizes {sorted(group)}", lambda k, g=group: (larger(structs, g, k), keywords)
    for name in attributes:
        value = max(keywords[name], 1)
        yield name, lambda k, n=name, v=value: (structs, keywords | {n: v * k})
        for group in groups if both else []:
            yield (
                f"{name} and sizes {sorted(group)}",
                lambda k, n=name, v=value, g=group: (larger(structs, g, k), keywords | {n: v * k}),
            )


PARTS = 4
# An output for each part, which the program names.
WRITTEN_OUT = {"unbind", "unstack", "split"}


@pytest.mark.nightly  # before each change `test_each_count_of_a_written_loop_is_bounded` reads the sources
@pytest.mark.parametrize("both", [False, True], ids=["one", "both"])
@pytest.mark.parametrize("part", range(PARTS))
def test_traces_do_not_follow_sizes_and_attributes(part, both, monkeypatch):
    """Six hundred times a size, an attribute, or both: as long a trace as three hundred times."""
    monkeypatch.setattr(cases, "_weights", ones)
    tried, long = 0, []
    with jax.enable_x64(True):
        for computation in cases.computations()[part::PARTS]:
            if computation.case.type in WRITTEN_OUT:
                continue
            structs = [jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype) for a in computation.arguments]
            together = False  # a trace with all sizes larger follows each of the sizes
            for number, (what, altered) in enumerate(alterations(structs, computation._keywords, both)):
                if together and not both and what.startswith("sizes"):
                    continue
                more = traced_length(computation, *altered(601))
                if more is None:
                    continue
                together |= number == 0
                tried += 1
                if more > 1000 and more > 1.5 * (traced_length(computation, *altered(301)) or more):
                    long.append((computation.case.type, what, more))
    assert not long
    assert tried > 100


LENGTHS = [5, 0, 7]
ROWS = sum(LENGTHS)


def sequences(values):
    return fluid.create_lod_tensor(values, [LENGTHS], None)


@pytest.fixture
def loops(monkeypatch):
    """More than four repetitions become a loop, so that small arrays have loops."""
    monkeypatch.setattr(unrolled, "_WRITTEN_OUT", 4)


def neighbours(x, count, start):
    """Rows of each sequence beside their neighbours, zeros outside: [rows, count * width]."""
    found = []
    for rows in np.split(x, np.cumsum(LENGTHS)[:-1]):
        padded = np.pad(rows, ((count, count), (0, 0)))
        found += [padded[count + i + start : 2 * count + i + start].reshape(-1) for i in range(len(rows))]
    return np.array(found, x.dtype)


@pytest.mark.usefixtures("loops")
def test_windows_larger_than_what_is_written_out():
    """Loops give what written repetitions give: values and gradients, against NumPy and differences."""
    x = RNG.rand(ROWS, 2).astype("float32") - 0.5
    lod = sequences(x)
    weight = (RNG.rand(2 * MANY, 3).astype("float32") - 0.5) / 10
    attrs = {"contextLength": MANY, "contextStart": -2}
    near = neighbours(x, MANY, -2)
    check(
        "sequence_conv",
        {"X": lod, "Filter": weight},
        attrs,
        expect={"Out": near @ weight},
        rows=("X",),
        grad=("X", "Filter"),
    )
    ahead = (RNG.rand(MANY, 2).astype("float32") - 0.5) / 10
    expected = (neighbours(x, MANY, 0).reshape(ROWS, MANY, 2) * ahead).sum(1)
    check("row_conv", {"X": lod, "Filter": ahead}, {}, expect={"Out": expected}, rows=("X",), grad=("X", "Filter"))
    first = x[None, : LENGTHS[0]]
    dense = np.pad(first, ((0, 0), (0, MANY), (0, 0)))
    expected = np.stack([(dense[:, t : t + MANY] * ahead).sum(1) for t in range(LENGTHS[0])], 1)
    check(
        "row_conv",
        {"X": first, "Filter": ahead},
        {},
        expect={"Out": expected},
        rows=("X",),
        grad=("X", "Filter"),
    )
    ids = np.arange(ROWS, dtype="int64")[:, None]
    expected = neighbours(ids + 1, MANY, 0) - 1
    check("sequence_enumerate", {"X": sequences(ids)}, {"win_size": MANY, "pad_value": -1}, expect={"Out": expected})


@pytest.mark.usefixtures("loops")
def test_padding_of_a_window_larger_than_what_is_written_out():
    x = RNG.rand(ROWS, 1).astype("float32")
    weight, padding = RNG.rand(MANY, 1).astype("float32") / 10, RNG.rand(MANY - 1, 1).astype("float32")
    parts = np.split(x, np.cumsum(LENGTHS)[:-1])
    spread = [np.concatenate([padding[:2], rows, padding[2:]]) for rows in parts]
    expected = np.array([s[i : i + MANY, 0] @ weight for s, r in zip(spread, parts) for i in range(len(r))])
    check(
        "sequence_conv",
        {"X": sequences(x), "PaddingData": padding, "Filter": weight},
        {"contextLength": MANY, "contextStart": -2, "paddingTrainable": True},
        expect={"Out": expected},
        grad=("X", "PaddingData", "Filter"),
        rows=("X",),
    )


@pytest.mark.usefixtures("loops")
def test_many_channels_columns_and_places():
    x, y = RNG.rand(2, 14).astype("float32"), RNG.rand(2, 9).astype("float32")
    expected = sum(np.roll(x, 4 - j, 1) * y[:, j : j + 1] for j in range(9))
    check("conv_shift", {"X": x, "Y": y}, {}, expect={"Out": expected}, grad=("X", "Y"))
    wide = RNG.permutation(2 * 2 * MANY).reshape(1, 2 * MANY, 2, 1).astype("float32")
    check("maxout", {"X": wide}, {"groups": MANY}, expect={"Out": wide.reshape(1, 2, MANY, 2, 1).max(2)}, grad=("X",))
    image = RNG.rand(1, 2, 5, 4).astype("float32")
    attrs = {"kernel_sizes": [3, 2], "strides": [2, 1], "paddings": [0, 0, 0, 0], "dilations": [1, 1]}
    expected = np.lib.stride_tricks.sliding_window_view(image, (3, 2), (2, 3))[:, :, ::2]  # [1, 2, 2, 3, 3, 2]
    expected = expected.transpose(0, 1, 4, 5, 2, 3).reshape(1, 2 * 6, 6)
    check("unfold", {"X": image}, attrs, expect={"Y": expected}, grad=("X",))


@pytest.mark.parametrize("width", nightly_but([5, 31], [1, 5, 8, 9, 31, 33]))
def test_loops_of_hashes(width, monkeypatch):
    """A loop gives the same hash as the rounds written out."""
    rows = jnp.asarray(RNG.randint(0, 2**31, (3, width)).astype("int32"))
    with jax.enable_x64(True):
        written = jax.jit(lambda: all_hashes(rows))()
        monkeypatch.setattr(unrolled, "_WRITTEN_OUT", 0)
        for found, expected in zip(jax.jit(lambda: all_hashes(rows))(), written, strict=True):
            np.testing.assert_array_equal(found, expected)


def all_hashes(rows):
    return hashing.xxh64(rows, jnp.uint64(7)), hashing.xxh32(rows, jnp.uint32(7)), *hashing.murmur3(rows, jnp.uint64(7))


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "message"),
    [
        ("sequence_conv", ("X", "Filter"), {"contextLength": 2**31 - 1}, "contextLength"),
        ("sequence_conv", ("X", "Filter"), {"contextLength": 1, "contextStart": 2**31 - 1}, "contextStart"),
        ("sequence_enumerate", ("X",), {"win_size": 2**31 - 1}, "win_size"),
        ("sequence_enumerate", ("X",), {"win_size": 0}, "win_size"),
    ],
)
def test_windows_beyond_all_sizes_are_refused_at_once(op, inputs, attrs, message):
    given = {"X": sequences(np.ones((ROWS, 2), "float32")), "Filter": np.ones((2, 3), "float32")}
    with pytest.raises(errors.JFluidError, match=message):
        check(op, {n: given[n] for n in inputs}, attrs, expect={"Out": None})


def test_counts_that_stay_written_out_are_refused_at_once():
    image = np.ones((1, 1, 4, 4), "float32")
    with pytest.raises(errors.ProgramError, match="pyramid_height is 2147483647, expected at most 16"):
        check("spp", {"X": image}, {"pyramid_height": 2**31 - 1, "pooling_type": "max"}, expect={"Out": None})
    attrs = {"variances": [0.1] * 4, "fixed_sizes": [8.0], "fixed_ratios": [1.0], "densities": [2**31 - 1]}
    with pytest.raises(errors.ProgramError, match="number of boxes of a cell"):
        check("density_prior_box", {"Input": image, "Image": image}, attrs, expect={"Boxes": None})
    with pytest.raises(errors.ProgramError, match="num is 2147483647"):
        check("split", {"X": image}, {"num": 2**31 - 1, "axis": 0}, expect={"Out": [None]})


@pytest.mark.parametrize("at", [-1, 2**40])
def test_an_array_is_not_written_far_behind_its_end(at):
    x = fluid.layers.fill_constant([1], "float32", 1.0)
    i = fluid.layers.fill_constant([1], "int64", at)
    array = fluid.layers.array_write(x, i)
    length = fluid.layers.array_length(array)
    with pytest.raises(errors.OpError, match="expected an index from 0 to 1024"):
        fluid.Executor(fluid.CPUPlace()).run(fetch_list=[length])


@pytest.mark.parametrize("sizes, ratios", [(3000, 3000), (1, 2000), (40_000, 1)])
def test_boxes_are_counted_before_they_are_made(sizes, ratios):
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [1, 1, 4, 4])
        numbers = [1.0 + n for n in range(sizes)], [1.0 + n for n in range(ratios)]
        before = time.process_time()
        with pytest.raises(errors.ShapeError, match=r"number of (boxes of a cell|aspect_ratios) is \d+"):
            fluid.layers.prior_box(x, x, min_sizes=numbers[0], aspect_ratios=numbers[1])
        if sizes * ratios > 1 << 14:
            with pytest.raises(errors.ShapeError, match=r"number of boxes of a cell is \d+, expected at most"):
                fluid.layers.anchor_generator(x, anchor_sizes=numbers[0], aspect_ratios=numbers[1], stride=[1.0, 1.0])
        assert time.process_time() - before < 5

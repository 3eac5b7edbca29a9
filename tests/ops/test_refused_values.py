"""Offsets, lengths and labels that do not fit what they are for: a named error, and nothing of the step is applied.
What is refused is what the real Fluid refuses, and what it reads memory beside its arrays for.
"""

import contextlib

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from tests.dynamic_shapes.interpreted import interpreting

layers = fluid.layers
WIDTH = 16  # that machine code is made for
ROWS = np.random.RandomState(0).randn(8, WIDTH).astype("float32")
LOD = [0, 3, 8]


# Before each change `test_compiled_steps_refuse_the_same` compiles.
@pytest.fixture(
    autouse=True, params=[pytest.param(True, id="kernels", marks=pytest.mark.nightly), pytest.param(False, id="NumPy")]
)
def kernels(request):
    """Steps are compiled and have kernels, or NumPy interprets the operators themselves."""
    fluid.set_flags({"FLAGS_cpu_kernels": request.param})
    with contextlib.nullcontext() if request.param else interpreting():
        yield
    fluid.set_flags({"FLAGS_cpu_kernels": True})


def rows(lod=(LOD,), values=ROWS):
    return fluid.LoDTensor(values, lod)


def numbers(*values, dtype="int64"):
    return np.array(values, dtype)


def column(*values):
    return numbers(*values).reshape(-1, 1)


def ragged(name="x", width=WIDTH):
    return fluid.data(name, [None, width], lod_level=1)


def lengths(name="n", dtype="int64"):
    return fluid.data(name, [None], dtype)


def reset():
    return layers.lod_reset(ragged(), lengths("z", "int32"))


def reset_like():
    return layers.lod_reset(ragged(), ragged("y", 1))


def cut():
    offset, length = (fluid.data(n, [None, 1], "int64") for n in ("o", "n"))
    return layers.sequence_slice(ragged(), offset, length)


def unpadded():
    return layers.sequence_unpad(fluid.data("x", [None, 4, WIDTH]), lengths())


def padded():
    return layers.sequence_pad(ragged(), layers.fill_constant([1], "float32", 0.0), maxlen=5)[0]


def reshaped():
    return layers.sequence_reshape(ragged(), 2 * WIDTH)


def field():
    return layers.linear_chain_crf(
        ragged(), fluid.data("l", [None, 1], "int64", lod_level=1), fluid.ParamAttr("transition")
    )


def padded_field():
    return layers.linear_chain_crf(
        fluid.data("x", [None, 4, WIDTH]),
        fluid.data("l", [None, 4], "int64"),
        fluid.ParamAttr("transition"),
        fluid.data("n", [None, 1], "int64"),
    )


def padded_path():
    layers.create_parameter([WIDTH + 2, WIDTH], "float32", attr=fluid.ParamAttr("transition"))
    return layers.crf_decoding(
        fluid.data("x", [None, 4, WIDTH]),
        fluid.ParamAttr("transition"),
        length=fluid.data("n", [None, 1], "int64"),
    )


def chunks():
    found, wanted = (fluid.data(n, [None, 4], "int64") for n in ("i", "l"))
    return layers.chunk_eval(found, wanted, "IOB", 2, seq_length=lengths())[3]


def temporal():
    return layers.warpctc(
        fluid.data("x", [4, None, WIDTH]),
        fluid.data("l", [None, 2], "int32"),
        input_length=lengths(),
        label_length=lengths("m"),
    )


def aligned():
    return layers.ctc_greedy_decoder(
        fluid.data("x", [None, 4, WIDTH]), 0, input_length=fluid.data("n", [None, 1], "int64")
    )[0]


def distance():
    found, wanted = (fluid.data(n, [None, 4], "int64") for n in ("i", "l"))
    return layers.edit_distance(found, wanted, normalized=False, input_length=lengths(), label_length=lengths("m"))[0]


def pictures():
    tops = fluid.contrib.layers.sequence_topk_avg_pooling
    return tops(ragged(width=1), ragged("r", 1), ragged("c", 1), [1, 2], 1)


def convolved():
    parts = ragged(width=1), ragged("r", 1), ragged("c", 1)
    return fluid.contrib.layers.var_conv_2d(*parts, 1, 2, 3)


THREE = np.stack([ROWS[:4], ROWS[2:6]])
TIME = np.ascontiguousarray(THREE.swapaxes(0, 1))
TAGS = numbers([0, 1, 2, 0], [1, 1, 0, 2])
SIZES = {
    "r": rows([[0, 2, 4]], np.ones((4, 1), "float32")),
    "c": rows([[0, 3, 5]], np.ones((5, 1), "float32")),
}
ENTRIES = np.arange(10, dtype="float32").reshape(-1, 1)
HUGE = 2**32 + 3  # as int32 it is 3

# what builds the operator; a feed; changes of it that are accepted; others, and what the error says
CASES = {
    "lod_reset": (
        reset,
        {"x": rows(), "z": numbers(0, 3, 8, dtype="int32")},
        [{"z": numbers(0, 0, 8, dtype="int32")}],
        {
            tuple(z): (
                {"z": numbers(*z, dtype="int32")},
                rf"Y: .* the 8 rows of X, found \[{', '.join(map(str, z))}\]",
            )
            for z in (
                [0, 3, 100],
                [0, 5, 3, 8],
                [-4, 2, 8],
                [1, 3, 8],
                [0, 3, 7],
                [0, 2**31 - 1, 8],
            )
        },
    ),
    "lod_reset by a LoD": (
        reset_like,
        {"x": rows(), "y": rows([[0, 8]], np.ones((8, 1), "float32"))},
        [],
        {
            n: (
                {"y": rows([[0, 2, n]], np.ones((n, 1), "float32"))},
                rf"Y: .* the 8 rows of X, found \[{n}\]",
            )
            for n in (7, 9, 40)
        },
    ),
    "sequence_slice": (
        cut,
        {"x": rows(), "o": column(0, 1), "n": column(1, 4)},
        [{"o": column(3, 5), "n": column(0, 0)}],
        {
            "before": ({"o": column(-1, 0)}, r"Offset: .* found \[-1, 0\]"),
            "behind": ({"o": column(4, 0), "n": column(0, 1)}, r"Offset: .* found \[4, 0\]"),
            "long": ({"n": column(1, 5)}, r"Length: .* found \[1, 5\]"),
            "negative": ({"n": column(1, -7)}, r"Length: .* found \[1, -7\]"),
            "huge": ({"n": column(HUGE, 1)}, rf"Length: .* found \[{HUGE}, 1\]"),
        },
    ),
    "sequence_unpad": (
        unpadded,
        {"x": THREE, "n": numbers(4, 1)},
        [{"n": numbers(0, 4)}],
        {
            n: ({"n": numbers(*n)}, rf"Length: .* the 4 steps of X, found \[{n[0]}, {n[1]}\]")
            for n in ((5, 1), (4, -2), (HUGE, 1))
        },
    ),
    "sequence_pad": (
        padded,
        {"x": rows()},
        [{"x": rows([[0, 5, 8]])}],
        {"long": ({"x": rows([[0, 2, 8]])}, r"X: .* maxlen, 5, rows, found lengths \[2, 6\]")},
    ),
    "sequence_reshape": (
        reshaped,
        {"x": rows([[0, 4, 8]])},
        [{"x": rows([[0, 2, 8]])}],
        {"odd": ({"x": rows()}, r"X: .* multiples of 2, found lengths \[3, 5\]")},
    ),
    "linear_chain_crf": (
        field,
        {"x": rows(), "l": rows(values=column(*range(8)))},
        [{"l": rows(values=column(*range(8, 16)))}],
        {
            "label": (
                {"l": rows(values=column(0, 1, 16, *range(5)))},
                r"Label: .* up to 15, .* found \[0, 1, 16,",
            )
        },
    ),
    "linear_chain_crf by lengths": (
        padded_field,
        {"x": THREE, "l": TAGS, "n": column(4, 2)},
        [{"n": column(0, 3), "l": TAGS + numbers([20, 20, 20, 20], [0, 0, 0, 20])}],
        {
            "long": ({"n": column(5, 1)}, r"Length: .* found \[5, 1\]"),
            "negative": ({"n": column(-1, 2)}, r"Length: .* found \[-1, 2\]"),
            "label": ({"l": TAGS + 15}, r"Label: .* found \[15, 16, 17"),
        },
    ),
    "crf_decoding": (
        padded_path,
        {"x": THREE, "n": column(4, 2)},
        [],
        {"long": ({"n": column(5, 1)}, r"Length: .* found \[5, 1\]")},
    ),
    "chunk_eval": (
        chunks,
        {"i": TAGS, "l": TAGS, "n": numbers(4, 2)},
        [{"l": TAGS + 2, "n": numbers(0, 3)}, {"l": TAGS - 3}],
        {
            "long": ({"n": numbers(5, 1)}, r"SeqLength: .* found \[5, 1\]"),
            "label": ({"l": TAGS + 4}, r"Label: .* up to 4, .* found \[4, 5, 6"),
            "inference": ({"i": TAGS + 4}, r"Inference: .* up to 4, .* found \[4, 5, 6"),
        },
    ),
    "warpctc": (
        temporal,
        {
            "x": TIME,
            "l": numbers([1, 2], [2, 1], dtype="int32"),
            "n": numbers(4, 3),
            "m": numbers(2, 1),
        },
        [{"n": numbers(0, 4), "m": numbers(0, 2)}],
        {
            "steps": (
                {"n": numbers(5, 3)},
                r"LogitsLength: .* the 4 steps of Logits, found \[5, 3\]",
            ),
            "no steps": ({"n": numbers(4, -1)}, r"LogitsLength: .* found \[4, -1\]"),
            "symbols": (
                {"m": numbers(3, 1)},
                r"LabelLength: .* the 2 steps of Label, found \[3, 1\]",
            ),
        },
    ),
    "ctc_align": (
        aligned,
        {"x": THREE, "n": column(4, 2)},
        [{"n": column(0, 4)}],
        {"long": ({"n": column(0, 5)}, r"InputLength: .* found \[0, 5\]")},
    ),
    "edit_distance": (
        distance,
        {"i": TAGS, "l": TAGS, "n": numbers(4, 2), "m": numbers(0, 4)},
        [],
        {
            "hypotheses": ({"n": numbers(5, 2)}, r"HypsLength: .* found \[5, 2\]"),
            "references": ({"m": numbers(4, -3)}, r"RefsLength: .* found \[4, -3\]"),
        },
    ),
    "sequence_topk_avg_pooling": (
        pictures,
        {"x": rows([[0, 6, 10]], ENTRIES), **SIZES},
        [],
        {"size": ({"x": rows([[0, 5, 10]], ENTRIES)}, r"X: .* found lengths \[5, 5\]")},
    ),
    "sequence_scatter": (
        lambda: layers.sequence_scatter(
            fluid.data("x", [2, WIDTH]),
            fluid.data("l", [None, 1], "int64", lod_level=1),
            ragged("u", 1),
        ),
        {
            "x": ROWS[:2],
            "l": rows(values=column(*range(8))),
            "u": rows(values=np.ones((8, 1), "float32")),
        },
        [],
        {
            n: ({"l": rows(values=column(n, *range(7)))}, rf"Ids: .* 0 to 15, found \[{n}, 0, 1,")
            for n in (-1, 16, HUGE)
        },
    ),
    "gather_tree": (
        lambda: layers.gather_tree(*(fluid.data(n, [None, 1, 2], "int64") for n in "ip")),
        {n: numbers([[0, 1]], [[1, 0]]) for n in "ip"},
        [],
        {
            "beam": (
                {"p": numbers([[0, 1]], [[1, 2]])},
                r"Parents: .* 0 to 1, found \[0, 1, 1, 2\]",
            ),
            "negative": ({"p": numbers([[0, -1]], [[1, 0]])}, r"Parents: .*\[0, -1, 1, 0\]"),
        },
    ),
    "prroi_pool": (
        lambda: layers.prroi_pool(
            fluid.data("x", [None, 1, 4, 4]), fluid.data("b", [None, 4]), batch_roi_nums=lengths()
        ),
        {
            "x": np.ones((2, 1, 4, 4), "float32"),
            "b": np.ones((3, 4), "float32"),
            "n": numbers(1, 2),
        },
        [{"n": numbers(3, 0)}],
        {
            n: ({"n": numbers(*n)}, rf"BatchRoINums: .* 3 together, found \[{n[0]}, {n[1]}\]")
            for n in ((1, 1), (4, -1), (2, 2))
        },
    ),
    "var_conv_2d": (
        convolved,
        {"x": rows([[0, 6, 10]], ENTRIES), **SIZES},
        [],
        {"size": ({"x": rows([[0, 5, 10]], ENTRIES)}, r"X: .* found lengths \[5, 5\]")},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_fit_is_named_and_what_fits_runs(name):
    build, feed, others, wrong = CASES[name]
    out = build()
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())

    def run(changed):
        return executor.run(feed=feed | changed, fetch_list=[out], return_numpy=False)

    run({})
    for changed in others:
        run(changed)
    for changed, text in wrong.values():
        with pytest.raises(errors.OperandError, match=f"operator {name.split()[0]} .*{text}") as caught:
            run(changed)
        assert f'made at: File "{__file__}", line' in str(caught.value)
    run({})


@pytest.mark.parametrize("name", ["lod_reset", "sequence_slice", "warpctc"])
def test_compiled_steps_refuse_the_same(name):
    fluid.set_flags({"FLAGS_interpret_first_steps": False, "FLAGS_cpu_kernels": True})
    test_what_does_not_fit_is_named_and_what_fits_runs(name)


@pytest.mark.parametrize("offsets", [[], [0]])
def test_offsets_of_no_sequence_are_refused(offsets):
    out = reset()
    executor = fluid.Executor(fluid.CPUPlace())
    with pytest.raises(errors.ShapeError, match=f"found {len(offsets)} numbers"):
        executor.run(feed={"x": rows(), "z": np.array(offsets, "int32")}, fetch_list=[out])


def test_a_long_list_is_shown_around_what_is_wrong():
    out = layers.sequence_pool(reset(), "max")
    executor = fluid.Executor(fluid.CPUPlace())
    offsets = np.arange(400, dtype="int32")
    values = np.zeros((399, WIDTH), "float32")
    executor.run(feed={"x": values, "z": offsets}, fetch_list=[out])
    offsets[300] = 7
    text = r"found \[..., 294, .*, 299, 7, 301, .*, ...\] \(400 numbers\)"
    with pytest.raises(errors.OperandError, match=text):
        executor.run(feed={"x": values, "z": offsets}, fetch_list=[out])


def test_levels_that_are_added_have_to_fit_those_above():
    out, executor = (
        layers.lod_append(ragged(), lengths("z", "int32")),
        fluid.Executor(fluid.CPUPlace()),
    )

    def run(*offsets):
        feed = {"x": rows([[0, 2, 8]]), "z": numbers(*offsets, dtype="int32")}
        (found,) = executor.run(feed=feed, fetch_list=[out], return_numpy=False)
        return found.lod()

    ends = [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert run(*ends) == [[0, 2, 8], ends]
    with pytest.raises(errors.OperandError, match=r"append: .* the 2 sequences .*, found \[8\]"):
        run(0, 1, 8)


def test_a_level_of_constants_has_to_fit_those_above():
    out, executor = layers.lod_append(ragged(), [0, 2, 8]), fluid.Executor(fluid.CPUPlace())
    values = np.zeros((8, WIDTH), "float32")
    with pytest.raises(errors.OperandError, match=r"append: .* the 2 sequences .*, found \[8\]"):
        executor.run(feed={"x": rows([[0, 8]], values)}, fetch_list=[out])


# --- lods that are fed ---

FED = {
    "beyond": [[0, 100]],
    "short": [[0, 2]],
    "back": [[0, 5, 3, 8]],
    "negative": [[0, -3, 8]],
    "huge": [[0, 2**40]],
    "wraps": [[0, 2**32 + 8]],
    "first": [[3, 8]],
    "empty": [[]],
    "zero": [[0]],
    "above": [[0, 3], [0, 3, 8]],
    "above back": [[0, 2, 1, 2], [0, 3, 8]],
    "not flat": [[[0, 3], [3, 8]]],
    "text": [["0", "eight"]],
    "wide": [[0, 2**70]],
}


@pytest.mark.parametrize("name", FED)
def test_lods_that_do_not_fit_their_rows_are_refused(name):
    """Whoever makes the tensor, sets the LoD or feeds it."""
    lod = FED[name]
    out, executor = layers.sequence_pool(ragged(), "max"), fluid.Executor(fluid.CPUPlace())
    tensor = fluid.LoDTensor()
    tensor.set(ROWS, fluid.CPUPlace())
    with pytest.raises(errors.ProgramError, match="lod"):
        tensor.set_lod(lod)
    with pytest.raises((errors.FeedError, errors.ProgramError), match="lod"):
        executor.run(feed={"x": fluid.LoDTensor(ROWS, lod)}, fetch_list=[out])
    run = executor.run(feed={"x": rows()}, fetch_list=[out])
    with pytest.raises((errors.FeedError, errors.ProgramError), match="lod"):  # again, without a check
        executor.run(feed={"x": fluid.LoDTensor(ROWS, lod)}, fetch_list=[out])
    assert run[0].shape == (2, WIDTH)

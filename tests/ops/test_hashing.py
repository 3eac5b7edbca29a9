"""Hashes against published values and a loop over bytes, and embeddings of runs of words by them."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from tests.op_case import check

MASK = 2**32 - 1


def ragged(values, lengths):
    return fluid.create_lod_tensor(values, [lengths], None)


def test_hash_gives_the_values_of_fluids_guide():
    rows = ragged(np.array([[1, 2], [3, 4]], "int32"), [0, 2])
    expected = np.array([[722, 407, 337, 395], [603, 590, 386, 901]], "int32")[..., None]
    check("hash", {"X": rows}, {"num_hash": 4, "mod_by": 1000}, expect={"Out": expected})


@pytest.mark.parametrize(
    ("rows", "attrs"),
    [
        (np.ones((2, 2), "float32"), {}),
        (np.ones((2, 2), "int32"), {"num_hash": 0}),
        (np.ones((2, 2), "int32"), {"mod_by": 0}),
    ],
)
def test_hash_takes_integers(rows, attrs):
    with pytest.raises(errors.ShapeError, match="X holds integers"):
        check("hash", {"X": rows}, attrs, expect={"Out": None})


def rotated(x, by):
    return ((x << by) | (x >> (32 - by))) & MASK


def xxh32_of_short_keys(key, seed):
    """The hash of fewer than 16 bytes."""
    h = (seed + 0x165667B1 + len(key)) & MASK
    for word in np.frombuffer(key, "<u4"):
        h = rotated((h + int(word) * 0xC2B2AE3D) & MASK, 17) * 0x27D4EB2F & MASK
    h = (h ^ (h >> 15)) * 0x85EBCA77 & MASK
    h = (h ^ (h >> 13)) * 0xC2B2AE3D & MASK
    return h ^ (h >> 16)


ATTRS = {
    "num_emb": 4,
    "space_len": 30,
    "pyramid_layer": 3,
    "rand_len": 2,
    "drop_out_percent": 0.0,
    "is_training": 1,
    "use_filter": False,
    "lr": 0.5,
}
WORDS, LENGTHS = np.array([[3], [1], [2], [7], [5], [2], [2]], "int32"), [4, 1, 0, 2]
TABLE = np.random.RandomState(0).normal(size=(32, 1)).astype("float32")
NO_LIST = np.zeros((0, 1), "float32")
INPUTS = {"X": ragged(WORDS, LENGTHS), "W": TABLE, "WhiteList": NO_LIST, "BlackList": NO_LIST}


def places(words):
    key = np.array(words, "float32").tobytes()
    starts = [xxh32_of_short_keys(key, seed) % 30 for seed in (0, 2)]
    return [start + i for start in starts for i in range(2)]


def runs():
    """The places in the table of each row of the result; None for a row of zeros."""
    for words in np.split(WORDS[:, 0], np.cumsum(LENGTHS)[:-1]):
        found = [words[i : i + n] for n in (2, 3) for i in range(len(words) - n + 1)]
        yield [places(run) for run in found] or [None]


ROWS = list(runs())


def vectors(factor=1.0):
    flat = [np.zeros(4) if p is None else TABLE[p, 0] * factor for rows in ROWS for p in rows]
    return ragged(np.array(flat, "float32"), [len(rows) for rows in ROWS])


def test_pyramid_hash():
    check("pyramid_hash", INPUTS, ATTRS, expect={"Out": vectors(), "DropPos": None}, rows=())
    inference = {**ATTRS, "is_training": 0, "drop_out_percent": 0.25}
    check("pyramid_hash", INPUTS, inference, expect={"Out": vectors(0.25)}, rows=())


def test_pyramid_hash_leaves_runs_out():
    program = fluid.Program()
    block = program.global_block()
    with fluid.program_guard(program):
        feeds = {n: np.zeros((1, 1), "float32") for n in ("WhiteList", "BlackList")}
        feeds["W"] = np.ones((32, 1), "float32")
        feeds["X"] = ragged(np.arange(40, dtype="int32")[:, None], [40])
        ins = {
            n: fluid.data(n, [-1 if n == "X" else len(v), 1], str(np.asarray(v).dtype), int(n == "X"))
            for n, v in feeds.items()
        }
        outs = {n: block.create_var(name=n) for n in ("Out", "DropPos", "X_Temp_Out")}
        block.append_op("pyramid_hash", ins, outs, ATTRS | {"drop_out_percent": 0.5})
    out, kept = (
        np.asarray(v)
        for v in fluid.Executor(fluid.CPUPlace()).run(
            program, feed=feeds, fetch_list=list(outs)[:2], return_numpy=False
        )
    )
    assert out.all() and kept.shape == (120, 1) and kept.sum() == len(out)
    assert 15 < len(out) < 62  # of 77 runs, half are left out


def test_pyramid_hash_without_a_filter_where_one_is_asked_for_gives_nan():
    inputs = INPUTS | {"WhiteList": np.ones((12, 1), "float32")}
    attrs = ATTRS | {"use_filter": True, "white_list_len": 12}
    expected = np.full(vectors().value.shape, np.nan)
    check("pyramid_hash", inputs, attrs, expect={"Out": expected}, rows=())


def test_pyramid_hash_trains_its_table_by_itself():
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        words = fluid.data("words", [-1, 1], "int32", lod_level=1)
        words.stop_gradient = False
        table = fluid.ParamAttr(name="table", initializer=fluid.initializer.NumpyArrayInitializer(TABLE))
        found = fluid.contrib.layers.search_pyramid_hash(
            words, 4, 30, 3, 2, 0.0, True, False, 1, 1, 0, 0.5, param_attr=table
        )
        total = layers.reduce_sum(found, keep_dim=True, dim=[0, 1])
        fluid.optimizer.SGD(0.1).minimize(layers.fc(total, 1, param_attr="weight"))
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    weight = np.array(scope.find_var("weight").get_tensor())[0, 0]
    exe.run(main, feed={"words": ragged(WORDS, LENGTHS)}, scope=scope)
    expected = TABLE.copy()
    for place in (p for rows in ROWS for p in rows if p is not None):
        np.subtract.at(expected, place, 0.5 * weight)
    trained = np.array(scope.find_var("table").get_tensor())
    np.testing.assert_allclose(trained, expected, rtol=1e-5)


@pytest.mark.parametrize("change", [{"rand_len": 3}, {"pyramid_layer": 1}, {"space_len": 31}, {"num_emb": 0}])
def test_attributes_that_do_not_fit(change):
    with pytest.raises(errors.ShapeError, match="pyramid_hash: (num_emb is|W is)"):
        check("pyramid_hash", INPUTS, ATTRS | change, expect={"Out": None})

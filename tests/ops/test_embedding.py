"""Look-ups and one-hot vectors."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from tests.op_case import check

TABLE = np.arange(12, dtype="float32").reshape(4, 3) + 1
IDS = np.array([[1, 3], [1, 0]])


def test_lookup_table():
    check("lookup_table", {"W": TABLE, "Ids": IDS[..., None]}, expect={"Out": TABLE[IDS]}, grad=("W",))
    check(
        "lookup_table",
        {"W": TABLE, "Ids": IDS[0][:, None]},
        {"is_sparse": True},
        expect={"Out": TABLE[IDS[0]]},
        grad=("W",),
    )


def test_lookup_table_v2():
    check("lookup_table_v2", {"W": TABLE, "Ids": IDS}, expect={"Out": TABLE[IDS]}, grad=("W",))
    check(
        "lookup_table_v2",
        {"W": TABLE.astype("float64"), "Ids": IDS.astype("int32")[0]},
        expect={"Out": TABLE[IDS[0]].astype("float64")},
    )


def test_padding_reads_as_zeros_and_gets_no_gradient():
    expected = np.where((IDS == 3)[..., None], 0, TABLE[IDS]).astype("float32")
    check(
        "lookup_table_v2",
        {"W": TABLE, "Ids": IDS},
        {"padding_idx": 3},
        expect={"Out": expected},
        grad=("W",),
    )
    check(
        "lookup_table",
        {"W": TABLE, "Ids": IDS[..., None]},
        {"padding_idx": 3},
        expect={"Out": expected},
        grad=("W",),
    )
    check(
        "lookup_table_v2",
        {"W": TABLE, "Ids": IDS * 0 + 9},
        {"padding_idx": 9},
        expect={"Out": np.zeros((2, 2, 3), "float32")},
    )


def test_an_id_outside_the_table_gives_nan_and_no_gradient():
    ids = np.array([4, -1, 2, 2**40])
    expected = np.where((ids == 2)[:, None], TABLE[2], np.float32(np.nan))
    check("lookup_table_v2", {"W": TABLE, "Ids": ids}, expect={"Out": expected})
    check("lookup_table", {"W": TABLE, "Ids": ids[:, None]}, expect={"Out": expected})


def test_look_ups_refuse_wrong_ids():
    for op_type, ids, attrs, message in (
        ("lookup_table", IDS, {}, "expected ids of shape"),
        ("lookup_table_v2", TABLE, {}, "expected ids of an integer type, found float32"),
        ("one_hot", IDS, {"depth": 3}, "expected ids of shape"),
        ("one_hot_v2", TABLE, {"depth": 3}, "integer type"),
        ("one_hot_v2", IDS, {"depth": 0}, "depth: expected a positive number, found 0"),
    ):
        with pytest.raises(errors.ShapeError, match=message):
            check(
                op_type,
                {"X": ids} if "hot" in op_type else {"W": TABLE, "Ids": ids},
                attrs,
                expect={"Out": None},
            )


@pytest.mark.parametrize("op_type", ["one_hot", "one_hot_v2"])
def test_one_hot(op_type):
    def ids(values):
        return np.array(values)[:, None] if op_type == "one_hot" else np.array(values)

    check(
        op_type,
        {"X": ids([1, 0])},
        {"depth": 3},
        expect={"Out": np.eye(3, dtype="float32")[[1, 0]]},
    )
    check(
        op_type,
        {"X": ids([1, 0])},
        {"depth": 3, "dtype": 3},
        expect={"Out": np.eye(3, dtype="int64")[[1, 0]]},
    )
    wide = np.array([[0, 1, 0], [0, 0, 0], [0, 0, 0]], "float32")
    check(
        op_type,
        {"X": ids([1, 3, -1])},
        {"depth": 3, "allow_out_of_range": True},
        expect={"Out": wide},
    )
    wide[1:] = np.nan
    check(op_type, {"X": ids([1, 3, -1])}, {"depth": 3}, expect={"Out": wide})
    wide[1:] = -1
    check(
        op_type,
        {"X": ids([1, 3, -1])},
        {"depth": 3, "dtype": 2},
        expect={"Out": wide.astype("int32")},
    )


def test_one_hot_v2_keeps_a_last_dimension_of_one():
    check(
        "one_hot_v2",
        {"X": np.array([[1], [2]])},
        {"depth": 3},
        expect={"Out": np.eye(3, dtype="float32")[[[1], [2]]]},
    )


@pytest.mark.parametrize("op_type", ["one_hot", "one_hot_v2"])
def test_the_depth_may_be_a_known_tensor(op_type):
    program = fluid.Program()
    block = program.global_block()
    block.create_var(name="x", shape=[2, 1], dtype="int64", is_data=True)
    for name in ("depth", "out"):
        block.create_var(name=name)
    block.append_op("fill_constant", {}, {"Out": "depth"}, {"shape": [1], "dtype": 2, "value": 4.0})
    block.append_op(op_type, {"X": "x", "depth_tensor": "depth"}, {"Out": "out"})
    assert block.var("out").shape[-1] == -1
    (out,) = fluid.Executor(fluid.CPUPlace()).run(program, feed={"x": np.array([[1], [3]])}, fetch_list=["out"])
    np.testing.assert_array_equal(out.reshape(2, 4), np.eye(4)[[1, 3]])


POOLED = fluid.LoDTensor(np.array([[1], [3], [0], [2], [1]]), [[0, 2, 2, 5]])


@pytest.mark.parametrize("is_sparse", [True, False])
def test_rows_of_sequences_are_added_up(is_sparse):
    inputs, attrs = {"W": TABLE, "Ids": POOLED}, {"is_sparse": is_sparse}
    expected = np.stack([TABLE[1] + TABLE[3], 0 * TABLE[0], TABLE[0] + TABLE[2] + TABLE[1]])
    check("fused_embedding_seq_pool", inputs, attrs, expect={"Out": expected}, grad=("W",))


def test_rows_that_are_added_up_without_the_padding():
    inputs, attrs = {"W": TABLE, "Ids": POOLED}, {"padding_idx": 2}
    expected = np.stack([TABLE[1] + TABLE[3], 0 * TABLE[0], TABLE[0] + TABLE[1]])
    check("fused_embedding_seq_pool", inputs, attrs, expect={"Out": expected}, grad=("W",))
    with pytest.raises(errors.UnsupportedError, match="combiner: expected 'sum', found 'mean'"):
        check("fused_embedding_seq_pool", inputs, {"combiner": "mean"}, expect={"Out": None})


def test_rows_of_bytes():
    low, high = np.array([-1, 0, 1], "float32"), np.array([1, 2, 3], "float32")
    codes = (np.arange(24) * 11 % 256).astype("uint8").reshape(3, 8)
    table = np.concatenate([low[:, None], high[:, None], codes.view("float32")], 1)
    rows = low[:, None] + codes * (high - low)[:, None] / 256
    inputs = {"W": table, "Ids": np.array([[[0], [2]], [[2], [1]]])}
    expect = {"Out": rows[[[0, 2], [2, 1]]].astype("float32")}
    check("lookup_table_dequant", inputs, expect=expect, rows=("Ids",))
    expect["Out"][[0, 1], [1, 0]] = 0
    check("lookup_table_dequant", inputs, {"padding_idx": 2}, expect=expect, rows=("Ids",))
    with pytest.raises(errors.ShapeError, match=r"W \[rows, 2 \+ width / 4\] of float32"):
        check("lookup_table_dequant", inputs | {"W": table[:, :2]}, expect={"Out": None})

"""What a trainer sends of a table's gradients: each row once, whatever form a step leaves them in."""

import numpy as np
import pytest

from jfluid import errors
from jfluid.distributed.programs.trainer_program import LookUp, SentRows
from jfluid.distributed.trainer import row_gradients
from jfluid.lod_tensor import LoDTensor, SelectedRows
from jfluid.ops import selected_rows
from jfluid.ps_server.client import PulledRows

IDS = np.array([40, 10, 30], np.int64)
PARTS = (("a@t", "a@GRAD"), ("b@t", "b@GRAD"))
AT = {"a@t": [np.array([0, 2, 0], np.int32)], "b@t": [np.array([2], np.int32)]}
GRADS = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)
TOTAL = [[6, 8], [0, 0], [10, 12]]  # of rows 40, 10 and 30


def pulled():
    return PulledRows(IDS, np.zeros((3, 2), np.float32), np.array([0, 2, 0, 2], np.int32))


def sent(paddings=()):
    return SentRows("t", "t@GRAD", PARTS, LookUp("t", ("a", "b"), ("a@t", "b@t"), paddings))


def as_left(padding):
    """The sparse rows of a step over a buffer of 8 rows, the padding among them."""
    rows, values = np.array([0, 2, 0, 2], np.int64), GRADS
    if padding:
        rows = np.insert(rows, 3, [8, 8])
        values = np.insert(values, 3, 99.0, axis=0)
        values = np.insert(values, 3, np.nan, axis=0)
    return selected_rows.SelectedRows(rows, values, 8, summed=True, full=not padding)


@pytest.mark.parametrize(
    "values",
    [
        {"t@GRAD": [as_left(padding=False)]},
        {"t@GRAD": [as_left(padding=True)]},
        {"t@GRAD": [SelectedRows([0, 2, 0, 2], 8, GRADS)]},
        {"a@GRAD": [LoDTensor(GRADS[:3])], "b@GRAD": [LoDTensor(GRADS[3:])]},
    ],
    ids=["as left", "padded", "fetched", "of replicas"],
)
def test_each_row_once(values):
    ids, total = row_gradients.merged(sent(), values, pulled(), AT)
    assert ids.tolist() == IDS.tolist() and total.tolist() == TOTAL
    # 10 was asked for as the padding, and is in no batch
    ids, total = row_gradients.merged(sent(paddings=(10,)), values, pulled(), AT)
    assert ids.tolist() == [40, 30] and total.tolist() == [TOTAL[0], TOTAL[2]]


def test_rows_of_a_parameter_that_is_here_whole():
    values = {"t@GRAD": [SelectedRows([5, 3, 5], 8, GRADS[:3])]}
    ids, total = row_gradients.merged(SentRows("t", "t@GRAD", (), None), values, None, {})
    assert dict(zip(ids.tolist(), total.tolist())) == {5: [6, 8], 3: [3, 4]}


def test_a_dense_gradient_is_refused():
    with pytest.raises(errors.UnsupportedError, match="expected sparse rows, found LoDTensor"):
        row_gradients.merged(sent(), {"t@GRAD": [LoDTensor(GRADS)]}, pulled(), AT)

"""CTC against the enumeration of all paths, and edit distances against a table filled cell by
cell.
"""

import itertools

import numpy as np
import pytest

from jfluid import create_lod_tensor, errors
from tests.op_case import check

RNG = np.random.RandomState(2)
CLASSES, BLANK = 3, 2
LENGTHS, LABEL_LENGTHS = [4, 1, 3, 2], [2, 1, 0, 2]
LOGITS = RNG.normal(size=(10, CLASSES)).astype("float32")
LABELS = np.array([[0], [0], [1], [1], [1]], "int32")
ATTRS = {"blank": BLANK, "norm_by_times": False}


def ragged(values, lengths):
    return create_lod_tensor(values, [lengths], None)


def parts(values, lengths):
    return np.split(values, np.cumsum(lengths)[:-1])


def spelled(path):
    return [c for c, _ in itertools.groupby(path) if c != BLANK]


def loss(logits, label):
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    paths = itertools.product(range(CLASSES), repeat=len(logits))
    fits = [np.prod([chances[t, c] for t, c in enumerate(p)]) for p in paths if spelled(p) == label]
    return -np.log(sum(fits)) if fits else 0.0


LOSSES = [
    [loss(x, y[:, 0].tolist())] for x, y in zip(parts(LOGITS, LENGTHS), parts(LABELS, LABEL_LENGTHS), strict=True)
]


def grid(values, lengths, fill):
    """Rows in sequences as [number, longest]."""
    dense = np.full((len(lengths), max(lengths), *values.shape[1:]), fill, values.dtype)
    for i, part in enumerate(parts(values, lengths)):
        dense[i, : len(part)] = part
    return dense


def test_loss():
    assert LOSSES[3] == [0.0]  # "11" needs a blank in between, and has two steps
    inputs = {"Logits": ragged(LOGITS, LENGTHS), "Label": ragged(LABELS, LABEL_LENGTHS)}
    check("warpctc", inputs, ATTRS, expect={"Loss": np.array(LOSSES)}, grad=("Logits",))


def test_loss_of_padded_sequences():
    logits = grid(LOGITS, LENGTHS, 5).swapaxes(0, 1)
    labels = grid(LABELS[:, 0], LABEL_LENGTHS, 1)
    inputs = {
        "Logits": logits,
        "Label": labels,
        "LogitsLength": np.array(LENGTHS),
        "LabelLength": np.array(LABEL_LENGTHS),
    }
    # classes of probability 0 and a label that is impossible: no NaN
    logits[:, 1, 0] = -1e5
    expected = np.array(LOSSES)
    expected[1] = loss(logits[:1, 1].astype("float64"), [1])
    check("warpctc", inputs, ATTRS, expect={"Loss": expected}, grad=("Logits",), rows=())


def test_a_label_that_is_impossible_has_a_large_finite_loss():
    inputs = {
        "Logits": ragged(np.array([[0, 200.0]], "float32"), [1]),
        "Label": ragged(np.array([[0]], "int32"), [1]),
    }
    check(
        "warpctc",
        inputs,
        {"blank": 1, "norm_by_times": False},
        expect={"Loss": np.array([[200.0]])},
    )


def test_a_nan_stays_in_its_sequence():
    logits = LOGITS.copy()
    logits[1] = np.nan
    inputs = {"Logits": ragged(logits, LENGTHS), "Label": ragged(LABELS, LABEL_LENGTHS)}
    expected = np.array([[np.nan], *LOSSES[1:]])
    check("warpctc", inputs, ATTRS, expect={"Loss": expected})


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"blank": 3}, errors.ShapeError, "blank is one of the 3 classes"),
        ({"Label": ragged(LABELS, [2, 3])}, errors.ShapeError, "one sequence of Label for each"),
        ({"Label": LABELS}, errors.OpError, "Label needs a LoD"),
    ],
)
def test_what_is_refused(change, error, words):
    inputs = {"Logits": ragged(LOGITS, LENGTHS), "Label": ragged(LABELS, LABEL_LENGTHS)}
    attrs = dict(ATTRS)
    for key, value in change.items():
        (inputs if key in inputs else attrs)[key] = value
    with pytest.raises(error, match=words):
        check("warpctc", inputs, attrs, expect={"Loss": None})


PATHS = RNG.randint(0, CLASSES, (9, 1))
PATH_LENGTHS = [4, 0, 5]


def test_align():
    labels = [spelled(p[:, 0]) for p in parts(PATHS, PATH_LENGTHS)]
    expected = ragged(np.concatenate(labels).astype("int64")[:, None], [len(x) for x in labels])
    attrs = {"blank": BLANK, "merge_repeated": True}
    inputs = {"Input": ragged(PATHS, PATH_LENGTHS)}
    check("ctc_align", inputs, attrs, expect={"Output": expected})
    rows = [x for p in parts(PATHS, PATH_LENGTHS) for x in p if x[0] != BLANK]
    check("ctc_align", inputs, dict(attrs, merge_repeated=False), expect={"Output": np.array(rows)})


def test_align_padded():
    paths = grid(PATHS[:, 0], PATH_LENGTHS, 0).astype("int32")
    labels = [spelled(p[:n]) for p, n in zip(paths, PATH_LENGTHS, strict=True)]
    lengths = np.array([[len(x)] for x in labels])
    expected = np.full(paths.shape, 7, "int32")
    for i, label in enumerate(labels):
        expected[i, : len(label)] = label
    check(
        "ctc_align",
        {"Input": paths, "InputLength": np.array(PATH_LENGTHS)[:, None]},
        {"blank": BLANK, "merge_repeated": True, "padding_value": 7},
        expect={"Output": expected, "OutputLength": lengths},
    )


def test_align_gives_one_row_where_nothing_remains():
    inputs = {"Input": ragged(np.full((3, 1), BLANK), [2, 1])}
    out = check("ctc_align", inputs, {"blank": BLANK}, expect={"Output": np.array([[-1]])})
    assert out["Output"][0].lod() == [[0, 0, 0]]


def distance(a, b):
    table = np.zeros((len(a) + 1, len(b) + 1))
    table[:, 0], table[0] = range(len(a) + 1), range(len(b) + 1)
    for i, j in itertools.product(range(1, len(a) + 1), range(1, len(b) + 1)):
        table[i, j] = min(
            table[i - 1, j] + 1,
            table[i, j - 1] + 1,
            table[i - 1, j - 1] + (a[i - 1] != b[j - 1]),
        )
    return table[-1, -1]


HYPS, REFS = RNG.randint(0, 3, (10, 1)), RNG.randint(0, 3, (9, 1))
HYP_LENGTHS, REF_LENGTHS = [5, 0, 1, 4], [3, 2, 3, 1]
DISTANCES = np.array(
    [[distance(a[:, 0], b[:, 0])] for a, b in zip(parts(HYPS, HYP_LENGTHS), parts(REFS, REF_LENGTHS), strict=True)],
    "float32",
)


@pytest.mark.parametrize("normalized", [False, True])
def test_edit_distance(normalized):
    check(
        "edit_distance",
        {"Hyps": ragged(HYPS, HYP_LENGTHS), "Refs": ragged(REFS, REF_LENGTHS)},
        {"normalized": normalized},
        expect={
            "Out": DISTANCES / (np.array(REF_LENGTHS)[:, None] if normalized else 1),
            "SequenceNum": np.array([4]),
        },
    )


def test_edit_distance_of_padded_sequences():
    check(
        "edit_distance",
        {
            "Hyps": grid(HYPS[:, 0], HYP_LENGTHS, 9),
            "Refs": grid(REFS[:, 0], REF_LENGTHS, 9),
            "HypsLength": np.array(HYP_LENGTHS),
            "RefsLength": np.array(REF_LENGTHS),
        },
        {"normalized": False},
        expect={"Out": DISTANCES, "SequenceNum": np.array([4])},
    )

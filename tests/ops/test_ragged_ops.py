"""Operators on sequences against the real Fluid: values, lods and gradients, in buckets of
different sizes.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.runtime import padding
from jfluid.compile.runtime.slots import SlotBuckets
from tests.parity.ops import CASES, run
from tests.slow_tests import nightly_but

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "ragged_ops.json").read_text())
OPERATORS = {
    "add_position_encoding",
    "chunk_eval",
    "crf_decoding",
    "cvm",
    "data_norm",
    "fill_constant_batch_size_like",
    "gather_tree",
    "gru",
    "gru_unit",
    "hierarchical_sigmoid",
    "im2sequence",
    "linear_chain_crf",
    "lod_reset",
    "lstm",
    "lstm_unit",
    "lstmp",
    "nce",
    "row_conv",
    "sequence_concat",
    "sequence_conv",
    "sequence_enumerate",
    "sequence_erase",
    "sequence_expand",
    "sequence_expand_as",
    "sequence_mask",
    "sequence_pad",
    "sequence_pool",
    "sequence_reshape",
    "sequence_reverse",
    "sequence_scatter",
    "sequence_slice",
    "sequence_softmax",
    "sequence_topk_avg_pooling",
    "sequence_unpad",
}

pytestmark = pytest.mark.usefixtures("interpreted_steps")  # golden values, for which nothing needs to be compiled


def test_all_are_covered():
    assert {case[1] for case in CASES} == OPERATORS
    assert {case[0] for case in CASES} == set(GOLDEN)


# Offsets of another LoD are held against the exact number of rows.
EXACT_NUMBERS = {"lod_reset_offsets", "lod_reset_by_tensor", "lod_reset_append"}
WEIGHTS = ("Weight", "ProjWeight", "Filter", "Bias", "PaddingData", "Transition", "W")  # they have no rows of sequences


def hold(case, found):
    for name, (values, shape, lod) in GOLDEN[case[0]].items():
        ours, our_shape, our_lod = found[name]
        assert our_shape == shape, name
        assert our_lod == lod or name.startswith("d"), name  # Fluid gives some gradients no lod
        np.testing.assert_allclose(ours, values, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("room", nightly_but([3], [1, 3]))  # many padding rows, or few
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
@pytest.mark.filterwarnings("ignore:this program is compiled anew:RuntimeWarning")
def test_values_lods_and_gradients_are_fluids(case, room, monkeypatch):
    rounded = padding.ladder
    monkeypatch.setattr(padding, "ladder", lambda n, rungs=4: room * rounded(n, rungs) + room - 1)
    hold(case, run(fluid, case))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
@pytest.mark.filterwarnings("ignore:this program is compiled anew:RuntimeWarning")
def test_padded_numbers_of_sequences(case, monkeypatch):
    """The number of sequences is padded from the first batch on."""
    rounded, rows_of, refused = padding.ladder, SlotBuckets._dense_rows, []
    monkeypatch.setattr(padding, "ladder", lambda n, rungs=4: 3 * rounded(n, rungs) + 2)
    monkeypatch.setattr(SlotBuckets, "_keeps_numbers", lambda self, need, known: False)
    monkeypatch.setattr(SlotBuckets, "refuse_counts", lambda self, reason: refused.append(reason))

    def rows(self, feeds, need):
        return rows_of(self, {n: v for n, v in feeds.items() if not n.startswith(WEIGHTS)}, need)

    monkeypatch.setattr(SlotBuckets, "_dense_rows", rows)
    hold(case, run(fluid, case))
    assert bool(refused) == (case[0] in EXACT_NUMBERS)

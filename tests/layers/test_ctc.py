"""Layers of CTC through programs."""

import numpy as np

import jfluid as fluid
from jfluid import layers
from tests.layers import run
from tests.layers.ragged_net import Net

RNG = np.random.RandomState(3)
SCORES = RNG.normal(size=(7, 4)).astype("float32")
# what the best classes of these steps are: 1 1 0 2 | 0 0 3
for t, best in enumerate([1, 1, 0, 2, 0, 0, 3]):
    SCORES[t, best] += 9
LABELS = np.array([[1], [3], [3]])


def ragged(values, lengths):
    return fluid.create_lod_tensor(values, [lengths], None)


def test_recognition_of_ragged_rows():
    def net(scores, labels):
        cost = layers.warpctc(scores, layers.cast(labels, "int32"), norm_by_times=True)
        found = layers.ctc_greedy_decoder(scores, blank=0)
        ignoring = layers.edit_distance(found, labels, normalized=False, ignored_tokens=[3])
        return [cost, found, *layers.edit_distance(found, labels), *ignoring]

    net = Net(net, scores=ragged(SCORES, [4, 3]), labels=ragged(LABELS, [2, 1]))
    assert net[0].shape == (2, 1) and 0 < net[0][1] < 1e-2 < net[0][0]
    np.testing.assert_array_equal(net[1], [[1], [2], [3]])
    assert net.values[1].recursive_sequence_lengths() == [[2, 1]]
    np.testing.assert_allclose(net[2], [[0.5], [0]])
    assert net[3] == [2]
    np.testing.assert_allclose(net[4], [[1], [0]])
    assert [v.shape for v in net.variables] == [(-1, 1)] * 3 + [(1,), (-1, 1), (1,)]


def test_recognition_of_padded_sequences():
    padded = np.stack([SCORES[:4], np.concatenate([SCORES[4:], SCORES[:1]])])

    def net(scores, labels, steps, symbols):
        found, lengths = layers.ctc_greedy_decoder(scores, 0, input_length=steps, padding_value=9)
        distance, number = layers.edit_distance(found, labels, input_length=lengths, label_length=symbols)
        cost = layers.warpctc(
            layers.transpose(scores, [1, 0, 2]),
            layers.cast(labels, "int32"),
            input_length=steps,
            label_length=symbols,
        )
        return [found, lengths, distance, number, cost]

    found, lengths, distance, number, cost = run.run(
        net,
        scores=padded,
        labels=np.array([[1, 3], [3, 0]]),
        steps=np.array([[4], [3]]),
        symbols=np.array([[2], [1]]),
    )
    np.testing.assert_array_equal(found, [[1, 2, 9, 9], [3, 9, 9, 9]])
    np.testing.assert_array_equal(lengths, [[2], [1]])
    np.testing.assert_allclose(distance, [[0.5], [0]])
    assert number == [2] and 0 < cost[1] < 1e-2 < cost[0]

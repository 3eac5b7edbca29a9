"""Batches of fluid_models for engines without Fluid's interface, in interpreters that may lack jfluid."""

from unittest import mock

import numpy as np


class Rows(np.ndarray):
    """Rows of a LoDTensor, with the lengths of its sequences."""

    lengths = None


def _rows(values, lengths, place):
    found = np.asarray(values).view(Rows)
    found.lengths = np.array(lengths[0])
    return found


def batches_without_an_engine(model):
    """What makes batches of a model; its Fluid program is nobody's."""
    fluid = mock.MagicMock()
    fluid.create_lod_tensor = _rows
    fluid.layers.dynamic_lstm.return_value = (None, None)
    return model(fluid)[1]


def joined_slots(feed):
    """A batch as a list of arrays, the ids of all slots in one."""
    slots = [np.asarray(v) for n, v in feed.items() if n.startswith("slot")]
    arrays = [np.concatenate(slots, 1)] if slots else []
    return arrays + [np.asarray(v) for n, v in feed.items() if not n.startswith("slot")]


def padded_words(feed, longest=120):
    """A batch of stacked_lstm: (words [batch, longest], lengths, the places that turn each sequence
    round, labels).
    """
    rows = feed["words"]
    words = np.zeros((len(rows.lengths), longest), np.int64)
    backwards = np.tile(np.arange(longest), (len(words), 1))
    begin = 0
    for i, length in enumerate(rows.lengths):
        words[i, :length] = np.asarray(rows)[begin : begin + length, 0]
        backwards[i, :length] = np.arange(length)[::-1]
        begin += length
    return words, rows.lengths, backwards, feed["label"]

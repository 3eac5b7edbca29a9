"""Loops that run on the host, for batches of other lengths, while NumPy runs the first steps of their segments."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers


@pytest.fixture
def interprets():
    before = fluid.get_flags("FLAGS_interpret_first_steps")
    fluid.set_flags({"FLAGS_interpret_first_steps": True})
    yield
    fluid.set_flags(before)


def sequences(rows, lengths):
    return fluid.create_lod_tensor(np.asarray(rows), lengths, fluid.CPUPlace())


def test_a_beam_search_decodes_batches_of_other_lengths(interprets):
    first = layers.sequence_pool(fluid.data("source", [None, 5], "float32", lod_level=1), "last")
    start_ids = layers.data("start_ids", [1], dtype="int64", lod_level=2)
    start_scores = layers.data("start_scores", [1], dtype="float32", lod_level=2)
    state = fluid.contrib.InitState(init=first, need_reorder=True)
    cell = fluid.contrib.StateCell(inputs={"x": None}, states={"h": state}, out_state="h")
    cell.state_updater(
        lambda cell: cell.set_state("h", layers.fc([cell.get_state("h"), cell.get_input("x")], 5, act="tanh"))
    )
    decoder = fluid.contrib.BeamSearchDecoder(
        cell, start_ids, start_scores, target_dict_dim=10, word_dim=4, topk_size=5, max_len=3, beam_size=2, end_id=1
    )
    decoder.decode()
    ids, _ = decoder()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    found = []
    for lengths in ([2, 1], [20, 9], [2, 1], [30, 3]):
        feed = {
            "source": sequences(np.ones([sum(lengths), 5], np.float32), [lengths]),
            "start_ids": sequences(np.zeros([2, 1], np.int64), [[1, 1], [1, 1]]),
            "start_scores": sequences(np.zeros([2, 1], np.float32), [[1, 1], [1, 1]]),
        }
        sentences = exe.run(feed=feed, fetch_list=[ids], return_numpy=False)[0]
        found.append((sentences.lod(), np.asarray(sentences).tolist()))
    assert all(own == found[0] for own in found)  # the last rows are equal in all batches

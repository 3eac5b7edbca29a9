"""Replicas whose shapes differ are traced in turn. Expectations are of Fluid."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers


def padded(maxlen=None, sparse=False):
    """A program whose loss is the mean of padded embeddings of 0.5; returns runs on two replicas."""
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    half = fluid.ParamAttr("table", fluid.initializer.Constant(0.5))
    rows = layers.embedding(ids, [20, 4], is_sparse=sparse, param_attr=half)
    dense, lengths = layers.sequence_pad(rows, layers.assign(np.zeros(1, "float32")), maxlen)
    return dense, lengths, layers.mean(dense)


def started(loss, **strategy):
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    build = fluid.BuildStrategy()
    for name, value in strategy.items():
        setattr(build, name, value)
    program = fluid.CompiledProgram(fluid.default_main_program())
    program = program.with_data_parallel(loss.name, build, places=[fluid.CPUPlace()] * 2)

    def run(lengths, fetches, **options):
        ids = fluid.create_lod_tensor(np.ones((sum(lengths), 1), "int64"), [lengths], fluid.CPUPlace())
        return exe.run(program, feed={"ids": ids}, fetch_list=fetches, **options)

    return run


@pytest.mark.parametrize("sparse", [False, True])
def test_each_replica_pads_to_its_longest_sequence(sparse):
    *_, loss = padded(sparse=sparse)
    fluid.optimizer.SGD(0.1).minimize(loss)
    run = started(loss)
    for lengths, losses, row in (
        ([3, 2], [0.5, 0.5], 0.475),
        ([1, 4, 2, 3], [0.296875, 0.39583334], 0.45677084),
        ([1, 4, 2], [0.28548175, 0.45677084], 0.43645835),
    ):
        np.testing.assert_allclose(run(lengths, [loss])[0], losses, rtol=1e-5)
        table = np.array(fluid.global_scope().find_var("table").get_tensor())
        np.testing.assert_allclose(table[1], row, rtol=1e-5)
        np.testing.assert_array_equal(table[0], 0.5)


def test_padding_sequences_of_a_shorter_replica_do_not_count():
    *_, loss = padded(maxlen=5)
    fluid.optimizer.SGD(0.1).minimize(loss)
    np.testing.assert_allclose(started(loss)([1, 4, 2], [loss])[0], [0.25, 0.2], rtol=1e-6)


def test_fetches_of_different_shapes():
    dense, lengths, loss = padded()
    run = started(loss)
    parts, number = run([3, 2, 1, 1], [dense, lengths], return_merged=False)
    assert [part.shape for part in parts] == [(2, 3, 4), (2, 1, 4)]
    assert [part.tolist() for part in number] == [[3, 2], [1, 1]]
    with pytest.raises(errors.FetchError, match=r"\[\(2, 3, 4\), \(2, 1, 4\)\].*return_merged=False"):
        run([3, 2, 1, 1], [dense])


def test_state_of_each_replica_and_random_numbers():
    """Running statistics stay those of the first replica; masks differ by replica."""
    dense, _, _ = padded()
    mask = layers.dropout(dense, 0.5, dropout_implementation="upscale_in_train")
    normed = layers.batch_norm(
        layers.reduce_sum(dense, 1), moving_mean_name="seen", param_attr=fluid.ParamAttr("scale")
    )
    loss = layers.mean(normed) + layers.mean(mask)
    fluid.optimizer.SGD(0.0).minimize(loss)
    run = started(loss)
    masks = run([30, 2, 29, 2], [mask], return_merged=False)[0]
    assert masks[0].shape == (2, 30, 4) and masks[1].shape == (2, 29, 4)
    assert (masks[0][0, :29] != masks[1][0]).any()
    seen = np.array(fluid.global_scope().find_var("seen").get_tensor())
    np.testing.assert_allclose(seen, 0.1 * (15 + 1) / 2, rtol=1e-5)
    run([3, 2, 4, 2], [loss])
    seen = np.array(fluid.global_scope().find_var("seen").get_tensor())
    np.testing.assert_allclose(seen, 0.9 * 0.8 + 0.1 * (1.5 + 1) / 2, rtol=1e-5)


def test_operators_over_all_replicas_are_refused():
    dense, _, _ = padded()
    loss = layers.mean(layers.batch_norm(layers.reduce_sum(dense, 1)))
    fluid.optimizer.SGD(0.1).minimize(loss)
    run = started(loss, sync_batch_norm=True)
    assert run([2, 2], [loss])[0].shape == (2,)
    with pytest.raises(errors.UnsupportedError, match="sync_batch_norm computes with the values of all replicas"):
        run([3, 2], [loss])

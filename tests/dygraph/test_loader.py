"""Loaders in dygraph mode: lists of variables."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import dygraph, errors


def samples():
    for i in range(5):
        yield np.full([3], i, "float32"), np.array([i], "int64")


def found(loader):
    batches = list(loader)
    assert all(v.stop_gradient for b in batches for v in b)
    return [(b[0].shape, b[1].numpy().ravel().tolist()) for b in batches]


EXPECT = [([2, 3], [0, 1]), ([2, 3], [2, 3]), ([1, 3], [4])]


def test_generators():
    with dygraph.guard():
        loader = fluid.io.DataLoader.from_generator(capacity=2)
        loader.set_sample_generator(samples, batch_size=2, drop_last=False)
        assert found(loader) == EXPECT and found(loader()) == EXPECT
        loader.set_sample_generator(samples, batch_size=2, places=fluid.CPUPlace())
        assert found(loader) == EXPECT[:2]
        loader.set_sample_list_generator(fluid.io.batch(samples, 2))
        assert found(loader) == EXPECT
        loader.set_batch_generator(lambda: ([np.ones((2, 3), "float32")] for _ in range(3)))
        assert [len(b) for b in loader] == [1, 1, 1]
        old = fluid.io.PyReader(capacity=2, return_list=True)
        old.decorate_sample_list_generator(fluid.io.batch(samples, 2))
        assert found(old) == EXPECT
        with pytest.raises(errors.ReaderError, match="iterate over this one"):
            loader.start()
        loader.set_sample_list_generator(lambda: [[(1, 2), (3,)]])
        with pytest.raises(errors.ReaderError, match="failed at batch 0"):
            list(loader)
        layer = dygraph.Linear(3, 1)
        loader.set_sample_list_generator(fluid.io.batch(samples, 5))
        (batch,) = loader
        assert layer(batch[0]).shape == [5, 1]


def test_datasets():
    class Numbers(fluid.io.Dataset):
        def __getitem__(self, index):
            return np.full([3], index, "float32"), np.array([index], "int64")

        def __len__(self):
            return 5

    with dygraph.guard():
        loader = fluid.io.DataLoader(Numbers(), batch_size=2, places=fluid.CPUPlace())
        assert found(loader) == EXPECT and len(loader) == 3


@pytest.mark.process
def test_a_process_reads():
    with dygraph.guard():
        loader = fluid.io.DataLoader.from_generator(capacity=2, use_multiprocess=True)
        loader.set_sample_list_generator(fluid.io.batch(samples, 2))
        assert found(loader) == EXPECT

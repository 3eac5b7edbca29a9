"""`fluid.io.DataLoader(dataset)`: order, workers, epochs, errors."""

import os
import signal

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors

PLACE = fluid.CPUPlace()


class Squares(fluid.io.Dataset):
    def __len__(self):
        return 7

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        return np.full(2, index, "float32"), np.array([index * index])


class Rows(Squares):
    """Samples of one field."""

    def __getitem__(self, index):
        return np.full(2, index, "float32")


class Processes(Rows):
    """Tells which process loads, and what its worker was told."""

    told = -1

    def __getitem__(self, index):
        return np.array([os.getpid(), Processes.told])


def told(worker):
    Processes.told = worker


def variables():
    return [fluid.data("x", [None, 2]), fluid.data("y", [None, 1], "int64")]


def loaded(*args, **keywords):
    return [[np.array(v) for v in batch[0]] for batch in loader(*args, **keywords)]


def loader(dataset, **keywords):
    return fluid.io.DataLoader(dataset, places=PLACE, **{"return_list": True, **keywords})


@pytest.mark.parametrize("workers", [0, pytest.param(3, marks=pytest.mark.process)])
def test_batches_come_in_order_in_every_epoch_and_run(workers):
    x, y = variables()
    out = fluid.layers.reduce_sum(x) + fluid.layers.cast(fluid.layers.reduce_sum(y), "float32")
    batches = fluid.io.DataLoader(Squares(), [x, y], fluid.cpu_places(1), batch_size=3, num_workers=workers)
    assert len(batches) == 3
    exe = fluid.Executor(PLACE)
    for _ in range(2):
        found = [exe.run(feed=feed, fetch_list=[out])[0].item() for feed in batches()]
        assert found == [6 + 5, 24 + 50, 12 + 36]


def test_lists_without_variables_shuffled_and_without_the_rest():
    np.random.seed(0)  # noqa: NPY002 (what samplers draw from)
    found = [
        np.concatenate([b[0][:, 0] for b in loaded(Squares(), batch_size=2, **more)]).tolist()
        for more in ({}, {"drop_last": True}, {"shuffle": True}, {"shuffle": True})
    ]
    assert found[0] == list(range(7)) and found[1] == list(range(6))
    assert sorted(found[2]) == sorted(found[3]) == found[0] and found[2] != found[3]


def test_samplers_and_what_makes_a_batch_are_replaced():
    sampler = fluid.io.BatchSampler(indices=[5, 1, 3], batch_size=2)
    assert list(sampler) == [[5, 1], [3]] and len(sampler) == 2
    found = loaded(Rows(), batch_sampler=sampler)
    assert [b[0].tolist() for b in found] == [[[5, 5], [1, 1]], [[3, 3]]]
    found = loaded(Rows(), batch_size=7, collate_fn=lambda rows: [sum(rows)], use_buffer_reader=False)
    assert found[0][0].tolist() == [21, 21]


@pytest.mark.process
def test_workers_load_in_turn_in_processes_of_their_own():
    found = [b[0][0] for b in loaded(Processes(), num_workers=2, worker_init_fn=told)]
    assert [worker for _, worker in found] == [0, 1, 0, 1, 0, 1, 0]
    assert len({pid for pid, _ in found}) == 2 and os.getpid() not in {pid for pid, _ in found}


@pytest.mark.process
def test_what_a_worker_raises_is_raised_with_its_trace():
    batches = loader(Squares(), batch_sampler=[[0], [9]], num_workers=2)
    with pytest.raises(errors.ReaderError, match="IndexError"):
        list(batches)


@pytest.mark.process
def test_a_silent_worker_is_an_error_after_the_timeout():
    def wait(_):
        signal.pause()

    batches = loader(Rows(), num_workers=1, timeout=0.2, worker_init_fn=wait)
    with pytest.raises(errors.ReaderError, match=r"no batch for 0.2 s"):
        list(batches)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"return_list": False}, ValueError, "feed_list is needed"),
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"batch_size": 0}, ValueError, "positive"),
        ({"shuffle": 1}, TypeError, "True or False"),
        ({"batch_sampler": [[0]], "shuffle": True}, ValueError, "belong to the batch_sampler"),
    ],
)
def test_arguments_that_do_not_fit(keywords, error, message):
    with pytest.raises(error, match=message):
        loader(Rows(), **keywords)


def test_what_is_no_dataset_of_indices():
    with pytest.raises(TypeError, match="from_generator"):
        loader([1, 2])
    with pytest.raises(NotImplementedError, match="__getitem__"):
        fluid.io.Dataset()[0]
    with pytest.raises(ValueError, match="either dataset or indices"):
        fluid.io.BatchSampler()
    from jfluid.dataloader.dataset import Dataset

    assert Dataset is fluid.io.Dataset and fluid.reader.BatchSampler is fluid.io.BatchSampler


def test_default_collate_fn_refuses_samples_of_different_widths():
    assert [v.shape for v in fluid.io.default_collate_fn([Squares()[1], Squares()[2]])] == [
        (2, 2),
        (2, 1),
    ]
    with pytest.raises(ValueError, match="zip"):
        fluid.io.default_collate_fn([[1, 2], [1]])

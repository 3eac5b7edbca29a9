"""Reader decorators: what each gives, in which order, and what happens to errors."""

import os
import random
import threading
import time

import numpy as np
import pytest

from jfluid.feeding import reader as readers


def count(n):
    return lambda: iter(range(n))


def pairs(n):
    return lambda: ((10 * i, 10 * i + 1) for i in range(n))


def failing():
    yield 1
    raise KeyError("broken sample")


def listed(reader):
    return list(reader())


@pytest.mark.parametrize(
    ("size", "drop_last", "expected"),
    [
        (2, False, [[0, 1], [2, 3], [4]]),
        (2, True, [[0, 1], [2, 3]]),
        (5, True, [[0, 1, 2, 3, 4]]),
        (9, False, [[0, 1, 2, 3, 4]]),
    ],
)
def test_batch(size, drop_last, expected):
    reader = readers.batch(count(5), size, drop_last)
    assert listed(reader) == expected
    assert listed(reader) == expected


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_batch_refuses_a_size_that_is_none(size):
    with pytest.raises(ValueError, match=f"batch_size must be a positive whole number, found {size}"):
        readers.batch(count(5), size)


def test_shuffle_uses_pythons_random_and_shuffles_within_the_buffer():
    random.seed(3)
    assert listed(readers.shuffle(count(10), 5)) == [0, 2, 3, 4, 1, 6, 8, 7, 5, 9]
    assert sorted(listed(readers.shuffle(count(7), 100))) == list(range(7))


def test_chain_compose_map_firstn():
    assert listed(readers.chain(count(2), count(3))) == [0, 1, 0, 1, 2]
    assert listed(readers.compose(count(2), pairs(2))) == [(0, 0, 1), (1, 10, 11)]
    assert listed(readers.map_readers(lambda a, b: a - b, count(3), count(9))) == [0, 0, 0]
    assert listed(readers.firstn(count(5), 3)) == [0, 1, 2]
    assert listed(readers.firstn(count(2), 3)) == [0, 1]


def test_compose_says_which_reader_is_short():
    with pytest.raises(readers.ComposeNotAligned, match=r"not aligned: readers \[0\] \(of 2, from 0\) ended"):
        listed(readers.compose(count(2), count(3)))
    assert listed(readers.compose(count(2), count(3), check_alignment=False)) == [(0, 0), (1, 1)]


def test_cache_reads_once():
    calls = []

    def reader():
        calls.append(1)
        yield from "ab"

    cached = readers.cache(reader)
    assert listed(cached) + listed(cached) == list("abab")
    assert calls == [1]


def test_buffered_keeps_order_and_hands_errors_over():
    assert listed(readers.buffered(count(100), 3)) == list(range(100))
    with pytest.raises(KeyError, match="broken sample"):
        listed(readers.buffered(failing, 2))


def test_a_loop_that_is_left_ends_the_threads():
    before = threading.active_count()
    for reader in (
        readers.buffered(count(1000), 2),
        readers.xmap_readers(abs, count(1000), 3, 2, order=True),
    ):
        samples = iter(reader())
        assert next(samples) == 0
        samples.close()
    deadline = time.monotonic() + 120
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("order", [False, True])
def test_xmap(order):
    def slow_first(sample):
        time.sleep(0.05 if sample == 0 else 0)
        return 2 * sample

    result = listed(readers.xmap_readers(slow_first, count(20), 4, 3, order))
    assert sorted(result) == list(range(0, 40, 2))
    if order:
        assert result == sorted(result)


@pytest.mark.parametrize("order", [False, True])
def test_xmap_hands_errors_over(order):
    with pytest.raises(ZeroDivisionError):
        listed(readers.xmap_readers(lambda sample: 1 / sample, count(5), 2, 2, order))
    with pytest.raises(KeyError):
        listed(readers.xmap_readers(abs, failing, 2, 2, order))
    with pytest.raises(ValueError, match="process_num must be at least 1, found 0"):
        readers.xmap_readers(abs, count(2), 0, 2)


def test_xmap_reads_a_bounded_number_ahead():
    read = []

    def reader():
        for i in range(1000):
            read.append(i)
            yield i

    samples = iter(readers.xmap_readers(abs, reader, 2, 5, order=True)())
    assert [next(samples) for _ in range(3)] == [0, 1, 2]
    time.sleep(0.1)
    assert len(read) <= 3 + 5 + 2 + 1
    samples.close()


@pytest.mark.process
@pytest.mark.parametrize("use_pipe", [False, True])
class TestMultiprocess:
    def test_joins_the_readers(self, use_pipe):
        reader = readers.multiprocess_reader([count(3), pairs(2)], use_pipe)
        for _ in range(2):
            assert sorted(map(str, reader())) == ["(0, 1)", "(10, 11)", "0", "1", "2"]

    def test_runs_in_other_processes(self, use_pipe):
        reader = readers.multiprocess_reader([lambda: iter([os.getpid()])] * 2, use_pipe)
        assert len({os.getpid(), *reader()}) == 3

    def test_arrays(self, use_pipe):
        (sample,) = readers.multiprocess_reader([lambda: iter([np.eye(200)])], use_pipe)()
        np.testing.assert_array_equal(sample, np.eye(200))

    def test_errors(self, use_pipe):
        with pytest.raises(ValueError, match=r"multiprocess reader raises an exception(.|\n)*broken sample"):
            listed(readers.multiprocess_reader([failing], use_pipe))
        with pytest.raises(ValueError, match="a sample is None"):
            listed(readers.multiprocess_reader([lambda: iter([None])], use_pipe))
        with pytest.raises(ValueError, match="ended without a word"):
            listed(readers.multiprocess_reader([lambda: iter([os._exit(3)])], use_pipe))
        with pytest.raises(ValueError, match="readers must be a list with at least one reader"):
            readers.multiprocess_reader([], use_pipe)
        with pytest.raises(ValueError, match="queue_size must be at least 1, found 0"):
            readers.multiprocess_reader([count(3)], use_pipe, queue_size=0)

    def test_a_loop_that_is_left_ends_the_processes(self, use_pipe):
        samples = readers.multiprocess_reader([count(10**6)] * 2, use_pipe, queue_size=3)()
        assert next(samples) == 0
        samples.close()

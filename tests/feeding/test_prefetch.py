"""The queue between a loader's thread and the steps."""

import gc
import threading
import weakref

import pytest

from jfluid.feeding.prefetch import ClosableQueue

PATIENCE_S = 60


def _started(*functions):
    threads = [threading.Thread(target=f, daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    return threads


def _ended(threads):
    for thread in threads:
        thread.join(PATIENCE_S)
    return not any(thread.is_alive() for thread in threads)


def test_items_come_in_order_and_no_more_wait_than_there_is_room_for():
    queue, most = ClosableQueue(3), []

    def fill():
        for i in range(2000):
            assert queue.put(i)
            most.append(queue.size())

    threads = _started(fill)
    assert [queue.get() for _ in range(2000)] == list(range(2000))
    assert _ended(threads) and max(most) <= 3 and queue.size() == 0


def test_who_waits_for_room_is_woken_when_half_of_the_items_are_taken():
    queue = ClosableQueue(4)
    for i in range(4):
        queue.put(i)
    waking = []
    for _ in range(4):
        queue.get()
        waking.append(queue._room.qsize())
    assert waking == [0, 1, 1, 2]


def test_whoever_waits_hears_that_it_was_closed():
    full, empty, heard = ClosableQueue(1), ClosableQueue(1), []
    assert full.put(0)

    def get():
        with pytest.raises(StopIteration):
            empty.get()
        heard.append("get")

    threads = _started(*[lambda: heard.append(full.put(1))] * 3, *[get] * 3)
    for queue in (full, empty):
        queue.close()
        queue.close()
    assert _ended(threads)
    assert sorted(map(str, heard)) == ["False"] * 3 + ["get"] * 3


def test_a_closed_queue_is_empty_and_refuses_items():
    class Item:
        pass

    queue, item = ClosableQueue(2), Item()
    gone = weakref.ref(item)
    assert queue.put(item) and queue.size() == 1
    queue.close()
    del item
    gc.collect()
    assert gone() is None and queue.size() == 0 and queue.is_closed()
    assert not queue.put(Item()) and queue.size() == 0
    with pytest.raises(StopIteration):
        queue.get()

"""Loaders whose reader runs in a process: what it gives, how it fails, and that nothing outlives
its reader.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.compile.runtime import device_feeds
from jfluid.feeding.worker import Worker
from tests import forked, forked_members

pytestmark = pytest.mark.process
PLACE = fluid.CPUPlace()
ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"FLAGS_interpret_first_steps": "1"}
SEPARATE = [pytest.param(False, marks=pytest.mark.nightly), True]  # a thread ends with the process of its own accord


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def loader_of(reader, shape=(None, 1), **options):
    x = fluid.data("x", list(shape), "int64")
    loader = fluid.io.DataLoader.from_generator([x], 2, use_multiprocess=True, **options)
    return loader.set_batch_generator(reader, PLACE)


def values(feeds):
    return [int(np.array(feed[0]["x"]).flat[0]) for feed in feeds]


def pids(count):
    return lambda: (([[os.getpid()]],) for _ in range(count))


def test_another_process_gives_the_same_batches():
    x = [fluid.data("x", [None, 2]), fluid.data("y", [None, 1], "int64", lod_level=1)]

    def reader():
        for i in range(5):
            yield [(np.full(2, i, np.float32), range(i))] * i  # the first batch is empty

    given = []
    for separate in (False, True):
        loader = fluid.io.DataLoader.from_generator(x, 2, use_multiprocess=separate).set_sample_list_generator(
            reader, PLACE
        )
        given.append([{n: (np.array(t).tolist(), t.lod(), t.shape()) for n, t in feed[0].items()} for feed in loader()])
    assert given[0] == given[1] and len(given[0]) == 5
    (pid,) = set(values(loader_of(pids(3))()))
    assert pid != os.getpid()
    wait_until(lambda: not alive(pid))


def test_large_arrays_arrive_whole_and_can_be_written():
    want = np.random.default_rng(0).integers(0, 1 << 40, (1500, 1000))
    for (got,) in Worker(lambda: ((want + i,) for i in range(3))):
        got -= got[0, 0] - want[0, 0]
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("iterable", [True, False])
def test_an_error_arrives_with_its_traceback(iterable):
    def reader():
        yield ([[7]],)
        raise KeyError("broken line")

    loader = loader_of(reader, iterable=iterable)
    exe, total = (
        fluid.Executor(PLACE),
        fluid.layers.reduce_sum(fluid.default_main_program().global_block().var("x")),
    )
    for _ in range(2):
        if iterable:
            batches = loader()
            step = lambda batches=batches: values([next(batches)])[0]  # noqa: E731
        else:
            loader.start()
            step = lambda: int(exe.run(fetch_list=[total])[0][0])  # noqa: E731
        assert step() == 7
        with pytest.raises(
            errors.ReaderError,
            match="(?s)at batch 1 .*KeyError: 'broken line'.*in reader\n.*raise KeyError",
        ):
            step()
        if not iterable:
            loader.reset()


def test_a_wrong_batch_stays_a_feed_error():
    with pytest.raises(errors.FeedError, match="batch 0 .*feed x: expected dtype int64, found float32"):
        next(loader_of(lambda: iter([(np.zeros((3, 1), np.float32),)]))())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            r"died \(killed by SIGKILL\) before it gave batch 1 ",
        ),
        (lambda: os._exit(3), r"died \(exit status 3\) before it gave batch 1 "),
    ],
)
def test_a_process_that_dies_is_an_error(how, message):
    def reader():
        yield ([[1]],)
        how()

    batches = loader_of(reader)()
    assert values([next(batches)]) == [1]
    with pytest.raises(errors.ReaderError, match=message):
        next(batches)


def test_items_that_cannot_be_sent_are_an_error():
    with pytest.raises(errors.ReaderError, match="pickle"):
        list(Worker(lambda: iter([lambda: 0])))


def test_a_loop_that_is_left_ends_the_process():
    def reader():
        yield ([[os.getpid()]],)
        signal.pause()  # never gives another

    loader = loader_of(reader)
    for feed in loader():
        pid = values([feed])[0]
        assert alive(pid)
        break
    del feed
    wait_until(lambda: not alive(pid))


def test_random_numbers_differ_from_epoch_to_epoch_and_repeat_with_the_seed():
    def reader():
        yield ([[random.getrandbits(31)], [np.random.randint(1 << 31)]],)  # noqa: NPY002

    loader = loader_of(reader)

    def epochs():
        return [np.array(feed[0]["x"]).tolist() for _ in range(2) for feed in loader()]

    random.seed(5)
    first = epochs()
    assert first[0] != first[1]
    random.seed(5)
    assert epochs() == first


SCRIPT = """
import os, signal, sys, time
import numpy as np
import jfluid as fluid
x = fluid.data("x", [None, 1], "int64")
total = fluid.layers.reduce_sum(x)

def reader():
    for i in range(3):
        yield np.array([[os.getpid()]]),
    {reader}

loader = fluid.io.DataLoader.from_generator([x], 2, iterable=False, use_multiprocess={separate})
loader.set_batch_generator(reader)
exe = fluid.Executor(fluid.CPUPlace())
loader.start()
for i in range({steps}):
    pid = int(exe.run(fetch_list=[total])[0][0])
    print(pid, flush=True)
{end}
"""


def start(reader="pass", separate=True, steps=3, end=""):
    code = SCRIPT.format(reader=reader, separate=separate, steps=steps, end=end)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("separate", SEPARATE)
def test_ctrl_c_ends_everything(separate):
    with start("time.sleep(1000)", separate, steps=4) as script:
        pid, *_ = [int(script.stdout.readline()) for _ in range(3)]
        script.send_signal(signal.SIGINT)  # while run waits for the fourth batch
        _, err = script.communicate(timeout=300)
    assert "KeyboardInterrupt" in err.splitlines()[-1] and script.returncode == -signal.SIGINT
    wait_until(lambda: not alive(pid))


def test_ctrl_c_of_the_terminal_reaches_the_process_too_and_the_parent_decides(tmp_path):
    sent = str(tmp_path / "sent")
    last = f"""
    while not os.path.exists({sent!r}):
        time.sleep(0.01)
    yield np.array([[5]]),"""
    handled = f"""
os.kill(pid, signal.SIGINT)
open({sent!r}, "w").close()
print(exe.run(fetch_list=[total])[0][0])"""
    with start(last, end=handled) as script:
        out, err = script.communicate(timeout=300)
    assert out.splitlines()[-1] == "5", err


@pytest.mark.parametrize("separate", SEPARATE)
def test_a_process_that_exits_in_an_epoch_exits_cleanly(separate):
    with start("while True: yield np.array([[os.getpid()]]),", separate) as script:
        out, err = script.communicate(timeout=300)
    assert script.returncode == 0 and err == ""
    wait_until(lambda: not separate or not alive(int(out.splitlines()[0])))


def waits_for_ever(_):
    forked_members.main_process()
    x = fluid.data("x", [None, 1], "int64")
    loader = fluid.io.DataLoader.from_generator([x], 2, use_multiprocess=True)
    loader.set_batch_generator(lambda: (time.sleep(1000 * i) or (np.array([[os.getpid()]]),) for i in range(2)), PLACE)
    for feed in loader():
        print(*values([feed]), flush=True)


def test_the_process_ends_when_the_parent_is_killed():
    script = forked.Popen(waits_for_ever, None, ENVIRONMENT)
    pid = int(script.stdout.readline())
    script.kill()
    script.communicate()
    wait_until(lambda: not alive(pid))


def test_each_place_gets_its_batch_and_an_executor_takes_it_from_anywhere(monkeypatch):
    monkeypatch.setattr(device_feeds, "reads_host_memory", lambda device: False)

    class Second(fluid.CPUPlace):
        def device(self):
            return jax.devices("cpu")[1]

    places = [PLACE, Second()]
    x, y = fluid.data("x", [None, 1], "int64", lod_level=1), fluid.data("y", [None, 1], "int64")
    sums = [fluid.layers.sequence_pool(fluid.layers.cast(x, "float32"), "sum"), fluid.layers.reduce_sum(y)]
    loader = fluid.io.DataLoader.from_generator([x, y], 2)
    samples = [([1, 2], 1), ([3], 2), ([4], 3), ([], 4)]
    loader.set_sample_generator(lambda: iter(samples), 2, places=places)
    ((first, second),) = loader()
    for feed, place in ((first, places[0]), (second, places[1])):
        held = feed["x"].device_value().values.devices() | feed["y"].device_value().devices()
        assert held == {place.device()}
    exe = fluid.Executor(PLACE)
    found = [[np.array(v).ravel().tolist() for v in exe.run(feed=f, fetch_list=sums)] for f in (first, second)]
    assert found == [[[3, 3], [3]], [[4, 0], [7]]]

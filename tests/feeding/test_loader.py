"""DataLoader, PyReader and py_reader: reading ahead, placing on the device, errors with their
position, and no leaks.
"""

import contextlib
import gc
import threading
import time
import weakref

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.compile.runtime import device_feeds

pytestmark = pytest.mark.usefixtures("interpreted_module")

PLACE = fluid.CPUPlace()


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def prefetching():
    return [t for t in threading.enumerate() if t.name == "jfluid-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    if prefetching():
        gc.collect()  # takes a second where many tests ran before
    wait_until(lambda: not prefetching())


def variables(lod_level=0):
    return [fluid.data("x", [None, 2]), fluid.data("y", [None, 1], "int64", lod_level=lod_level)]


def batches(count, ended=None):
    def reader():
        try:
            for i in range(count):
                yield np.full((3, 2), i, np.float32), np.full((3, 1), i)
        finally:
            if ended is not None:
                ended.append(threading.current_thread().name)

    return reader


def failing_once(count, error):
    """A reader whose first epoch fails at batch `count`."""
    epochs = []

    def reader():
        epochs.append(1)
        yield from batches(count)()
        if len(epochs) == 1:
            raise error

    return reader


def loader_of(reader, lod_level=0, capacity=2, **options):
    loader = fluid.io.DataLoader.from_generator(variables(lod_level), capacity, **options)
    return loader.set_batch_generator(reader, PLACE)


def total_of(name="x"):
    return fluid.layers.reduce_sum(fluid.default_main_program().global_block().var(name))


# ---- reading ahead -------------------------------------------------------------------------------


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("in_host_memory", [False, True])
def test_reads_as_far_ahead_as_the_capacity(buffered, in_host_memory, monkeypatch):
    monkeypatch.setattr(device_feeds, "reads_host_memory", lambda device: in_host_memory)
    made = []

    def reader():
        for batch in batches(100)():
            made.append(1)
            yield batch

    iterator = loader_of(reader, capacity=3, use_double_buffer=buffered)()
    next(iterator)
    # One taken, three that wait, one that the reading thread holds; on a device with a memory of its
    # own one that waits, and one in hand.
    ahead = 5 + 2 * (buffered and not in_host_memory)
    wait_until(lambda: len(made) == ahead)
    threading.Event().wait(0.05)
    assert len(made) == ahead
    assert len(list(iterator)) == 99


@pytest.fixture(params=[True, False], ids=["device put", "host memory"])
def puts(request, monkeypatch):
    """Whether batches are put on the device, as on all but CPUs."""
    if request.param:
        monkeypatch.setattr(device_feeds, "reads_host_memory", lambda device: False)
    return request.param


def test_values_are_on_the_device_before_the_step(puts):
    ((feed,),) = loader_of(batches(1))()
    for name, dtype in (("x", np.float32), ("y", np.int64)):
        value = feed[name].device_value()
        assert value.dtype == dtype and isinstance(value, jax.Array) == puts
        assert not puts or value.devices() == {jax.devices("cpu")[0]}
    ((feed,),) = loader_of(batches(1), use_double_buffer=False)()
    assert not isinstance(feed["x"], device_feeds.DeviceTensor)


def test_a_reader_may_use_its_arrays_again():
    def reader():
        image, label = (
            np.zeros((3, 2), np.float32),
            fluid.create_lod_tensor(np.zeros((3, 1), np.int64), [[1, 2]], PLACE),
        )
        for i in range(20):
            image[:] = i
            label.value[:] = i
            yield image, label

    for buffered in (False, True):
        with fluid.program_guard(fluid.Program()):
            given = list(loader_of(reader, lod_level=1, capacity=30, use_double_buffer=buffered)())
        for name in "xy":
            assert [np.array(feed[0][name])[0, 0] for feed in given] == list(range(20))


def ragged(count):
    def reader():
        rng = np.random.default_rng(0)
        for _ in range(count):
            lengths = rng.integers(0, 9, 4)
            ids = rng.integers(0, 5, (lengths.sum(), 1))
            yield np.ones((4, 2), np.float32), fluid.create_lod_tensor(ids, [lengths], PLACE)

    return reader


def bag():
    y = fluid.default_main_program().global_block().var("y")
    constant = fluid.initializer.NumpyArrayInitializer(np.arange(15, dtype=np.float32).reshape(5, 3))
    rows = fluid.layers.embedding(y, [5, 3], param_attr=fluid.ParamAttr(initializer=constant))
    return fluid.layers.sequence_pool(rows, "sum")


def test_ragged_rows_are_padded_ahead(puts):
    loader = loader_of(ragged(6), lod_level=1)
    pooled, exe = bag(), fluid.Executor(PLACE)
    exe.run(fluid.default_startup_program())
    table = np.arange(15.0).reshape(5, 3)
    for feed in loader():
        tensor = feed[0]["y"]
        assert (
            len(tensor.device_value().values) >= len(tensor)
            and isinstance(tensor.device_value().values, jax.Array) == puts
        )
        ids, offsets = np.array(tensor)[:, 0], tensor.lod()[0]
        (got,) = exe.run(feed=feed, fetch_list=[pooled])
        np.testing.assert_array_equal(got, [table[ids[a:b]].sum(0) for a, b in zip(offsets, offsets[1:])])


def test_a_batch_is_taken_whole_only_as_it_was_placed(puts):
    loader = loader_of(ragged(2), lod_level=1)
    (feed,), (other,) = loader()
    batch = device_feeds.batch_of(feed)
    assert batch is not None and batch is device_feeds.batch_of(dict(feed))
    changed = {
        "swapped": {"x": feed["y"], "y": feed["x"]},
        "of two batches": {"x": feed["x"], "y": other["y"]},
        "a part": {"x": feed["x"]},
        "an array": {**feed, "x": np.array(feed["x"])},
        "nothing": {},
    }
    assert {n: device_feeds.batch_of(c) for n, c in changed.items()} == dict.fromkeys(changed)
    feed["y"].set_lod(feed["y"].lod())
    assert device_feeds.batch_of(feed) is None and feed["y"].device_value() is None
    assert feed["x"].device_value() is not None


def test_slots_of_a_loader_train_as_fed_ones():
    """Joined by the loader's thread."""
    names = ["a", "b"]
    rows = [
        fluid.layers.embedding(
            fluid.data(n, [None, 1], "int64", lod_level=1),
            [9, 4],
            param_attr=fluid.ParamAttr("table", fluid.initializer.Constant(0.5)),
        )
        for n in names
    ]
    pooled = fluid.layers.concat([fluid.layers.sequence_pool(r, "sum") for r in rows], 1)
    loss = fluid.layers.mean(fluid.layers.square(pooled))
    fluid.optimizer.SGD(0.1).minimize(loss)
    random, made = np.random.RandomState(0), []
    for _ in range(6):
        lengths = random.randint(1, 6, (2, 4)).tolist()
        ids = [random.randint(0, 9, (sum(own), 1)) for own in lengths]
        made.append([fluid.create_lod_tensor(i, [n], PLACE) for i, n in zip(ids, lengths)])
    block, losses, exe = fluid.default_main_program().global_block(), [], fluid.Executor(PLACE)
    for fed in (True, False):
        loader = fluid.io.DataLoader.from_generator([block.var(n) for n in names], 3)
        loader.set_batch_generator(lambda: iter(made), PLACE)
        with fluid.scope_guard(fluid.Scope()):
            exe.run(fluid.default_startup_program())
            feeds = [dict(zip(names, batch)) for batch in made] if fed else loader()
            losses.append([exe.run(feed=feed, fetch_list=[loss])[0] for feed in feeds])
    np.testing.assert_array_equal(*losses)
    assert len(losses[0]) == 6 and losses[0][-1] < losses[0][0]


def test_a_placed_tensor_that_is_set_counts_as_set(puts):
    loader = loader_of(ragged(1), lod_level=1)
    pooled, exe = bag(), fluid.Executor(PLACE)
    exe.run(fluid.default_startup_program())
    ((feed,),) = loader()
    feed["x"].set(np.full((4, 2), 3, np.float32))
    assert exe.run(feed=feed, fetch_list=["x"])[0].tolist() == [[3, 3]] * 4
    rows = len(feed["y"])
    feed["y"].set(np.full((rows, 1), 4))
    np.testing.assert_array_equal(exe.run(feed=feed, fetch_list=[pooled])[0].sum(0), rows * np.array([12, 13, 14]))
    feed["y"].set_lod([[0, rows]])
    np.testing.assert_array_equal(exe.run(feed=feed, fetch_list=[pooled])[0], [rows * np.array([12, 13, 14])])


def test_a_program_that_does_not_bear_padding_gets_exact_rows(puts):
    loader = loader_of(ragged(4), lod_level=1, iterable=False)
    y = fluid.default_main_program().global_block().var("y")
    turned = fluid.layers.reverse(y, axis=0)  # the last row first
    exe, want = fluid.Executor(PLACE), [batch[1] for batch in ragged(4)()]
    loader.start()
    with pytest.warns(RuntimeWarning, match="compiled anew"):
        found = [exe.run(fetch_list=[turned], return_numpy=False)[0]]
    found += [exe.run(fetch_list=[turned], return_numpy=False)[0] for _ in range(3)]
    for got, tensor in zip(found, want, strict=True):
        np.testing.assert_array_equal(np.array(got), np.array(tensor)[::-1])
    loader.reset()


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffered", [False, True])
def test_a_reader_that_fails_says_at_which_batch_and_another_epoch_can_start(buffered):
    loader = loader_of(failing_once(3, KeyError("broken")), use_double_buffer=buffered)
    given = []
    with pytest.raises(
        errors.ReaderError, match=r"at batch 3 \(counted from 0\) of the epoch: KeyError: 'broken'"
    ) as e:
        for feed in loader():
            given.append(feed)
    assert len(given) == 3
    assert isinstance(e.value.__cause__, KeyError) and e.value.__cause__.__traceback__ is not None
    assert len(list(loader())) == 3


@pytest.mark.parametrize("buffered", [False, True])
def test_run_raises_what_the_reader_of_the_program_raised(buffered):
    loader = loader_of(failing_once(2, OSError("disk gone")), iterable=False, use_double_buffer=buffered)
    total, exe = total_of(), fluid.Executor(PLACE)
    loader.start()
    assert [float(exe.run(fetch_list=[total])[0][0]) for _ in range(2)] == [0, 6]
    for _ in range(2):  # it does not turn into the end of the epoch
        with pytest.raises(errors.ReaderError, match="batch 2 .*disk gone") as e:
            exe.run(fetch_list=[total])
        assert isinstance(e.value.__cause__, OSError)
    loader.reset()
    loader.start()
    assert [float(exe.run(fetch_list=[total])[0][0]) for _ in range(2)] == [0, 6]
    for _ in range(2):
        with pytest.raises(fluid.core.EOFException, match=r"call reset\(\)"):
            exe.run(fetch_list=[total])
    loader.reset()


def test_a_reader_that_fails_at_once():
    def reader():
        raise RuntimeError("no such table")

    with pytest.raises(errors.ReaderError, match="batch 0 .*no such table"):
        next(loader_of(reader)())
    with pytest.raises(errors.ReaderError, match="batch 0 .*'int' object is not iterable"):
        next(loader_of(lambda: 3)())


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            (np.zeros((3, 2)), np.zeros((3, 1), np.int64)),
            "feed x: expected dtype float32, found float64",
        ),
        (
            (np.zeros(3, np.float32), np.zeros((3, 1), np.int64)),
            r"feed x: expected rank 2 \(shape \[-1, 2\]\), found shape \[3\]",
        ),
        (
            (np.zeros((3, 2), np.float32), [["one"]]),
            "feed y: expected an array of int64, found list",
        ),
        (
            (np.zeros((3, 2), np.float32),),
            r"expected a list or tuple of 2 arrays \(x, y\), found 1 values",
        ),
        (np.zeros((3, 2), np.float32), "expected a list or tuple of 2 arrays .* found a ndarray"),
        (
            (np.zeros((3, 2), np.float32), fluid.LoDTensor(np.zeros((3, 1), np.int64), [[0, 5]])),
            "feed y: the lod .* 3 rows",
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_named(batch, message):
    good = (np.zeros((3, 2), np.float32), np.zeros((3, 1), np.int64))
    iterator = loader_of(lambda: iter([good, batch]))()
    next(iterator)
    with pytest.raises(errors.FeedError, match=r"batch 1 \(counted from 0\) of the epoch: " + message):
        next(iterator)


def test_samples_that_do_not_fit_are_named():
    loader = fluid.io.DataLoader.from_generator(variables(), 2)
    loader.set_sample_generator(lambda: iter([([1, 2], [3]), ([1, 2], [3]), ([1, 2], [3]), ([1, 2],)]), 2, places=PLACE)
    with pytest.raises(errors.FeedError, match=r"batch 1 .*: sample 1: expected 2 fields \(x, y\), found 1 fields"):
        list(loader())


def test_wrong_use_is_refused():
    x, y = variables()
    make = fluid.io.DataLoader.from_generator
    for capacity in (None, 0, 2.5, True):
        with pytest.raises(ValueError, match="capacity: expected how many batches to read ahead"):
            make([x, y], capacity)
    with pytest.raises(ValueError, match="feed_list: expected the variables to feed, found none"):
        make(capacity=2)
    with pytest.raises(TypeError, match="feed_list must hold Variables, found 'x'"):
        make(["x"], 2)
    with pytest.raises(TypeError, match="of a generator, give the function that makes it"):
        make([x, y], 2).set_batch_generator(batches(1)(), PLACE)
    with pytest.raises(errors.PlaceError, match="expected a place or a list of places"):
        make([x, y], 2).set_batch_generator(batches(1))
    with pytest.raises(errors.ReaderError, match="no reader was set"):
        make([x, y], 2)()
    with pytest.raises(errors.ReaderError, match=r"start\(\) is for loaders made with iterable=False"):
        loader_of(batches(1)).start()
    with pytest.raises(TypeError, match="from_generator"):
        fluid.io.DataLoader([1, 2, 3])
    with pytest.raises(TypeError, match="expected a reader of layers.py_reader, found Variable"):
        fluid.layers.read_file(x)
    with pytest.raises(errors.FeedError, match="found 2, 1 and 2"):
        fluid.layers.py_reader(2, [(-1, 1), (-1, 1)], ["float32"])
    with pytest.raises(TypeError, match="feed_list: expected a list of Variables"):
        fluid.layers.create_py_reader_by_data(2, [3])


def test_programs_that_read_are_used_in_turn():
    loader = loader_of(batches(3), iterable=False)
    total, exe = total_of(), fluid.Executor(PLACE)
    with pytest.raises(errors.ReaderError, match=r"was not started: call its start\(\) first"):
        exe.run(fetch_list=[total])
    loader.start()
    with pytest.raises(errors.ReaderError, match=r"started already: call reset\(\)"):
        loader.start()
    with pytest.raises(errors.FeedError, match="feed x: the program reads this from a DataLoader"):
        exe.run(feed={"x": np.zeros((3, 2), np.float32)}, fetch_list=[total])
    with pytest.raises(errors.ReaderError, match="not iterable"):
        iter(loader)
    loader.reset()
    again = fluid.Program.parse_from_string(fluid.default_main_program().serialize_to_string())
    with pytest.raises(errors.ReaderError, match="saved programs do not carry readers"):
        exe.run(again, fetch_list=[total.name])


# ---- leaving off ---------------------------------------------------------------------------------


@pytest.mark.parametrize("buffered", [False, True])
def test_a_loop_that_is_left_ends_the_threads(buffered):
    ended = []
    loader = loader_of(batches(1000, ended), use_double_buffer=buffered)
    for _ in range(3):
        for _ in loader():
            break
    wait_until(lambda: len(ended) == 3 and not prefetching())
    assert set(ended) == {"jfluid-prefetch"}  # the generator was closed where it ran
    iterator = loader()
    next(iterator)
    iterator.close()
    wait_until(lambda: not prefetching())
    assert list(iterator) == []


def test_reset_waits_for_the_reader_to_end():
    ended = []
    loader = loader_of(batches(1000, ended), iterable=False)
    total, exe = total_of(), fluid.Executor(PLACE)
    for epoch in range(3):
        loader.start()
        assert float(exe.run(fetch_list=[total])[0][0]) == 0
        loader.reset()
        assert len(ended) == epoch + 1 and not prefetching()
    loader.reset()  # of one that does not run: nothing happens


def test_a_dropped_program_ends_the_threads():
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        loader = loader_of(batches(1000), iterable=False)
        exe = fluid.Executor(PLACE)
        loader.start()
        exe.run(fetch_list=[total_of()])
        program = weakref.ref(fluid.default_main_program())
    assert len(prefetching()) == 2
    del loader, exe
    gc.collect()
    assert program() is None
    wait_until(lambda: not prefetching())


def test_epochs_may_run_side_by_side():
    loader = loader_of(batches(3))
    assert [(np.array(a[0]["x"])[0, 0], np.array(b[0]["x"])[0, 0]) for a in loader for b in loader()] == [
        (i, j) for i in range(3) for j in range(3)
    ]


def test_the_loader_itself_hands_out_batches():
    reader = fluid.io.PyReader(variables(), 2)
    reader.decorate_batch_generator(batches(2), PLACE)
    for _ in range(2):
        assert [float(np.array(reader.next()[0]["x"])[0, 0]) for _ in range(2)] == [0, 1]
        with pytest.raises(StopIteration):
            reader.next()
    assert reader.queue.capacity() == 2 and reader.queue.is_closed() and reader.iterable


# ---- programs ------------------------------------------------------------------------------------


def test_reading_programs_train_and_save_as_fed_ones(tmp_path, puts):
    x, y = variables()
    loader = fluid.io.DataLoader.from_generator([x, y], 2, iterable=False)
    out = fluid.layers.fc(x, 1)
    loss = fluid.layers.mean(fluid.layers.square(out - fluid.layers.cast(y, "float32")))
    fluid.optimizer.SGD(0.05).minimize(loss)
    loader.set_batch_generator(batches(5))
    exe = fluid.Executor(PLACE)
    exe.run(fluid.default_startup_program())
    losses = []
    for _ in range(4):
        loader.start()
        with pytest.raises(fluid.core.EOFException):
            while True:
                losses.append(
                    float(exe.run(fluid.CompiledProgram(fluid.default_main_program()), fetch_list=[loss])[0][0])
                )
        loader.reset()
    assert len(losses) == 20 and losses[-1] < losses[4] / 10
    fluid.io.save_inference_model(str(tmp_path), ["x"], [out], exe)
    feed = {"x": np.ones((2, 2), np.float32)}
    program, names, fetches = fluid.io.load_inference_model(str(tmp_path), exe)
    assert names == ["x"] and exe.run(program, feed=feed, fetch_list=fetches)[0].shape == (2, 1)
    assert "read" not in {op.type for op in program.global_block().ops}


def test_a_program_that_reads_holds_fluids_operators():
    loader_of(batches(1), lod_level=1, iterable=False)
    make, buffer, read = fluid.default_main_program().global_block().ops
    assert (make.type, buffer.type, read.type) == (
        "create_py_reader",
        "create_double_buffer_reader",
        "read",
    )
    assert {n: make.attr(n) for n in ("shape_concat", "ranks", "lod_levels", "dtypes", "need_check_feed")} == {
        "shape_concat": (-1, 2, -1, 1),
        "ranks": (2, 2),
        "lod_levels": (0, 1),
        "dtypes": (5, 3),
        "need_check_feed": (1, 1),
    }
    assert make.output("Out") == buffer.input("UnderlyingReader") and buffer.output("Out") == read.input("Reader")
    assert buffer.attr("place") == "AUTO" and read.output("Out") == ["x", "y"] and read.attr("drop_last") is True


def test_two_readers_and_pruning():
    first = loader_of(batches(3), iterable=False)
    z = fluid.data("z", [None, 2])
    second = fluid.io.DataLoader.from_generator([z], 2, iterable=False)
    second.set_batch_generator(lambda: ((np.full((3, 2), 10 * i, np.float32),) for i in range(2)))
    both = fluid.layers.reduce_sum(fluid.default_main_program().global_block().var("x") + z)
    fluid.layers.fc(z, 1)  # its parameter is never initialised: pruned
    exe = fluid.Executor(PLACE)
    first.start()
    second.start()
    assert [float(exe.run(fetch_list=[both], use_prune=True)[0][0]) for _ in range(2)] == [0, 66]
    with pytest.raises(fluid.core.EOFException):
        exe.run(fetch_list=[both], use_prune=True)


def test_a_program_built_again_is_compiled_already():
    exe = fluid.Executor(PLACE)
    for _ in range(2):
        # without a guard of names: those of readers go on
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            loader = loader_of(batches(1), iterable=False)
            x = fluid.default_main_program().global_block().var("x")
            total = fluid.default_main_program().global_block().create_var(name="total")
            fluid.default_main_program().global_block().append_op(
                "reduce_sum", {"X": x}, {"Out": total}, {"reduce_all": True}
            )
            loader.start()
            exe.run(fetch_list=[total])
            loader.reset()
    assert len(exe.engine._steps) == 1


# ---- datasets ------------------------------------------------------------------------------------


class Dataset:
    """Stands for a dataset of slots: seven samples, three a batch."""

    _batch_size = 3

    def __init__(self):
        self.entered = self.left = 0

    @contextlib.contextmanager
    def _batches(self):
        self.entered += 1
        yield self._made()
        self.left += 1

    def _made(self):
        for first, last in ((0, 3), (3, 6), (6, 7)):
            rows = np.repeat(np.arange(first, last), 2)
            lod = 2 * np.arange(last - first + 1)
            yield {
                "ids": fluid.LoDTensor(rows[:, None], [lod]),
                "click": np.arange(first, last, dtype=np.float32)[:, None],
            }


@pytest.mark.parametrize(
    ("places", "drop_last", "sizes"),
    [
        (1, True, [[3], [3]]),
        (1, False, [[3], [3], [1]]),
        (2, True, [[3, 3]]),
        (2, False, [[3, 3], [1]]),
    ],
)
def test_from_dataset(places, drop_last, sizes):
    dataset = Dataset()
    loader = fluid.io.DataLoader.from_dataset(dataset, fluid.cpu_places(places), drop_last)
    for _ in range(2):
        given = list(loader())
        assert [[len(feed["ids"].lod()[0]) - 1 for feed in group] for group in given] == sizes
        assert np.array(given[0][0]["ids"])[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
        assert np.array(given[0][0]["click"]).tolist() == [[0], [1], [2]]
    assert dataset.entered == dataset.left == 2


def test_from_dataset_refuses_what_is_none():
    with pytest.raises(TypeError, match="expected a dataset of fluid.DatasetFactory.*found list"):
        fluid.io.DataLoader.from_dataset([1], PLACE)


def test_slots_are_placed_as_one_array_and_each_has_its_own_rows(puts):
    lengths = ([1, 2, 1], [3, 1, 2], [1, 1, 1])
    tensors = [
        fluid.create_lod_tensor(np.arange(sum(counts), dtype=np.int64)[:, None] + 2**40, [counts], PLACE)
        for counts in lengths
    ]
    slots = [fluid.data(f"slot_{i}", [None, 1], "int64", lod_level=1) for i in range(3)]
    loader = fluid.io.DataLoader.from_generator(slots, 2)
    loader.set_batch_generator(lambda: iter([tuple(tensors)]), PLACE)
    ((batch,),) = loader()
    assert len(batch["slot_0"]._batch.values) == 1
    for i, tensor in enumerate(tensors):
        value = batch[f"slot_{i}"].device_value()
        assert isinstance(value.values, jax.Array) == puts
        np.testing.assert_array_equal(np.asarray(value.values)[: len(tensor.value)], tensor.value)

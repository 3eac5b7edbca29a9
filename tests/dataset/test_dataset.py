"""Datasets through Executor.train_from_dataset. What Fluid gives for the same files was read off
Fluid 1.8.5.
"""

import gzip
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from tests.ports import free_endpoints

A = "2 11 0 3 0.5 1.5 -2 1 0\n1 7 3 1 2 3 1 1\n3 0 0 5 3 0 0 0 1 1\n"
B = "1 0 3 9 9 9 1 0\n2 18446744073709551615 -3 3 1e3 1E-2 .5 1 1\n"


def dataset(kind="QueueDataset", files=(), batch=2, threads=1):
    """A dataset of ids (ragged), dense and label, with their variables."""
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    dense = fluid.data("dense", [None, 3], "float32")
    label = fluid.data("label", [None, 1], "int64")
    made = fluid.DatasetFactory().create_dataset(kind)
    made.set_use_var([ids, dense, label])
    made.set_batch_size(batch)
    made.set_thread(threads)
    made.set_filelist([str(f) for f in files])
    return made, (ids, dense, label)


def fed(made, threads=0):
    """All batches of an epoch: (ids by record, dense, label)."""
    found = []
    with made._batches(threads) as batches:
        for batch in batches:
            offsets, values = batch["ids"].lod()[0], np.array(batch["ids"])[:, 0]
            found.append(
                (
                    [values[a:b].tolist() for a, b in zip(offsets, offsets[1:])],
                    batch["dense"].tolist(),
                    batch["label"][:, 0].tolist(),
                )
            )
    return found


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, text in zip(paths, (A, B)):
        path.write_text(text)
    return paths


def test_a_queue_dataset_trains_as_fluids(files, capsys):
    made, (_, dense, _) = dataset(files=files)
    weight = layers.create_parameter([1], "float32", name="w", default_initializer=fluid.initializer.Constant(1.0))
    loss = layers.mean(dense) * weight
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    exe.train_from_dataset(
        fluid.default_main_program(),
        made,
        fetch_list=[loss],
        fetch_info=["the loss"],
        print_period=1,
        debug=True,
    )
    assert np.array(fluid.global_scope().find_var("w").get_tensor()) == pytest.approx(-32.900333, rel=1e-6)
    printed = capsys.readouterr().out.splitlines()
    assert printed[:3] == [
        "step 1  the loss: 1",
        "step 2  the loss: 4.05",
        "step 3  the loss: 150.076",
    ]
    assert printed[3].startswith("3 steps, 5 examples in ") and "waited for data" in printed[3]


def test_batches_go_across_files(files):
    made, _ = dataset(files=files)
    assert [b[0] for b in fed(made)] == [[[11, 0], [7]], [[0, 0, 5], [0]], [[-1, -3]]]
    assert [b[2] for b in fed(made)] == [[0, 1], [1, 0], [1]]
    made.set_thread(2)
    assert sorted([r for b in fed(made) for r in b[0]]) == sorted([[11, 0], [7], [0, 0, 5], [0], [-1, -3]])


def test_records_in_memory_have_no_zeros(files):
    made, _ = dataset("InMemoryDataset", files, threads=2)
    made.load_into_memory()
    assert made.get_memory_data_size() == 5 and made.get_shuffle_data_size() == 0
    assert [b[0] for b in fed(made)] == [[[11], [7]], [[5], [0]], [[-1, -3]]]
    made.release_memory()
    assert made.get_memory_data_size() == 0
    with pytest.raises(errors.DataError, match="no records in memory: call load_into_memory"):
        fed(made)


def test_local_shuffle_moves_whole_records(files):
    made, _ = dataset("InMemoryDataset", files, batch=5)
    made.preload_into_memory(2)
    made.wait_preload_done()
    (plain,) = fed(made)
    orders = set()
    for seed in range(8):
        random.seed(seed)
        made.local_shuffle()
        (found,) = fed(made)
        assert sorted(zip(*found)) == sorted(zip(*plain))
        orders.add(str(found))
        random.seed(seed)
        made.global_shuffle()
        assert str(fed(made)[0]) == str(found)
    assert len(orders) > 4


def test_slots_shuffle_changes_only_its_slots(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(
        "".join(f"{i % 3 + 1} {' '.join([str(i)] * (i % 3 + 1))} 3 {i} {i} {i} 1 {i}\n" for i in range(1, 41))
    )
    made, _ = dataset("InMemoryDataset", [path], batch=40)
    with pytest.raises(errors.DataError, match="set_fea_eval"):
        made.slots_shuffle(["ids"])
    made.set_fea_eval(10, True)
    made.load_into_memory()
    (plain,) = fed(made)
    for _ in range(2):
        made.slots_shuffle(["ids"])
        (mixed,) = fed(made)
        assert mixed[1:] == plain[1:] and mixed[0] != plain[0]
        assert all(record in plain[0] for record in mixed[0]) and len({str(r) for r in mixed[0]}) <= 10
    with pytest.raises(errors.DataError, match=r"no slots \['idz'\]"):
        made.slots_shuffle(["idz"])


def test_records_of_one_id_are_merged(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(
        "1 k1 1 1 3 1 1 1 1 1\n1 k2 1 2 3 2 2 2 1 2\n1 k1 2 3 4 3 3 3 3 1 3\n1 k3 1 5 3 5 5 5 1 5\n"
        "1 k2 1 6 3 6 6 6 1 6\n"
    )
    made, _ = dataset("InMemoryDataset", [path], batch=5)
    made.set_merge_by_lineid(2)
    made.load_into_memory()
    with pytest.warns(RuntimeWarning, match="1 records dropped: their id has not 2 records"):
        made.global_shuffle()
    (found,) = fed(made)
    assert sorted(zip(*found)) == [([1, 3, 4], [1, 1, 1], 1), ([2, 6], [2, 2, 2], 2)]


def test_ids_and_contents_stand_in_front(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("1 k1 1 some 1 1 3 1 1 1 1 1\n")
    made, _ = dataset("InMemoryDataset", [path])
    made.set_parse_ins_id(True)
    made.set_parse_content(True)
    made.load_into_memory()
    assert fed(made)[0][0] == [[1]]


def test_pipes_compressed_and_remote_files(tmp_path, files):
    import fsspec

    packed = tmp_path / "c.gz"
    packed.write_bytes(gzip.compress(A.encode()))
    with fsspec.open("memory://dir/d.txt", "wb") as remote:
        remote.write(B.encode())
    want = [[11, 0], [7], [0, 0, 5]]
    for source, pipe, expected in [
        (packed, "cat", want),
        (packed, "grep -v 11", want[1:]),
        (files[0], "tail -n 1", want[2:]),
        ("memory://dir/d.txt", "cat", [[0], [-1, -3]]),
        ("memory://dir/d.txt", "head -n 1", [[0]]),
    ]:
        made, _ = dataset(files=[source])
        made.set_pipe_command(pipe)
        assert [r for b in fed(made) for r in b[0]] == expected
    made, _ = dataset(files=["dir/d.txt"])
    made.set_hdfs_config("memory://", "")
    assert len(fed(made)) == 1
    made, _ = dataset(files=files[:1])
    made.set_download_cmd("sed s/11/12/")
    assert fed(made)[0][0] == [[12, 0], [7]]


def test_lines_longer_than_a_block(tmp_path):
    path = tmp_path / "a.txt"
    ids = list(range(1, 400_000))
    path.write_text(f"{len(ids)} {' '.join(map(str, ids))} 3 1 2 3 1 1\n" + A[:-1])
    made, _ = dataset(files=[path], batch=4)
    (found,) = fed(made)
    assert found[0] == [ids, [11, 0], [7], [0, 0, 5]]


def test_bad_lines_stop_or_are_counted(tmp_path, files):
    bad = tmp_path / "bad.txt"
    bad.write_text(A + "1 5 3 1 x 1 1 1\n" + B)
    for kind in ("QueueDataset", "InMemoryDataset"):
        made, _ = dataset(kind, [bad])
        with pytest.raises(
            errors.DataError,
            match=r"bad.txt, line 4, slot 2 \(dense\): expected a number, found 'x'",
        ):
            made.load_into_memory() if kind == "InMemoryDataset" else fed(made)
        made.set_on_bad_lines("skip")
        if kind == "InMemoryDataset":
            made.load_into_memory()
        assert sum(len(b[0]) for b in fed(made)) == 5 and made.bad_lines() == 1
    made.set_pipe_command("cat -s")
    made.set_on_bad_lines("error")
    with pytest.raises(errors.DataError, match=r"bad.txt \(behind 'cat -s'\), line 4"):
        made.load_into_memory()
    with pytest.raises(errors.DataError, match="'error' or 'skip', found 'warn'"):
        made.set_on_bad_lines("warn")


def trainer(made, dense):
    weight = layers.create_parameter([1], "float32", name="w", default_initializer=fluid.initializer.Constant(1.0))
    fluid.optimizer.SGD(0.1).minimize(layers.mean(dense) * weight)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    return lambda: exe.train_from_dataset(fluid.default_main_program(), made)


@pytest.mark.parametrize(
    "pipe, problem",
    [
        ("cat; exit 3", "the command 'cat; exit 3' failed with exit code 3"),
        ("cat; kill -9 $$", "was ended by SIGKILL"),
        ("no_such_command_here", "failed with exit code 127"),
    ],
)
def test_a_failing_pipe_is_named_and_a_new_epoch_can_start(files, pipe, problem, capfd):
    made, (_, dense, _) = dataset(files=files)
    made.set_pipe_command(pipe)
    run = trainer(made, dense)
    with pytest.raises(errors.DataError, match="a.txt: the command") as caught:
        run()
    assert problem in str(caught.value)
    assert "steps of this epoch were done before" in caught.value.__notes__[-1]
    made.set_pipe_command("cat")
    run()
    assert not [t for t in threading.enumerate() if t.name.startswith("jfluid-producer")]


def test_missing_files_and_empty_lists(tmp_path, files, caplog):
    made, (_, dense, _) = dataset(files=[files[0], tmp_path / "none.txt"])
    run = trainer(made, dense)
    with pytest.raises(errors.DataError, match="none.txt: cannot be opened"):
        run()
    made.set_filelist([])
    with caplog.at_level("WARNING"):
        run()
    assert "the list of files is empty: there is nothing to read" in caplog.text
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(A.encode() * 1000)[:40])
    made.set_filelist([str(broken)])
    with pytest.raises(errors.DataError, match="broken.gz: cannot be read"):
        run()
    with pytest.raises(errors.DataError, match="expected a list of paths, found 'a.txt'"):
        made.set_filelist("a.txt")


def test_a_step_that_fails_ends_the_producers(files):
    made, _ = dataset(files=files)
    exe = fluid.Executor(fluid.CPUPlace())
    with pytest.raises(errors.FetchError):
        exe.train_from_dataset(fluid.default_main_program(), made, fetch_list=["no_such"])
    assert not [t for t in threading.enumerate() if t.name.startswith("jfluid-producer")]


def test_a_pipe_that_never_ends_is_left(files):
    made, _ = dataset(files=files)
    made.set_pipe_command("cat; sleep 1000")
    begin = time.monotonic()
    with made._batches() as batches:
        next(iter(batches))
    assert time.monotonic() - begin < 500


def test_bad_arguments():
    with pytest.raises(ValueError, match="did you mean QueueDataset"):
        fluid.DatasetFactory().create_dataset("QueuDataset")
    made = fluid.DatasetFactory().create_dataset()
    exe = fluid.Executor(fluid.CPUPlace())
    with pytest.raises(errors.DataError, match="call set_use_var first"):
        exe.train_from_dataset(fluid.default_main_program(), made)
    with pytest.raises(errors.DataError, match="expected a dataset of DatasetFactory"):
        exe.train_from_dataset(fluid.default_main_program(), [1])
    for var, problem in [
        (fluid.data("f64", [None, 1], "float64"), "expected dtype int64 or float32, found FP64"),
        (fluid.data("two", [None, 1], "int64", lod_level=2), "a ragged slot is"),
        (fluid.data("wide", [None, 2], "int64", lod_level=1), "a ragged slot is"),
        (fluid.data("unknown", [None, -1], "int64"), "must know all dimensions but the first"),
    ]:
        with pytest.raises(errors.DataError, match=problem):
            made.set_use_var([var])
    for call in (made.local_shuffle, made.global_shuffle):
        with pytest.raises(errors.UnsupportedError, match="use InMemoryDataset"):
            call()
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(errors.DataError, match="expected a whole number above 0"):
            made.set_batch_size(wrong)
    memory = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    memory.set_parse_logkey(False)
    with pytest.raises(errors.UnsupportedError, match="generate_local_tables_unlock"):
        memory.generate_local_tables_unlock(0, 8, 1, 1, 1)
    with pytest.raises(errors.UnsupportedError, match="get_memory_data_size counts records"):
        memory.get_pv_data_size()
    with pytest.raises(errors.UnsupportedError, match="PaddleBox"):
        memory.set_enable_pv_merge(True)


def test_the_description(files):
    made, _ = dataset(files=files)
    assert made.desc().splitlines()[:8] == [
        'name: "MultiSlotDataFeed"',
        "batch_size: 2",
        "multi_slot_desc {",
        "  slots {",
        '    name: "ids"',
        '    type: "uint64"',
        "    is_used: true",
        "  }",
    ]
    assert made.desc().splitlines()[8:15] == [
        "  slots {",
        '    name: "dense"',
        '    type: "float"',
        "    is_dense: true",
        "    is_used: true",
        "    shape: -1",
        "    shape: 3",
    ]


def test_a_fetch_handler_sees_the_newest_step(files):
    made, (_, dense, _) = dataset(files=[files[0]] * 200, batch=1)
    loss = layers.mean(dense)
    seen, looked = [], threading.Event()

    class Look(fluid.executor.FetchHandler):
        def handler(self, res_dict):
            seen.append(res_dict)
            looked.set()

    exe = fluid.Executor(fluid.CPUPlace())
    made.set_pipe_command("cat; sleep 0.01")
    exe.train_from_dataset(fluid.default_main_program(), made, fetch_handler=Look({"loss": loss}, period_secs=0.05))
    assert looked.is_set() and any(s["loss"] is not None for s in seen)

    class Fails(fluid.executor.FetchHandler):
        def handler(self, res_dict):
            raise KeyError("my own mistake")

    with pytest.raises(KeyError, match="my own mistake"):
        exe.train_from_dataset(
            fluid.default_main_program(),
            made,
            fetch_handler=Fails({"loss": loss}, period_secs=0.01),
        )
    with pytest.raises(errors.FetchError, match="var_dict is empty"):
        fluid.executor.FetchHandler()


def test_data_feed_desc(tmp_path):
    path = tmp_path / "d.prototxt"
    slot = 'slots {{ name: "{}" type: "uint64" is_dense: false is_used: false }}'
    slots = slot.format("words") + slot.format("label")
    path.write_text(f'name: "MultiSlotDataFeed" batch_size: 2 multi_slot_desc {{ {slots} }}')
    desc = fluid.DataFeedDesc(str(path))
    desc.set_batch_size(128)
    desc.set_dense_slots(["label"])
    desc.set_use_slots(["words"])
    lines = [line.strip() for line in desc.desc().splitlines()]
    assert lines[1] == "batch_size: 128" and lines[3:9] == [
        "slots {",
        'name: "words"',
        'type: "uint64"',
        "is_dense: false",
        "is_used: true",
        "}",
    ]
    with pytest.raises(KeyError, match="did you mean words"):
        desc.set_use_slots(["word"])
    path.write_text("slots: 3")
    with pytest.raises(errors.DataError, match=r"d.prototxt: not a description of slots: 1:1"):
        fluid.DataFeedDesc(str(path))
    for wrong, error in ((tmp_path, errors.FileFormatError), (path / "x", errors.JFluidError)):
        with pytest.raises(error):
            fluid.DataFeedDesc(str(wrong))
    with pytest.raises(FileNotFoundError, match="none: No such file") as caught:
        fluid.DataFeedDesc(str(tmp_path / "none"))
    assert isinstance(caught.value, errors.NoSuchFileError)


class Fleet:
    def __init__(self, index, endpoints):
        self.index, self.endpoints = index, endpoints

    def worker_index(self):
        return self.index

    def worker_num(self):
        return len(self.endpoints)

    def worker_endpoints(self, to_string=False):
        return self.endpoints


def test_global_shuffle_between_trainers(tmp_path, monkeypatch):
    monkeypatch.setenv("JFLUID_JOB_TOKEN", "a-secret-of-the-tests")
    endpoints, made, results = free_endpoints(3), [], {}
    for i in range(3):
        path = tmp_path / f"{i}.txt"
        path.write_text(
            "".join(
                f"{k % 2 + 1} {' '.join([str(k)] * (k % 2 + 1))} 3 {k} {k} {k} 1 {k}\n"
                for k in range(100 * i + 1, 100 * i + 101)
            )
        )
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            made.append(dataset("InMemoryDataset", [path], batch=1000)[0])
        made[i].set_fleet_send_batch_size(7)
        made[i].load_into_memory()

    def run(i):
        fleet = Fleet(i, endpoints)
        made[i].global_shuffle(fleet)
        results[i] = (
            made[i].get_memory_data_size(fleet),
            made[i].get_shuffle_data_size(fleet),
            fed(made[i])[0],
        )

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i][:2] for i in range(3)] == [(300, 300)] * 3
    records = [r for i in range(3) for r in zip(*results[i][2])]
    assert sorted(records) == [([k] * (k % 2 + 1), [k] * 3, k) for k in range(1, 301)]
    assert all(60 < len(results[i][2][2]) < 140 for i in range(3))
    assert len({k // 100 for k in results[0][2][2]}) >= 3


SCRIPT = """
import sys, jfluid as fluid
ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
loss = fluid.layers.mean(fluid.layers.sequence_pool(fluid.layers.cast(ids, "float32"), "sum"))
made = fluid.DatasetFactory().create_dataset()
made.set_use_var([ids])
made.set_filelist([sys.argv[1]] * 4)
made.set_thread(2)
made.set_pipe_command("while true; do cat; echo 1 5; sleep 0.01; done")
print("ready", flush=True)
exe = fluid.Executor(fluid.CPUPlace())
exe.train_from_dataset(fluid.default_main_program(), made, fetch_list=[loss], print_period=10)
"""


@pytest.mark.process
def test_ctrl_c_ends_producers_and_pipes(tmp_path):
    (tmp_path / "a.txt").write_text("1 1\n")
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "a.txt")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=os.getcwd(),
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("step 20"):
            break
    found = subprocess.run(["pgrep", "-g", "0", "-f", "while true; do cat"], capture_output=True, text=True)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    assert children, (lines, found)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode in (-signal.SIGINT, 130, 1) and "KeyboardInterrupt" in err
    deadline = time.monotonic() + 120
    while left := [c for c in children if os.path.exists(f"/proc/{c}")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def test_infer_from_dataset(files):
    made, (_, dense, _) = dataset("InMemoryDataset", files)
    made.load_into_memory()
    seen = layers.create_global_var([1], 0.0, "float32", persistable=True, name="seen")
    layers.assign(seen + layers.reduce_sum(dense), seen)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    exe.infer_from_dataset(fluid.default_main_program(), made)
    assert np.array(fluid.global_scope().find_var("seen").get_tensor()) == pytest.approx(
        0 + 6 + 0 + 27 + 1000.51, rel=1e-6
    )


def test_datasets_feed_replicas(files, monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    made, (_, dense, _) = dataset(files=files, batch=5)
    weight = layers.create_parameter([1], "float32", name="w", default_initializer=fluid.initializer.Constant(1.0))
    loss = layers.mean(dense) * weight
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name)
    exe.train_from_dataset(program, made, fetch_list=[loss], print_period=1)
    halves = (0 + 6 + 0) / 9, (27 + 1000.51) / 6  # the first replica gets three rows
    assert np.array(fluid.global_scope().find_var("w").get_tensor()) == pytest.approx(
        1 - 0.1 * sum(halves) / 2, rel=1e-5
    )


def test_a_producer_that_dies_is_heard_of(files, monkeypatch):
    from jfluid.dataset.multislot import Parser

    made, (_, dense, _) = dataset(files=files, batch=1)
    run = trainer(made, dense)
    batch, calls = Parser.batch, []

    def dies(self, records, order):
        calls.append(1)
        if len(calls) > 2:
            raise MemoryError("no room")
        return batch(self, records, order)

    monkeypatch.setattr(Parser, "batch", dies)
    with pytest.raises(MemoryError, match="no room") as caught:
        run()
    assert "2 steps of this epoch were done before" in caught.value.__notes__
    monkeypatch.undo()
    run()


def test_a_line_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("jfluid.dataset.text_files.LONGEST_LINE", 1 << 20)
    path = tmp_path / "a.txt"
    path.write_text("1 " * (1 << 21))
    made, _ = dataset(files=[path])
    with pytest.raises(errors.DataError, match="a.txt: a line is longer than 1 MiB"):
        fed(made)

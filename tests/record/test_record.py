"""The record of a run: what goes into its files, how they stay small, and what reading passes over."""

import base64
import json
import logging
import math
import os
import stat
import struct
import subprocess
import sys
import threading
import time
import zlib

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, progress, record
from jfluid.fetch_handler import FetchHandler, Watch
from jfluid.record import lines, thinning, writer
from jfluid.record.phases import PREFIX
from jfluid.record.writer import Recorder, Taken


def read(path):
    return list(lines.Tail(path).lines())


def scalars(path):
    found = [(line["step"], line["scalars"]) for line in read(path) if line["kind"] == "scalars"]
    # the phases of steps come with the second in which they end
    return [(step, values) for step, values in found if not any(name.startswith(PREFIX) for name in values)]


@pytest.fixture
def folder(tmp_path):
    """What FLAGS_record_dir names; `record.current().flush()` puts into it what was logged."""
    fluid.set_flags({"FLAGS_record_dir": str(tmp_path / "run")})
    yield tmp_path / "run"
    fluid.set_flags({"FLAGS_record_dir": ""})
    assert record.current() is None


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(tmp_path / "trainer.0.jsonl", False, {"role": "trainer"}, 1 << 14, seconds=1000)
    yield made
    made.close()


# ---- what is logged ------------------------------------------------------------------------------


def test_scalars_of_both_modes(folder):
    x = fluid.data("x", [2])
    loss = fluid.layers.reduce_sum(x)
    exe = fluid.Executor(fluid.CPUPlace())
    feed = {"x": np.array([1, 2], "float32")}
    (fetched,) = exe.run(feed=feed, fetch_list=[loss])
    (tensor,) = exe.run(feed=feed, fetch_list=[loss], return_numpy=False)
    with fluid.dygraph.guard():
        variable = fluid.dygraph.to_variable(np.array([5.0], "float32"))
        fluid.log(1, loss=fetched, tensor=tensor, variable=variable * 2)
    fluid.log(np.int64(2), **{"a number": 3, "true": True, "of NumPy": np.float32(0.5)})
    record.current().flush()
    assert scalars(folder / "trainer.0.jsonl") == [
        (1, {"loss": 3.0, "tensor": 3.0, "variable": 10.0}),
        (2, {"a number": 3.0, "true": 1.0, "of NumPy": 0.5}),
    ]
    assert stat.S_IMODE((folder / "trainer.0.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_an_array_counts_as_it_was_when_it_was_logged(folder):
    loss = np.array([1.0], "float32")
    fluid.log(0, loss=loss)
    loss[:] = 2
    record.current().flush()
    assert scalars(folder / "trainer.0.jsonl") == [(0, {"loss": 1.0})]


def test_a_fetched_loss_and_numbers_of_numpy_take_the_short_way(folder, monkeypatch):
    x = fluid.data("x", [2])
    exe = fluid.Executor(fluid.CPUPlace())
    fetched = exe.run(feed={"x": np.array([1, 2], "float32")}, fetch_list=[fluid.layers.reduce_sum(x)])
    monkeypatch.setattr(record, "_numbers", lambda scalars: pytest.fail(f"{scalars} took the long way"))
    fluid.log(7, loss=fetched[0], rate=0.5, **{"of NumPy": np.float32(0.25), "double": np.float64(2)})
    record.current().flush()
    assert scalars(folder / "trainer.0.jsonl") == [(7, {"loss": 3.0, "rate": 0.5, "of NumPy": 0.25, "double": 2.0})]


@pytest.mark.parametrize(
    "value, error, said",
    [
        (
            np.zeros(3),
            errors.ShapeError,
            r"log: loss: expected a number.* found shape \[3\].*log_histogram",
        ),
        ("1.0", errors.DtypeError, "log: loss: expected a real number, found str"),
        (1j, errors.DtypeError, "found complex"),
        (None, errors.DtypeError, "found NoneType"),
    ],
)
def test_what_is_no_number_is_refused(folder, value, error, said):
    with pytest.raises(error, match=said):
        fluid.log(0, loss=value)
    with pytest.raises(TypeError):
        fluid.log("1", loss=1.0)


def test_without_a_folder_nothing_is_read_or_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert record.current() is None
    fluid.log(0, loss=object())
    fluid.log_image(0, x=object())
    fluid.log_histogram(0, x=object())
    assert not any(tmp_path.iterdir())
    assert not [t for t in threading.enumerate() if t.name == "jfluid-record"]


def test_numbers_that_json_lacks_and_hostile_names(folder):
    name = "<img src=x onerror=alert(1)>\x1b[2J\n\u202e\ud800"
    fluid.log(1, **{name: math.nan, "up": math.inf, "down": -math.inf, "large": 10**400, "x" * 5000: 1})
    record.current().flush()
    data = (folder / "trainer.0.jsonl").read_bytes()
    assert all(byte == 10 or 32 <= byte < 127 for byte in data)
    (line,) = [line for line in read(folder / "trainer.0.jsonl") if line["kind"] == "scalars"]
    json.dumps(line, allow_nan=False)
    found = lines.numbers(line["scalars"])
    long = next(name for name in found if name.startswith("xxx"))
    assert math.isnan(found.pop(name)) and len(long) < 300 and found.pop(long) == 1
    assert found == {"up": math.inf, "down": -math.inf, "large": math.inf}


def pixels(png):
    """Decode a PNG as this package writes them."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, header = 8, b"", None
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        name, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        assert struct.unpack(">I", png[at + 8 + size : at + 12 + size])[0] == zlib.crc32(name + body)
        header = struct.unpack(">IIBBBBB", body) if name == b"IHDR" else header
        data += body if name == b"IDAT" else b""
        at += 12 + size
    width, height, depth, colour = header[:4]
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    rows = np.frombuffer(zlib.decompress(data), "uint8").reshape(height, 1 + width * channels)
    assert depth == 8 and not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels)


def test_images(folder):
    rng = np.random.RandomState(0)
    whole, chw, grey = (rng.randint(0, 256, shape).astype("uint8") for shape in ((5, 7, 3), (3, 5, 7), (5, 7)))
    fluid.log_image(3, whole=whole, chw=chw, grey=grey)
    fluid.log_image(4, floats=np.array([[-1, 0.5, np.nan, np.inf]], "float32"), large=np.zeros((1000, 2)))
    with pytest.raises(errors.ShapeError, match=r"log_image: x: expected \[H, W\].*found \[5\]"):
        fluid.log_image(0, x=np.zeros(5))
    with pytest.raises(errors.DtypeError, match="found int64"):
        fluid.log_image(0, x=np.zeros((5, 5), "int64"))
    record.current().flush()
    found = {
        line["name"]: (line["step"], pixels(base64.b64decode(line["png"])))
        for line in read(folder / "trainer.0.jsonl")
        if line["kind"] == "image"
    }
    np.testing.assert_array_equal(found["whole"][1], whole)
    np.testing.assert_array_equal(found["chw"][1], chw.transpose(1, 2, 0))
    np.testing.assert_array_equal(found["grey"][1][:, :, 0], grey)
    assert found["floats"][1].reshape(-1).tolist() == [0, 128, 0, 255] and found["floats"][0] == 4
    assert found["large"][1].shape == (250, 2, 1)


def test_histograms(folder):
    values = np.concatenate([np.arange(64.0), [np.nan, np.inf, -np.inf]])
    fluid.log_histogram(3, of=values, same=np.full(7, 2.0), none=np.zeros(0), far=np.array([-1.7e308, 1.7e308]))
    with pytest.raises(errors.DtypeError, match="log_histogram: x: expected real numbers"):
        fluid.log_histogram(0, x=np.array(["a"]))
    record.current().flush()
    found = {line["name"]: line for line in read(folder / "trainer.0.jsonl") if line["kind"] == "histogram"}
    of = found["of"]
    assert (of["low"], of["high"], of["counts"], of["nan"], of["infinite"]) == (
        0,
        63,
        [2] * 32,
        1,
        2,
    )
    assert sum(found["same"]["counts"]) == 7 and sum(found["none"]["counts"]) == 0
    assert sum(found["far"]["counts"]) == 2


def test_progress_and_what_a_fetch_handler_sees(folder, capsys):
    with progress.Progress(total=2, description="train") as shown:
        shown.step(examples=4, loss=0.5, wrong=math.nan)
        shown.step(examples=4, loss=0.25)

    class Handler(FetchHandler):
        def handler(self, values):
            if values["loss"] is not None:
                called.set()

    called = threading.Event()
    with Watch(Handler({"loss": 1, "rows": 2}, period_secs=0.001)) as watch:
        watch.show([np.array([7.0]), np.zeros(3)])
        assert called.wait(100)
    with progress.Progress(total=1, description="train") as shown:
        shown.step(examples=4, loss=0.125)
    called.clear()
    with Watch(Handler({"loss": 1}, period_secs=0.001)) as watch:
        watch.show([np.array([8.0])])
        assert called.wait(100)
    record.current().flush()
    found = read(folder / "trainer.0.jsonl")
    first, second = [line for line in found if line["kind"] == "progress" and line["done"]]
    assert (first["step"], first["total"], first["metrics"]) == (2, 2, {"loss": 0.25})
    assert (second["step"], second["all_steps"], second["metrics"]) == (1, 3, {"loss": 0.125})
    # steps are counted through, from one epoch to the next
    steps = {s["loss"]: step for step, s in scalars(folder / "trainer.0.jsonl")}
    assert steps[8.0] == steps[7.0] + 1


def test_compilations_say_what_was_other_than_before(folder):
    fluid.set_flags({"FLAGS_dynamic_shapes": False})
    try:
        x = fluid.data("x", [None, 2])
        y = fluid.layers.scale(x, 3.0)
        exe = fluid.Executor(fluid.CPUPlace())
        for rows in (5, 5, 7):
            exe.run(feed={"x": np.ones((rows, 2), "float32")}, fetch_list=[y])
    finally:
        fluid.set_flags({"FLAGS_dynamic_shapes": True})
    record.current().flush()
    found = [line for line in read(folder / "trainer.0.jsonl") if line["kind"] == "compile"]
    assert [line["count"] - found[0]["count"] for line in found] == [0, 1]
    assert found[1]["differ"] == "[7, 2] float32" and not found[0]["differ"]
    assert found[1]["total"] >= found[1]["seconds"] > 0


# ---- files ---------------------------------------------------------------------------------------


def test_torn_and_foreign_lines_are_passed_over(tmp_path):
    path = tmp_path / "trainer.0.jsonl"
    whole = lines.encode("scalars", 5.0, {"step": 1, "scalars": {"loss": 1.0}})
    strange = b'[1]\n{"kind":"scalars"}\n{"t":"NaN","kind":"x"}\n{"t":1,"kind":7}\n\xff\xfe\n' + b"[" * 99999 + b"\n"
    path.write_bytes(whole + strange + whole + whole[:-9])
    assert [line["t"] for line in read(path)] == [5.0, 5.0]
    again = Recorder(path, True, {}, seconds=1000)
    again.scalars(2, {"loss": 2.0})
    again.close()
    assert [step for step, _ in scalars(path)] == [1, 1, 2]
    assert [line["kind"] for line in read(path)][2:] == [
        "start",
        "scalars",
    ]  # the torn one is alone


def test_reading_goes_on_where_it_was(tmp_path):
    path = tmp_path / "trainer.0.jsonl"
    tail = lines.Tail(path)
    with pytest.raises(FileNotFoundError):
        list(tail.lines())
    one = lines.encode("a", 1.0, {})
    path.write_bytes(one + one[:5])
    assert [line["t"] for line in tail.lines()] == [1.0] and not list(tail.lines())
    with path.open("ab") as file:
        file.write(one[5:] + lines.encode("a", 2.0, {}))
    assert not tail.is_another() and [line["t"] for line in tail.lines()] == [1.0, 2.0]
    (tmp_path / "other").write_bytes(one)
    os.replace(tmp_path / "other", path)
    assert tail.is_another()


def test_a_file_stays_small_and_keeps_its_extremes(recorder):
    recorder.add("event", {"event": "failure", "excerpt": "Traceback"})
    for step in range(5000):
        value = {1234: 99.0, 4321: -99.0, 2222: math.nan}.get(step, math.sin(step))
        recorder.scalars(step, {"loss": value})
        recorder.add("progress", {"description": "train", "step": step, "done": True, "metrics": {}})
        if step % 10 == 0:
            recorder.flush()
            assert recorder.path.stat().st_size <= 1 << 14
    recorder.flush()
    found = scalars(recorder.path)
    values = [lines.number(s["loss"]) for _, s in found]
    assert max(v for v in values if not math.isnan(v)) == 99 and min(values) == -99
    assert any(map(math.isnan, values)) and found[-1][0] == 4999 and found[0][0] < 200
    assert [line["kind"] for line in read(recorder.path)][:2] == ["start", "event"]
    assert [path.name for path in recorder.path.parent.iterdir()] == ["trainer.0.jsonl"]


def test_thinning_keeps_what_is_apart():
    def line(moment, value):
        return lines.encode("scalars", moment, {"step": 0, "scalars": {"loss": value}})

    dense = [line(1000 + i / 100, float(i)) for i in range(1000)]
    apart = [line(2000 + 100 * i, float(i)) for i in range(20)]
    data = b"".join(dense + apart)
    kept = thinning.thinned(data, len(data) // 4)
    assert len(kept) <= len(data) // 4 and all(piece in kept for piece in apart)
    assert dense[0] in kept and dense[-1] in kept


def test_events_that_fill_a_file_make_room_for_new_ones():
    pieces = [lines.encode("event", float(i), {"event": "exit", "excerpt": "x" * 100}) for i in range(100)]
    kept = thinning.thinned(b"".join(pieces), 1000).splitlines(keepends=True)
    assert kept[0] == pieces[0] and kept[-1] == pieces[-1] and 2 < len(kept) < 10


def test_of_many_calls_the_extremes_and_the_last_are_written(recorder):
    values = np.random.RandomState(0).rand(1000).tolist()
    values[500:502] = math.inf, math.nan
    for step, value in enumerate(values):
        recorder.scalars(step, {"loss": value, "last": float(step)})
    recorder.flush()
    found = scalars(recorder.path)
    seen = [lines.number(s["loss"]) for _, s in found if "loss" in s]
    finite = [v for v in values if math.isfinite(v)]
    assert len(found) < 100 and max(map(abs, seen)) == math.inf
    assert {max(finite), min(finite)} <= set(seen) and found[-1] == (
        999,
        {"loss": values[-1], "last": 999.0},
    )


def test_names_and_what_waits_are_bounded(recorder, monkeypatch):
    monkeypatch.setattr(writer, "_MOST_NAMES", 5)
    monkeypatch.setattr(writer, "_MOST_PENDING", 20)
    for step in range(30):
        recorder.scalars(step, {f"loss{step % 8}": 1.0})
    recorder.flush()
    found = read(recorder.path)
    assert {name for _, values in scalars(recorder.path) for name in values} == {f"loss{i}" for i in range(5)}
    assert sum(line["lines"] for line in found if line["kind"] == "dropped") > 10


def test_one_process_writes_a_file(recorder, tmp_path):
    with pytest.raises(Taken):
        Recorder(recorder.path, True, {})
    recorder.flush()
    before = recorder.path.stat().st_ino
    for step in range(3000):
        recorder.scalars(step, {"loss": 1.0})
        if step % 10 == 0:
            recorder.flush()
    assert recorder.path.stat().st_ino != before  # it was thinned
    with pytest.raises(Taken):
        Recorder(recorder.path, True, {})


def test_a_disk_that_is_full_stops_the_record_alone(recorder, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    now = [100.0]
    monkeypatch.setattr(writer.time, "monotonic", lambda: now[0])
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(os, "write", full)
        recorder.scalars(1, {"loss": 1.0})
        recorder.flush()
        recorder.scalars(2, {"loss": 1.0})
        recorder.flush()
    assert len(caplog.records) == 1 and "No space left on device" in caplog.text
    now[0] += 60
    recorder.scalars(3, {"loss": 1.0})
    recorder.flush()
    recorder.flush()
    assert [step for step, _ in scalars(recorder.path)] == [3]
    assert [line["lines"] for line in read(recorder.path) if line["kind"] == "dropped"] == [3]


def test_a_folder_that_cannot_be_is_said_by_its_flag(tmp_path):
    (tmp_path / "file").write_text("")
    fluid.set_flags({"FLAGS_record_dir": str(tmp_path / "file" / "run")})
    try:
        with pytest.raises(errors.DataError, match="FLAGS_record_dir: .*file/run"):
            fluid.log(0, loss=1.0)
    finally:
        fluid.set_flags({"FLAGS_record_dir": ""})


def test_a_new_run_begins_anew_and_one_that_is_started_again_goes_on(folder, monkeypatch):
    def logged(step):
        fluid.log(step, loss=1.0)
        fluid.set_flags({"FLAGS_record_dir": ""})
        record.current()
        fluid.set_flags({"FLAGS_record_dir": str(folder)})
        return [step for step, _ in scalars(folder / "trainer.0.jsonl")]

    assert logged(1) == [1] and logged(2) == [2]
    monkeypatch.setenv("JFLUID_RESTARTS", "1")
    assert logged(3) == [2, 3]


FORKS = """
import os
from jfluid import record
record.log(1, loss=1.0)
child = os.fork()
if not child:
    record.log(7, loss=7.0)
    record.current().close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
record.log(2, loss=2.0)
print(child)
"""


@pytest.mark.process
def test_a_forked_process_writes_a_file_of_its_own(tmp_path):
    environment = {**os.environ, "FLAGS_record_dir": str(tmp_path)}
    command = [sys.executable, "-c", FORKS]
    child = int(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert scalars(tmp_path / f"process.{child}.jsonl") == [(7, {"loss": 7.0})]
    assert scalars(tmp_path / "trainer.0.jsonl") == [(1, {"loss": 1.0}), (2, {"loss": 2.0})]
    assert len(list(tmp_path.iterdir())) == 2


# ---- cost ----------------------------------------------------------------------------------------


def seconds(steps, logs):
    """Processor time of so many calls, by the fastest of some runs."""
    values = np.array([1.0], "float32")
    best = math.inf
    for _ in range(5):
        begin = time.process_time()
        for step in range(steps):
            if logs:
                fluid.log(step, loss=values, accuracy=0.5)
        if logs and record.current() is not None:
            record.current().flush()
        best = min(best, time.process_time() - begin)
    return best


@pytest.mark.skipif(sys.gettrace() is not None, reason="each line is traced")
def test_logging_each_step_costs_less_than_a_hundredth_of_a_millisecond(folder):
    """All of it, the thread's share and the file among it, of a thousand steps: 1 ms each are 1 s."""
    on = seconds(1000, True)
    fluid.set_flags({"FLAGS_record_dir": ""})
    off = seconds(1000, True)
    fluid.set_flags({"FLAGS_record_dir": str(folder)})
    assert on < 0.01, f"{on * 1000:.1f} us a step"
    assert off < 0.001, f"{off * 1000:.2f} us a step"


def test_many_ranks_write_less(tmp_path, monkeypatch):
    calls = [(i / 1000, i, {"loss": math.sin(i)}) for i in range(1000)]
    few, many = (Recorder(tmp_path / f"{ranks}.jsonl", False, {}, ranks=ranks) for ranks in (2, 200))
    try:
        assert (few._seconds, many._seconds) == (1.0, 4.0)
        assert len(writer.reduced(calls, few._parts)) <= 21 and len(writer.reduced(calls, many._parts)) <= 3
    finally:
        few.close()
        many.close()
    between = []
    for ranks in ("1", "200", "9999", "nonsense"):
        monkeypatch.setenv("PADDLE_TRAINERS_NUM", ranks)
        between.append(progress.Progress()._between)
    assert between == [0.1, 0.8, 1.0, 0.1]

"""What is kept of a job's page: one file, a table, event files."""

import base64
import csv
import io
import json
import math
import re
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from jfluid.command import main
from jfluid.dashboard import exports
from tests.dashboard.test_dashboard import BEGIN, get, job, put, read, served  # noqa: F401


def test_a_kept_page_holds_everything_and_loads_nothing(job, tmp_path, capsys):  # noqa: F811
    kept = tmp_path / "run.html"
    assert main(["dashboard", str(job), "--export", str(kept)]) == 0
    page = kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    data = json.loads(text)
    assert data["runs"][0]["series"]["trainer 0\0loss"] and data["logs"][0]["workerlog.0"].endswith("last line")
    assert "<img" not in page and page.count("</script>") == 2
    assert f'<meta http-equiv="Content-Security-Policy" content="{exports.policy()}">' in page
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_a_table_of_all_numbers(job, tmp_path):  # noqa: F811
    put(job / "record" / "trainer.1.jsonl", ("scalars", 9, {"step": 5, "scalars": {"=1+1": 7.0}}))
    path = tmp_path / "run.csv"
    assert main(["dashboard", str(job), "--csv", str(path)]) == 0
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert rows[0] == {
        "process": "trainer 0",
        "name": "loss",
        "step": "0",
        "time": "1000.000",
        "value": "3.0",
    }
    assert [row["value"] for row in rows if row["name"] == "loss"] == ["3.0", "nan", "inf", "1.0"]
    assert [row["value"] for row in rows if row["name"] == "train: loss"] == ["1.0"]
    assert [row["name"] for row in rows if row["process"] == "trainer 1"] == ["'=1+1"]


def test_a_table_through_the_page(read):  # noqa: F811
    with served(read) as port:
        status, headers, body = get(port, "/table?run=0")
        assert status == 200 and headers["content-type"].startswith("text/csv")
        assert "attachment" in headers["content-disposition"] and body.startswith(b"process,name,step,time,value")


def test_event_files_need_tensorboardx(job, tmp_path, capsys, monkeypatch):  # noqa: F811
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert main(["dashboard", str(job), "--tensorboard", str(tmp_path / "events")]) == 1
    assert "needs tensorboardX: pip install 'jfluid[tensorboard]'" in capsys.readouterr().err
    assert not (tmp_path / "events").exists()


def test_logs_of_visualdl_need_visualdl(job, tmp_path, capsys, monkeypatch):  # noqa: F811
    monkeypatch.setitem(sys.modules, "visualdl", None)
    assert main(["dashboard", str(job), "--visualdl", str(tmp_path / "logs")]) == 1
    assert "needs visualdl: pip install 'jfluid[visualdl]'" in capsys.readouterr().err


def test_logs_of_visualdl_need_no_tensorboardx(tmp_path, monkeypatch):
    added = []

    class LogWriter:
        def __init__(self, logdir):
            self.close = lambda: None

        def add_scalar(self, tag, value, step, walltime):
            added.append(tag)

        def add_image(self, tag, picture, step, walltime):
            added.append(tag)

    Image = pytest.importorskip("PIL.Image", reason="pip install pillow, which visualdl needs")
    png = io.BytesIO()
    Image.fromarray(np.zeros((2, 2), np.uint8)).save(png, "PNG")
    monkeypatch.setitem(sys.modules, "visualdl", SimpleNamespace(LogWriter=LogWriter))
    for name in [n for n in sys.modules if n.split(".")[0] == "tensorboardX"] + ["tensorboardX"]:
        monkeypatch.setitem(sys.modules, name, None)
    put(
        tmp_path / "run" / "trainer.0.jsonl",
        ("image", 0, {"name": "face", "step": 1, "png": base64.b64encode(png.getvalue()).decode()}),
    )
    assert main(["dashboard", str(tmp_path / "run"), "--visualdl", str(tmp_path / "logs")]) == 0
    assert added == ["face"]


def test_logs_of_visualdl(job, tmp_path):  # noqa: F811
    visualdl = pytest.importorskip("visualdl", reason="pip install visualdl")
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    put(job / "record" / "trainer.1.jsonl", ("image", 4, {"step": 3, "name": "100%", "png": pixel}))
    assert main(["dashboard", str(job), "--visualdl", str(tmp_path / "logs")]) == 0
    found = {}
    for name in ("trainer.0", "trainer.1"):
        (file,) = (tmp_path / "logs" / name).iterdir()
        found[name] = visualdl.LogReader(file_path=str(file))
    loss = found["trainer.0"].get_data("scalar", "loss")
    assert [(value.id, value.timestamp) for value in loss] == [(n, 1000 * (BEGIN + n)) for n in range(4)]
    assert [value.value for value in loss][::3] == [3, 1] and math.isnan(loss[1].value) and loss[2].value == math.inf
    assert "image" not in found["trainer.0"].get_tags()  # AAAA is no PNG
    (image,) = found["trainer.1"].get_data("image", "100percent")
    assert image.id == 3 and image.image.encoded_image_string.startswith(b"\x89PNG")


def records(path):
    """The records of an event file: their lengths and check sums stand around them."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        (size,) = struct.unpack("<Q", data[at : at + 8])
        yield data[at + 12 : at + 12 + size]
        at += 16 + size


def test_event_files(job, tmp_path):  # noqa: F811
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    put(
        job / "record" / "trainer.0.jsonl",
        ("histogram", 4, {"step": 3, "name": "wrong", "low": 0, "high": 1, "counts": ["x"]}),
        ("image", 4, {"step": 3, "name": "wrong", "png": "no"}),
        ("scalars", 5, {"step": 10**30, "scalars": {"far": 1}}),
    )
    assert main(["dashboard", str(job), "--tensorboard", str(tmp_path / "events")]) == 0
    (folder,) = (tmp_path / "events").iterdir()
    (file,) = folder.iterdir()
    assert folder.name == "trainer.0" and folder.stat().st_mode & 0o777 == 0o700
    events = [event_pb2.Event.FromString(record) for record in records(file)]
    found = [(event.step, event.wall_time, value) for event in events for value in event.summary.value]
    loss = [(step, moment, value.simple_value) for step, moment, value in found if value.tag == "loss"]
    assert loss[0] == (0, BEGIN, 3) and loss[3] == (3, BEGIN + 3, 1)
    assert math.isnan(loss[1][2]) and loss[2][2] == math.inf
    by_tag = {value.tag: value for _, _, value in found}
    assert by_tag["x"].image.encoded_image_string == base64.b64decode("AAAA")
    histogram = by_tag["w"].histo
    assert (list(histogram.bucket), list(histogram.bucket_limit), histogram.num) == (
        [1, 2],
        [0.5, 1],
        3,
    )
    assert "wrong" not in by_tag and by_tag["train: loss"].simple_value == 1 and by_tag["far"]

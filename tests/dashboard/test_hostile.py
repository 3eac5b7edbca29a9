"""Records and log folders from elsewhere, and crowds of connections: the page shows what it can, and goes on."""

import contextlib
import json
import os
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from jfluid.dashboard import exports, logs
from jfluid.dashboard.address import Access
from jfluid.dashboard.metrics import registry
from jfluid.dashboard.runs import Runs
from jfluid.security import http_connections
from tests import browser
from tests.dashboard.test_browser import driven, page, texts  # noqa: F401
from tests.dashboard.test_dashboard import get, job, served  # noqa: F401
from tests.fuzz.harness import fuzzed
from tests.launch_case import wait_until

HUGE = 17 * 10**307  # almost the largest float
NUMBERS = [10**300, -HUGE, HUGE, 10**400, 1e308, -1e308, 0, -0.0, 1, -1, 2**53, 1.5, 5e-324, "NaN", "Infinity"]
WORDS = ["x", "\ud800", "__proto__", "constructor", "toString", "\x1b[2J\u202e<b>", "a\0b", "²"]
KINDS = "scalars progress usage compile program waits image histogram dropped start event".split()
EVENTS = ["job", "start", "exit", "restart", "failure", "end", "profile", "snapshot", "x"]
FIELDS = (
    "step scalars description rate total unit metrics all_steps done members seconds count differ fingerprint tree "
    "trainers png width height name counts low high nan infinite lines event label role rank host log reason excerpt "
    "mode folder system versions environment job again code left hosts processors restarts pid"
).split()
LEAVES = st.sampled_from([*NUMBERS, *WORDS, True, None])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*WORDS, "rank 0"]), inner, max_size=4),
    max_leaves=8,
)
SHAPES = {
    "scalars": st.dictionaries(st.sampled_from([*WORDS, "step time (ms): compute", "rows of w"]), LEAVES, max_size=3),
    "event": st.sampled_from(EVENTS),
    "counts": st.lists(LEAVES, max_size=4),
    "members": st.dictionaries(st.sampled_from(["rank 0", "server 1"]), st.lists(LEAVES, min_size=2, max_size=2)),
    "trainers": st.dictionaries(st.sampled_from(["0", "1", "²"]), st.lists(LEAVES, min_size=3, max_size=3)),
}
LINES = st.builds(
    lambda kind, moment, fields: {"t": moment, "kind": kind, **fields},
    st.sampled_from(KINDS),
    LEAVES,
    st.fixed_dictionaries({}, optional={name: SHAPES.get(name, VALUES) | VALUES for name in FIELDS}),
)


def write(path, *found):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in found)


def read(folder):
    """The runs of a folder, after all that is made of them was made."""
    runs = Runs([folder])
    runs.look()
    for text in (runs.everything(), runs.everything(20), *runs.updates(0)):
        json.loads(text)
    generate_latest(registry(runs))
    for text in exports.table(runs.runs[0]):
        text.encode()
    return runs


@fuzzed(20)
@given(st.lists(LINES, min_size=1, max_size=15), st.lists(LINES, max_size=5))
def test_any_line_is_shown_or_passed_over(tmp_path_factory, own, of_launcher):
    folder = tmp_path_factory.mktemp("record")
    write(folder / "trainer.0.jsonl", *own)
    write(folder / "launcher.0.jsonl", *of_launcher)
    read(folder)


def test_times_beyond_all_dates_are_passed_over(tmp_path):
    moments = [-HUGE, 8.65e12, *range(6000), HUGE, 10**400]
    write(tmp_path / "trainer.0.jsonl", *[{"t": t, "kind": "scalars", "scalars": {"loss": 1}} for t in moments])
    points = read(tmp_path).runs[0].series["trainer 0", "loss"].points
    assert (points[0][0], points[-1][0]) == (0, 5999)


def test_a_line_without_end_takes_no_memory_and_hides_no_other_line(tmp_path):
    path = tmp_path / "trainer.0.jsonl"
    path.write_bytes(b'{"t":1,"kind":"x","text":"' + b"x" * (9 << 20) + b'"}\n')
    write(path, {"t": 1, "kind": "scalars", "scalars": {"loss": 7}})
    assert read(tmp_path).runs[0].series["trainer 0", "loss"].points == [(1, None, 7)]


def test_links_and_pipes_are_passed_over(job, tmp_path):  # noqa: F811
    outside = tmp_path / "outside.jsonl"
    write(outside, {"t": 1, "kind": "scalars", "scalars": {"of elsewhere": 1}})
    for name in ("record/trainer.7.jsonl", "workerlog.7", "profile-x.json.gz"):
        os.symlink(outside, job / name)
    for name in ("record/trainer.8.jsonl", "workerlog.8"):
        os.mkfifo(job / name)
    (job / "record" / "trainer.9.jsonl").mkdir()
    write(job / "record" / "__proto__.jsonl", {"t": 1, "kind": "start", "host": "x"})
    runs = read(job)
    assert {source for source, _ in runs.runs[0].series} == {"trainer 0"}
    assert logs.names(job) == ["workerlog.0", "workerlog.1"]
    assert "of elsewhere" not in exports.offline(runs)
    with served(runs) as port:
        for path in ("/log?name=workerlog.7", "/log?name=workerlog.8", "/profile?name=profile-x.json.gz"):
            assert get(port, path)[0] == 404


@pytest.mark.parametrize(
    "says", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"GET /data HTTP/1.1\r\nHost: x\r\n\r\n"]
)
def test_a_crowd_of_strangers_shuts_nobody_out(job, says):  # noqa: F811
    runs = Runs([job])
    runs.look()
    key = "k" * 32
    with served(runs, Access(key, "m" * 32)) as port, contextlib.ExitStack() as stack:
        for _ in range(260):
            stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(says)
        status, _ = get(port, "/data", Cookie=f"jfluid-dashboard-{port}={key}")[:2]
        assert status == 200


def test_silent_connections_end(job, monkeypatch):  # noqa: F811
    monkeypatch.setattr(http_connections.HttpConnection, "seconds", 0.5)
    monkeypatch.setattr(http_connections, "_LOOK", 0.1)
    monkeypatch.setattr(http_connections.configured, "__defaults__", (4096, 0.5))
    with served(Runs([job])) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(10)
        assert client.recv(1) == b""


@pytest.mark.process
@pytest.mark.skipif(browser.BROWSER is None or browser.DRIVER is None, reason=browser.LACKING)
def test_the_page_of_a_hostile_record(page, tmp_path):  # noqa: F811
    for name in ("trainer.0", "server.0", "launcher.0"):
        found = []
        for at, t in enumerate([1, 2, 3, 1e300, -HUGE, 8.65e12, 5]):
            about = {"t": t, "source": "x"}
            for word in (*WORDS, "step time (ms): compute", "step time (ms): __proto__", "rows of __proto__"):
                number = NUMBERS[3 * at % len(NUMBERS)]
                found.append({**about, "kind": "scalars", "step": 2**53 - at, "scalars": {word: number}})
            for k, v in enumerate(NUMBERS):
                counts = [0, -5, 2**52] if k % 2 else []
                found += [
                    {**about, "kind": "histogram", "step": k, "name": "w", "low": v, "high": -1, "counts": counts},
                    {**about, "kind": "progress", "description": "__proto__", "step": k, "total": k - 2, "rate": v}
                    | {"unit": "<b>", "metrics": {"__proto__": v}},
                    {**about, "kind": "compile", "seconds": v, "total": v, "count": k, "differ": "<b>" * 99},
                ]
            tree = {"name": "a", "ops": 1, "reads": ["__proto__"], "children": [{"name": "toString"}]}
            found += [
                {**about, "kind": "waits", "trainers": {"0": [1e308, 1e308, 1e308], "1": [-1, -5, 1e300]}},
                {**about, "kind": "program", "fingerprint": "__proto__", "tree": tree},
                {**about, "kind": "image", "step": 1, "name": "i", "png": "AAAA", "width": 3, "height": -3},
            ]
            found += [
                {**about, "kind": "event", "event": event, "role": "trainer", "rank": at, "label": f"rank {at}"}
                | {"code": 1, "reason": "r<b>", "excerpt": "E", "name": "javascript:alert(1)", "job": "toString: 1\n"}
                for event in EVENTS
            ]
        write(tmp_path / "log" / "record" / f"{name}.jsonl", *found)
    write(
        tmp_path / "two" / "launcher.0.jsonl", {"t": 1, "kind": "event", "event": "job", "name": "two", "job": "a: 1\n"}
    )
    runs = Runs([tmp_path / "log", tmp_path / "two"])
    runs.look()
    with served(runs) as port:
        page.open(f"http://127.0.0.1:{port}/")
        wait_until(lambda: page.text("#link") == "live")
        for axis in ("time", "step"):
            page.run(
                "for (const [id, value] of [['axis', arguments[0]], ['who', 'all']]) document.getElementById(id)"
                ".value = value; document.getElementById('who').dispatchEvent(new Event('change'))",
                axis,
            )
            page.click("#log")
            time.sleep(0.3)
        assert texts(page, "#differences tr") == ["\tlog\ttwo", "toString\t1\t", "a\t\t1"]
        assert "r<b>" in page.text("#events") and texts(page, "#jobs h3")
        complaints = [text for text in page.complaints() if "data:image/png" not in text]
        page.open("about:blank")
        wait_until(lambda: runs.listeners == 0)
    assert complaints == []


def test_a_page_that_is_gone_is_no_listener_any_more(job):  # noqa: F811
    runs = Runs([job])
    with served(runs) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_until(lambda: runs.listeners == 1)
        until = time.monotonic() + 8  # below the time between two signs of life
        while runs.listeners and time.monotonic() < until:
            time.sleep(0.05)
        assert runs.listeners == 0

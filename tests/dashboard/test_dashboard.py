"""The page of a job: what it is given, who may see it, and what is kept of it."""

import base64
import contextlib
import hashlib
import http.client
import json
import math
import re
import socket
import threading
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jfluid import errors
from jfluid.command import dashboard
from jfluid.dashboard import address, application, exports, logs, runs, series
from jfluid.dashboard.metrics import registry
from jfluid.dashboard.runs import Run, Runs
from jfluid.ps_server.metrics import ServerMetrics
from jfluid.ps_server.store import Store
from jfluid.record import lines
from jfluid.security import secret
from tests.launch_case import LIMIT, wait_until

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J\u202e</script>"
BEGIN = 1000.0


def put(path, *wanted):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for kind, moment, fields in wanted:
            file.write(lines.encode(kind, BEGIN + moment, fields))


def member(event, rank, moment, **fields):
    about = {"role": "trainer", "rank": rank, "label": f"rank {rank}", "log": f"workerlog.{rank}"}
    return "event", moment, {"event": event, **about, **fields}


@pytest.fixture
def job(tmp_path):
    """The log folder of a job of two trainers, of which one was killed."""
    folder = tmp_path / "mylog"
    put(
        folder / "record" / "launcher.0.jsonl",
        ("start", 0, {"role": "launcher", "rank": 0, "host": "node", "pid": 1}),
        (
            "event",
            0,
            {
                "event": "job",
                "name": "train",
                "job": "script: train.py\n",
                "versions": {"jfluid": "1"},
            },
        ),
        member("start", 0, 1, pid=7),
        member("start", 1, 1, pid=8),
        ("usage", 2, {"members": {"rank 0": [5e6, 1.5]}}),
        member("exit", 1, 3, code=-9, reason="signal SIGKILL"),
        (
            "event",
            4,
            {
                "event": "failure",
                "label": "rank 1",
                "code": -9,
                "reason": "signal SIGKILL",
                "excerpt": f"Traceback {HOSTILE}",
                "again": False,
            },
        ),
        ("event", 5, {"event": "end", "code": 137, "signals": []}),
    )
    scalars = [
        ("scalars", step, {"step": step, "scalars": {"loss": lines.written(value), HOSTILE: step}})
        for step, value in enumerate([3.0, math.nan, math.inf, 1.0])
    ]
    report = {
        "description": "train",
        "step": 4,
        "total": 8,
        "rate": 2.5,
        "metrics": {"loss": 1.0},
        "done": False,
    }
    put(
        folder / "record" / "trainer.0.jsonl",
        *scalars,
        ("progress", 4, report),
        ("compile", 4, {"seconds": 0.5, "count": 2, "total": 0.75, "differ": "[3, 2] float32"}),
        ("image", 4, {"step": 3, "name": "x", "height": 1, "width": 1, "png": "AAAA"}),
        (
            "histogram",
            4,
            {
                "step": 3,
                "name": "w",
                "low": 0,
                "high": 1,
                "counts": [1, 2],
                "nan": 0,
                "infinite": 0,
            },
        ),
    )
    put(
        folder / "record" / "server.0.jsonl",
        ("waits", 3, {"trainers": {"1": [2, 1.5, 0.0]}}),
        ("waits", 4, {"trainers": {"1": [3, 2.5, 40.0], HOSTILE: [1, 1, 1], "2": [1, "NaN", 1]}}),
    )
    (folder / "workerlog.0").write_text(f"first line\n{HOSTILE}\nlast line\n")
    (folder / "workerlog.1").write_text("x" * 3_000_000 + "\nshort\n")
    (folder / "secrets.txt").write_text("hidden")
    return folder


@contextlib.contextmanager
def served(found, access=None):
    """The address of a page that is served."""
    with address.listen("127.0.0.1", 0) as listening:
        server = application.server(found, listening, access)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(LIMIT)


def get(port, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


@pytest.fixture
def read(job):
    found = Runs([job])
    found.look()
    return found


def everything(found):
    """All that a page gets, which has no number that JSON lacks."""
    return json.loads(found.everything(), parse_constant=lambda name: pytest.fail(name))


# ---- what is known -------------------------------------------------------------------------------


def test_everything_of_a_run(read):
    told = everything(read)
    (run,) = told["runs"]
    shown = "<img src=x onerror=alert(1)>\\x1b[2J\\u202e</script>"
    assert run["series"]["trainer 0\0loss"] == [
        [1000, 0, 3],
        [1001, 1, "NaN"],
        [1002, 2, "Infinity"],
        [1003, 3, 1],
    ]
    assert [p[2] for p in run["series"][f"trainer 0\0{shown}"]] == [0, 1, 2, 3]
    assert run["series"]["trainer 0\0train: examples/s"] == [[1004, 4, 2.5]]
    assert run["series"]["trainer 0\0memory (MB)"] == [[1002, None, 5]]
    assert [(e["event"], e.get("rank")) for e in run["events"]] == [
        ("start", 0),
        ("start", 1),
        ("exit", 1),
        ("failure", None),
        ("end", None),
    ]
    assert run["events"][3]["excerpt"] == f"Traceback {shown}" and run["events"][2]["code"] == -9
    assert run["job"]["job"] == "script: train.py\n" and run["job"]["versions"] == {"jfluid": "1"}
    assert run["waits"] == {"server 0": {"t": 1004, "trainers": {"1": [3, 2.5, 40]}}}
    assert run["progress"]["trainer 0\0train"]["total"] == 8
    assert run["compilations"][0]["differ"] == "[3, 2] float32"
    assert run["series"]["trainer 0\0compiling (s)"] == [[1004, None, 0.75]]
    assert [i["png"] for i in run["images"]] == ["AAAA"] and run["histograms"][0]["counts"] == [
        1,
        2,
    ]


def test_lines_of_other_types_are_passed_over(tmp_path):
    wrong = [None, 5, "text", [], {}, [[]], {"a": {}}, True, "NaN", 1e400, 10**400]
    fields = (
        "step scalars description rate seconds differ count total unit metrics "
        "done members png name counts low high nan infinite lines event "
        "label role rank trainers excerpt job versions environment again host code"
    ).split()
    path = tmp_path / "record" / "trainer.0.jsonl"
    path.parent.mkdir()
    with path.open("w") as file:
        for kind in (
            "scalars",
            "progress",
            "usage",
            "waits",
            "image",
            "histogram",
            "compile",
            "dropped",
            "start",
            "event",
            "other",
            "point",
        ):
            for value in wrong:
                for field in fields:
                    good = {
                        "scalars": {"a": 1},
                        "step": 1,
                        "seconds": 1,
                        "total": 1,
                        "png": "AA",
                        "counts": [1],
                        "low": 0,
                        "high": 1,
                        "event": "job",
                    }
                    file.write(json.dumps({"t": 1, "kind": kind, **good, field: value}) + "\n")
    found = Runs([tmp_path])
    found.look()
    told = everything(found)
    assert told["runs"][0]["series"]["trainer 0\0a"]


def test_what_is_new_is_told(job, read):
    before = read.sequence
    assert list(read.updates(before)) == []
    put(job / "record" / "trainer.1.jsonl", ("scalars", 9, {"step": 5, "scalars": {"loss": 7.0}}))
    read.look()
    (text,) = read.updates(before)
    told = json.loads(text)
    assert told["sequence"] == read.sequence == before + 1 and not told["reload"]
    assert told["runs"][0]["series"] == {"trainer 1\0loss": [[1009, 5, 7]]}
    read.look()
    assert list(read.updates(read.sequence)) == []
    # a number of another server, and one from too long ago
    assert json.loads(next(read.updates(10**9)))["reload"]
    for step in range(runs._MOST_UPDATES + 1):
        put(
            job / "record" / "trainer.1.jsonl",
            ("scalars", 9, {"step": step, "scalars": {"loss": 7.0}}),
        )
        read.look()
    assert json.loads(next(read.updates(before)))["reload"]


@pytest.mark.parametrize("how", ["thinned", "gone"])
def test_a_file_that_has_changed_is_read_again(job, read, how):
    path = job / "record" / "trainer.0.jsonl"
    before = read.sequence
    if how == "gone":
        path.unlink()
    else:
        put(path.with_name("other"), ("scalars", 0, {"step": 0, "scalars": {"loss": 3.0}}))
        path.with_name("other").replace(path)
    read.look()
    assert json.loads(next(read.updates(before)))["reload"]
    found = everything(read)["runs"][0]
    assert found["series"].get("trainer 0\0loss") == (None if how == "gone" else [[1000, 0, 3]])
    assert len(found["events"]) == 5


def test_points_and_names_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_MOST_OF_ONE", 100)
    monkeypatch.setattr(runs, "_MOST_SERIES", 3)
    many = [
        ("scalars", step, {"step": step, "scalars": {f"n{step % 5}": 99.0 if step == 555 else 0.0}})
        for step in range(1000)
    ]
    put(tmp_path / "trainer.0.jsonl", *many)
    found = Runs([tmp_path])
    found.look()
    told = everything(found)["runs"][0]["series"]
    assert sorted(told) == ["trainer 0\0n0", "trainer 0\0n1", "trainer 0\0n2"]
    assert all(len(points) <= 100 for points in told.values())
    assert max(p[2] for p in told["trainer 0\0n0"]) == 99 and told["trainer 0\0n0"][-1][1] == 995


def test_of_many_events_the_newest_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_MOST_EVENTS", 3)
    put(tmp_path / "launcher.0.jsonl", *[member("start", rank, rank) for rank in range(9)])
    found = Runs([tmp_path])
    found.look()
    assert [e["rank"] for e in everything(found)["runs"][0]["events"]] == [6, 7, 8]


def test_fewer_points_keep_extremes_and_what_is_not_finite():
    points = [(float(i), i, math.sin(i)) for i in range(1000)]
    points[300], points[301] = (300.0, 300, math.nan), (301.0, 301, 50.0)
    found = series.fewer(points, 50)
    assert len(found) <= 60 and {points[301], points[-1]} <= set(found)
    assert any(math.isnan(p[2]) for p in found) and [p[1] for p in found] == sorted(p[1] for p in found)


def test_runs_have_the_shortest_names_that_tell_them_apart(tmp_path):
    folders = [tmp_path / "a" / "mylog", tmp_path / "b" / "mylog"]
    for folder in folders:
        put(folder / "record" / "trainer.0.jsonl", ("scalars", 0, {"step": 0, "scalars": {"x": 1}}))
    assert [run.name for run in Runs(folders).runs] == ["a/mylog", "b/mylog"]
    assert Runs([folders[0], folders[0]]).runs[1].name.endswith("mylog (1)")


def test_a_folder_without_a_record_is_refused(tmp_path, capsys):
    with pytest.raises(errors.FileFormatError, match=r"expected a record: .*FLAGS_record_dir"):
        Runs([tmp_path])
    assert dashboard.main([str(tmp_path / "none")]) == 2
    assert "expected a record" in capsys.readouterr().err
    Runs([tmp_path], live=True).look()


# ---- logs ----------------------------------------------------------------------------------------


def test_logs_and_searches(job, monkeypatch):
    assert logs.names(job) == ["workerlog.0", "workerlog.1"]
    shown = "<img src=x onerror=alert(1)>\\x1b[2J\\u202e</script>"
    assert logs.tail(job, "workerlog.0").splitlines() == ["first line", shown, "last line"]
    assert logs.tail(job, "workerlog.1") == "short"
    assert logs.search(job, "workerlog.0", "LINE") == "first line\nlast line"
    assert logs.search(job, "workerlog.0", "nothing") == ""
    assert len(logs.search(job, "workerlog.1", "xxx")) < 10_000  # a line of megabytes
    (job / "workerlog.0").write_bytes(b"\x1b[31mred\x1b[0m \xff\n" * 2000)
    assert logs.search(job, "workerlog.0", "red").splitlines() == ["red \ufffd"] * 500
    monkeypatch.setattr(logs, "_PIECE", 7)  # lines that lie across pieces
    (job / "workerlog.0").write_bytes(b"abcdefghijk\nlmnop\n\nqrs")
    assert logs.search(job, "workerlog.0", "m") == "lmnop"
    assert logs.search(job, "workerlog.0", "r") == "qrs"


@pytest.mark.parametrize("name", ["secrets.txt", "../mylog/workerlog.0", "workerlog.0/..", "workerlog.9", "", "record"])
def test_other_files_are_no_logs(job, name):
    for find in (lambda: logs.tail(job, name), lambda: logs.search(job, name, "a")):
        with pytest.raises(ValueError, match="there is no log"):
            find()


# ---- the page ------------------------------------------------------------------------------------


def test_the_page_and_what_it_asks_for(read):
    with served(read) as port:
        status, headers, page = get(port, "/")
        assert status == 200 and b"<title>jfluid" in page
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        for tag in ("script", "style"):
            (text,) = re.findall(rf"<{tag}(?: type=.module.)?>(.*?)</{tag}>", page.decode(), re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert json.loads(get(port, "/data")[2])["runs"][0]["name"] == "mylog"
        assert json.loads(get(port, "/log?run=0")[2])["names"] == ["workerlog.0", "workerlog.1"]
        assert get(port, "/log?run=0&name=workerlog.0&search=first")[2] == b"first line"
        for path in (
            "/log?run=0&name=secrets.txt",
            "/log?run=1&name=workerlog.0",
            "/log?run=x",
            "/table?run=-1",
            "/no",
        ):
            status, _, body = get(port, path)
            assert status == 404 and b"hidden" not in body


def test_the_page_is_put_together_from_text_alone():
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(", exports.page())
    # nothing of another host: the library's first comment names its own
    assert re.findall(r"https?:\S*|@import|url\(|src=", exports.page()) == ["https://github.com/leeoniya/uPlot"]
    assert not re.search(r'\s(on\w+|style)="', exports.page())


def test_modules_of_the_page_import_names_that_exist_and_share_one_scope():
    folder = Path(exports.__file__).parent / "page"
    texts = {path.stem: path.read_text() for path in folder.glob("*.js") if not path.name.startswith("uPlot")}
    declared = re.compile(r"^(export )?(?:async )?(?:function|const|let) ([\w$]+)", re.MULTILINE)
    names = {module: declared.findall(text) for module, text in texts.items()}
    every = [name for found in names.values() for _, name in found]
    assert len(set(every)) == len(every) > 50
    for text in texts.values():
        imports = re.findall(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', text, re.MULTILINE)
        assert len(imports) == text.count("import ")
        for wanted, module in imports:
            assert {*re.findall(r"[\w$]+", wanted)} <= {name for exported, name in names[module] if exported}
    assert not re.search(r"^(import|export) ", exports.script(), re.MULTILINE)
    assert all(f"function {name}(" in exports.script() for name in ("drawCharts", "drawSteps", "showLog", "drawJobs"))
    assert (folder / "uPlot.LICENSE").read_text() in exports.script()


def test_events_follow_what_is_written(job, read):
    with served(read) as port, socket.create_connection(("127.0.0.1", port), LIMIT) as connection:
        connection.sendall(f"GET /events?since={read.sequence} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = connection.makefile("rb")
        while answer.readline().strip():
            pass  # the head
        put(
            job / "record" / "trainer.0.jsonl",
            ("scalars", 9, {"step": 5, "scalars": {"loss": 7.0}}),
        )
        read.look()
        text = next(line for line in answer if line.startswith(b"data: "))
        assert json.loads(text[6:])["runs"][0]["series"] == {"trainer 0\0loss": [[1009, 5, 7]]}


def test_browsers_that_hang_keep_nobody_from_the_page(read):
    with served(read) as port, contextlib.ExitStack() as stack:
        for _ in range(30):
            hung = stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT))
            hung.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        begin = time.process_time()
        assert get(port, "/data")[0] == 200
        assert time.process_time() - begin < 1


@pytest.mark.parametrize("host", ["example.com", "localhost.example.com", "127.0.0.1.nip.io:80", "", "0.0.0.0"])
def test_a_page_of_another_site_sees_nothing(read, host):
    with served(read) as port:
        status, _, body = get(port, "/data", Host=host)
        assert status in (400, 403) and b"loss" not in body
        for own in ("localhost", f"127.0.0.1:{port}", "[::1]:1"):
            assert get(port, "/data", Host=own)[0] == 200


def test_with_a_key_nobody_else_sees_anything(read):
    access = address.access_of("0.0.0.0", "a-secret-of-the-tests")
    key, token = access
    assert not {key, token} & {*address.access_of("::", "another-secret-of-tests")} and key != token
    with served(read, access) as port:
        for path in (
            "/",
            "/data",
            "/events",
            "/log?run=0&name=workerlog.0",
            "/export",
            "/table",
            "/?key=",
            f"/?key={key}x",
        ):
            status, headers, body = get(port, path)
            assert status == 401 and b"loss" not in body and not headers["set-cookie"]
        assert get(port, "/data", Cookie=f"jfluid-dashboard-{port}=wrong")[0] == 401
        status, headers, body = get(port, f"/?key={key}")
        assert (status, headers["location"]) == (303, "/") and not body
        assert "HttpOnly" in headers["set-cookie"] and "SameSite=lax" in headers["set-cookie"]
        cookie = headers["set-cookie"].partition(";")[0]
        assert get(port, "/data", Cookie=cookie)[0] == 200
        assert get(port, "/data", Cookie=cookie, Host="node-17")[0] == 200  # a name of this host
        for given in (key, f"Bearer {key}", f"Bearer {token}x", token, "Bearer \xff"):
            assert get(port, "/metrics", Authorization=given)[0] == 401
        bearer = f"Bearer {secret.metrics_token('a-secret-of-the-tests')}"
        assert b"jfluid_logged" in get(port, "/metrics", Authorization=bearer)[2]
        assert get(port, "/data", Authorization=bearer)[0] == 401


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.8.8.8"])
def test_only_this_machine_needs_no_key(host):
    assert address.access_of(host, "a-secret-of-the-tests") is None


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "node"])
def test_others_need_one(host):
    assert address.access_of(host, "a-secret-of-the-tests") is not None


# ---- metrics -------------------------------------------------------------------------------------


def test_metrics_of_all_processes(job, read):
    read.runs.append(Run(job, "again"))
    read.look()
    with served(read) as port:
        status, headers, body = get(port, "/metrics")
        assert status == 200 and headers["content-type"].startswith("text/plain")
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }

    def value(metric, process, /, **labels):
        labels = {"run": "mylog", "process": process, **labels}
        return found[metric, *sorted((k, v) for k, v in labels.items() if v)]

    assert value("jfluid_process_running", "trainer 0") == 1
    assert value("jfluid_process_running", "trainer 1") == 0
    assert value("jfluid_process_running", "trainer 1", run="again") == 0
    assert value("jfluid_process_starts_total", "trainer 1") == 1
    assert value("jfluid_process_memory_bytes", "trainer 0") == 5e6
    assert value("jfluid_process_cpu_seconds_total", "trainer 0") == 1.5
    assert value("jfluid_logged", "trainer 0", name="loss") == 1
    assert value("jfluid_step", "trainer 0", loop="train") == 4
    assert value("jfluid_examples_per_second", "trainer 0", loop="train") == 2.5
    assert value("jfluid_round_waits_total", "server 0", trainer="1") == 3
    assert value("jfluid_round_wait_seconds_total", "server 0", trainer="1") == 2.5
    assert value("jfluid_round_pending_seconds", "server 0", trainer="1") == 40
    assert value("jfluid_failures_total", None) == 1
    assert body.count(b"# TYPE jfluid_step ") == 1


def test_the_board_asks_for_metrics_that_there_are(read):
    board = json.loads((Path(__file__).parents[2] / "configs" / "grafana.json").read_text())
    asked = " ".join(t["expr"] for panel in board["panels"] for t in panel.get("targets", ()))
    known = set()
    for held in (registry(read), ServerMetrics(Store()).registry):
        for family in held.collect():
            known |= {
                family.name,
                *(family.name + end for end in ("_total", "_sum", "_count", "_bucket")),
            }
    wanted = set(re.findall(r"\bjfluid_\w+", asked))
    assert wanted <= known and len(wanted) > 10
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
    assert len(set(places)) == len(places) and len({p["id"] for p in board["panels"]}) == len(places)


def test_what_a_thread_reads_is_served(job):
    found = Runs([job])
    found.watch()
    wait_until(lambda: not found.reading)
    put(job / "record" / "trainer.0.jsonl", ("scalars", 9, {"step": 5, "scalars": {"new": 7.0}}))
    wait_until(lambda: "trainer 0\0new" in everything(found)["runs"][0]["series"])


def test_a_run_without_a_launcher(tmp_path):
    put(tmp_path / "trainer.0.jsonl", ("scalars", 0, {"step": 0, "scalars": {"x": 1}}))
    run = Run(tmp_path, "x")
    assert list(run.look()) and run.job == {} and ("trainer 0", "x") in run.series


def test_points_that_are_thinned_often_stay_evenly_apart():
    held = series.Series()
    for i in range(5000):
        held.add((float(i), i, math.sin(i)), 200)
    times = [time for time, _, _ in held.points]
    gaps = [b - a for a, b in zip(times, times[1:])]
    assert len(held.points) <= 200 and max(gaps) < 300
    assert json.loads(held.few(1000)) == [[round(time, 3), step, value] for time, step, value in held.points]
    before = json.loads(held.few(20))
    held.add((5000.0, 5000, math.nan), 1000)
    assert json.loads(held.few(20)) == [*before, [5000.0, 5000, "NaN"]] and len(before) <= 30


@pytest.mark.parametrize("times", [[5.0] * 500, [float(i % 2) for i in range(500)], [-1e308, 1e308] * 250])
def test_times_in_any_order_are_bounded(times):
    assert len(series.fewer([(time, i, float(i)) for i, time in enumerate(times)], 50)) <= 60

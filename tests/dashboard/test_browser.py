"""The page in a real browser: Debian's chromium, where there is one with its driver."""

import contextlib
import gzip
import itertools
import json
import re
import time
from pathlib import Path

import pytest

from jfluid.command import main
from jfluid.dashboard.runs import Runs
from jfluid.record.phases import NAMES, PREFIX, REST
from tests import browser
from tests.dashboard.test_dashboard import BEGIN, HOSTILE, job, member, put, served  # noqa: F401
from tests.launch.test_record import LOGS, get, link_of
from tests.launch_case import PROLOGUE, Launcher, wait_until, write
from tests.slow_tests import nightly_but

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(browser.BROWSER is None or browser.DRIVER is None, reason=browser.LACKING),
]
TEXT = "<img src=x onerror=alert(1)>\\x1b[2J\\u202e</script>"


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    with browser.started(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def page(driven):
    """The browser, which must have complained of nothing in the end."""
    driven.complaints()
    driven.size(1200, 900)
    driven.scheme("light")
    yield driven
    driven.open("about:blank")


def texts(page, selector):
    return page.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)", selector)


@contextlib.contextmanager
def shown(page, *folders, size=(1200, 900)):
    """The page of the records in folders is open, and complains of nothing."""
    found = Runs(folders)
    found.look()
    with served(found) as port:
        page.size(*size)
        page.open(f"http://127.0.0.1:{port}/")
        wait_until(lambda: page.run("return performance.getEntriesByName('drawn').length > 0"))
        yield
        assert page.complaints() == []
        page.open("about:blank")
        wait_until(lambda: found.listeners == 0)


def test_the_kept_page_shows_all_and_runs_nothing_of_others(page, job, tmp_path):  # noqa: F811
    kept = tmp_path / "run.html"
    assert main(["dashboard", str(job), "--export", str(kept)]) == 0
    page.open(kept.as_uri())
    rows = page.run(
        "return [...document.querySelectorAll('#rows tr')].map((r) => "
        "[r.cells[0].innerText, r.cells[2].className, r.cells[2].innerText])"
    )
    assert rows == [["trainer 0", "quiet", "ended"], ["trainer 1", "bad", "failed: signal SIGKILL"]]
    assert page.text("#problem").startswith("rank 1 failed first (signal SIGKILL)")
    # the charts of hostile names, and their traceback
    assert TEXT in texts(page, "figcaption span")
    page.click("#events details summary")
    assert page.text("#events details pre") == f"Traceback {TEXT}"
    assert page.run("return document.querySelectorAll('img[src=x]').length") == 0
    labels = page.run("return [...document.querySelectorAll('.curve')].map((c) => c.getAttribute('aria-label'))")
    assert any(label and label.startswith("loss, newest: trainer 0: 1") for label in labels)
    assert page.complaints() == []
    assert "script: train.py" in page.text("#job pre")
    data = page.run("return document.getElementById('data').textContent")
    assert json.loads(data)["runs"] and HOSTILE not in page.run("return document.body.innerText")


def test_a_job_whose_trainer_is_killed_while_the_page_is_open(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = LOGS + "ready()\nwait_for('go')\nif rank: raise RuntimeError('out of <b>coffee</b>')\ntime.sleep(1000)"
    write("train.py", PROLOGUE + script)
    with Launcher("--dashboard", "--cpus", "2", "train.py", forks=True) as launcher:
        page.open(link_of(launcher).group(0))
        wait_until(lambda: texts(page, "#rows td.good") == ["running"] * 2)
        assert page.text("#states") == "running"
        write("go", "")
        wait_until(lambda: "rank 1 failed first (exit code 1)" in page.text("#problem"))
        wait_until(lambda: texts(page, "#rows td.bad") == ["failed: exit code 1"])
        red = page.run("return getComputedStyle(document.querySelector('#rows td.bad')).color")
        assert red == "rgb(196, 24, 42)"
        page.click("#events li.bad details summary")
        assert "RuntimeError: out of <b>coffee</b>" in page.text("#events li.bad pre")
        launcher.communicate()
    wait_until(lambda: page.text("#link") == "not connected")


@pytest.mark.nightly
def test_the_page_of_the_click_model_while_it_trains(page, tmp_path, monkeypatch):
    """configs/ctr_dnn.yaml with less data: losses, step times, tables and logs of the page come while the job runs."""
    monkeypatch.chdir(Path(__file__).parents[2])
    less = {"args.lines": 8192, "args.test_lines": 1024, "args.epochs": 2, "args.largest_gap": 1}
    folders = {"args.output_dir": tmp_path / "out", "log_dir": tmp_path / "log"}
    settings = [part for name, value in (less | folders).items() for part in ("--set", f"{name}={value}")]
    with Launcher("--dashboard", "configs/ctr_dnn.yaml", *settings) as launcher:
        page.open(link_of(launcher).group(0))
        wait_until(lambda: texts(page, "#rows td.good") == ["running"] * 4)
        roles = [row.split()[0] for row in texts(page, "#rows tr")]
        assert sorted(roles) == ["server", "server", "trainer", "trainer"]
        curves = "return [...document.querySelectorAll('.curve')].map((c) => c.getAttribute('aria-label') || '')"
        wait_until(lambda: any("loss" in label for label in page.run(curves)))
        wait_until(lambda: "categories" in page.text("#servers"))
        assert page.complaints() == []
        launcher.communicate()
    assert launcher.returncode == 0
    wait_until(lambda: page.text("#link") == "not connected")


def test_the_profile_button_brings_a_trace_back(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = """
from jfluid import record
from jfluid.record.phases import PHASES
record.current()
while not os.path.exists("stop"):
    with PHASES.phase("compute"):
        time.sleep(0.02)
    PHASES.step()
"""
    write("train.py", PROLOGUE + script)
    with Launcher("--dashboard", "--cpus", "2", "train.py", forks=True) as launcher:
        link = link_of(launcher)
        page.open(link.group(0))
        wait_until(lambda: page.run("return !document.querySelector('#profiling').closest('[hidden]')"))
        page.click("#profile")
        wait_until(lambda: "the next 10 steps are profiled" in page.text("#profilenote"))
        wait_until(lambda: "profile: " in page.text("#events") and texts(page, "#events a"))
        (name,) = texts(page, "#events a")
        address = page.run("return document.querySelector('#events a').getAttribute('href')")
        status, body = get(int(link.group(1)), address)
        assert status == 200 and (tmp_path / "mylog" / name).read_bytes() == body
        found = json.loads(gzip.decompress(body))["traceEvents"]
        assert {e["args"]["name"] for e in found if e["name"] == "process_name"} == {"trainer 0", "trainer 1"}
        for process in {e["pid"] for e in found}:
            assert sum(e["name"] == "compute" for e in found if e["pid"] == process) >= 10
        assert page.complaints() == []
        write("stop", "")
        launcher.communicate()
    assert launcher.returncode == 0


def test_a_restart(page, tmp_path):
    put(
        tmp_path / "launcher.0.jsonl",
        ("event", 0, {"event": "job", "name": "train", "job": "script: train.py\n"}),
        member("start", 0, 1, pid=7),
        member("exit", 0, 2, code=1, reason="exit code 1"),
        member("restart", 0, 2, reason="exit code 1", excerpt="Traceback\nValueError: once", left=1),
        member("start", 0, 3, pid=8),
        member("exit", 0, 4, code=0, reason="exit code 0"),
        ("event", 5, {"event": "end", "code": 0, "signals": []}),
    )
    with shown(page, tmp_path):
        (row,) = texts(page, "#rows tr")
        assert re.search(r"trainer 0\s+finished\s+1\b", row), row
        page.click("#events details summary")
        assert "ValueError: once" in page.text("#events details pre")
        page.click("#problems")
        assert all("starts" not in text or "again" in text for text in texts(page, "#events li"))


def test_two_runs_in_one_chart_and_what_differs_in_their_job_files(page, tmp_path):
    for number, rate in enumerate(("0.5", "<b>5</b>")):
        folder = tmp_path / f"run{number}"
        text = f"script: train.py\nargs:\n  rate: {rate}\n  size: 3\n"
        put(folder / "launcher.0.jsonl", ("event", 0, {"event": "job", "name": "train", "job": text}))
        put(
            folder / "trainer.0.jsonl",
            *[("scalars", t, {"step": t, "scalars": {"loss": t + number}}) for t in range(9)],
        )
    with shown(page, tmp_path / "run0", tmp_path / "run1"):
        assert texts(page, "#charts figcaption span") == ["loss"]
        assert texts(page, "#charts .legend li") == ["run0, trainer 0: 8", "run1, trainer 0: 9"]
        cells = page.run(
            "return [...document.querySelectorAll('#differences tr')].map((r) => r.innerText.split('\\t'))"
        )
        assert cells == [["", "run0", "run1"], ["args.rate", "0.5", "<b>5</b>"]]


def test_a_job_that_compiles_at_each_step(page, tmp_path):
    lines = [
        ("compile", n, {"seconds": 0.5, "count": n, "total": n / 2, "differ": f"[{n}, 7] float32"})
        for n in range(1, 30)
    ]
    put(tmp_path / "trainer.0.jsonl", *lines)
    with shown(page, tmp_path):
        rows = texts(page, "#compiled tr")
        assert len(rows) == 29 and "[29, 7] float32" in rows[0]
        assert {"compilations", "compiling (s)"} <= {*texts(page, "#charts figcaption span")}


def test_servers_their_tables_and_the_trainers_that_they_wait_for(page, tmp_path):
    now = time.time() - BEGIN
    for server in (0, 1):
        numbers = {"rounds": 7, "calls/s: Pull": 2.5, "calls/s: Push": 2, "waiting for others: round": 0.25}
        table = {"rows of w": 90 + server, "MB of w": 1.5, "rows made of w": 100, "rows expired of w": 10 - server}
        put(
            tmp_path / f"server.{server}.jsonl",
            ("scalars", now, {"step": None, "scalars": numbers | table | {"staleness of w": 0.5}}),
            ("waits", now, {"trainers": {"0": [2, 0.5, 0], "1": [5, 30.25, 40 + server]}}),
        )
    with shown(page, tmp_path):
        cells = page.run(
            "return ['serverrows', 'tablerows', 'waitrows'].map((id) => [...document.getElementById(id).rows]"
            ".map((row) => [...row.cells].map((cell) => cell.innerText)))"
        )
        assert cells == [
            [[f"server {server}", "4.5", "7", "0.25"] for server in (0, 1)],
            [
                [f"server {server}", "w", str(90 + server), "1.5", "100", str(10 - server), "", "0.5"]
                for server in (0, 1)
            ],
            [
                ["trainer 1", "10", "60.5", "for 41 s", "server 0, server 1"],
                ["trainer 0", "4", "1", "", "server 0, server 1"],
            ],
        ]


def of_ranks(folder, ranks):
    """A job of many ranks, of which the last one has failed."""
    put(
        folder / "launcher.0.jsonl",
        ("event", 0, {"event": "job", "name": "many", "job": "script: train.py\n"}),
        *[member("start", rank, 1, pid=rank) for rank in range(ranks)],
        ("event", 90, {"event": "snapshot", "label": "server 0", "reason": "round 4, 10 rows, 0.1 s"}),
        member("exit", ranks - 1, 99, code=1, reason="exit code 1"),
        (
            "event",
            99,
            {"event": "failure", "label": f"rank {ranks - 1}", "code": 1, "reason": "exit code 1", "again": False},
        ),
    )
    tree = {"name": "program", "ops": 3, "reads": [], "children": []}
    tree["children"] = [
        {
            "name": "forward",
            "ops": 2,
            "reads": [],
            "children": [{"name": HOSTILE, "ops": 2, "reads": [], "children": []}],
        },
        {"name": "backward", "ops": 1, "reads": ["forward"], "children": []},
    ]
    for rank in range(ranks):
        phases = {PREFIX + name: 1.0 + rank / ranks for name in (*NAMES, REST)}
        report = {"description": "train", "total": 200, "rate": 10.0, "metrics": {"loss": 0.5}, "done": False}
        put(
            folder / f"trainer.{rank}.jsonl",
            ("program", 1, {"fingerprint": "a", "tree": tree}),
            *[("scalars", t, {"step": t, "scalars": {"loss": 1 / (t + 1)}}) for t in range(0, 100, 10)],
            *[("scalars", t, {"step": None, "scalars": phases}) for t in range(0, 100, 10)],
            ("progress", 98, {**report, "step": 98}),
        )


# (colours, ranks, size of the window): at night all combinations
VIEWS = list(itertools.product(["light", "dark"], [2, 200], ["desktop", "phone"]))
FEW_VIEWS = [("light", 200, "phone"), ("dark", 200, "desktop"), ("light", 2, "desktop"), ("dark", 2, "phone")]
SIZES = {"desktop": (1200, 900), "phone": (390, 844)}


@pytest.mark.parametrize("view", nightly_but(FEW_VIEWS, VIEWS), ids=lambda view: "-".join(map(str, view)))
def test_jobs_of_2_and_of_200_ranks(page, tmp_path, view):
    scheme, ranks, size = view[0], view[1], SIZES[view[2]]
    of_ranks(tmp_path, ranks)
    page.scheme(scheme)
    with shown(page, tmp_path, size=size):
        assert page.run("return document.documentElement.dataset.theme") == scheme
        assert page.run("return document.documentElement.scrollWidth") == size[0]  # nothing sticks out
        assert page.text("#counts") == f"{ranks} processes, 1 failed"
        wait_until(lambda: len(texts(page, "#phaserows tr")) == len(texts(page, "#rows tr")) == ranks)
        assert texts(page, "#phases li") == [*NAMES, REST]
        assert page.run("return document.querySelectorAll('#phaserows tr:first-child .stackbar span').length") == 6
        assert "snapshot of server 0 (round 4, 10 rows, 0.1 s)" in page.text("#events")
        assert f"rank 0 to rank {ranks - 1} ({ranks} processes) start" in page.text("#events")
        page.click("#unfold")
        tree = page.text("#tree")
        assert "backward: 1 operator reads forward" in tree and f"{TEXT}: 2 operators" in tree
        contrast = page.run(
            "const c = (n) => getComputedStyle(document.documentElement).getPropertyValue(n).trim().slice(1);"
            "const f = (h) => (h.length === 3 ? [...h].map((x) => x + x) : h.match(/../g)).map((x) => parseInt(x, 16) "
            "/ 255).map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);"
            "const l = (h) => { const [r, g, b] = f(h); return .2126 * r + .7152 * g + .0722 * b; };"
            "return ['--text', '--quiet', '--bad', '--good', '--warn', '--accent'].map((n) => {"
            "const [a, b] = [l(c(n)), l(c('--card'))].sort((x, y) => y - x); return (a + .05) / (b + .05); });"
        )
        assert min(contrast) >= 4.5  # WCAG AA


def test_the_page_by_keyboard_and_for_screen_readers(page, tmp_path):
    of_ranks(tmp_path, 2)
    with shown(page, tmp_path):
        page.run(
            "const c = document.querySelector('.curve'); c.focus();"
            "c.dispatchEvent(new KeyboardEvent('keydown', {key: 'Home', bubbles: true}))"
        )
        assert page.text("#charts .read") == "1 at step 0"
        unnamed = page.run(
            "return [...document.querySelectorAll('button, select, input, canvas, section, [role=img], "
            "[role=region]')].filter((e) => !e.parentElement.closest('[role=img]') && "
            "!e.hidden && !e.closest('[hidden]') && !e.getAttribute('aria-label') && "
            "!e.getAttribute('aria-labelledby') && "
            "!e.closest('label') && !e.innerText).map((e) => e.outerHTML.slice(0, 80))"
        )
        assert unnamed == []


def test_a_chart_is_saved_as_png_and_takes_colours_and_width_of_the_page(page, tmp_path):
    lines = [("scalars", t, {"step": t, "scalars": {f"value {n}": t for n in range(20)}}) for t in range(9)]
    huge = [("scalars", t, {"step": t, "scalars": {"huge": [1.7e308, -1.7e308][t % 2]}}) for t in range(9)]
    put(tmp_path / "trainer.0.jsonl", *lines, *huge)
    size = "[...document.querySelectorAll('.curve canvas')].map((c) => c.clientWidth - c.closest('.curve').clientWidth)"
    pixel = (
        "[...document.querySelectorAll('.curve canvas')].map((c) => "
        "[...c.getContext('2d').getImageData(1, 1, 1, 1).data].join())"
    )
    blue = (
        "[...document.querySelector('.curve canvas').getContext('2d').getImageData(60, 0, 999, 160).data]"
        ".filter((v, i) => i % 4 === 2 && v > 150).length"
    )
    with shown(page, tmp_path):
        page.run("scrollTo(0, document.body.scrollHeight)")  # charts that were seen, and are not shown now
        wait_until(lambda: page.run(f"return {pixel}.length") == 21)
        page.size(390, 844)
        page.click("#theme")
        wait_until(lambda: page.run(f"return {{...{size}}}") == {str(n): 0 for n in range(21)})
        assert set(page.run(f"return {pixel}")) == {"22,27,34,255"}
        assert page.run(f"return {blue}") > 50  # a line of numbers whose distance is no number
        page.run(
            "const make = URL.createObjectURL; URL.createObjectURL = (blob) => make((window.blob = blob));"
            "HTMLAnchorElement.prototype.click = function () { window.saved = this; };"
            "document.querySelector('figcaption button').click()"
        )
        wait_until(lambda: page.run("return window.saved !== undefined"))
        assert page.run("return saved.download") == "huge.png"
        head = page.run("return blob.arrayBuffer().then((data) => [...new Uint8Array(data, 0, 8)])")
        assert all("willReadFrequently" in line for line in page.complaints())  # of getImageData
        assert bytes(head) == b"\x89PNG\r\n\x1a\n"


def test_the_page_of_an_hour_loads_within_a_second_of_the_processor(page, tmp_path):
    """An hour of 2 ranks, each of which has filled its file."""
    put(tmp_path / "launcher.0.jsonl", ("event", 0, {"event": "job", "name": "hour", "job": "script: train.py\n"}))
    for rank in (0, 1):
        lines = [("scalars", t, {"step": t, "scalars": {"loss": 1 / (t + 1), "auc": t / 3600}}) for t in range(3600)]
        put(tmp_path / f"trainer.{rank}.jsonl", *lines)
    spent = []
    for _ in range(3):
        page.command("Performance.enable", {"timeDomain": "threadTicks"})
        with shown(page, tmp_path):
            metrics = {m["name"]: m["value"] for m in page.command("Performance.getMetrics", {})["metrics"]}
            spent.append(metrics["TaskDuration"])
        page.command("Performance.disable", {})
    assert min(spent) < 1, spent

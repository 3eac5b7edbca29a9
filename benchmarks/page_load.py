"""Seconds until a browser has painted the page of a job with an hour of history.

    python benchmarks/page_load.py [--ranks 2] [--seconds 3600] [--tries 5]

The record has three values of each rank and second, and the phases of steps. The page is served when the record has
been read, as in a job that has run for an hour. Each figure is from the start of the navigation until the frame after
the first drawing (lower is better); the first is that of a fresh browser. The tests' browser is needed (chromium and
chromedriver).
"""

import argparse
import math
import tempfile
import time
from pathlib import Path

from jfluid.dashboard.runs import Runs
from jfluid.record.phases import NAMES, PREFIX, REST
from tests import browser
from tests.dashboard.test_dashboard import member, put, served


def write(folder, ranks, seconds):
    """Write the record of a job."""
    job = ("event", 0, {"event": "job", "name": "hour", "job": "script: train.py\n"})
    put(folder / "launcher.0.jsonl", job, *[member("start", rank, 1, pid=rank) for rank in range(ranks)])
    phases = {PREFIX + name: 1.0 for name in (*NAMES, REST)}
    for rank in range(ranks):
        lines = []
        for t in range(seconds):
            values = {"loss": 1 / (t + 1), "auc": t / seconds, "rate": math.sin(t / 50)}
            lines += [("scalars", t, {"step": t, "scalars": values}), ("scalars", t, {"step": None, "scalars": phases})]
        put(folder / f"trainer.{rank}.jsonl", *lines)


def painted(page, port):
    """Open the page; return the seconds until it was painted."""
    page.open("about:blank")
    page.open(f"http://127.0.0.1:{port}/")
    found = None
    while found is None:
        time.sleep(0.05)
        found = page.run("return performance.getEntriesByName('drawn')[0]?.startTime ?? null")
    return found / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--tries", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "record"
        write(folder, options.ranks, options.seconds)
        size = sum(path.stat().st_size for path in folder.iterdir())
        runs = Runs([folder])
        runs.look()
        runs.everything()
        with served(runs) as port, browser.started(Path(name)) as page:
            page.size(1200, 900)
            found = [painted(page, port) for _ in range(options.tries)]
            page.open("about:blank")
    print(f"{options.ranks} ranks, {options.seconds} s, {size / 1e6:.0f} MB: ", end="")
    print(" ".join(f"{seconds:.2f}" for seconds in found), "s")


if __name__ == "__main__":
    main()

"""Processor time of a launcher and of its page, for a job of many simulated ranks.

    python benchmarks/page_cost.py [--ranks 200] [--seconds 60] [--hung 5] [--browsers 1]

One process stands for all ranks: of each rank it writes the record (a loss at each of 10 steps a second, memory, the
phases of steps) and sends reports of progress, as often as a rank of a job of this size does. This process is the
launcher: it reads the reports, writes logs, and records the memory of 200 processes every 10 s. The page is served as
in a job. `--browsers` follow its events, `--hung` connect to the events and never read. Figures are cores: seconds of
processor time (user and system) for each second; lower is better.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

from jfluid import launcher_pipe, record
from jfluid.launch import page
from jfluid.launch.command import parse
from jfluid.launch.gang import Member
from jfluid.launch.logs import Log
from jfluid.launch.output import Console, MemberOutput
from jfluid.launch.recording import JobRecord
from jfluid.progress import _LONGEST_BETWEEN_UPDATES, _MOST_UPDATES_A_SECOND
from jfluid.record.phases import NAMES, PREFIX
from jfluid.record.writer import Recorder

_SECONDS_TO_SETTLE, _SECONDS_BETWEEN_USAGES, _SECONDS_BETWEEN_LOOKS = 10.0, 10.0, 0.05


def ranks(folder, pipes):
    """Be all ranks: write the records, and send reports into the pipes."""
    count = len(pipes)
    phases = {PREFIX + name: 0.1 for name in NAMES}
    every = min(max(0.1, count / _MOST_UPDATES_A_SECOND), _LONGEST_BETWEEN_UPDATES)
    recorders = [
        Recorder(record.file_of(folder, "trainer", rank), False, {"role": "trainer"}, numbers=phases.copy, ranks=count)
        for rank in range(count)
    ]
    begin, step, reported = time.monotonic(), 0, 0.0
    while os.getppid() != 1:
        step += 1
        due = time.monotonic() - begin >= reported + every
        reported += every * due
        for pipe, recorder in zip(pipes, recorders):
            recorder.scalars(step, {"loss": 1 / step})
            if due:
                report = {"description": "train", "step": step, "total": 100_000, "rate": 640.0, "unit": "examples"}
                report |= {"seconds": step / 10, "metrics": {"loss": 1 / step}, "done": False}
                launcher_pipe.send(pipe, report)
                recorder.add("progress", report)
        time.sleep(max(begin + step / 10 - time.monotonic(), 0))


def spent(process):
    """Processor seconds of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def runs_of(port):
    """The state of the run that the page shows."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", "/data")
        return json.loads(connection.getresponse().read())["runs"][0]


def follow(port):
    """Read the page and then its events, as a browser does."""
    runs_of(port)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/events?since=0")
    answer = connection.getresponse()
    with contextlib.suppress(OSError, http.client.HTTPException):
        while answer.readline():
            pass


def launch(count, seconds, browsers, hung, stack):
    """Be the launcher for some seconds; return the cores that it and its page took."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    (folder / "train.py").touch()
    job = parse(["--log_dir", str(folder), "--dashboard", str(folder / "train.py")]).job
    held = stack.enter_context(contextlib.closing(JobRecord(job, 0)))
    links = []
    with mock.patch.object(page, "announce", links.append):
        shown = page.Page(job, "a secret of this benchmark")
    stack.callback(shown.close)
    port = int(re.search(r":(\d+)/", links[0])[1])
    console = Console(lambda member: False, True, False)
    selector, pipes = selectors.DefaultSelector(), []
    for rank in range(count):
        member = Member("trainer", rank, (), {}, folder / f"workerlog.{rank}")
        reads, writes = os.pipe()
        pipes.append(writes)
        log = Log(member.log, False, 1 << 20, 1, print)
        selector.register(reads, selectors.EVENT_READ, MemberOutput(member, log, console).reports)
        held.event("start", member, pid=os.getpid())
    child = subprocess.Popen([sys.executable, __file__, "--be-ranks", str(folder), *map(str, pipes)], pass_fds=pipes)
    stack.callback(child.wait)
    stack.callback(child.kill)
    for _ in range(browsers):
        threading.Thread(target=follow, args=(port,), daemon=True).start()
    for _ in range(hung):
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    begin, usage_at, before = time.monotonic() + _SECONDS_TO_SETTLE, 0.0, None
    now = time.monotonic()
    while now < begin + seconds:
        if before is None and now >= begin:
            before = time.process_time(), spent(shown._process.pid)
        for key, _ in selector.select(_SECONDS_BETWEEN_LOOKS):
            key.data(os.read(key.fd, 1 << 16))
        if now >= usage_at:
            usage_at = now + _SECONDS_BETWEEN_USAGES
            held.usage({f"rank {rank}": os.getpid() for rank in range(count)})
        now = time.monotonic()
    found = (time.process_time() - before[0]) / seconds, (spent(shown._process.pid) - before[1]) / seconds
    assert len(runs_of(port)["series"]) >= 5 * count  # the page has read the records
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--browsers", type=int, default=0)
    parser.add_argument("--hung", type=int, default=0)
    parser.add_argument("--be-ranks", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be_ranks:
        ranks(options.be_ranks[0], [int(pipe) for pipe in options.be_ranks[1:]])
        return
    with contextlib.ExitStack() as stack:
        launcher, served = launch(options.ranks, options.seconds, options.browsers, options.hung, stack)
    print(f"{options.ranks} ranks, {options.browsers} browsers, {options.hung} that hang: ", end="")
    print(f"the launcher took {launcher:.3f} cores, the process of the page {served:.3f}")


if __name__ == "__main__":
    main()

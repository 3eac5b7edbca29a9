"""Rows a second of a sparse table, in this process and behind a server on this machine, and what a
row costs in memory.

    python benchmarks/tables.py [--rows 1000000] [--seconds 3] [--json FILE]
    python benchmarks/tables.py --grow 100000000        also fill a table so far: rate of inserts, bytes a row

Rows have 16 floats (8 with --grow) and Adagrad. In process, two threads share the table, as two
cores can; the server is a process of its own, asked by one client for 13000 distinct ids at a time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from jfluid.ps_server import specs
from jfluid.ps_server.client import Client
from jfluid.ps_server.table import SparseTable
from jfluid.security.secret import job_secret

BATCH = 13_000
FOUND = {}  # what was printed


def spec(width, optimizer=None):
    return specs.TableSpec(
        name="t",
        width=width,
        initializer=specs.Uniform(low=-0.1, high=0.1),
        optimizer=optimizer or specs.Adagrad(learning_rate=0.1),
    )


def ids_of(rows):
    return np.unique(np.random.RandomState(0).randint(-(2**63), 2**63 - 1, rows, np.int64))


def rate(function, seconds, threads=1):
    """Millions of rows a second of `function(random state)`, which returns how many rows it handled:
    the median of five parts, the lowest, the highest.
    """
    rates = []
    for part in range(5):
        done, end = [0] * threads, time.perf_counter() + seconds / 5

        def work(i, part=part, done=done, end=end):
            rng = np.random.RandomState(10 * part + i)
            while time.perf_counter() < end:
                done[i] += function(rng)

        start = time.perf_counter()
        workers = [threading.Thread(target=work, args=[i]) for i in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        rates.append(sum(done) / (time.perf_counter() - start) / 1e6)
    return sorted(rates)[2], min(rates), max(rates)


def batches_of(ids, count=64):
    rng = np.random.RandomState(1)
    return [ids[rng.permutation(len(ids))[:BATCH]] for _ in range(count)]


def row(what, value, unit, goal=None, digits=1):
    """Print and keep a figure.

    Args:
        value: a number, or (the median, the lowest, the highest).
        goal: in the same unit.
    """
    median, *spread = value if isinstance(value, tuple) else (value,)
    text = "%.*f %s" % (digits, median, unit)
    if spread:
        text += " (%.*f to %.*f)" % (digits, spread[0], digits, spread[1])
    print("| %s | %s | %s |" % (what, text, "" if goal is None else "%g" % goal), flush=True)
    FOUND[what] = {"value": median, "unit": unit, "goal": goal, "text": text}


def in_process(ids, seconds):
    table, batches, gradients = (
        SparseTable(spec(16)),
        batches_of(ids),
        np.ones((BATCH, 16), np.float32),
    )
    for part in np.array_split(ids, 50):
        table.look_up(part)
    table.push(batches[0], gradients, merged=True)

    def look_up(rng):
        return len(table.look_up(batches[rng.randint(len(batches))]))

    def push(rng):
        table.push(batches[rng.randint(len(batches))], gradients, merged=True)
        return BATCH

    for threads in (1, 2):
        of = "in process, %d thread%s" % (threads, "s" * (threads > 1))
        row(
            "look-ups, " + of,
            rate(look_up, seconds, threads),
            "M rows/s",
            10 if threads == 2 else None,
        )
        row(
            "Adagrad pushes, " + of,
            rate(push, seconds, threads),
            "M rows/s",
            6 if threads == 2 else None,
        )


def descent(values, slots, gradients):
    values -= 0.1 * gradients
    return values, slots


def by_function(ids, seconds):
    """Updates that the caller computes: what gathering, calling and writing back cost."""
    optimizer = specs.Program(learning_rate=0.1, slots=[specs.SlotSpec(name="moment")])
    table, batches, gradients = (
        SparseTable(spec(16, optimizer)),
        batches_of(ids),
        np.ones((BATCH, 16), np.float32),
    )
    for part in np.array_split(ids, 50):
        table.look_up(part)
    table.update(batches[0], gradients, descent, merged=True)

    def update(rng):
        table.update(batches[rng.randint(len(batches))], gradients, descent, merged=True)
        return BATCH

    row(
        "updates by a NumPy function, in process, 1 thread",
        rate(update, seconds),
        "M rows/s",
    )


def whole_tables(ids):
    """Values put in by the caller, and all rows read out."""
    table, values = SparseTable(spec(10)), np.ones((len(ids), 10), np.float32)
    small = SparseTable(spec(10))
    small.assign(ids[:10], values[:10])  # kernels are compiled
    sum(len(some) for some, _ in small.items())
    for what in ("to new rows", "again"):
        start = time.perf_counter()
        table.assign(ids, values)
        row(
            "assign %d rows of 10 floats at once, %s" % (len(ids), what),
            time.perf_counter() - start,
            "s",
            digits=2,
        )
    start = time.perf_counter()
    count = sum(len(some) for some, _ in table.items())
    row("read all %d rows of it (`items`)" % count, time.perf_counter() - start, "s", digits=2)


def processor_seconds(pid):
    """Processor seconds of a process so far."""
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def asked(client, way, batches, gradients, seconds, pid):
    """What one client gets of a server on this machine, its messages going that way: rows a second,
    and rows for each second that the server's process has a core for them.
    """

    def of_server(what, function, unit, goal=None):
        total, before = [0], processor_seconds(pid)

        def counted(rng):
            done = function(rng)
            total[0] += done
            return done

        row(what, rate(counted, seconds), unit, goal)
        by_core = total[0] / (processor_seconds(pid) - before) / 1e6
        row(what + ", by core of the server", by_core, unit)

    def look_up(rng):
        return len(client.pull({"t": batches[rng.randint(len(batches))]}).rows["t"].values)

    def push(rng):
        client.push({"t": (batches[rng.randint(len(batches))], gradients)})
        return BATCH

    def both(rng):
        batch = batches[rng.randint(len(batches))]
        client.exchange({"t": (batch, gradients)}, {}, {"t": batch})
        return BATCH

    of = "one server on this machine, " + way
    of_server("look-ups, " + of, look_up, "M rows/s", 3)
    of_server("Adagrad pushes, " + of, push, "M rows/s", 2)
    of_server("push and look-up in one call, " + of, both, "M rows/s each")


def behind_a_server(ids, seconds):
    server = subprocess.Popen(
        [sys.executable, "-m", "jfluid.ps_server"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        endpoint = server.stdout.readline().split()[-1]
        batches, gradients = batches_of(ids), np.ones((BATCH, 16), np.float32)
        with Client([endpoint], job_secret()) as client:
            client.create([spec(16)])
            for part in np.array_split(ids, 50):
                client.pull({"t": part})
            client.push({"t": (batches[0], gradients)})
            asked(client, "TCP", batches, gradients, seconds, server.pid)
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                client.save(folder)
                seconds = time.perf_counter() - start
                size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
            row("snapshot of %d rows" % len(ids), size / seconds / 1e6, "MB/s", digits=0)
    finally:
        server.terminate()
        server.wait()


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grow(rows, width=8, batch=1_000_000):
    """Fill a table: the rate of inserts in each tenth, and the memory that a row takes beyond
    values and slots.
    """
    SparseTable(spec(width)).look_up(np.arange(10))
    table, before, rates, overhead = SparseTable(spec(width)), resident_bytes(), [], 0.0
    for tenth in range(10):
        start, spent = tenth * rows // 10, 0.0
        for begin in range(start, (tenth + 1) * rows // 10, batch):
            # Multiplied by an odd number: distinct, and all over the range of int64.
            numbers = np.arange(begin, min(begin + batch, (tenth + 1) * rows // 10), dtype=np.uint64)
            ids = (numbers * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
            begun = time.perf_counter()
            table.look_up(ids)
            spent += time.perf_counter() - begun
        rates.append(((tenth + 1) * rows // 10 - start) / spent)
        overhead = (resident_bytes() - before) / len(table) - 4 * table.stride
        print(
            "    %d rows: %.2f M inserts/s, %.1f bytes a row beyond values and slots"
            % (len(table), rates[-1] / 1e6, overhead),
            file=sys.stderr,
            flush=True,
        )
    what = "table of %d rows of %d floats with Adagrad: " % (rows, width)
    row(what + "inserts, first tenth", rates[0] / 1e6, "M rows/s", digits=2)
    row(what + "last tenth against first", rates[-1] / rates[0], "", 0.5, digits=2)
    row(what + "resident memory", (resident_bytes() - before) / 1e9, "GB", digits=2)
    row(what + "beyond values and slots", overhead, "bytes a row", 24)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure")
    parser.add_argument("--grow", type=int, default=0, metavar="ROWS")
    parser.add_argument("--json", help="a file for what was found")
    options = parser.parse_args()
    print("| table of %d rows of 16 floats | found | goal |\n|---|---|---|" % options.rows)
    ids = ids_of(options.rows)
    in_process(ids, options.seconds)
    by_function(ids, options.seconds)
    whole_tables(ids)
    behind_a_server(ids, options.seconds)
    if options.grow:
        grow(options.grow)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(FOUND, file, indent=1)


if __name__ == "__main__":
    main()

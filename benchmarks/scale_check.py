"""The simulation of jobs with parameter servers, held against small jobs on this machine.

    python benchmarks/scale_check.py       # 1 to 4 trainers and 1 to 3 servers: some minutes a strategy
    python benchmarks/scale_check.py --strategies async geo --trainers 1 2 --servers 1 3

Three jobs of each strategy (1 trainer and 1 server, 1 and 3, 2 and 1) say what a step takes of whom
(`Work`), and the last one what trainers cost each other: where they wait for one another, by how much
steps vary, else how much longer everything takes (`calibrated`). The others are simulated with that,
and then run. All processes of a job share this machine's processors, so the simulation has them
shared evenly by those that have something to do. Then a synchronous job with snapshots is held
against the same one without. The last line says whether all jobs that were not measured before are
within 20%.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from scale import shares

LIMIT = 0.2
MEASURED = ((1, 1), (1, 3), (2, 1))
SPREADS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
# Of how many steps the gradients may be on their way while a trainer goes on. GEO sends those of many
# steps together, as if each step sent its share.
AHEAD = {"sync": 0, "half_async": 0, "async": 20, "geo": 1}
CROWDS = (0.7, 1.5)
_STEPS = 40


@dataclass
class Work:
    """What a step takes: seconds of one processor.

    Attributes:
        own: of a trainer by itself: its feed, its computing, its gradients.
        cores: how many processors do that at once, where they are free.
        talk, call: of a trainer to exchange rows and parameters with all servers, and besides with
            each of them.
        asked, shared: of a server for each trainer that calls, and of all servers for what that
            trainer exchanges.
        update: of all servers once a step, when all trainers have called.
        pull: the share of an exchange that comes before the computing.
        crowd: how many times as long everything takes where there are several trainers.
    """

    own: float
    cores: float
    talk: float
    call: float
    asked: float
    shared: float
    update: float
    pull: float
    crowd: float = 1.0


def work_of(one, three, two, strategy="sync"):
    """What three measured jobs say (see MEASURED): Work."""
    if AHEAD[strategy]:
        return _work_beside(one, three, two)
    exchange = one["parts"]["rows"] + one["parts"]["exchange"]
    call = max(three["processor"] - one["processor"], 0.0) / 2
    # with one trainer nobody else has the processors: what the servers do not take, it takes
    talk = max(exchange - one["servers"], call)
    own = max(one["processor"] - talk, 0.1 * one["processor"])
    asked = max(three["servers"] - one["servers"], 0.0) / 2
    shared = max(two["servers"] - one["servers"] - asked, 0.0)
    return Work(
        own=own,
        cores=own / max(one["step"] - exchange, 1e-9),
        talk=talk - call,
        call=call,
        asked=asked,
        shared=shared,
        update=max(one["servers"] - asked - shared, 0.0),
        pull=one["parts"]["rows"] / exchange,
    )


def _work_beside(one, three, two):
    """The same of a job whose trainers exchange while they compute, so that nobody waits."""
    asked = max(three["servers"] - one["servers"], 0.0) / 2
    shared = max((one["servers"] + two["servers"]) / 3 - asked, 0.0)
    call = max(three["processor"] - one["processor"], 0.0) / 2
    exchange = max(sum(one["parts"][part] for part in ("encode", "call", "decode")), 1e-9)
    # what the calls took of the clock, less what servers worked meanwhile; XLA had its share of it
    talk = min(max(exchange - asked - shared, call), 0.5 * one["processor"])
    own = one["processor"] - talk
    wait = one["parts"]["rows"]
    return Work(
        own=own,
        cores=own / max(one["step"] - wait, 1e-9),
        talk=talk - call,
        call=call,
        asked=asked,
        shared=shared,
        update=0.0,
        pull=min(wait / exchange, 1.0),
    )


class Machine:
    """Processors that tasks share: each has as much as the others, for each core that it can use.

    A task ends by calling what it was given; a server does one of its tasks at a time.
    """

    def __init__(self, cores, servers):
        self._cores, self.now = cores, 0.0
        self._tasks = []  # [seconds that are left, cores at most, what happens then]
        self._queues = [deque() for _ in range(servers)]

    def work(self, seconds, cores, then):
        """Add a task."""
        self._tasks.append([max(seconds, 1e-12), cores, then])

    def serve(self, server, seconds, then):
        """Add a task of a server."""
        queue = self._queues[server]
        queue.append((seconds, then))
        if len(queue) == 1:
            self._next(server)

    def _next(self, server):
        seconds, then = self._queues[server][0]

        def done():
            self._queues[server].popleft()
            if self._queues[server]:
                self._next(server)
            then()

        self.work(seconds, 1.0, done)

    def run(self):
        """Run until there is no task."""
        while self._tasks:
            speed = min(1.0, self._cores / sum(cores for _, cores, _ in self._tasks))
            step = min(left / (cores * speed) for left, cores, _ in self._tasks)
            self.now += step
            for task in self._tasks:
                task[0] -= step * task[1] * speed
            ended = [task for task in self._tasks if task[0] <= 1e-12]
            self._tasks = [task for task in self._tasks if task[0] > 1e-12]
            for _, _, then in ended:
                then()


class _Trainer:
    """A trainer of a simulated job: pulls, computes, pushes, waits for whom it has to, and again."""

    def __init__(self, job, number, left):
        self._job, self._left = job, left
        self._random = np.random.RandomState(number)
        self._sending, self._waits = 0, False  # pushes that are not answered; for one of them
        self.computed = []  # when each step was

    def begin(self):
        if self._left:
            self._left -= 1
            self._exchange(self._job.work.pull, self._compute)

    def _compute(self):
        work = self._job.work
        noise = max(1 + self._job.spread * self._random.randn(), 0.2)
        self._job.machine.work(work.crowd * work.own * noise, work.cores, self._push)

    def _push(self):
        job = self._job
        self.computed.append(job.machine.now)
        if not job.ahead:
            self._exchange(1 - job.work.pull, lambda: job.arrived(self.begin))
            return
        self._sending += 1
        if self._sending == 1:
            self._exchange(1 - job.work.pull, self._sent)
        self._waits = self._sending > job.ahead
        if not self._waits:
            self.begin()

    def _sent(self):
        """A push was answered: its thread takes the next one, and the trainer need not wait."""
        self._sending -= 1
        if self._sending:
            self._exchange(1 - self._job.work.pull, self._sent)
        if self._waits:
            self._waits = False
            self.begin()

    def _exchange(self, share, then):
        job, work = self._job, self._job.work
        if not share:
            then()
            return
        share *= work.crowd
        seconds = [share * (work.asked + part * work.shared) for part in job.shares]
        answers = job.after(len(seconds), then)

        def ask():
            for server, each in enumerate(seconds):
                job.machine.serve(server, each, answers)

        job.machine.work(share * (work.talk + len(seconds) * work.call), 1.0, ask)


class SharedJob:
    """A job whose processes share a machine.

    Args:
        trainers, servers: how many.
        work: what a step takes.
        cores: of the machine.
        spread: by which share the computing of steps varies (standard deviation).
        strategy: one of AHEAD.
    """

    def __init__(self, trainers, servers, work, cores, spread=0.05, strategy="sync"):
        self.work = work if trainers > 1 else replace(work, crowd=1.0)
        self.shares, self.spread, self.ahead = shares(servers), spread, AHEAD[strategy]
        self._rounds = strategy == "sync"
        self.machine = Machine(cores, servers)
        self._waiting = []
        self._trainers = trainers

    @staticmethod
    def after(count, then):
        """What calls `then` when it has been called so many times."""
        left = [count]

        def one():
            left[0] -= 1
            if not left[0]:
                then()

        return one

    def arrived(self, go_on):
        """A trainer has pushed. In rounds servers update with the last one, and all go on."""
        if not self._rounds:
            go_on()
            return
        self._waiting.append(go_on)
        if len(self._waiting) < self._trainers:
            return
        waiting, self._waiting = self._waiting, []
        updated = self.after(len(self.shares), lambda: [each() for each in waiting])
        for server, part in enumerate(self.shares):
            self.machine.serve(server, part * self.work.update, updated)

    def seconds(self, steps=_STEPS):
        """Seconds a step; where pushes wait, when their queues are as long as they get."""
        before = 4 * self.ahead
        trainers = [_Trainer(self, number, before + steps) for number in range(self._trainers)]
        for trainer in trainers:
            trainer.begin()
        self.machine.run()
        if not before:
            return self.machine.now / steps
        took = [each.computed[-1] - each.computed[before - 1] for each in trainers]
        return float(np.mean(took)) / steps


def spread_of(work, seconds, cores):
    """By how much steps vary, so that two trainers with one server, which wait for the slower one,
    take so many seconds; no more than the largest that is tried.
    """
    for spread in SPREADS:
        if SharedJob(2, 1, work, cores, spread).seconds() >= seconds:
            break
    return spread


def calibrated(work, found, cores, strategy):
    """(the work of a step, by how much steps vary) with which the jobs of one server take what they
    did. Where trainers wait for each other the spread of steps makes the difference. Else one trainer
    alone says how many processors its computing uses, and two what they cost each other.
    """
    if strategy == "sync":
        return work, spread_of(work, found[2, 1]["step"], cores)
    low, high = 0.1, float(cores)
    for _ in range(30):
        middle = (low + high) / 2
        work = replace(work, cores=middle)
        slow = SharedJob(1, 1, work, cores, 0.0, strategy).seconds() > found[1, 1]["step"]
        low, high = (middle, high) if slow else (low, middle)
    ratio = found[2, 1]["step"] / SharedJob(2, 1, work, cores, 0.0, strategy).seconds()
    return replace(work, crowd=float(np.clip(ratio, *CROWDS))), 0.0


def compare(sizes, measure, cores, strategy="sync"):
    """What jobs take and are simulated to take: the work of a step, what `measure` gave by size, and
    rows of trainers, servers, measured and simulated seconds a step.

    Args:
        sizes: pairs of trainers and servers.
        measure: gives what such a job took (scale_jobs.measure).
        cores: of this machine.
        strategy: one of AHEAD.
    """
    found = {size: measure(*size) for size in MEASURED}
    work = work_of(*(found[size] for size in MEASURED), strategy)
    work, spread = calibrated(work, found, cores, strategy)
    rows = []
    for size in sizes:
        simulated = SharedJob(*size, work, cores, spread, strategy).seconds()
        if size not in found:
            found[size] = measure(*size)
        rows.append((*size, found[size]["step"], simulated))
        print(_line(*rows[-1]), flush=True)
    return work, found, rows


def compare_snapshots(without, found, cores):
    """How many times as long a step takes with snapshots: measured, and simulated by what they take
    of the processors, which is the third result, as a share of one processor's time.

    Args:
        without, found: what the same job took without and with them.
    """
    more = sum(max(found[who] - without[who], 0.0) for who in ("servers", "processor"))
    share = more / found["step"]
    return found["step"] / without["step"], 1 / (1 - min(share / cores, 0.9)), share


def with_snapshots(measure, steps):
    """What the job of one trainer and one server takes that writes a snapshot each half second."""
    with tempfile.TemporaryDirectory() as folder:
        every = {"JFLUID_PS_SNAPSHOT_FOLDER": folder, "JFLUID_PS_SNAPSHOT_EVERY_S": "0.5"}
        found = measure(1, 1, steps, every)
        if not list(Path(folder).rglob("*.json")):
            raise SystemExit("the job with snapshots has written none: give it more --steps")
    return found


def _line(trainers, servers, measured, simulated):
    given = "  given" if (trainers, servers) in MEASURED else ""
    numbers = (trainers, servers, 1e3 * measured, 1e3 * simulated, simulated / measured)
    return "%8d %7d %12.1f %13.1f %9.2f%s" % (*numbers, given)


def beyond(rows):
    """The rows of jobs that were not given, whose ratio is beyond the limit."""
    return [row for row in rows if row[:2] not in MEASURED and abs(row[3] / row[2] - 1) > LIMIT]


def main():
    from scale_jobs import measure

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--trainers", type=int, nargs="+", default=[1, 2, 3, 4])
    add("--servers", type=int, nargs="+", default=[1, 2, 3])
    add("--strategies", nargs="+", choices=list(AHEAD), default=["sync", "async", "geo"])
    add("--steps", type=int, default=120, help="GEO: a multiple of 20")
    add("--times", type=int, default=2, help="how often a job runs; the fastest counts")
    add("--json", metavar="FILE", help="also write what was found")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))

    def fastest(job):
        return min((job() for _ in range(options.times)), key=lambda one: one["step"])

    sizes = [(trainers, servers) for trainers in options.trainers for servers in options.servers]
    every, far = {"cores": cores}, {}
    for strategy in options.strategies:
        print("%s: trainers servers  measured ms  simulated ms     ratio" % strategy)

        def run(*size, strategy=strategy):
            return fastest(lambda: measure(*size, options.steps, strategy=strategy))

        work, found, rows = compare(sizes, run, cores, strategy)
        print(
            "a step takes, in seconds: %s"
            % ", ".join("%s %.4g" % item for item in asdict(work).items())
        )
        every[strategy] = {"work": asdict(work), "jobs": list(found.values()), "rows": rows}
        far[strategy] = (len(beyond(rows)), len(rows))
        if strategy == "sync":
            found["snapshots"] = fastest(lambda: with_snapshots(measure, 2 * options.steps))
            every["snapshots"] = compare_snapshots(found[1, 1], found["snapshots"], cores)
            print(
                "a snapshot each half second: a step takes %.2f times as long, simulated %.2f; they "
                "take %.3f of a processor" % every["snapshots"]
            )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(every, file, indent=1)
    wrong = ["%s: %d of %d" % (s, *counts) for s, counts in far.items() if counts[0]]
    print("further off than 20%%: %s" % "; ".join(wrong) if wrong else "all within 20%")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

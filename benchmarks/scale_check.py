"""The simulation of jobs with parameter servers, held against small jobs on this machine.

    python benchmarks/scale_check.py       # 1 to 4 trainers and 1 to 3 servers, each job three times
    python benchmarks/scale_check.py --times 1       # all four strategies in some five minutes
    python benchmarks/scale_check.py --strategies async geo --trainers 1 2 --servers 1 3

Jobs of all sizes run in turn, several times. Three of each strategy (1 trainer and 1 server, 1 and 3,
2 and 1) say what a step takes of whom, by processor time (`Work`); where trainers wait for one
another, the last one says also by how much steps vary. The others are simulated with that. All
processes of a job share this machine's processors, so the simulation has them shared evenly by those
that have something to do; it has as many as others left to the job while that ran. Then a synchronous
job with snapshots is held against the same one without. The last line says whether all jobs that
were not given are within 20%.
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
        crowd: how many times as much of the processors a trainer takes where there are several.
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
    """What three measured jobs say (see MEASURED): Work. What they took of the clock is divided by how
    many times as long everything took for want of processors: nothing of it is others' doing.
    """
    parts, late = one["parts"], one["demanded"] / one["processor"]
    call = max(three["processor"] - one["processor"], 0.0) / 2
    asked = max(three["servers"] - one["servers"], 0.0) / 2
    if AHEAD[strategy]:
        # nobody waits for the exchange but for the rows that come before the computing
        exchange, waits = sum(parts[part] for part in ("encode", "call", "decode")), parts["rows"]
        shared = (one["servers"] + two["servers"]) / 3 - asked
    else:
        exchange = waits = parts["rows"] + parts["exchange"]
        shared = two["servers"] - one["servers"] - asked
    shared = max(shared, 0.0)
    talk = min(max(exchange / late - one["servers"], call), 0.5 * one["processor"])
    own = one["processor"] - talk
    return Work(
        own=own,
        cores=own * late / max(one["step"] - waits, 1e-9),
        talk=talk - call,
        call=call,
        asked=asked,
        shared=shared,
        update=0.0 if AHEAD[strategy] else max(one["servers"] - asked - shared, 0.0),
        pull=min(parts["rows"] / max(exchange, 1e-9), 1.0),
        crowd=two["processor"] / one["processor"],
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
        seconds = [share * (work.asked + part * work.shared) for part in job.shares]
        answers = job.after(len(seconds), then)

        def ask():
            for server, each in enumerate(seconds):
                job.machine.serve(server, each, answers)

        talk = work.crowd * (work.talk + len(seconds) * work.call)
        job.machine.work(share * talk, 1.0, ask)


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


def simulated(found, strategy="sync"):
    """What jobs are simulated to take, where others leave them as many processors as they did when
    the jobs ran.

    Args:
        found: what they took (scale_jobs.measure), by size; those of MEASURED say what a step takes.
        strategy: one of AHEAD.

    Returns:
        The work of a step, and rows of trainers, servers, measured and simulated seconds a step.
    """
    work, spread = work_of(*(found[size] for size in MEASURED), strategy), 0.0
    if strategy == "sync":
        spread = spread_of(work, found[2, 1]["step"], found[2, 1]["left"])
    rows = []
    for size in sorted(found):
        job = SharedJob(*size, work, found[size]["left"], spread, strategy)
        rows.append((*size, found[size]["step"], job.seconds()))
    return work, rows


def middle(runs):
    """The run of a job in which a step took the middle of the processors' time."""
    return sorted(runs, key=lambda one: one["step"] * one["left"])[len(runs) // 2]


def compare_snapshots(without, found):
    """How many times as long a step takes with snapshots, on as many processors: measured, and
    simulated by what they take of these, which is the third result, as a share of one's time.

    Args:
        without, found: what the same job took without and with them.
    """
    more = sum(max(found[who] - without[who], 0.0) for who in ("servers", "processor"))
    share = more / found["step"]
    took = found["step"] * found["left"] / without["step"] / without["left"]
    return took, 1 / (1 - min(share / found["left"], 0.9)), share


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


def _page(rows):
    """The jobs that were not given, as a table of docs/scale.md."""
    lines = ["| trainers | servers | measured, ms | simulated, ms | ratio |", "|---|---|---|---|---|"]
    for trainers, servers, took, simulated in rows:
        if (trainers, servers) not in MEASURED:
            numbers = (trainers, servers, 1e3 * took, 1e3 * simulated, simulated / took)
            lines.append("| %d | %d | %.1f | %.1f | %.2f |" % numbers)
    return "\n".join(lines)


def main():
    from scale_jobs import measure

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--trainers", type=int, nargs="+", default=[1, 2, 3, 4])
    add("--servers", type=int, nargs="+", default=[1, 2, 3])
    add("--strategies", nargs="+", choices=list(AHEAD), default=list(AHEAD))
    add("--steps", type=int, default=120, help="GEO: a multiple of 20")
    add("--times", type=int, default=3, help="how often each job runs, in turn; the middle counts")
    add("--json", metavar="FILE", help="also write what was found")
    add("--page", action="store_true", help="also print tables as docs/scale.md has them")
    options = parser.parse_args()
    sizes = {(trainers, servers) for trainers in options.trainers for servers in options.servers}
    runs = {strategy: {} for strategy in options.strategies}
    for _ in range(options.times):
        for strategy in options.strategies:
            for size in sorted({*sizes, *MEASURED}):
                found = measure(*size, options.steps, strategy=strategy)
                runs[strategy].setdefault(size, []).append(found)
                print("%s: %s" % (strategy, json.dumps(found)), file=sys.stderr)
            if strategy == "sync":
                found = with_snapshots(measure, 2 * options.steps)
                runs[strategy].setdefault("snapshots", []).append(found)
    every, far = {}, {}
    for strategy, by_size in runs.items():
        found = {size: middle(each) for size, each in by_size.items()}
        snapshots = found.pop("snapshots", None)
        work, rows = simulated(found, strategy)
        print("%s: trainers servers  measured ms  simulated ms     ratio" % strategy)
        print("\n".join(_line(*row) for row in rows))
        print("a step takes, in seconds: %s" % ", ".join("%s %.4g" % item for item in asdict(work).items()))
        every[strategy] = {"work": asdict(work), "jobs": list(found.values()), "rows": rows}
        far[strategy] = (len(beyond(rows)), len(rows))
        if options.page:
            print(_page(rows))
        if snapshots:
            every["snapshots"] = compare_snapshots(found[1, 1], snapshots)
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

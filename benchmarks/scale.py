"""How fast jobs with parameter servers would train, of sizes that no machine here has: a simulation.

    python benchmarks/scale.py                                    the examples a second of several sizes
    python benchmarks/scale.py --trainers 8 64 512 --servers 8 64 --compute 0.02 --batch 4096 --ids 26
    python benchmarks/scale.py --picture scale.png --mtbf 2000 --slow 2

Each call of each trainer waits its turn at each server, as in a job; which server has which row, and
which piece of the dense parameters, comes from the functions that jobs use. What a call and a row
cost (`Costs`) was measured on this project's machine (docs/scale.md): replace it by yours.
It says what limits each job: the trainers, the servers' rows, or the wire. The model is held
against formulas where there are some (tests/benchmarks/test_scale.py); benchmarks/scale_check.py holds one in
which all processes share a machine against jobs that run.
"""

import argparse
import bisect
import heapq
from collections import deque

import numpy as np

from jfluid.ps_server.kernels import owners_of
from jfluid.transpiler.parameter_server.slicing import slices

STRATEGIES = ("sync", "half_async", "async", "geo")
_QUEUE = 20  # pushes that a trainer has under way before it waits, as communicator_send_queue_size
_IDS_DRAWN = 20000  # from which a server's share of the rows of a step is found
_STEPS = 30


class Costs:
    """What things take: seconds, bytes and rows.

    Attributes:
        call: seconds of a call that carries nothing.
        handled: seconds that a server works on a pull or a push, whatever it carries.
        exchanged: the same of a push and a pull in one call.
        asked: seconds that a trainer works on a call, for each server.
        wire: bytes a second that a host's network carries, each way.
        pulled, pushed: rows a second of one server, beyond that.
        dense: bytes a second that a server updates and sends of dense parameters.
        snapshot: bytes a second of a snapshot, of one server, which serves more slowly meanwhile.
        restore: seconds until a lost process works again.
    """

    call = 0.6e-3
    handled, exchanged, asked = 0.9e-3, 1.3e-3, 0.57e-3
    wire = 25e9 / 8
    pulled, pushed = 13e6, 13e6
    dense = 1.0e9
    snapshot = 350e6
    restore = 120.0


class Job:
    """A job to simulate.

    Args:
        trainers, servers: how many; one process a host.
        strategy: "sync" (a barrier each step), "half_async" (a trainer waits for its own push),
            "async" (it waits for none), or "geo" (an exchange every `every` steps).
        compute: seconds of a trainer's step without servers.
        spread: by which share steps of a trainer vary (standard deviation).
        slow: how many times as long the slowest trainer takes.
        batch: examples of a step of one trainer.
        ids: of an example, in tables.
        distinct: the share of a batch's ids that are different.
        width: floats of a row.
        dense: bytes of dense parameters.
        mtbf: hours between two failures of one process; 0 for none.
        every: steps between two exchanges of GEO.
        state: bytes of rows, with their optimizer's, on all servers.
        snapshots: seconds between two snapshots.
    """

    def __init__(
        self,
        trainers,
        servers,
        strategy="sync",
        compute=0.02,
        spread=0.1,
        slow=1.0,
        batch=4096,
        ids=26,
        distinct=0.3,
        width=8,
        dense=4e6,
        mtbf=0.0,
        every=20,
        state=0.0,
        snapshots=300.0,
    ):
        if strategy not in STRATEGIES:
            raise ValueError("strategy: expected one of %s, found %r" % (STRATEGIES, strategy))
        if min(trainers, servers, batch) < 1 or compute <= 0 or slow < 1 or snapshots <= 0:
            raise ValueError("trainers, servers and batch are at least 1, compute and snapshots above 0")
        self.trainers, self.servers, self.strategy = trainers, servers, strategy
        self.compute, self.spread, self.slow = compute, spread, slow
        self.batch, self.width, self.dense = batch, width, dense
        self.rows = batch * ids * distinct
        self.mtbf, self.every = mtbf, every
        self.state, self.snapshots = state, snapshots


class Found:
    """What a simulation found.

    Attributes:
        examples: a second, of all trainers, between failures.
        goodput: the same, with what failures cost.
        busy: the share of the time that trainers compute and make calls, that the busiest server works
            on calls, and that its wire (or a trainer's) carries bytes.
        staleness: updates between a trainer's pull and its push, on average.
    """

    def __init__(self, examples, goodput, busy, staleness):
        self.examples, self.goodput, self.busy, self.staleness = examples, goodput, busy, staleness

    @property
    def bottleneck(self):
        """What is busy for the longest time."""
        return max(self.busy, key=self.busy.get)


def shares(servers):
    """The share of a step's rows that each server has: float64 [servers]."""
    counts = np.bincount(owners_of(np.arange(_IDS_DRAWN), servers), minlength=servers)
    return counts / counts.sum()


def dense_bytes(job):
    """The bytes of dense parameters that each server has, if they are one parameter: float64
    [servers].
    """
    found = np.zeros(job.servers)
    if job.dense < 4:
        return found
    for server, (_, shape) in enumerate(slices((int(job.dense / 4),), job.servers, 8192)):
        found[server] = 4 * shape[0]
    return found


def writing(job, costs):
    """The share of its time that a server writes snapshots. Raises ValueError where it would never
    end.
    """
    share = job.state / job.servers / costs.snapshot / job.snapshots
    if share >= 1:
        raise ValueError(
            "a server writes a snapshot for %.0f s: more servers, or more seconds between two "
            "than %.0f" % (share * job.snapshots, job.snapshots)
        )
    return share


class _Servers:
    """Where calls wait for their turn, in the order in which they come."""

    def __init__(self, job, costs, between):
        # rows of many steps are shown again: an exchange of GEO carries those of a few steps
        rows = job.rows * shares(job.servers) * min(between, 4)
        dense = dense_bytes(job)
        self.wire = (rows * (4 * job.width + 8) + dense) / costs.wire
        free = 1 - writing(job, costs)
        # a step's push and the next one's pull, in one call: half of it is of each
        together = job.strategy in ("sync", "half_async")
        handled = costs.exchanged / 2 if together else costs.handled
        self.pull = (handled + rows / costs.pulled + dense / costs.dense) / free
        self.push = (handled + rows / costs.pushed + dense / costs.dense) / free
        # a trainer makes its calls one after the other, and its own wire carries their shares so
        self.asked = costs.asked / (2 if together else 1)
        self._lead, self._call = costs.call + np.cumsum(self.wire + self.asked), costs.call
        self._free = np.zeros(job.servers)
        self.worked, self.calls = np.zeros(job.servers), 0

    def serve(self, begin, cost):
        """The moment at which a call that began at `begin` has been answered by all servers."""
        self._free = np.maximum(begin + self._lead, self._free) + np.maximum(cost, self.wire)
        self.worked += cost
        self.calls += 1
        return float(self._free.max()) + self._call


def simulate(job, costs=Costs, seed=0):
    """Run some steps of a job; what there is to know of it (Found)."""
    random = np.random.RandomState(seed)
    between = job.every if job.strategy == "geo" else 1
    exchanges = max(_STEPS // between, 3)
    servers = _Servers(job, costs, between)
    speed = np.ones(job.trainers)
    if job.trainers > 1:
        speed[-1] = job.slow
    events = [(0.0, "pull", trainer) for trainer in range(job.trainers)]
    pulled_at, arrived = np.zeros(job.trainers), []
    under_way = [deque() for _ in range(job.trainers)]
    pushes, late, computed, elapsed = [], [], 0.0, 0.0
    left = exchanges * job.trainers
    while left:
        now, kind, trainer = heapq.heappop(events)
        if kind == "pull":
            pulled_at[trainer] = servers.serve(now, servers.pull)
            noise = np.clip(1 + job.spread * random.randn(between), 0.2, None)
            compute = float(job.compute * speed[trainer] * noise.sum())
            computed += compute
            heapq.heappush(events, (pulled_at[trainer] + compute, "push", trainer))
            continue
        left -= 1
        late.append(len(pushes) - bisect.bisect_right(pushes, pulled_at[trainer]))
        ready = servers.serve(now, servers.push)
        bisect.insort(pushes, ready)
        elapsed = max(elapsed, ready)
        arrived.append(trainer)
        if job.strategy == "async":
            own = under_way[arrived.pop()]
            own.append(ready)
            begin = max(now, own.popleft()) if len(own) == _QUEUE else now
            heapq.heappush(events, (begin, "pull", trainer))
        elif job.strategy != "sync":
            heapq.heappush(events, (ready, "pull", arrived.pop()))
        elif len(arrived) == job.trainers:
            for each in arrived:
                heapq.heappush(events, (elapsed, "pull", each))
            arrived = []
    examples = job.batch * between * exchanges * job.trainers / elapsed
    busy = {
        "trainers": (computed / job.trainers + 2 * exchanges * servers.asked * job.servers) / elapsed,
        "servers": float(servers.worked.max()) / elapsed,
        "wire of servers": servers.calls * float(servers.wire.max()) / elapsed,
        "wire of trainers": 2 * exchanges * float(servers.wire.sum()) / elapsed,
    }
    staleness = 0.0 if job.strategy == "sync" else float(np.mean(late))
    goodput = examples * available(job, costs, min(busy["servers"], 1.0))
    return Found(examples, goodput, busy, staleness)


def available(job, costs=Costs, busy=0.0):
    """The share of the time that a job trains, with failures: a lost process stops a synchronous
    job until it works again, and costs others its own share of the work. A lost server is sent
    again what it was sent since its last snapshot, half the time between two on average.

    Args:
        busy: the share of their time that servers work.
    """
    if not job.mtbf:
        return 1.0
    hours = job.mtbf * 3600
    of_server = (costs.restore + busy * job.snapshots / 2) / hours * job.servers
    of_trainer = costs.restore / hours
    if job.strategy == "sync":
        return 1 / (1 + of_server + of_trainer * job.trainers)
    # servers hold what all need; a trainer holds up nobody
    return 1 / (1 + of_server) * (1 - of_trainer / (1 + of_trainer))


def draw(path, found, arguments):
    """A picture by trainers, with a line for each number of servers: examples a second, with
    failures, each point marked by what limits it; the share of the time that is lost to failures;
    staleness.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    marks = {"trainers": "o", "servers": "s", "wire of servers": "^", "wire of trainers": "v"}
    figure, (upper, lost, stale) = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    for servers in arguments.servers:
        points = [found[trainers, servers] for trainers in arguments.trainers]
        (line,) = upper.plot(arguments.trainers, [one.goodput for one in points], label="%d servers" % servers)
        for trainers, one in zip(arguments.trainers, points):
            upper.plot(trainers, one.goodput, marks[one.bottleneck], color=line.get_color())
        shares = [100 * (1 - one.goodput / one.examples) for one in points]
        lost.plot(arguments.trainers, shares, marker="o")
        stale.plot(arguments.trainers, [one.staleness for one in points], marker="o")
    for name, mark in marks.items():
        upper.plot([], [], mark, color="gray", label="limited by " + name)
    upper.set(yscale="log", ylabel="examples a second")
    lost.set(ylabel="% of the time lost to failures", ylim=(0, None))
    stale.set(ylabel="updates between pull and push", ylim=(0, None))
    for axes in (upper, lost, stale):
        axes.set(xscale="log", xlabel="trainers")
        axes.grid(True, alpha=0.3)
    upper.legend(fontsize="x-small")
    figure.suptitle("%s, simulated" % arguments.strategy)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--trainers", type=int, nargs="+", default=[1, 8, 64, 256, 1000])
    add("--servers", type=int, nargs="+", default=[1, 8, 50, 200])
    add("--strategy", choices=STRATEGIES, default="sync")
    add("--compute", type=float)
    add("--batch", type=int)
    add("--ids", type=int)
    add("--distinct", type=float)
    add("--width", type=int)
    add("--dense", type=float)
    add("--mtbf", type=float)
    add("--slow", type=float)
    add("--spread", type=float)
    add("--every", type=int)
    add("--state", type=float)
    add("--snapshots", type=float)
    add("--picture", metavar="FILE", help="also draw it")
    arguments = parser.parse_args()
    named = (
        "compute",
        "batch",
        "ids",
        "distinct",
        "width",
        "dense",
        "mtbf",
        "slow",
        "spread",
        "every",
        "state",
        "snapshots",
    )
    given = {name: getattr(arguments, name) for name in named}
    given = {name: value for name, value in given.items() if value is not None}
    found = {}
    print("trainers servers  examples/s     goodput  staleness  limit (share of the time)")
    for trainers in arguments.trainers:
        for servers in arguments.servers:
            one = simulate(Job(trainers, servers, arguments.strategy, **given))
            found[trainers, servers] = one
            limit = "%s (%.0f%%)" % (one.bottleneck, 100 * one.busy[one.bottleneck])
            numbers = (trainers, servers, one.examples, one.goodput, one.staleness, limit)
            print("%8d %7d %11.0f %11.0f %10.1f  %s" % numbers, flush=True)
    if arguments.picture:
        draw(arguments.picture, found, arguments)


if __name__ == "__main__":
    main()

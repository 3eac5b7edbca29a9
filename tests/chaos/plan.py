"""Plans: what is done to which job, and when."""

import random
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Job = Literal["sync-dense", "sync-sparse", "sync-distributed", "half-async", "async", "geo"]
JOBS: tuple[Job, ...] = (
    "sync-dense",
    "sync-sparse",
    "sync-distributed",
    "half-async",
    "async",
    "geo",
)
# Of processes, of ways between a trainer and a server, of disks.
Deed = Literal[
    "kill",
    "terminate",
    "stop",
    "shift clock",
    "cut",
    "delay",
    "throttle",
    "dribble",
    "partition",
    "refuse",
    "fill disk",
    "damage",
]
SERVERS = TRAINERS = 2
STEPS = 24


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Action(_Model):
    """One thing that is done.

    Attributes:
        step: when all trainers stand before this step; they go on then.
        after_s: seconds after they go on; below 0: as long before, while they stand still.
        do: kill and terminate are followed by another start, stop (SIGSTOP) by SIGCONT, faults of
            networks and disks end; damage alters a file of a server's newest snapshot.
        who: "server 0", "trainer 1", "launcher"; of networks "trainer 0 - server 1"; "disk".
        for_s: how long it lasts; of kill and terminate, how long until the process is started
            again.
        amount: of delay seconds, of throttle and dribble bytes a second, of clocks by how many
            seconds they are shifted.
    """

    step: Annotated[int, Field(ge=0)]
    after_s: Annotated[float, Field(ge=-10, le=10)] = 0.0
    do: Deed
    who: tuple[str, ...]
    for_s: Annotated[float, Field(ge=0, le=60)] = 0.0
    amount: float = 0.0


class Plan(_Model):
    """What is done to a job of two servers and two trainers.

    Attributes:
        seed: of what relays draw, and by which the plan was made.
        launcher: whether jfluid-launch runs the job, or the harness does what it would do.
        keep: whether trainers keep what a server has no snapshot of, to send it again.
        every_s: seconds between two snapshots.
    """

    seed: int
    job: Job
    launcher: bool = False
    keep: bool = True
    every_s: Annotated[float, Field(gt=0)] = 0.3
    steps: Annotated[int, Field(ge=1, le=1000)] = STEPS
    actions: tuple[Action, ...] = ()

    @property
    def synchronous(self) -> bool:
        return self.job.startswith("sync")

    def undisturbed(self) -> "Plan":
        """The same job, to which nothing is done."""
        return Plan(seed=0, job=self.job, steps=self.steps)


PROCESSES = tuple(f"server {n}" for n in range(SERVERS)) + tuple(f"trainer {n}" for n in range(TRAINERS))
WAYS = tuple(f"trainer {t} - server {s}" for t in range(TRAINERS) for s in range(SERVERS))


def generate(seed: int) -> Plan:
    """The plan of a seed."""
    draw = random.Random(seed)
    job = draw.choice(JOBS)
    launcher = draw.random() < 0.12
    keep = job.startswith("sync") or draw.random() < 0.6
    steps = sorted(draw.sample(range(1, STEPS), draw.choice((1, 2, 2, 3))))
    actions = [action for step in steps for action in _moment(draw, step, launcher)]
    return Plan(
        seed=seed,
        job=job,
        launcher=launcher,
        keep=keep,
        every_s=draw.choice((0.15, 0.3, 0.6, 1000.0)),
        actions=tuple(actions),
    )


def _moment(draw: random.Random, step: int, launcher: bool) -> list[Action]:
    """What is done at one step: mostly one thing, sometimes several at nearly the same time."""
    count = draw.choice((1, 1, 1, 2, 3))
    return [action for _ in range(count) for action in _actions(draw, step, launcher)]


def _actions(draw: random.Random, step: int, launcher: bool) -> list[Action]:
    after_s = round(draw.choice((0.0, draw.uniform(0, 0.3), draw.uniform(-3, 0))), 3)
    kind = draw.choices(("death", "everything", "stop", "network", "disk", "clock"), (40, 12, 10, 25, 7, 6))[0]
    if kind in ("death", "everything"):
        return _death(draw, step, after_s, everything=kind == "everything", launcher=launcher)
    if kind == "stop":
        return [
            Action(
                step=step,
                after_s=after_s,
                do="stop",
                who=(draw.choice(PROCESSES),),
                for_s=round(draw.uniform(0.1, 2), 2),
            )
        ]
    if kind == "disk":
        return [
            Action(
                step=step,
                after_s=after_s,
                do="fill disk",
                who=("disk",),
                for_s=round(draw.uniform(0.3, 2), 2),
            )
        ]
    if kind == "clock":
        return [
            Action(
                step=step,
                after_s=after_s,
                do="shift clock",
                who=(draw.choice(PROCESSES),),
                amount=draw.choice((-86400.0, -120.0, -1.0, 1.0, 120.0, 86400.0)),
            )
        ]
    do: Deed = draw.choice(("cut", "cut", "delay", "throttle", "dribble", "partition", "refuse"))
    ways = tuple(sorted(draw.sample(WAYS, draw.choice((1, 1, 2, 4)))))
    low, high = {"delay": (0.001, 0.03), "throttle": (1e5, 3e6), "dribble": (2e4, 1e6)}.get(do, (0.0, 0.0))
    return [
        Action(
            step=step,
            after_s=after_s,
            do=do,
            who=ways,
            for_s=0.0 if do == "cut" else round(draw.uniform(0.1, 1.5), 2),
            amount=round(draw.uniform(low, high), 4),
        )
    ]


def _death(draw: random.Random, step: int, after_s: float, everything: bool, launcher: bool) -> list[Action]:
    who = PROCESSES if everything else tuple(sorted(draw.sample(PROCESSES, draw.choice((1, 1, 1, 1, 2, 3)))))
    if launcher and draw.random() < 0.4:
        who = ("launcher",)
    death = Action(
        step=step,
        after_s=after_s,
        do=draw.choice(("kill", "kill", "kill", "terminate")),
        who=who,
        for_s=round(draw.choice((0.0, draw.uniform(0.1, 0.5))), 2),
    )
    servers = [name for name in who if name.startswith("server")]
    # jfluid-launch starts them again at once
    if launcher or not (servers and death.for_s and draw.random() < 0.25):
        return [death]
    return [
        death,
        Action(
            step=step,
            after_s=round(after_s + death.for_s / 2, 3),
            do="damage",
            who=(draw.choice(servers),),
        ),
    ]

"""A synchronous job that trains beside the plans, whose servers live as long as the harness: what
they use must not grow.

Its trainers are killed, its connections cut, and all processes stopped for a moment. Round r adds 1
to mark r % MARKS, so that the number of rounds tells what each mark has to be at the end.
"""

import os
import random
import secrets
import signal
import struct
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from tests.chaos import entry
from tests.chaos.plan import PROCESSES, SERVERS, TRAINERS
from tests.chaos.processes import Forked
from tests.chaos.usage import Usage
from tests.faults.relay import Network
from tests.ports import free_ports

MARKS = 24
EVERY_S = (4.0, 12.0)  # between two faults
_LEAD = 30  # rounds: no trainer is as far ahead of what it has written
_LIMIT_S = 120.0
_LOOK_S = 0.02


class Soak:
    """The job; `look` keeps it going.

    Attributes:
        failure: why it has failed; empty while it has not.
        done: what was done to it, and how often.
    """

    def __init__(self, folder: Path, seed: int):
        self._folder, self._draw, self._seed = folder, random.Random(f"soak {seed}"), seed
        self._next_s = 0.0
        self._going_on: list[tuple[float, int]] = []  # when processes that stand still go on
        self.failure = ""
        self.done: dict[str, int] = {}

    def __enter__(self) -> "Soak":
        self._folder.mkdir(parents=True)
        with ExitStack() as stack:
            network = stack.enter_context(Network(self._seed))
            servers = [f"127.0.0.1:{port}" for port in free_ports(SERVERS)]
            self._relays = [[network.relay(server) for server in servers] for _ in range(TRAINERS)]
            environment = {
                "JFLUID_JOB_TOKEN": secrets.token_urlsafe(24),
                "JFLUID_PS_SNAPSHOT_EVERY_S": "5",
                "JFLUID_PS_SNAPSHOT_FOLDER": str(self._folder / "snapshots"),
                "JAX_PLATFORMS": "cpu",
            }
            spec: dict[str, Any] = {
                "folder": str(self._folder),
                "job": "soak",
                "steps": MARKS,
                "trainers": TRAINERS,
                "endpoints": servers,
                "through": [[relay.endpoint for relay in own] for own in self._relays],
                "environment": environment,
            }
            for who in PROCESSES:
                (self._folder / f"clock-{who.replace(' ', '-')}").write_bytes(struct.pack("<d", 0.0))
            self._job = Forked(self._folder, spec)
            stack.callback(self._job.close)
            self._job.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def look(self) -> None:
        """Act on what has happened, and do harm when it is due."""
        if self.failure:
            return
        self._job.look()
        self.failure = self._job.failure
        now_s = time.monotonic()
        for due_s, pid in list(self._going_on):
            if now_s >= due_s:
                self._going_on.remove((due_s, pid))
                if pid in map(self._job.pid, PROCESSES):
                    os.kill(pid, signal.SIGCONT)
        if self.rounds() > 0 and now_s >= self._next_s:
            if self._next_s:
                self._harm(now_s)
            self._next_s = now_s + self._draw.uniform(*EVERY_S)

    def _harm(self, now_s: float) -> None:
        what = self._draw.choice(("kill", "cut", "cut", "stop"))
        self.done[what] = self.done.get(what, 0) + 1
        trainer, who = self._draw.randrange(TRAINERS), self._draw.choice(PROCESSES)
        for_s = self._draw.uniform(0, 1)
        if what == "kill":
            self._job.end((f"trainer {trainer}",), signal.SIGKILL, for_s)
        elif what == "cut":
            for relay in self._relays[trainer]:
                relay.cut()
        elif (pid := self._job.pid(who)) is not None:
            os.kill(pid, signal.SIGSTOP)
            self._going_on.append((now_s + for_s, pid))

    def rounds(self) -> int:
        """How far the trainer is that is furthest."""
        found = [path.read_text() for number in range(TRAINERS) if (path := self._folder / f"at-{number}").exists()]
        return max(map(int, found), default=0)

    def usage(self) -> dict[str, dict[str, float]]:
        """What each server uses."""
        pids = {who: self._job.pid(who) for who in PROCESSES if who.startswith("server")}
        return {who: Usage.of(pid).told() for who, pid in pids.items() if pid is not None}

    def end(self) -> str:
        """Let the job end; why that has failed, or what is wrong with its marks."""
        last = self.rounds() + _LEAD
        entry.publish(self._folder / "last", str(last))
        end_s = time.monotonic() + _LIMIT_S
        self._next_s = float("inf")
        while not (self._job.over() or self.failure):
            self.look()
            if time.monotonic() > end_s:
                self.failure = f"it has not ended within {_LIMIT_S:g} s"
            time.sleep(_LOOK_S)
        if not self.failure:
            self.failure = self._checked(last)
        return self.failure

    def _checked(self, last: int) -> str:
        with np.load(self._folder / "final.npz", allow_pickle=False) as arrays:
            found = arrays["marks"].reshape(SERVERS, MARKS, -1)
        wanted = np.bincount(np.arange(last) % MARKS, minlength=MARKS)
        return (
            ""
            if (found == wanted[:, None]).all()
            else f"after {last} rounds: expected marks {wanted.tolist()}, found {found[:, :, 0].tolist()}"
        )

"""The processes of a job: started, killed, and started again by what looks after them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Protocol

import yaml

from tests.chaos import entry
from tests.chaos.plan import PROCESSES, SERVERS, TRAINERS
from tests.chaos.usage import Usage
from tests.forked import FORKS

ROOT = Path(__file__).resolve().parents[2]
RESTORE = {"JFLUID_PS_RESTORE": "1"}
GRACE_S = 10.0  # that servers have when all trainers have ended, as of jfluid-launch
_MOST_ROLLBACKS = 5


def usage_of_forks() -> dict[str, float] | None:
    """What the process uses from which those of jobs are forked; None before the first."""
    pid = forkserver._forkserver._forkserver_pid
    return None if pid is None else Usage.of(pid).told()


class Supervisor(Protocol):
    """Looks after the processes of a job.

    Attributes:
        kills: processes that were killed, by signal and role.
        restarts: processes that were started again by themselves.
        rollbacks: how often all were started again.
        failure: why the job has failed; empty while it has not.
        notes: what is worth knowing, and no failure.
    """

    kills: Counter[str]
    restarts: int
    rollbacks: int
    failure: str
    notes: list[str]

    def start(self) -> None:
        """Start the job."""

    def look(self) -> None:
        """Act on what has happened."""

    def end(self, who: tuple[str, ...], number: int, for_s: float) -> None:
        """Send these processes a signal that ends them; they are started again `for_s` seconds
        later.
        """

    def pid(self, who: str) -> int | None:
        """The process of that name; None while there is none."""

    def over(self) -> bool:
        """Whether the job has ended well."""

    def close(self) -> None:
        """Kill what is left."""


def logs(folder: Path) -> dict[str, Path]:
    """Where each process of a plan's folder writes what it prints."""
    names = {"server": "serverlog", "trainer": "workerlog"}
    return {who: folder / "logs" / f"{names[role]}.{number}" for who in PROCESSES for role, number in [role_of(who)]}


def role_of(who: str) -> tuple[str, int]:
    role, _, number = who.partition(" ")
    return role, int(number)


# ---- by itself ----


@dataclass
class _Life:
    who: str
    process: Any
    began: int  # where its log begins
    killed: bool = False
    again_at_s: float = 0.0


@dataclass
class Forked:
    """Starts processes itself, and again what the plan has killed, alone; or all, when one says
    that it takes that.
    """

    folder: Path
    spec: dict[str, Any]
    kills: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    rollbacks: int = 0
    failure: str = ""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._ended: set[str] = set()
        self._grace_until_s = 0.0
        self._logs = logs(self.folder)

    def start(self) -> None:
        for who in PROCESSES:
            self._begin(who, {})

    def _begin(self, who: str, environment: dict[str, str]) -> None:
        role, number = role_of(who)
        log = self._logs[who]
        log.parent.mkdir(exist_ok=True)
        log.touch()
        if role == "trainer":
            (self.folder / f"at-{number}").unlink(missing_ok=True)
        spec = self.spec | {
            "role": role,
            "number": number,
            "log": str(log),
            "environment": self.spec["environment"] | environment,
        }
        process = FORKS.Process(target=entry.begin, args=(spec,), name=who, daemon=True)
        process.start()
        self._lives[who] = _Life(who, process, log.stat().st_size)

    def look(self) -> None:
        now_s = time.monotonic()
        for life in list(self._lives.values()):
            code = life.process.exitcode
            if code is None or life.who in self._ended:
                continue
            if code == 0:
                self._ended.add(life.who)
            elif life.killed:
                if now_s >= life.again_at_s:
                    self._forget(life)
                    self.restarts += 1
                    self._begin(life.who, RESTORE if life.who.startswith("server") else {})
            elif "RollbackError" in self._log(life) and self.rollbacks < _MOST_ROLLBACKS:
                self._roll_back(life)
                return
            else:
                self.failure = self.failure or f"{life.who} ended with {code}: {self._last_line(life)}"
        self._see_servers_off(now_s)

    def _roll_back(self, failed: _Life) -> None:
        self.notes.append(f"{failed.who}: {self._last_line(failed)}")
        self.rollbacks += 1
        for life in list(self._lives.values()):
            life.process.kill()
            self._forget(life)
        self._ended = set()
        for who in PROCESSES:
            self._begin(who, RESTORE if who.startswith("server") else {})

    def _see_servers_off(self, now_s: float) -> None:
        """Servers that still run some time after all trainers have ended are ended, as by the
        launcher.
        """
        if not all(f"trainer {n}" in self._ended for n in range(TRAINERS)):
            return
        self._grace_until_s = self._grace_until_s or now_s + GRACE_S
        for who in (f"server {n}" for n in range(SERVERS)):
            if who not in self._ended and now_s > self._grace_until_s:
                self.notes.append(f"{who} still ran {GRACE_S:g} s after all trainers had ended")
                self._lives[who].process.kill()
                self._ended.add(who)

    def end(self, who: tuple[str, ...], number: int, for_s: float) -> None:
        for name in who:
            life = self._lives[name]
            if life.process.exitcode is None and not life.killed:
                life.killed, life.again_at_s = True, time.monotonic() + for_s
                os.kill(life.process.pid, number)
                if number != signal.SIGKILL:  # one that stands still is woken up, to take it
                    os.kill(life.process.pid, signal.SIGCONT)
                self.kills[f"{signal.Signals(number).name} {role_of(name)[0]}"] += 1

    def pid(self, who: str) -> int | None:
        process = self._lives[who].process
        return None if process.exitcode is not None else int(process.pid)

    def over(self) -> bool:
        return len(self._ended) == len(PROCESSES)

    def close(self) -> None:
        for life in list(self._lives.values()):
            life.process.kill()
            self._forget(life)

    def _forget(self, life: _Life) -> None:
        life.process.join()
        life.process.close()
        del self._lives[life.who]

    def _log(self, life: _Life) -> str:
        with open(self._logs[life.who], errors="replace") as file:
            file.seek(life.began)
            return file.read()

    def _last_line(self, life: _Life) -> str:
        return next(
            (line for line in reversed(self._log(life).splitlines()) if line.strip()),
            "(it wrote nothing)",
        )[-600:]


# ---- through jfluid-launch ----

_LAUNCH = """
import sys
from jfluid.launch import main
from tests.chaos import entry
entry.end_with_parent()
sys.exit(main())
"""


@dataclass
class Launched:
    """Lets jfluid-launch run the job. A launcher that the plan has killed is started again, with
    `snapshots.resume`.
    """

    folder: Path
    spec: dict[str, Any]
    snapshots: dict[str, Any]
    kills: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    rollbacks: int = 0
    failure: str = ""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._launcher: subprocess.Popen[bytes] | None = None
        self._killed, self._again_at_s, self._over = False, 0.0, False
        self._output = self.folder / "launcher.log"

    def start(self) -> None:
        spec = self.folder / "spec.json"
        spec.write_text(json.dumps(self.spec))
        job = {
            "script": str(ROOT / "tests" / "chaos" / "entry.py"),
            "mode": "parameter_server",
            "args": [str(spec)],
            "servers": self.spec["endpoints"],
            "trainers": self.spec["trainer_endpoints"],
            "restarts": {"servers": 100, "trainers": 100},
            "max_restarts": 100,
            "snapshots": self.snapshots,
            "log_dir": str(self.folder / "logs"),
            "server_grace": GRACE_S,
        }
        (self.folder / "job.yaml").write_text(yaml.safe_dump(job))
        self._launch()

    def _launch(self, *more: str) -> None:
        environment = os.environ | self.spec["environment"] | {"PYTHONPATH": str(ROOT)}
        with open(self._output, "ab") as output:
            self._launcher = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, "job.yaml", *more],
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._killed = False

    def look(self) -> None:
        assert self._launcher is not None
        code = self._launcher.poll()
        if code is None or self._over or self.failure:
            return
        if code == 0:
            self._over = True
        elif not self._killed:
            tail = self._output.read_text(errors="replace").splitlines()[-3:]
            self.failure = f"jfluid-launch ended with {code}: {' / '.join(tail)[-1000:]}"
        elif time.monotonic() >= self._again_at_s and not any(self.pid(who) for who in PROCESSES):
            self.restarts += 1
            for number in range(TRAINERS):
                (self.folder / f"at-{number}").unlink(missing_ok=True)
            self._launch("--set", "snapshots.resume=true")

    def end(self, who: tuple[str, ...], number: int, for_s: float) -> None:
        assert self._launcher is not None
        for name in who:
            pid = self._launcher.pid if name == "launcher" else self.pid(name)
            if pid is None or (name == "launcher" and self._launcher.poll() is not None):
                continue
            if name == "launcher":
                self._killed, self._again_at_s = True, time.monotonic() + for_s
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)
                self.kills[f"{signal.Signals(number).name} {name.partition(' ')[0]}"] += 1

    def pid(self, who: str) -> int | None:
        """That which the process wrote when it began, if it still is that process."""
        try:
            pid = int((self.folder / f"pid-{who.replace(' ', '-')}").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return None
        return pid if str(self.folder).encode() in command else None

    def over(self) -> bool:
        return self._over

    def close(self) -> None:
        if self._launcher is not None:
            self._launcher.kill()
            self._launcher.wait()
        end_s = time.monotonic() + 10
        while (left := [pid for pid in map(self.pid, PROCESSES) if pid]) and time.monotonic() < end_s:
            time.sleep(0.02)  # the launcher's guard kills them
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

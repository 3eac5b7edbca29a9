"""`python -m tests.chaos`: plays plans, one after the other, and tells of each in a line of JSON.

The exit code is 1 when a plan has failed. What was found out so far is in OUT/summary.json at any
time, each plan's line in OUT/plans.jsonl, and what a plan that failed left (its logs, snapshots and
the plan) in a folder of OUT.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from tests.chaos import disk, processes
from tests.chaos.plan import Plan, generate
from tests.chaos.play import Outcome, Player, line
from tests.chaos.shrink import shrunk
from tests.chaos.soak import Soak
from tests.chaos.usage import Usage


def main() -> int:
    given = options()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    mounts = disk.of_its_own()
    out = Path(given.out or tempfile.mkdtemp(prefix="chaos-out-"))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        if given.shrink:
            player = Player(Path(folder), mounts)
            print(shrunk(_given(given), lambda plan: _fails(player, plan)).model_dump_json(indent=1))
            return 1
        if not given.minutes:
            return play_all(given, Player(Path(folder), mounts, out), Summary(out))
        with Soak(Path(folder, "soak"), given.seed[0]) as soak:
            return play_all(given, Player(Path(folder), mounts, out, soak.look), Summary(out, soak))


def _end(number: int, frame: FrameType | None) -> None:
    """As after Ctrl-C: processes and folders go."""
    print(f"ended by {signal.Signals(number).name}", file=sys.stderr, flush=True)
    sys.exit(128 + number)


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--seed",
        type=int,
        nargs="+",
        default=[1],
        help="of the plans; each that comes after them has the next seed",
    )
    parser.add_argument("--minutes", type=float, help="for how long new plans begin")
    parser.add_argument("--plans", type=int, help="how many plans are played (without --minutes one for each seed)")
    parser.add_argument("--plan", help="play this plan: a file of JSON, or the JSON itself")
    parser.add_argument("--shrink", action="store_true", help="print the smallest part of the plan that still fails")
    parser.add_argument("--out", help="a folder for results (a new temporary one by default)")
    return parser.parse_args(arguments)


def _given(given: argparse.Namespace) -> Plan:
    if given.plan is None:
        return generate(given.seed[0])
    text: str = given.plan
    return Plan.model_validate_json(text if text.lstrip().startswith("{") else Path(text).read_text())


def _fails(player: Player, plan: Plan) -> bool:
    outcome = player.play(plan)
    print(line(outcome), file=sys.stderr, flush=True)
    return bool(outcome.failures)


def play_all(given: argparse.Namespace, player: Player, summary: "Summary") -> int:
    """Play plans until there are enough, or the time is over; the exit code."""
    end_s = time.monotonic() + 60 * given.minutes if given.minutes else None
    most = given.plans or (len(given.seed) if end_s is None else None)
    played = 0
    while (most is None or played < most) and (end_s is None or time.monotonic() < end_s):
        plan = _given(given) if given.plan else generate(_seed(given.seed, played))
        outcome = player.play(plan)
        played += 1
        print(line(outcome), flush=True)
        summary.add(outcome)
    summary.end()
    print(json.dumps(summary.told()), flush=True)
    for seed, plan in summary.failed:
        print(f"failed: seed {seed}; again with: python -m tests.chaos --plan '{plan}'", flush=True)
    return 1 if summary.failed or summary.soak_failure else 0


def _seed(seeds: list[int], number: int) -> int:
    """The seed of a plan by its number."""
    return seeds[number] if number < len(seeds) else seeds[-1] + 1 + number - len(seeds)


class Summary:
    """What was found out so far; written into a folder after each plan."""

    def __init__(self, out: Path, soak: Soak | None = None):
        self._out, self._soak, self.soak_failure = out, soak, ""
        self._start_s = time.monotonic()
        self._plans, self._kills, self._done, self._other = (
            Counter[str](),
            Counter[str](),
            Counter[str](),
            Counter[str](),
        )
        self._usage: list[dict[str, Any]] = []
        self.failed: list[tuple[int, str]] = []

    def add(self, outcome: Outcome) -> None:
        self._plans[outcome.plan.job + " by jfluid-launch" * outcome.plan.launcher] += 1
        self._kills.update(outcome.kills)
        self._done.update(outcome.done)
        self._other.update({"restarts": outcome.restarts, "rollbacks": outcome.rollbacks})
        self._usage.append(
            {
                "minute": round((time.monotonic() - self._start_s) / 60, 1),
                "harness": Usage.of_this_process().told(),
                "forks": processes.usage_of_forks(),
            }
            | (self._soak.usage() if self._soak is not None else {})
        )
        if outcome.failures:
            self.failed.append((outcome.plan.seed, outcome.plan.model_dump_json()))
        with open(self._out / "plans.jsonl", "a") as file:
            file.write(line(outcome) + "\n")
        self._write()

    def end(self) -> None:
        """No more plans come: the job beside them ends, too."""
        if self._soak is not None:
            self.soak_failure = self._soak.end()
        self._write()

    def _write(self) -> None:
        (self._out / "summary.json").write_text(json.dumps(self.told(), indent=1) + "\n")

    def told(self) -> dict[str, Any]:
        """Plans, kills, what else was done, failures, and what the harness used at the start, in
        the middle and at the end.
        """
        usage = (
            [self._usage[i] for i in sorted({0, len(self._usage) // 2, len(self._usage) - 1})] if self._usage else []
        )
        return {
            "minutes": round((time.monotonic() - self._start_s) / 60, 1),
            "plans": dict(self._plans),
            "all plans": self._plans.total(),
            "kills": dict(self._kills),
            "all kills": self._kills.total(),
            "done": dict(self._done),
            **self._other,
            "failed": [seed for seed, _ in self.failed],
            "usage": usage,
            "out": str(self._out),
        } | self._told_of_soak()

    def _told_of_soak(self) -> dict[str, Any]:
        if self._soak is None:
            return {}
        return {
            "soak": {
                "rounds": self._soak.rounds(),
                "done": self._soak.done,
                "failure": self._soak.failure,
            }
        }


if __name__ == "__main__":
    sys.exit(main())

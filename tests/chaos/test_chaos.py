"""Some plans of chaos, and that chaos notices what it is there to notice."""

import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.chaos import check, journal
from tests.chaos.__main__ import Summary, options, play_all
from tests.chaos.plan import JOBS, PROCESSES, TRAINERS, Action, Plan, generate
from tests.chaos.play import Outcome
from tests.chaos.processes import ROOT
from tests.chaos.shrink import shrunk

# Together they kill everything, a server with a trainer, and single processes; stop one, cut
# and partition, shift a clock, fill the disk, damage snapshots; in all modes. docs/guarantees.md
# names them. Every night all are played; before each change a few that have most of these deeds.
SEEDS, NIGHTLY = (101, 103), (104, 105, 106, 107, 110)
COUNT = 4  # steps of the small plans below


def chaos(*arguments, out):
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos", *arguments, "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(NIGHTLY, marks=pytest.mark.nightly)], ids=["few", "others"])
def test_plans(seeds, tmp_path):
    result = chaos("--seed", *map(str, seeds), out=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    *told, summary = map(json.loads, result.stdout.splitlines())
    assert [(each["seed"], each["ok"]) for each in told] == [(seed, True) for seed in seeds]
    assert summary["all plans"] == len(seeds) and summary["all kills"] > 1
    assert json.loads((tmp_path / "summary.json").read_text())["failed"] == []


def test_a_plan_that_fails_is_told_and_the_next_one_is_played(tmp_path, capsys):
    class Player:
        def play(self, plan):
            return Outcome(
                plan,
                failures=["it has failed"] if plan.seed == 8 else [],
                kills={"SIGKILL server": 2},
            )

    summary = Summary(tmp_path)
    assert play_all(options(["--seed", "7", "8", "--plans", "3"]), Player(), summary) == 1
    told = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["ok"] for line in told[:3]] == [True, False, True]
    assert Plan.model_validate(json.loads(told[1])["plan"]) == generate(8)
    found = json.loads((tmp_path / "summary.json").read_text())
    assert (found["failed"], found["all plans"], found["kills"]) == ([8], 3, {"SIGKILL server": 6})
    again = told[-1].partition("again with: python -m tests.chaos --plan ")[2]
    assert Plan.model_validate_json(shlex.split(again)[0]) == generate(8)
    (tmp_path / "plan.json").write_text(generate(9).model_dump_json())
    assert play_all(options(["--plan", str(tmp_path / "plan.json")]), Player(), Summary(tmp_path)) == 0


# ---- plans ----


def test_a_plan_follows_from_its_seed_and_can_be_written_down():
    plans = [generate(seed) for seed in range(200)]
    assert plans == [generate(seed) for seed in range(200)]
    assert [Plan.model_validate_json(plan.model_dump_json()) for plan in plans] == plans
    assert {plan.job for plan in plans} == set(JOBS)
    assert {plan.launcher for plan in plans} == {True, False}
    deeds = {action.do for plan in plans for action in plan.actions}
    assert deeds == set(Action.model_fields["do"].annotation.__args__)
    assert any(set(action.who) == set(PROCESSES) for plan in plans for action in plan.actions)
    with pytest.raises(ValueError, match="do"):
        Plan.model_validate_json(
            '{"seed": 1, "job": "geo", "actions": [{"step": 1, "do": "sing", "who": ["server 0"]}]}'
        )


def test_a_plan_shrinks_to_what_makes_it_fail():
    actions = [Action(step=n, do="kill", who=PROCESSES) for n in range(5)]
    found = shrunk(
        Plan(seed=1, job="geo", actions=actions),
        lambda plan: any(action.step == 3 and "trainer 1" in action.who for action in plan.actions),
    )
    assert found.actions == (Action(step=3, do="kill", who=("trainer 1",)),)


# ---- checks ----

PLAN = Plan(seed=1, job="half-async", steps=COUNT)
IN_DANGER = check.Past([(0, math.inf)])


@pytest.fixture
def ended(tmp_path):
    """What a job of marks leaves in a folder: everything was pushed once, by one life of each
    trainer.
    """
    return Ended(tmp_path)


def pushed(number, mark):
    return {"push": number, "marks": {mark: 1.0}}, {"push": number, "answered": 100.0 + number}


class Ended:
    def __init__(self, folder: Path):
        self._folder = folder
        count = COUNT * TRAINERS
        self.arrays = {
            "lost": np.zeros(2, int),
            "marks": np.ones((2 * count, 3), np.float32),
            "cut": np.ones((count, 2), np.float32),
            "cut servers": np.repeat([0, 1], count // 2),
        }
        self.lines = [
            [
                {"life": 7},
                *(line for step in range(COUNT) for line in pushed(step, trainer * COUNT + step)),
            ]
            for trainer in range(TRAINERS)
        ]

    def failures(self, plan=PLAN, past=IN_DANGER):
        for trainer, lines in enumerate(self.lines):
            (self._folder / f"journal-{trainer}").write_text("\n".join(map(json.dumps, lines)))
        np.savez(self._folder / "final.npz", **self.arrays)
        return check.failures(plan, self._folder, None, [past] * 2)


def test_all_is_well(ended):
    assert ended.failures() == []


def test_a_push_that_was_applied_twice(ended):
    ended.arrays["marks"][2] = 2
    assert any("mark 2 is 2.0" in wrong for wrong in ended.failures())


def test_a_push_of_which_a_table_has_more(ended):
    ended.arrays["cut"][5] = 2
    assert ended.failures() == ["server 1: table cut: row 5: expected 1.0, found [2. 2.]"]


def test_an_acknowledged_push_that_is_missing(ended):
    ended.arrays["marks"][1] = ended.arrays["cut"][1] = 0
    assert [wrong.partition(": ")[2] for wrong in ended.failures()] == [
        "trainer 0 keeps its pushes, and 1 are missing, with the marks [[1]]",
        "1 acknowledged pushes are missing, 1 of which it must have noticed; it says that 0 are lost",
    ]
    ended.arrays["lost"][0] = 1
    assert ended.failures(PLAN.model_copy(update={"keep": False})) == []
    assert ended.failures(past=check.Past(IN_DANGER.dangers, damaged=True)) == []
    assert ended.failures(PLAN.model_copy(update={"keep": False}), check.Past([(50, 100.5), (102, 200)])) == [
        "server 0: a push of marks [1] is missing, which was answered and never in danger"
    ]
    ended.arrays["lost"][0] = 2
    assert len(ended.failures(PLAN.model_copy(update={"keep": False}))) == 1


def test_an_unanswered_push_of_a_killed_trainer_may_be_missing_and_no_other(ended):
    del ended.lines[0][5:]
    ended.lines[0] += [{"push": 2, "marks": {2: 1.0}}, {"life": 8}, *pushed(1, 3)]
    assert journal.read(ended._folder / "none").lives == 0
    for there in (0, 1):
        for table, row in (("marks", 2), ("marks", 2 + COUNT * TRAINERS), ("cut", 2)):
            ended.arrays[table][row] = there
        assert ended.failures() == []
    ended.lines[0][-1:] = []
    assert ended.failures() == ["trainer 0: it ended well without an answer to a push of marks [3]"]


def test_powers_of_two_tell_which_pushes_of_geo_are_there(ended):
    for line in ended.lines[0]:
        if "marks" in line:  # the fourth push brings a part of the first's mark, too
            line["marks"] = dict.fromkeys(line["marks"], 0.5) | ({0: 0.25} if line["push"] == 3 else {})
    for row in range(COUNT):
        ended.arrays["cut"][row] = 0.5
        ended.arrays["marks"][[row, row + COUNT * TRAINERS]] = 0.5 + 0.25 * (row == 0)
    assert ended.failures() == []
    ended.arrays["marks"][0] = 0.5
    assert "server 0: a push of marks {3: 0.5, 0: 0.25} was applied in part" in ended.failures()


def test_a_model_that_is_not_that_of_an_undisturbed_job():
    one, other = np.zeros(5, np.float32), np.array([0, 0, 1, 0, 0], np.float32)
    wanted = check.Final({"lost": np.zeros(2), "table": one}, {"w": "a hash", "b": "b hash"})
    assert (
        check.differences(check.Final({"lost": np.zeros(2), "table": one}, {"w": "a hash", "b": "b hash"}), wanted)
        == []
    )
    assert check.differences(check.Final({"lost": np.zeros(2), "table": other}, {"w": "other"}), wanted) == [
        "b: the saved file differs",
        "w: the saved file differs",
        "table: 1 of 5 numbers differ, by at most 1",
    ]

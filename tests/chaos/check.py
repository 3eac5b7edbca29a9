"""What has to be true of a job at its end."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.chaos import journal
from tests.chaos.journal import Push
from tests.chaos.plan import TRAINERS, Plan


@dataclass(frozen=True)
class Final:
    """What a job leaves behind.

    Attributes:
        arrays: what servers held, by name.
        files: of saved variables, a hash by name.
    """

    arrays: dict[str, Any]
    files: dict[str, str]


def final(folder: Path) -> Final:
    """What the job of a plan's folder left."""
    with np.load(folder / "final.npz", allow_pickle=False) as arrays:
        saved = sorted(path for path in (folder / "saved").glob("*") if path.is_file() and path.name != "__model__")
        return Final(
            dict(arrays),
            {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in saved},
        )


@dataclass
class Past:
    """What has happened to a server.

    Attributes:
        dangers: the times (CLOCK_REALTIME) between which its answers may be lost: for each end of
            it, from when the snapshot before its newest was there (the newest was begun after that)
            until it ended.
        damaged: its newest snapshot was damaged, and it went on from the one before, whatever
            trainers still kept.
    """

    dangers: list[tuple[float, float]] = field(default_factory=list)
    damaged: bool = False

    def may_lose(self, answered_s: float) -> bool:
        """Whether what it answered then may be lost with it."""
        return any(begin_s <= answered_s <= end_s for begin_s, end_s in self.dangers)


def failures(plan: Plan, folder: Path, wanted: Final | None, pasts: Sequence[Past]) -> list[str]:
    """What is wrong at the end of a plan.

    Args:
        wanted: what a job of this kind leaves that nothing was done to; of synchronous jobs.
        pasts: of each server.
    """
    found = final(folder)
    if plan.synchronous:
        assert wanted is not None  # every synchronous plan has one
        return differences(found, wanted)
    journals = [journal.read(folder / f"journal-{number}") for number in range(TRAINERS)]
    wrong = [
        f"trainer {number}: {what}" for number, each in enumerate(journals) for what in _unfinished(plan, number, each)
    ]
    return wrong + [
        wrong for number, past in enumerate(pasts) for wrong in _of_server(plan, number, found.arrays, journals, past)
    ]


def differences(found: Final, wanted: Final) -> list[str]:
    """How the end of a synchronous job differs from the end that it should have."""
    wrong = [
        f"{name}: the saved file differs"
        for name in sorted(found.files.keys() | wanted.files.keys())
        if found.files.get(name) != wanted.files.get(name)
    ]
    for name in sorted(found.arrays.keys() | wanted.arrays.keys()):
        one, other = found.arrays.get(name), wanted.arrays.get(name)
        if one is None or other is None or not np.array_equal(one, other):
            wrong.append(f"{name}: {_compared(one, other)}")
    return wrong


def _compared(found: Any, wanted: Any) -> str:
    if found is None or wanted is None:
        return "only one of both jobs has it"
    return (
        f"{int((found != wanted).sum())} of {wanted.size} numbers differ, by at most {np.abs(found - wanted).max():g}"
    )


def _unfinished(plan: Plan, number: int, found: journal.Journal) -> list[str]:
    """What the last life of a trainer, which ended well, has not done."""
    pushes = [push for push in found.pushes if push.life == found.lives - 1]
    before = [mark for push in found.pushes if push.life < found.lives - 1 for mark in push.marks]
    wanted = range(max(before, default=number * plan.steps - 1) + 1, (number + 1) * plan.steps)
    made = {mark for push in pushes for mark in push.marks}
    wrong = [f"it never pushed marks {sorted(set(wanted) - made)}"] if set(wanted) - made else []
    return wrong + [
        f"it ended well without an answer to a push of marks {list(push.marks)}"
        for push in pushes
        if not push.acknowledged
    ]


def _of_server(
    plan: Plan, server: int, arrays: dict[str, Any], journals: Sequence[journal.Journal], past: Past
) -> list[str]:
    """What is wrong with the marks of one server."""
    count, what = plan.steps * TRAINERS, f"server {server}"
    rows = arrays["marks"][server * count : (server + 1) * count]
    wrong = [
        f"{what}: mark {row} is not the same in all columns" for row in np.flatnonzero((rows != rows[:, :1]).any(1))
    ]
    pushes = [push for each in journals for push in each.pushes]
    of_mark: dict[int, list[Push]] = {mark: [] for mark in range(count)}
    for push in pushes:
        for mark in push.marks:
            of_mark[mark].append(push)
    applied: dict[int, list[bool]] = {id(push): [] for push in pushes}
    for mark, group in of_mark.items():
        left = _applied(float(rows[mark, 0]), mark, group, applied)
        if left:
            wrong.append(
                f"{what}: mark {mark} is {rows[mark, 0]}; applied once, or lost, each of the pushes that make it by "
                f"{[push.marks[mark] for push in group]} cannot make that"
            )
    wrong += [
        f"{what}: a push of marks {push.marks} was applied in part"
        for push in pushes
        if any(applied[id(push)]) != all(applied[id(push)])
    ]
    wrong += [
        f"{what}: a push of marks {list(push.marks)} is missing, which was answered and never in danger"
        for push in pushes
        if push.answered_s is not None and not all(applied[id(push)]) and not past.may_lose(push.answered_s)
    ]
    for table in ("cut", "hashed"):
        if table in arrays:
            for row in np.flatnonzero(arrays[f"{table} servers"] == server):
                first = of_mark[row][0] if of_mark[row] else None  # a row travels once
                expected = first.marks[row] if first is not None and all(applied[id(first)]) else 0
                if (arrays[table][row] != expected).any():
                    wrong.append(f"{what}: table {table}: row {row}: expected {expected}, found {arrays[table][row]}")
    kept = plan.keep and not past.damaged
    return wrong + _losses(kept, what, int(arrays["lost"][server]), journals, {n: all(a) for n, a in applied.items()})


def _applied(value: float, mark: int, group: Sequence[Push], applied: dict[int, list[bool]]) -> float:
    """Find out which pushes made a mark, whose amounts are different powers of two; what is left of
    its value.
    """
    for push in sorted(group, key=lambda push: -push.marks[mark]):
        amount = push.marks[mark]
        applied[id(push)].append(value >= amount)
        value -= amount * (value >= amount)
    return value


def _losses(
    kept: bool, what: str, lost: int, journals: Sequence[journal.Journal], applied: dict[int, bool]
) -> list[str]:
    """What is wrong with the acknowledged pushes that a server does not have."""
    wrong, missing, noticed = [], 0, 0
    for number, each in enumerate(journals):
        for life in range(each.lives):
            pushes = [push for push in each.pushes if push.life == life]
            gone = [push.acknowledged and not applied[id(push)] for push in pushes]
            missing += sum(gone)
            # a trainer that was killed may not have come back to the server since
            if life < each.lives - 1:
                last = max((i for i, push in enumerate(pushes) if applied[id(push)]), default=-1)
                noticed += sum(gone[: last + 1])
                continue
            noticed += sum(gone)
            if kept and sum(gone):
                marks = [list(push.marks) for push, one in zip(pushes, gone, strict=True) if one]
                wrong.append(
                    f"{what}: trainer {number} keeps its pushes, and {sum(gone)} are missing, with the marks {marks}"
                )
    if not noticed <= lost <= missing:
        wrong.append(
            f"{what}: {missing} acknowledged pushes are missing, {noticed} of which it must have noticed; it says "
            f"that {lost} are lost"
        )
    return wrong

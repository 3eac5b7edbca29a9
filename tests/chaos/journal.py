"""A trainer's journal: which marks its pushes make, and which pushes were acknowledged, in a file
that a kill leaves there.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Push:
    """One push.

    Attributes:
        life: which life of the trainer sent it, from 0.
        marks: by how much it changes each mark.
        answered_s: when (CLOCK_REALTIME) the trainer had an answer of all servers; None for a push
            without one.
    """

    life: int
    marks: dict[int, float]
    answered_s: float | None = None

    @property
    def acknowledged(self) -> bool:
        return self.answered_s is not None


@dataclass
class Journal:
    """What a trainer pushed in all its lives, in the order in which it began to.

    Attributes:
        lives: how often it was started.
    """

    pushes: list[Push] = field(default_factory=list)
    lives: int = 0

    @property
    def next_mark(self) -> int:
        """The first mark, of those that one trainer makes in their order, that no push may have
        made.
        """
        return max((mark for push in self.pushes for mark in push.marks), default=-1) + 1


def read(path: Path) -> Journal:
    """A trainer's journal; an empty one where there is no file."""
    journal, open_pushes = Journal(), dict[int, Push]()
    for line in path.read_text().splitlines() if path.exists() else ():
        entry = json.loads(line)
        if "life" in entry:
            journal.lives, open_pushes = journal.lives + 1, {}
        elif "marks" in entry:
            marks = {int(mark): amount for mark, amount in entry["marks"].items()}
            journal.pushes.append(Push(journal.lives - 1, marks))
            open_pushes[entry["push"]] = journal.pushes[-1]
        else:
            open_pushes.pop(entry["push"]).answered_s = entry["answered"]
    return journal


class Writer:
    """Writes the journal of one life of a trainer.

    Args:
        marks_of: by how much a push of these blocks changes each mark.
    """

    def __init__(self, path: Path, marks_of: Callable[[Mapping[str, Any]], dict[int, float]]):
        self._marks_of = marks_of
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._pushes = 0
        self._write({"life": os.getpid()})

    def watch(self, client: Any) -> None:
        """Note all pushes that go through a client."""
        for name in ("push", "exchange"):
            setattr(client, name, self._watching(getattr(client, name)))

    def _watching(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            marks = self._marks_of(arguments[1] if len(arguments) > 1 else {})
            if not marks:
                return method(*arguments, **named)
            self._pushes += 1  # one thread pushes
            number = self._pushes
            self._write({"push": number, "marks": marks})
            found = method(*arguments, **named)
            # Not time.time(), which may be wrong here on purpose.
            self._write({"push": number, "answered": time.clock_gettime(time.CLOCK_REALTIME)})
            return found

        return call

    def _write(self, entry: Mapping[str, Any]) -> None:
        os.write(self._file, (json.dumps(entry) + "\n").encode())

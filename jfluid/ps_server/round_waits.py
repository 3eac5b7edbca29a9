"""Time that synchronous rounds wait for each trainer after a round's first gradients."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Wait(NamedTuple):
    """Waits of a server's rounds for one trainer.

    Attributes:
        rounds: rounds that this trainer's gradients reached last.
        seconds: time in ended rounds between the first gradients of the round and this trainer's gradients.
        pending: the same time of the next round, while this trainer is missing; else 0.
    """

    rounds: int
    seconds: float
    pending: float


class RoundWaits:
    """Arrival times of the gradients of each round. Not safe for threads."""

    def __init__(self) -> None:
        self._arrived: dict[int, float] = {}
        self._rounds: dict[int, int] = {}
        self._seconds: dict[int, float] = {}

    def arrive(self, trainer: int, now: float) -> None:
        """Note that a trainer's gradients of the next round are complete."""
        self._arrived.setdefault(trainer, now)

    def withdraw(self, trainer: int) -> None:
        """Note that a new incarnation of a trainer replaces its gradients."""
        self._arrived.pop(trainer, None)

    def give_up(self, trainer: int, now: float) -> None:
        """Count the wait for a trainer that is missing and no longer waited for."""
        self._seconds[trainer] = self._seconds.get(trainer, 0.0) + self._pending(trainer, now)

    def end_round(self) -> None:
        """Count the waits of a round that has all gradients."""
        if len(self._arrived) > 1:
            first, last = (choose(self._arrived, key=self._arrived.__getitem__) for choose in (min, max))
            for trainer, moment in self._arrived.items():
                self._seconds[trainer] = self._seconds.get(trainer, 0.0) + moment - self._arrived[first]
            self._rounds[last] = self._rounds.get(last, 0) + 1
        self._arrived = {}

    def totals(self, awaited: Iterable[int], now: float) -> Mapping[int, Wait]:
        """Return the waits by trainer; `awaited` are the trainers that the next round needs."""
        pending = {trainer: self._pending(trainer, now) for trainer in awaited}
        trainers = sorted(self._seconds.keys() | {trainer for trainer, seconds in pending.items() if seconds})
        return {
            trainer: Wait(self._rounds.get(trainer, 0), self._seconds.get(trainer, 0.0), pending.get(trainer, 0.0))
            for trainer in trainers
        }

    def _pending(self, trainer: int, now: float) -> float:
        return 0.0 if trainer in self._arrived or not self._arrived else now - min(self._arrived.values())

"""Watch of collective calls: finds ranks that wait for a rank that will not come.

Each rank counts its collective calls. A rank whose count stands still for a second publishes the count in the key-value
store of JAX's coordinator. A rank that waits compares the counts of all ranks. If a rank cannot join a collective call,
since the rank has ended or is in a different call, this process ends with RankError: XLA's call cannot be interrupted.
"""

import atexit
import contextlib
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from jfluid import errors

_log = logging.getLogger(__name__)
STEP = "training step"
RUN = "run of a collective program"
_FOLDER = "jfluid/collective_calls"
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_UNTIL_COMPARED = 2.0
_SECONDS_UNTIL_TOLD = 4.0  # absent ranks; a rank that has ended leaves errors to ranks that wait for as long
_STATES_A_SECOND = 100  # that a rank reads while it waits
_SECONDS_TO_PUBLISH = 2.0  # at the end of a process: the coordinator may be gone


class RankState(NamedTuple):
    """The collective calls of a rank.

    Attributes:
        calls: number of calls begun.
        steps: number of calls begun that are training steps.
        inside: kind of the call that has not returned its results; empty between calls.
        ended: True if the script has ended.
    """

    calls: int = 0
    steps: int = 0
    inside: str = ""
    ended: bool = False

    def place(self) -> str:
        """Return the present call in words."""
        if self.inside == STEP:
            return f"is in training step {self.steps}"
        done = f"{self.steps} training step{'' if self.steps == 1 else 's'}"
        if self.ended:
            return f"has ended after {done}"
        return f"waits in a {self.inside} after {done}" if self.inside else f"is past {done}"


def contradiction(states: Mapping[int, RankState]) -> str | None:
    """Return the description of a call that not all ranks will join, or None if no such call is known."""
    waiting = {rank: state for rank, state in states.items() if state.inside}
    for rank, state in waiting.items():
        for other, its in states.items():
            if its.ended and its.calls < state.calls:
                return (
                    f"rank {other} {its.place()}, and rank {rank} {state.place()}, which needs all ranks: the ranks "
                    "have different numbers of batches. Give each rank as many: let longer shards leave out their "
                    "last batches, or shorter ones repeat some"
                )
            if its.inside and its.calls == state.calls and its.inside != state.inside:
                return (
                    f"rank {rank} {state.place()}, and rank {other} {its.place()}: all ranks make the same collective "
                    "calls in the same order. Do the ranks have as many batches each, and is no such call "
                    "under a condition on the rank?"
                )
    return None


class KeyValueStore(Protocol):
    """Key-value store of all ranks."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool) -> None: ...

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]: ...


@dataclass
class CollectiveCall:
    """A collective call; `result` is an array that is ready once all ranks have joined it."""

    result: Any = None


class CollectiveWatch:
    """Watch of one rank: ends the rank if it waits in a collective call for a rank that will not come.

    Args:
        rank: the number of this process.
        store: holds the states of all ranks.
    """

    def __init__(self, rank: int, store: KeyValueStore):
        self._rank, self._store = rank, store
        self._state, self._result = RankState(), None
        self._seen = self._published = RankState()
        self._since = 0.0
        self._next_comparison = 0.0
        self._told = -1  # number of the call whose absent ranks were logged
        self._woken = threading.Event()
        self._last = threading.Event()

    def start(self) -> None:
        """Start the thread, and publish the end of the script when Python exits."""
        thread = threading.Thread(target=self._watch, name="collective watch", daemon=True)
        thread.start()
        atexit.register(self._finish)

    @contextlib.contextmanager
    def call(self, kind: str) -> Iterator[CollectiveCall]:
        """Count a collective call around its body."""
        before = self._state
        self._since, self._result = time.monotonic(), None
        self._state = RankState(before.calls + 1, before.steps + (kind == STEP), kind)
        call = CollectiveCall()
        try:
            yield call
        except BaseException:
            self._state = before  # refused before it reached the other ranks, and perhaps made again
            raise
        if call.result is None:
            self._state = self._state._replace(inside="")
        else:
            self._result = call.result

    def _finish(self) -> None:
        self._since = time.monotonic()
        self._state = self._state._replace(inside="", ended=True)
        self._woken.set()
        self._last.wait(_SECONDS_TO_PUBLISH)

    def _watch(self) -> None:
        while True:
            self._woken.wait(_SECONDS_BETWEEN_LOOKS)
            if self._state.ended:
                self._woken.clear()
            with contextlib.suppress(RuntimeError):  # the coordinator is gone
                problem = self.look()
                if problem is not None:
                    _end(problem)
            if self._state.ended:
                self._last.set()

    def look(self) -> str | None:
        """Publish a state that stands still; return the contradiction that it is part of, or None."""
        result = self._result
        if result is not None and self._state.inside and (result.is_deleted() or result.is_ready()):
            self._result = None
            self._state = self._state._replace(inside="")
        state, seen = self._state, self._seen
        self._seen = state
        if state != seen and not state.ended:
            return None
        if state != self._published:
            self._store.key_value_set(f"{_FOLDER}/{self._rank}", json.dumps(state), True)
            self._published = state
        now = time.monotonic()
        patience = _SECONDS_UNTIL_TOLD if state.ended else _SECONDS_UNTIL_COMPARED
        if not (state.inside or state.ended) or now < max(self._since + patience, self._next_comparison):
            return None
        found = self._store.key_value_dir_get(f"{_FOLDER}/")
        states = {int(key.rpartition("/")[2]): RankState(*json.loads(value)) for key, value in found}
        self._next_comparison = now + len(states) / _STATES_A_SECOND
        if self._state != state:
            return None
        self._log_absent(state, states)
        return contradiction(states | {self._rank: state})

    def _log_absent(self, state: RankState, states: Mapping[int, RankState]) -> None:
        """Log the ranks that do not come to a call of some seconds, once for each call."""
        if not state.inside or self._told == state.calls or time.monotonic() - self._since < _SECONDS_UNTIL_TOLD:
            return
        absent = [(rank, its) for rank, its in sorted(states.items()) if not its.inside and its.calls < state.calls]
        if absent:
            self._told = state.calls
            rank, its = absent[0]
            more = f", and {len(absent) - 1} more ranks" if len(absent) > 1 else ""
            _log.warning(
                "rank %d %s and waits for rank %d%s, which %s and makes no collective call",
                self._rank,
                state.place(),
                rank,
                more,
                its.place(),
            )


def _end(problem: str) -> None:
    """End this process with RankError: its main thread waits in XLA."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    sys.stdout.flush()
    if frame is not None:
        print("The main thread waits here:", *traceback.format_stack(frame), sep="\n", file=sys.stderr)
    sys.excepthook(errors.RankError, errors.RankError(problem), None)  # which tells the launcher, too
    sys.stderr.flush()
    os._exit(1)


_watch: CollectiveWatch | None = None


def start(rank: int) -> None:
    """Watch the collective calls of this process, which has joined the others as number `rank`."""
    global _watch
    from jax._src.distributed import global_state

    store: Any = global_state.client
    _watch = CollectiveWatch(rank, store)
    _watch.start()


def call(kind: str) -> contextlib.AbstractContextManager[CollectiveCall]:
    """Return the context of a collective call; without other processes nothing is counted."""
    return contextlib.nullcontext(CollectiveCall()) if _watch is None else _watch.call(kind)

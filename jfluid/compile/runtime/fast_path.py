"""Fast path of `Executor.run`: a step that runs again in the same way, without lookups."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jfluid import flags
from jfluid.compile.runtime import slots
from jfluid.compile.runtime.device_feeds import DeviceTensor, batch_of
from jfluid.compile.runtime.feed_signature import FeedSignature, signature_of
from jfluid.compile.runtime.fetches import Fetched, to_numpy
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.compile.runtime.step import Step
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable
from jfluid.scope import Scope

_MOST = 16  # repeated steps that are kept ready
_MOST_SHAPES = 1024  # shapes of the feeds of one step that are known


class FastPath:
    """Fast path of a step: the same program, scope and fetches, feeds of the same names, with signatures that have run.

    All lookups of the step are done once. A step of XLA evicts the host's code from
    the core's caches, so every function call counts in small steps.

    Args:
        program: the user's Program or CompiledProgram.
        inner: the Program in it.
        feed: the user's feed.
        step: the step, which has run.
        fetched: returns the fetches from the step's values in replicas; None on one device.
        key: returns the next random key of a scope.

    Attributes:
        program, fetch_list: the user's objects.
    """

    def __init__(
        self,
        program: Any,
        inner: Program,
        scope: Scope,
        fetch_list: Sequence[Any],
        feed: Any,
        step: Step,
        fetched: Callable[[Sequence[Any]], list[Fetched]] | None,
        key: Callable[[Scope], Any],
    ):
        assert step.whole is not None  # `of`
        feed = feed if fetched is not None else _only(feed)
        self.program, self._inner, self._version = program, inner, inner._version
        self._parallel = getattr(program, "_parallel", None)
        self.fetch_list, self._flags = list(fetch_list), flags.change_count
        self._names = step.plan.fetches
        self._count = len(feed)
        self._slots = slots.of(feed, step.placement.replicas)
        joined = {name for each in self._slots for name in each.names}
        self._feeds = [(n, _signature(v)) for n, v in feed.items() if n not in joined]
        self._others: dict[tuple[FeedSignature | None, ...], None] = {}  # signatures of the same feeds at other sizes
        batch = batch_of(feed)
        self._signatures = None if batch is None else batch.signatures
        self._as_it_is = fetched is None and all(type(v) is np.ndarray for v in feed.values())
        self._segment, self._placement = step.whole, step.placement
        self._fetched, self._key = fetched, key if step.plan.rng else None
        # it refers to the arrays of the scope, and must be dropped with it
        self._state = weakref.ref(step._states[scope])

    @classmethod
    def of(
        cls,
        program: Any,
        inner: Program,
        scope: Scope,
        fetch_list: Any,
        feed: Any,
        step: Step,
        fetched: Callable[[Sequence[Any]], list[Fetched]] | None,
        key: Callable[[Scope], Any],
    ) -> "FastPath | None":
        """Return the fast path of a step that has run, or None if the step has none.

        A step has a fast path if it is one XLA segment, with fetches in a flat list and feeds that have a signature.
        """
        given = feed if fetched is not None else _only(feed)
        plain = (
            type(fetch_list) is list
            and fetch_list
            and all(isinstance(f, (Variable, str)) for f in fetch_list)
            and type(given) is dict
            and given.keys() == set(step.plan.feeds)
            and all(_signature(v) is not None for v in given.values())
        )
        if not plain or step.whole is None:
            return None
        return cls(program, inner, scope, fetch_list, feed, step, fetched, key)

    def run(self, program: Any, feed: Any, fetch_list: Any, scope: Scope, merged: bool = True) -> list[Any] | None:
        """Run the step; returns its fetches as NumPy arrays.

        None, and nothing has run, if anything differs.
        """
        if type(feed) is list and self._fetched is None:
            feed = _only(feed)
        if (
            program is not self.program
            or self._inner._version != self._version
            or type(feed) is not dict
            or len(feed) != self._count
            or type(fetch_list) is not list
            or len(fetch_list) != len(self.fetch_list)
            or getattr(program, "_parallel", None) is not self._parallel
        ):
            return None
        for fetch, before in zip(fetch_list, self.fetch_list):
            if fetch is not before:
                return None
        batch = None if self._signatures is None else batch_of(feed)
        if batch is None:
            for name, signature in self._feeds:
                value = feed.get(name)
                if type(value) is np.ndarray:
                    same = signature == (np.ndarray, value.dtype, value.shape, 0)
                else:
                    same = _signature(value) == signature
                if same:
                    continue
                if self._others and tuple([_signature(feed.get(n)) for n, _ in self._feeds]) in self._others:
                    break
                return None
        elif batch.signatures is not self._signatures and batch.signatures != self._signatures:
            return None
        state = self._state()
        if state is None or state.scope() is not scope or state.stale() or flags.change_count != self._flags:
            return None
        if batch is not None and self._placement.takes(batch):
            entered: Mapping[str, Any] | None = batch.values
        else:
            entered = feed if self._as_it_is else self._entered(feed)
        if entered is None:
            return None
        key = self._key(scope) if self._key is not None else None
        values = state.run(self._placement.call, self._segment, entered, key)
        if self._fetched is None:
            return [to_numpy(name, value) for name, value in zip(self._names, values)]
        rows, found = self._placement.merged, []
        for name, value in zip(self._names, values):
            array = rows(name, value) if merged else None
            if array is None:
                return [f.numpy(merged) for f in self._fetched(values)]
            found.append(array)
        return found

    def merge(self, other: "FastPath") -> bool:
        """Take the feeds of another path and return True, if it is the same step for feeds of other sizes."""
        names = [n for n, _ in self._feeds]
        same = (
            self._segment is other._segment
            and self._state() is other._state()
            and (self._version, self._flags, self._as_it_is) == (other._version, other._flags, other._as_it_is)
            and self._parallel is other._parallel
            and names == [n for n, _ in other._feeds]
            and not (self._slots or other._slots or self._signatures or other._signatures)
        )
        if same:
            if len(self._others) >= _MOST_SHAPES:
                del self._others[next(iter(self._others))]
            self._others[tuple(signature for _, signature in other._feeds)] = None
        return same

    def _entered(self, feed: dict[str, Any]) -> Mapping[str, Any] | None:
        """Return the feed in the form that segments take, or None for a feed that must be checked."""
        batches = slots.read(self._slots, feed)
        if batches is None:
            return None
        return self._placement.enter_again({n: feed[n] for n, _ in self._feeds}, batches)


class FastPaths:
    """Table of the fast paths of an engine: the latest step of each program, fetch list and scope."""

    def __init__(self) -> None:
        # A FastPath holds the program and the fetches of its key, so that their ids stay theirs.
        self._all: LruCache[FastPath] = LruCache(_MOST)

    def find(self, program: Any, fetch_list: Any, scope: Scope) -> FastPath | None:
        """Return the repeated step of a program, or None."""
        if type(fetch_list) is not list:
            return None
        return self._all.get((id(program), id(scope), *map(id, fetch_list)))

    def add(self, path: FastPath, scope: Scope) -> None:
        """Keep a repeated step, also for the feeds of the earlier path with its program, fetches and scope."""
        key = (id(path.program), id(scope), *map(id, path.fetch_list))
        before = self._all.get(key)
        if before is not None and before.merge(path):
            return
        self._all.pop(key, None)
        self._all.get_or_make(key, lambda: path)

    def clear(self) -> None:
        """Forget all steps."""
        self._all.clear()


def _only(feed: Any) -> Any:
    """Return the feed in the list that a DataLoader with one place yields."""
    return feed[0] if type(feed) is list and len(feed) == 1 else feed


def _signature(value: Any) -> FeedSignature | None:
    return value.signature if type(value) is DeviceTensor else signature_of(value)

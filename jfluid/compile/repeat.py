"""Repeat: a step that is run again as it was, without looking anything up."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfluid import flags
from jfluid.compile.fetches import to_numpy
from jfluid.compile.step import Step
from jfluid.ir.variable import Variable
from jfluid.scope import Scope


class Repeat:
    """A repeated step: the same program, scope and fetches, NumPy feeds of the same names and
    shapes.

    Everything that a step has to look up is known then. A step of XLA evicts the host's code from
    the core's caches, so that with small steps every function call counts.
    """

    def __init__(
        self,
        program: Any,
        scope: Scope,
        fetch_list: Sequence[Any],
        feeds: Mapping[str, np.ndarray],
        step: Step,
    ):
        assert step.whole is not None  # `of`
        self._program, self._version = program, program._version
        self._fetch_list, self._flag = list(fetch_list), flags.get("FLAGS_check_nan_inf")
        self._names = step.plan.fetches
        self._feeds = [(n, v.dtype, v.shape) for n, v in feeds.items()]
        self._segment, self._call = step.whole, step.placement.call
        # it refers to the arrays of the scope, and must be dropped with it
        self._state = weakref.ref(step._states[scope])

    @classmethod
    def of(
        cls, program: Any, scope: Scope, fetch_list: Any, feeds: Mapping[str, Any], step: Step
    ) -> "Repeat | None":
        """The repetition of a step that has run: one XLA segment on plain arrays that draws no
        random numbers, with fetches in a flat list. None for any other.
        """
        plain = (
            type(fetch_list) is list
            and fetch_list
            and all(isinstance(f, (Variable, str)) for f in fetch_list)
            and all(type(v) is np.ndarray for v in feeds.values())
        )
        if not plain or step.whole is None or step.plan.rng:
            return None
        return cls(program, scope, fetch_list, feeds, step)

    def run(self, program: Any, feed: Any, fetch_list: Any, scope: Scope) -> list[Any] | None:
        """Run the step; returns its fetches as NumPy arrays. None, and nothing has run, if anything
        differs.
        """
        if (
            program is not self._program
            or program._version != self._version
            or type(feed) is not dict
            or len(feed) != len(self._feeds)
            or type(fetch_list) is not list
            or len(fetch_list) != len(self._fetch_list)
        ):
            return None
        for fetch, before in zip(fetch_list, self._fetch_list):
            if fetch is not before:
                return None
        for name, dtype, shape in self._feeds:
            value = feed.get(name)
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                return None
        state = self._state()
        if (
            state is None
            or state.scope() is not scope
            or state.stale()
            or flags.get("FLAGS_check_nan_inf") != self._flag
        ):
            return None
        values = state.run(self._call, self._segment, feed, None)
        return [to_numpy(name, value) for name, value in zip(self._names, values)]

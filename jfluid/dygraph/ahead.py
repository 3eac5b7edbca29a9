"""Steps that begin before their operators are called.

A loop's step repeats: once its batch is there, all that it reads is known, and XLA can compute while
the script still calls the operators. What is recorded then decides: the results are taken where the
same step was recorded, upon the same arrays and random numbers, and are dropped where anything
differs. Such a step overwrites nothing, so that nothing is lost with its results.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.dygraph.points import Point
from jfluid.dygraph.step import Made, Step, seeds_of
from jfluid.dygraph.values import Value

# How often in succession a step must have followed in the same way. No more than one of so many
# is computed in vain.
_SURE = 5
_RECENT = 3  # steps whose results the next one may read
_MOST_GIVEN = 16  # arrays of a batch
_SMALL = 64  # elements of a number whose value is compared, as that of a learning rate

# Where an input comes from: what the script gave (its place), the result of a step (how many steps
# ago, its place), or the value, or the number, of the last time.
Source = tuple[Any, ...]
Draws = Sequence[tuple[int, int]]  # (seed, number) of each random operator


@dataclass
class Forecast:
    """What is expected to follow upon a step.

    Attributes:
        step: the next step.
        point: of its operators.
        sources: of its inputs.
        draws: seed of each random operator, and how many numbers after the first one it draws.
        given: how many arrays the script gives before it can begin.
        alike: how often it was so.
    """

    step: Step
    point: Point
    sources: tuple[Source, ...]
    draws: tuple[tuple[int, int], ...]
    given: int
    alike: int = 1

    def follows(self, other: "Forecast") -> bool:
        return (
            self.step is other.step
            and self.sources == other.sources
            and self.draws == other.draws
            and self.point == other.point
        )


class _Begun(NamedTuple):
    """A step that has begun, what it reads, and what it gives."""

    step: Step
    arrays: list[Any]
    draws: list[tuple[int, int]]
    made: Made


class Ahead:
    """Begins the steps of one device."""

    def __init__(self) -> None:
        self._last: Step | None = None
        self._forecasts = LruCache[Forecast](32)  # by the step before
        self._given: list[ref[Value]] = []  # since the last step
        self._later: list[ref[Value]] = []  # after all operators of a step that has not run yet
        self._made: deque[list[ref[Value]]] = deque(maxlen=_RECENT)  # the latest first
        self._begun: _Begun | None = None

    def give(self, value: Value, ended: bool) -> Forecast | None:
        """Note an array that the script gives; return what can begin now.

        Args:
            ended: a step whose operators are all there has not run yet.
        """
        given = self._later if ended else self._given
        if len(given) < _MOST_GIVEN:
            given.append(ref(value))
        forecast = None if ended or self._begun is not None else self._forecast()
        if forecast is None or forecast.alike < _SURE or len(given) != forecast.given:
            return None
        return forecast

    def begin(self, forecast: Forecast, draw: tuple[int, int]) -> None:
        """Begin a step, unless an input is not there.

        Args:
            draw: the seed and number of the first random operator.
        """
        arrays: list[Any] = []
        for source, (aval, order) in zip(forecast.sources, forecast.step.leaves):
            if source[0] == "number":
                arrays.append(np.frombuffer(source[3], source[1]).reshape(source[2]))
                continue
            value = self._value(source)
            if value is None or value.array is None:
                return
            if value.aval is not aval or value.order != order:
                return
            arrays.append(value.array)
        draws = [(seed, draw[1] + after) for seed, after in forecast.draws]
        made = forecast.step.run(arrays, seeds_of(draws))
        self._begun = _Begun(forecast.step, arrays, draws, made)

    def take(self, step: Step, arrays: Sequence[Any], draws: Draws) -> Made | None:
        """Return the results of a step that has begun as it should; None where it has not."""
        begun, self._begun = self._begun, None
        if begun is None:
            return None
        if begun.step is step and begun.draws == draws and all(map(_same, arrays, begun.arrays)):
            return begun.made
        self.distrust()
        return None

    def distrust(self) -> None:
        """Begin nothing before it has followed in the same way again; drop what has begun."""
        self._begun = None
        forecast = self._forecast()
        if forecast is not None:
            forecast.alike = 0

    def forget(self) -> None:
        """Expect nothing after what runs now."""
        self.distrust()
        self._last = None
        self._made.clear()
        self._given, self._later = self._later, []

    def sources(self, leaves: Sequence[Value]) -> tuple[Source, ...] | None:
        """Return where the inputs of the next step come from; None where that is known."""
        known = self._forecast()
        if self._last is None or (known is not None and known.alike >= _SURE):
            return None
        places: dict[int, Source] = {}
        for back, made in enumerate(self._made):
            for place, held in enumerate(made):
                places.setdefault(id(held()), ("made", back, place))
        for place, held in enumerate(self._given):
            places[id(held())] = ("given", place)
        found = []
        before = known.sources if known is not None and known.alike else ()
        for at, value in enumerate(leaves):
            source: Source = places.get(id(value)) or ("kept", ref(value))
            array = value.array
            if type(array) is np.ndarray and array.size <= _SMALL and array.dtype.hasobject is False:
                number = ("number", array.dtype.str, array.shape, array.tobytes())
                if source[0] == "given" and (at >= len(before) or before[at] == number):
                    source = number
            found.append(source)
        return tuple(found)

    def ran(
        self,
        step: Step,
        point: Point,
        sources: tuple[Source, ...] | None,
        draws: Draws,
        made: list[ref[Value]],
    ) -> None:
        """Note a step that runs.

        Args:
            point: of its operators.
            sources: of its inputs; None where they are known.
            draws: of its random operators.
            made: its results.
        """
        known = self._forecast()
        if sources is None or not step.overwrites_nothing:
            if known is not None and known.step is not step:
                known.alike = 0
        else:
            first = draws[0][1] if draws else 0
            given = 1 + max((s[1] for s in sources if s[0] == "given"), default=-1)
            after = tuple([(seed, number - first) for seed, number in draws])
            found = Forecast(step, point, sources, after, given)
            if known is not None and known.alike and found.follows(known):
                known.alike += 1
            else:
                self._forecasts.pop(self._last, None)
                self._forecasts.get_or_make(self._last, lambda: found)
        self._last = step
        self._made.appendleft(made)
        self._given, self._later = self._later, []

    def _forecast(self) -> Forecast | None:
        return None if self._last is None else self._forecasts.get(self._last)

    def _value(self, source: Source) -> Value | None:
        """Return the value that an input comes from, if there still is one."""
        found: ref[Value] | None = None
        if source[0] == "kept":
            found = source[1]
        elif source[0] == "given":
            found = self._given[source[1]]
        elif source[1] < len(self._made):
            found = self._made[source[1]][source[2]]
        return None if found is None else found()


def _same(array: Any, other: Any) -> bool:
    """Whether an input is what a step began with."""
    if array is other:
        return True
    return (
        type(array) is type(other) is np.ndarray
        and array.size <= _SMALL
        and array.dtype == other.dtype
        and array.shape == other.shape
        and array.tobytes() == other.tobytes()
    )

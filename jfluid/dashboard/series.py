"""Numbers of one name of one process, as points that a page draws."""

import json
import math
from collections.abc import Sequence

from jfluid.record import lines

Point = tuple[float, int | None, float]  # seconds, step if it is of one, value


class Series:
    """Points in recorded order; of many points, the extremes of stretches."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        # the points of the last call of `few`: how many were wanted, how many there were, and these as JSON
        self._few: tuple[int, int, str] = 0, 0, ""

    def add(self, point: Point, most: int) -> None:
        """Add a point; above `most` points, halve the series."""
        self.points.append(point)
        if len(self.points) > most:
            self.points = fewer(self.points, most // 2)
            self._few = 0, 0, ""

    def few(self, most: int) -> str:
        """Return about `most` points as JSON, as `fewer` does; the text of the last call stays while few were added."""
        wanted, count, kept = self._few
        added = len(self.points) - count
        if wanted != most or added > most // 2:
            count, kept, added = len(self.points), _json(fewer(self.points, most)), 0
            self._few = most, count, kept
        return f"{kept[:-1]},{_json(self.points[count:])[1:]}" if added else kept


def fewer(points: Sequence[Point], most: int) -> list[Point]:
    """Return about `most` of the points: of each stretch the lowest, the highest and the first that is not finite.

    The last point is among them. Stretches are equally long in time, so that points that were thinned often do not
    lie farther apart than new points; where most points lie in few of these, stretches have equally many points.
    """
    if len(points) <= most:
        return list(points)
    count = max(most // 2, 1)
    found = _extremes(points, _by_time(points, count))
    if len(found) < most // 4:
        size = -(-len(points) // count)
        found = _extremes(points, [range(at, min(at + size, len(points))) for at in range(0, len(points), size)])
    return found if found[-1] == points[-1] else [*found, points[-1]]


def _by_time(points: Sequence[Point], count: int) -> list[range]:
    """Return the places of points in stretches of equal time."""
    first, seconds = points[0][0], points[-1][0] - points[0][0]
    if not 0 < seconds < math.inf:
        return [range(len(points))]
    found, begin, current = [], 0, 0
    for i, (time, _, _) in enumerate(points):
        stretch = max(min(int(min((time - first) / seconds, 1.0) * count), count - 1), current)
        if stretch != current:
            found.append(range(begin, i))
            begin, current = i, stretch
    return [*found, range(begin, len(points))]


def _extremes(points: Sequence[Point], stretches: Sequence[range]) -> list[Point]:
    found = []
    for stretch in stretches:
        usual = [i for i in stretch if math.isfinite(points[i][2])]
        chosen = set()
        if len(usual) < len(stretch):
            chosen.add(next(i for i in stretch if not math.isfinite(points[i][2])))
        if usual:
            chosen |= {min(usual, key=lambda i: points[i][2]), max(usual, key=lambda i: points[i][2])}
        found += [points[i] for i in sorted(chosen)]
    return found


def written(points: Sequence[Point]) -> list[list[float | int | str | None]]:
    """Convert points to JSON lists."""
    return [[round(time, 3), step, lines.written(value)] for time, step, value in points]


def _json(points: Sequence[Point]) -> str:
    return json.dumps(written(points), separators=(",", ":"), allow_nan=False)

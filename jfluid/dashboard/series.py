"""Numbers of one name of one process, as points that a page draws."""

import math
from collections.abc import Sequence

from jfluid.record import lines

Point = tuple[float, int | None, float]  # seconds, step if it is of one, value


class Series:
    """Points in the order in which they were recorded; of very many the extremes of stretches."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._few: tuple[int, int, list[Point]] = 0, 0, []  # of how many, from how many points, and which

    def add(self, point: Point, most: int) -> None:
        """Add a point; more than `most` become half as many."""
        self.points.append(point)
        if len(self.points) > most:
            self.points = fewer(self.points, most // 2)
            self._few = 0, 0, []

    def few(self, most: int) -> list[Point]:
        """Return about `most` points, as `fewer` does; the points of the last call stay while few were added."""
        wanted, count, kept = self._few
        added = len(self.points) - count
        if wanted != most or added > most // 2:
            count, kept, added = len(self.points), fewer(self.points, most), 0
            self._few = most, count, kept
        return kept + self.points[count:] if added else kept


def fewer(points: Sequence[Point], most: int) -> list[Point]:
    """Return about so many of the points: of each of equal stretches the lowest and the highest, and
    the first that is not finite; and the last point.
    """
    if len(points) <= most:
        return list(points)
    found = []
    size = -(-len(points) // max(most // 2, 1))
    for start in range(0, len(points), size):
        stretch = range(start, min(start + size, len(points)))
        usual = [i for i in stretch if math.isfinite(points[i][2])]
        chosen = set()
        if len(usual) < len(stretch):
            chosen.add(next(i for i in stretch if not math.isfinite(points[i][2])))
        if usual:
            chosen |= {
                min(usual, key=lambda i: points[i][2]),
                max(usual, key=lambda i: points[i][2]),
            }
        found += [points[i] for i in sorted(chosen)]
    return found if found[-1] == points[-1] else [*found, points[-1]]


def written(points: Sequence[Point]) -> list[list[float | int | str | None]]:
    """Return points as JSON has them."""
    return [[round(time, 3), step, lines.written(value)] for time, step, value in points]

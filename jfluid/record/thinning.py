"""Thinning of a record that has grown too large: points that lie close together in time are removed."""

import math
from collections.abc import Iterable, Sequence

from jfluid.record import lines

_FINEST, _COARSEST = -4, 40  # powers of two: seconds
_MOST_ROUNDS = 40
_BY_TIME = ("progress", "image", "histogram", "usage", "compile", "waits")


def thinned(data: bytes, most: int) -> bytes:
    """Return the lines of a file, thinned to about `most` bytes.

    Of scalars the lowest, the highest and non-finite values of each stretch of time stay. All points of a name have
    equally long stretches. Starts, failures and other events stay as long as they fit by themselves.
    """
    kept = [(line, piece + b"\n") for piece in data.split(b"\n") if piece and (line := lines.decode(piece)) is not None]
    for _ in range(_MOST_ROUNDS):
        if sum(len(piece) for _, piece in kept) <= most:
            break
        fewer = _fewer(kept)
        if len(fewer) == len(kept):  # nothing but events, and single points
            return b"".join(_newest([piece for _, piece in kept], most))
        kept = fewer
    return b"".join(piece for _, piece in kept)


def _newest(pieces: Sequence[bytes], most: int) -> Sequence[bytes]:
    """Return the first line and the last lines that fit into `most` bytes."""
    size, start = len(pieces[0]), len(pieces)
    while start > 1 and size + len(pieces[start - 1]) <= most:
        start -= 1
        size += len(pieces[start])
    return [pieces[0], *pieces[start:]]


def _fewer(kept: Sequence[tuple[lines.Line, bytes]]) -> list[tuple[lines.Line, bytes]]:
    """Return the lines without half of the points of each kind and name."""
    groups: dict[tuple[str, ...], list[int]] = {}
    stay = set()
    for index, (line, _) in enumerate(kept):
        if line["kind"] == "scalars":
            values = line.get("scalars")
            names = sorted(values) if isinstance(values, dict) else ()
            groups.setdefault(("scalars", *names), []).append(index)
        elif line["kind"] in _BY_TIME:
            name = str(line.get("name", line.get("description", "")))
            groups.setdefault((line["kind"], name), []).append(index)
        else:
            stay.add(index)
    for (kind, *names), indices in groups.items():
        stay.update(_half([kept[i][0] for i in indices], indices, names if kind == "scalars" else []))
    return [kept[index] for index in sorted(stay)]


def _half(group: Sequence[lines.Line], indices: Sequence[int], names: Iterable[str]) -> set[int]:
    """Return the indices that stay of a kind and name, the first and the last included."""
    times = [line["t"] for line in group]
    columns = [[_level(line["scalars"].get(name)) for line in group] for name in names]
    found: set[int] = set()
    for power in range(_FINEST, _COARSEST):
        stretches = [int(time / 2.0**power) for time in times]
        found = set(_extremes(stretches, columns)) | {0, len(group) - 1}
        if len(found) <= max(len(group) // 2, 1):
            break
    return {indices[index] for index in found}


def _extremes(stretches: Sequence[int], columns: Sequence[Sequence[float]]) -> Iterable[int]:
    """Return of each stretch the first line, or the lowest, highest and first non-finite value of each column."""
    if not columns:
        return {stretch: index for index, stretch in reversed([*enumerate(stretches)])}.values()
    found: set[int] = set()
    for levels in columns:
        lowest: dict[int, int] = {}
        highest: dict[int, int] = {}
        others: dict[int, int] = {}
        for index, stretch in enumerate(stretches):
            if not math.isfinite(levels[index]):  # it must not hide the highest number
                others.setdefault(stretch, index)
                continue
            if levels[index] < levels[lowest.setdefault(stretch, index)]:
                lowest[stretch] = index
            if levels[index] > levels[highest.setdefault(stretch, index)]:
                highest[stretch] = index
        found.update(lowest.values(), highest.values(), others.values())
    return found


def _level(value: object) -> float:
    """Return a sort key: the number itself, or infinity for values that are no numbers."""
    found = lines.number(value)
    return math.inf if found is None or math.isnan(found) else found

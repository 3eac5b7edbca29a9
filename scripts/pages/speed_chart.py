"""docs/speed.svg, the chart of the speed of jfluid relative to four engines, from benchmarks/results.json."""

import json
import math
from html import escape
from typing import Any, NamedTuple

from scripts.pages.performance import CHOICES, RESULTS, fastest, ratios

_COLORS = ("#0969da", "#8250df", "#cf222e", "#9a6700")  # readable on white and on dark pages
_TEXT = "#768390"
_WIDTH, _LEFT, _RIGHT = 760, 170, 64
_BAR, _GAP, _TOP, _BOTTOM = 9, 12, 64, 34
_LEAST, _MOST = 0.5, 200.0  # the ends of the axis
_TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)


class Bar(NamedTuple):
    """Time of an engine for a step of a program, divided by the time of jfluid for the same step.

    Attributes:
        engine: number in `CHOICES`.
        median, low, high: of the rounds.
    """

    engine: int
    median: float
    low: float
    high: float


def chart() -> str:
    """Return the picture as SVG."""
    groups = bars(json.loads(RESULTS.read_text())["parts"])
    height = _TOP + _BOTTOM + sum(len(own) * _BAR + _GAP for own in groups.values())
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
        ' font-family="sans-serif" font-size="11">',
        "<title>Speed of jfluid relative to four engines, by program</title>",
        *_legend(),
        *_axis(height),
    ]
    y = float(_TOP)
    for program, own in groups.items():
        middle = y + len(own) * _BAR / 2 + 4
        lines.append(_label(_LEFT - 8, middle, program, "end"))
        for bar in own:
            lines.extend(_drawn(bar, y))
            y += _BAR
        y += _GAP
    return "\n".join([*lines, "</svg>", ""])


def bars(parts: dict[str, Any]) -> dict[str, list[Bar]]:
    """Return the bars of each program."""
    found: dict[str, list[Bar]] = {}
    for model, timed in parts.get("limit", {"found": {"engines": {}}})["found"]["engines"].items():
        own = []
        for number, begin in enumerate(CHOICES.values()):
            best = fastest(timed, begin)
            if best is not None:
                own.append(Bar(number, *_spread(ratios(timed["jfluid"], best))))
        found[model] = own
    for model, f in parts.get("detection", {"found": {}})["found"].items():
        found[model] = [Bar(0, f["ratio"], f["low"], f["high"])]
    for model, f in parts.get("dygraph", {"found": {}})["found"].items():
        if "paddle.fluid, eager" in f:
            both = ratios(f["jfluid, eager"], f["paddle.fluid, eager"])
            found[f"{model}, imperative"] = [Bar(0, *_spread(both))]
    return found


def _spread(values: list[float]) -> tuple[float, float, float]:
    middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    return middle, values[0], values[-1]


def _x(ratio: float) -> float:
    share = math.log(min(max(ratio, _LEAST), _MOST) / _LEAST) / math.log(_MOST / _LEAST)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_TEXT}">{escape(text)}</text>'


def _legend() -> list[str]:
    title = "time of a training step divided by the time of jfluid's step; above 1, jfluid is faster"
    lines, x = [_label(_LEFT, 14, title)], float(_LEFT)
    for color, name in zip(_COLORS, CHOICES, strict=True):
        lines.append(f'<rect x="{x:.1f}" y="24" width="10" height="10" fill="{color}"/>')
        lines.append(_label(x + 15, 33, name))
        x += 40 + 7 * len(name)
    return lines


def _axis(height: float) -> list[str]:
    lines = []
    for tick in _TICKS:
        x, heavy = _x(tick), 1.5 if tick == 1 else 0.5
        lines.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 10}" y2="{height - _BOTTOM}" stroke="{_TEXT}"'
            f' stroke-width="{heavy}"/>'
        )
        lines.append(_label(x, height - _BOTTOM + 16, f"{tick}", "middle"))
    return lines


def _drawn(bar: Bar, y: float) -> list[str]:
    low, high = sorted((_x(1), _x(bar.median)))
    middle = y + _BAR / 2 - 0.5
    return [
        f'<rect x="{low:.1f}" y="{y:.1f}" width="{max(high - low, 0.5):.1f}" height="{_BAR - 1}"'
        f' fill="{_COLORS[bar.engine]}"/>',
        f'<line x1="{_x(bar.low):.1f}" x2="{_x(bar.high):.1f}" y1="{middle:.1f}" y2="{middle:.1f}" stroke="{_TEXT}"/>',
        f'<text x="{max(_x(bar.high), _x(1)) + 4:.1f}" y="{y + _BAR - 1:.1f}" font-size="9"'
        f' fill="{_TEXT}">{bar.median:.3g}</text>',
    ]

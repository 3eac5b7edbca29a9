"""Curves of the values in a log of Paddle's old trainer: Fluid's `paddle.utils.plotcurve`.

    python -m paddle.utils.plotcurve -i paddle.INFO -o figure.png AvgCost error

A line of such a log: `... Pass=0 Batch=7771 AvgCost=0.624935 Eval: error=0.260972`.
"""

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from jfluid.errors import DependencyError

__all__ = ["main", "plot_paddle_curve"]

_NUMBER = r"([-+.0-9e]+)"


def plot_paddle_curve(
    keys: Sequence[str],
    inputfile: Iterable[str],
    outputfile: Any,
    format: str = "png",
    show_fig: bool = False,
) -> None:
    """Draw the values of `keys` (AvgCost by default) by pass, for training and tests.

    The keys must stand in each line in this order. `outputfile` is a path or a binary file. With
    `show_fig` the figure is shown first. Without such lines it says so on standard error. Raises
    DependencyError without matplotlib.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise DependencyError("plotcurve", "matplotlib", "datasets") from None
    keys = keys or ["AvgCost"]
    values = "".join(f".*?{re.escape(key)}={_NUMBER}" for key in keys)
    lines = list(inputfile)
    trained = _rows(rf"Pass=([0-9]+){values}", lines)
    tested = _rows(rf"Test samples=([0-9]+){values}", lines)
    if not trained:
        print("No data to plot: no line has " + ", ".join(["Pass", *keys]), file=sys.stderr)
        return
    figure, axes = plt.subplots()
    passes = [row[0] for row in trained]
    for column, key in enumerate(keys, 1):
        shade = (column - 1) / (2 * len(keys) + 2)
        axes.plot(passes, [row[column] for row in trained], color=plt.cm.jet(shade), label=key)
        if tested:
            rows = tested[: len(passes)]
            axes.plot(
                passes[: len(rows)],
                [row[column] for row in rows],
                color=plt.cm.jet(1 - shade),
                label=f"Test {key}",
            )
    axes.set_xlabel("number of epoch")
    axes.legend(loc="best")
    if show_fig:
        plt.show()
    figure.savefig(outputfile, bbox_inches="tight", format=format)
    plt.close(figure)


def _rows(pattern: str, lines: Iterable[str]) -> list[list[float]]:
    return [[float(x) for x in found.groups()] for line in lines if (found := re.search(pattern, line))]


def main(argv: Sequence[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser("plotcurve", description="Curves of a log of Paddle.")
    parser.add_argument("key", nargs="*", help="what to draw; AvgCost without any")
    parser.add_argument("-i", "--input", help="the log; standard input without it")
    parser.add_argument("-o", "--output", help="the figure; standard output without it")
    parser.add_argument("--format", help="png, pdf, ps, eps or svg")
    arguments = parser.parse_args(argv)
    format = arguments.format or os.path.splitext(arguments.output or "")[1][1:] or "png"
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(arguments.input)) if arguments.input else sys.stdin
        plot_paddle_curve(arguments.key, log, arguments.output or sys.stdout.buffer, format)


if __name__ == "__main__":
    main(sys.argv[1:])

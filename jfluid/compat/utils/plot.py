"""Curves that grow while a program trains: Fluid's `paddle.utils.plot`."""

import os
from typing import Any

from jfluid import environment
from jfluid.errors import DependencyError

__all__ = ["PlotData", "Ploter"]


class PlotData:
    """The points of one curve."""

    def __init__(self) -> None:
        self.step: list[float] = []
        self.value: list[float] = []

    def append(self, step: float, value: float) -> None:
        self.step.append(step)
        self.value.append(value)

    def reset(self) -> None:
        self.step, self.value = [], []


class Ploter:
    """Draws curves, one for each title it is given.

    Nothing is drawn, and no library needed, with the environment variable DISABLE_PLOT=True. Raises
    DependencyError without matplotlib.
    """

    def __init__(self, *args: str):
        self.__args__ = args
        self.__plot_data__ = {title: PlotData() for title in args}
        self._disabled = environment.text(environment.DISABLE_PLOT) == "True"
        if not self._disabled:
            try:
                import matplotlib.pyplot as plt
            except ImportError:
                raise DependencyError("Ploter", "matplotlib", "datasets", "or set DISABLE_PLOT=True") from None
            self.plt = plt

    def append(self, title: str, step: float, value: Any) -> None:
        """Add a point to the curve of a title. `value` is a number or an array of one element.

        Raises ValueError for a title that the Ploter was not made with.
        """
        if title not in self.__plot_data__:
            known = ", ".join(map(repr, self.__args__))
            raise ValueError(f"no curve has the title {title!r}; there are {known or 'none'}")
        self.__plot_data__[title].append(step, value)

    def plot(self, path: str | os.PathLike[str] | None = None) -> None:
        """Draw all curves that have points: into a file, or, without a path, in the notebook.

        Raises DependencyError without a path where there is no IPython.
        """
        if self._disabled:
            return
        drawn = [title for title in self.__args__ if self.__plot_data__[title].step]
        figure = self.plt.gcf()
        for title in drawn:
            data = self.__plot_data__[title]
            self.plt.plot(data.step, [_number(value) for value in data.value])
        if drawn:
            self.plt.legend(drawn, loc="upper left")
        try:
            if path is None:
                _show(figure)
            else:
                figure.savefig(path)
        finally:
            figure.clear()

    def reset(self) -> None:
        """Remove all points."""
        for data in self.__plot_data__.values():
            data.reset()


def _number(value: Any) -> float:
    """Return a number; a loss of `Executor.run` is an array of shape [1]."""
    return float(value.reshape(-1)[0]) if getattr(value, "size", 0) == 1 else float(value)


def _show(figure: Any) -> None:
    try:
        from IPython import display
    except ImportError:
        raise DependencyError(
            "Ploter.plot() without a path",
            "IPython",
            "",
            "or give a path, or set DISABLE_PLOT=True",
        ) from None
    display.clear_output(wait=True)
    display.display(figure)

"""FetchHandler: lets a user look at variables while a dataset trains a program."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfluid import errors, record


class FetchHandler:
    """Observer of variables while a dataset trains a program: override `handler`.

    Args:
        var_dict: Variables by the names under which `handler` gets them.
        period_secs: seconds between two calls.

    Raises FetchError when `var_dict` is empty.
    """

    def __init__(self, var_dict: Mapping[str, Any] | None = None, period_secs: float = 60):
        if not var_dict:
            raise errors.FetchError("FetchHandler: var_dict is empty: name the variables to fetch")
        self.var_dict, self.period_secs = dict(var_dict), period_secs

    def handler(self, res_dict: dict[str, Any]) -> None:
        """Handle the values of the newest step: NumPy arrays by name, None before the first step.

        This one prints them. Those of one element go into the record, too (`jfluid.log`).
        """
        for name, value in res_dict.items():
            print(f"{name}: {value}")

    @staticmethod
    def help() -> None:
        """Print an example."""
        print(
            "class Losses(fluid.executor.FetchHandler):\n"
            "    def handler(self, res_dict):\n"
            "        print(res_dict['loss'])\n"
            "exe.train_from_dataset(program, dataset, fetch_handler=Losses({'loss': loss}, period_secs=10))"
        )


class Watch:
    """Thread that calls a FetchHandler with the newest values."""

    _steps_before = 0  # of all that have ended, such as one for each epoch

    def __init__(self, handler: FetchHandler | None):
        self._handler, self._stop = handler, threading.Event()
        self._newest: tuple[int, Sequence[Any] | None] = Watch._steps_before, None
        self._error: BaseException | None = None
        self.fetches = [] if handler is None else list(handler.var_dict.values())
        self._thread = threading.Thread(target=self._run, name="jfluid-fetch-handler", daemon=True)

    def __enter__(self) -> "Watch":
        if self._handler is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        if self._handler is not None:
            self._thread.join()
        Watch._steps_before = self._newest[0]

    def show(self, values: Sequence[Any]) -> None:
        """Take the values of a step.

        Re-raise an error of the handler.
        """
        self._newest = self._newest[0] + 1, values
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        assert self._handler is not None
        names = list(self._handler.var_dict)
        try:
            while not self._stop.wait(self._handler.period_secs):
                step, newest = self._newest
                values = [None] * len(names) if newest is None else [np.array(v) for v in newest]
                numbers = {n: v for n, v in zip(names, values) if v is not None and v.size == 1}
                record.log(step, **numbers)
                self._handler.handler(dict(zip(names, values)))
        except BaseException as error:
            self._error = error

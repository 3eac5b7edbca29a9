"""The process in which `jfluid doctor --run` runs a script: REPORT STEPS script.py [arguments].

It ends the script after some steps, and writes to REPORT, as JSON, how far it came.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from jfluid.compat import scripts
from jfluid.executor import Executor
from jfluid.parallel_executor import ParallelExecutor

_SHOWN = 4  # values of an array, and arrays of a step


class _Enough(BaseException):
    """The steps are made. Scripts that catch Exception do not catch it."""


class _Report:
    """Writer of reports to the parent process."""

    def __init__(self, path: str, most: int):
        self._path, self._most = path, most
        self._record: dict[str, Any] = {"ended": "running", "steps": 0, "fetched": []}
        self.write()

    def write(self, **changes: Any) -> None:
        """Change the record, and write it whole or not at all."""
        self._record |= changes
        with open(f"{self._path}.new", "w") as file:
            json.dump(self._record, file)
        os.replace(f"{self._path}.new", self._path)

    def step(self, fetched: Any) -> None:
        """Count a step. Raises _Enough after the last one."""
        self.write(steps=self._record["steps"] + 1, fetched=_shown(fetched))
        if self._record["steps"] >= self._most:
            raise _Enough


def _shown(fetched: Any) -> list[str]:
    """Return the first values of the first arrays of a step."""
    shown = []
    for value in list(fetched or ())[:_SHOWN]:
        flat = np.asarray(value).reshape(-1)
        text = ", ".join(f"{v:.6g}" if flat.dtype.kind == "f" else str(v) for v in flat[:_SHOWN])
        shown.append(f"[{text}{', ...' if flat.size > _SHOWN else ''}]")
    return shown


def _counted(run: Callable[..., Any], report: _Report, is_step: Callable[..., bool]) -> Any:
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = run(self, *args, **kwargs)
        if is_step(*args, **kwargs):
            report.step(result)
        return result

    return counted


def _feeds_or_fetches(program: Any = None, feed: Any = None, fetch_list: Any = None, *args: Any, **others: Any) -> bool:
    """Return True if a run is a step: startup programs have neither feeds nor fetches."""
    return bool(feed) or bool(fetch_list)


def main(path: str, steps: int, command: list[str]) -> int:
    """Run the script; returns the exit code."""
    report = _Report(path, steps)
    for holder, name, is_step in (
        (Executor, "run", _feeds_or_fetches),
        (Executor, "train_from_dataset", lambda *args, **kwargs: True),
        (ParallelExecutor, "run", lambda *args, **kwargs: True),
    ):
        setattr(holder, name, _counted(getattr(holder, name), report, is_step))
    try:
        scripts.run(command)
    except _Enough:
        report.write(ended="steps")
        return 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if code == 0:
            report.write(ended="by itself")
        else:
            report.write(ended="error", error=f"ended with {error.code!r}")
        return code
    except BaseException as error:
        traceback.print_exc()
        report.write(ended="error", error=_text(error), place=_place(error))
        return 1
    report.write(ended="by itself")
    return 0


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _place(error: BaseException) -> str:
    """`file:line` of the innermost line that belongs to the script's folder."""
    here = os.getcwd() + os.sep
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_below(f.filename, here)]
    if not frames:
        return ""
    return f"{os.path.relpath(os.path.abspath(frames[-1].filename), here)}:{frames[-1].lineno}"


def _is_below(path: str, folder: str) -> bool:
    return os.path.abspath(path).startswith(folder) and not path.startswith("<")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))

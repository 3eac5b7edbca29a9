"""Names that Python and NumPy had in 2020 and have dropped since: `restore()` gives them back."""

import importlib
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from jfluid.compat import numpy_names, python_names
from jfluid.compat.python_names import Names

_log = logging.getLogger(__name__)
TODAY: dict[str, Names] = {"numpy": numpy_names.TODAY, **python_names.TODAY}


def restore() -> None:
    """Give modules the names back; each says once, in the log, what to write today."""
    for name, names in TODAY.items():
        module = importlib.import_module(name)
        before = vars(module).get("__getattr__")
        if not isinstance(before, _OlderNames):
            vars(module)["__getattr__"] = _OlderNames(module, names, before)


class _OlderNames:
    """What a module looks names up with that it does not have."""

    def __init__(self, module: ModuleType, names: Names, before: Callable[[str], Any] | None):
        self._module, self._names, self._before = module, names, before

    def __call__(self, name: str) -> Any:
        path = self._module.__name__
        if name in self._names and name not in vars(self._module):
            today, value = self._names[name]
            _log.warning("%s.%s is no more; %s means the same", path, name, today)
            vars(self._module)[name] = value  # found without this from now on
            return value
        if self._before is not None:
            return self._before(name)
        raise AttributeError(f"module {path!r} has no attribute {name!r}")

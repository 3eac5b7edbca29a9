"""Names that Python and NumPy had in 2020 and have dropped since; `restore()` defines the names."""

import functools
import importlib
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy

from jfluid.compat import numpy_names, python_names
from jfluid.compat.python_names import Names

_log = logging.getLogger(__name__)
TODAY: dict[str, Names] = {"numpy": numpy_names.TODAY, **python_names.TODAY}


def restore() -> None:
    """Give modules the dropped names back; the first use of a name logs today's name.

    Log once, too, which conversions the installed NumPy refuses.
    """
    _tell_of_numpy(numpy.__version__)
    for name, names in TODAY.items():
        module = importlib.import_module(name)
        before = vars(module).get("__getattr__")
        if not isinstance(before, _OlderNames):
            vars(module)["__getattr__"] = _OlderNames(module, names, before)


@functools.cache
def _tell_of_numpy(version: str) -> None:
    if tuple(map(int, version.split(".")[:2])) >= (2, 4):
        _log.warning(
            "NumPy %s refuses float(a), int(a), '%%f' %% a and b[0] = a for an array a of one element that has "
            "dimensions, such as np.exp([loss]) or np.array(tensor). Fetched arrays still convert. If the script stops "
            "there: pip install 'numpy<2.4'",
            version,
        )


class _OlderNames:
    """`__getattr__` of a module: looks up names that the module has dropped."""

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

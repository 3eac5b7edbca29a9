"""Modules of `paddle` under their names; each is the same object as a module of jfluid."""

import importlib
import importlib.util
import sys
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

from jfluid import surface

# Where a module of `paddle` is in jfluid, if not under the same name; what it holds follows it.
_PLACES = {
    "fluid": "",
    "batch": "compat.batch",
    "check_import_scipy": "compat.paddle.check_import_scipy",
    "compat": "compat.text",
    "dataset": "compat.dataset",
    "reader": "compat.reader",
    "sysconfig": "compat.paddle.sysconfig",
    "utils": "compat.utils",
    "version": "compat.paddle.version",
}
_FUNCTIONS_TOO = (
    "paddle.batch",
    "paddle.check_import_scipy",
    *(f"paddle.fluid.{path}" for path in surface.FUNCTIONS_TOO),
)


def target(name: str) -> str:
    """Return the module of this package that `name`, "paddle" or below it, is."""
    first, _, rest = name.removeprefix("paddle").removeprefix(".").partition(".")
    if not first:
        return "jfluid.compat.paddle"
    return ".".join(part for part in ("jfluid", _PLACES.get(first, first), rest) if part)


class AliasFinder(MetaPathFinder, InspectLoader):
    """Finds and loads `paddle` and its modules.

    It stands first, since a file that a module of `paddle` is would be found, and loaded once more, by the
    path of its package.
    """

    def find_spec(self, fullname: str, path: Any = None, at: Any = None) -> ModuleSpec | None:
        if fullname != "paddle" and not fullname.startswith("paddle."):
            return None
        try:
            real = importlib.util.find_spec(target(fullname))
        except (ModuleNotFoundError, ValueError):
            return None
        if real is None:
            return None
        spec = ModuleSpec(
            fullname,
            self,
            origin=real.origin,
            is_package=real.submodule_search_locations is not None,
        )
        spec.has_location = real.has_location
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Put the real module in the place of the new one, which import takes from there."""
        name = module.__name__
        sys.modules[name] = importlib.import_module(target(name))
        for child in _FUNCTIONS_TOO:
            # Modules that import would put in the place of the functions of these names.
            if child.rpartition(".")[0] == name:
                sys.modules[child] = importlib.import_module(target(child))

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m paddle.distributed.launch`."""
        name = target(fullname)
        spec = importlib.util.find_spec(name)
        loader = spec.loader if spec is not None else None
        return loader.get_code(name) if isinstance(loader, InspectLoader) else None

    def get_source(self, fullname: str) -> str | None:
        name = target(fullname)
        spec = importlib.util.find_spec(name)
        loader = spec.loader if spec is not None else None
        return loader.get_source(name) if isinstance(loader, InspectLoader) else None

    def is_package(self, fullname: str) -> bool:
        spec = importlib.util.find_spec(target(fullname))
        return spec is not None and spec.submodule_search_locations is not None

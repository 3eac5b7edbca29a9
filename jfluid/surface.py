"""Fluid's module paths and names, by one table.

`fluid_names.txt` lists the public names of each of Fluid's modules. A path that is no file here
becomes a module that looks its names up where they live; a name that this release does not have
becomes an object that raises UnsupportedError when it is called.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.resources import files
from types import ModuleType
from typing import Any

from jfluid import errors

# Fluid's path (behind "jfluid.") -> the modules that hold its names. What is not found there is
# looked for in jfluid itself.
ALIASES: dict[str, tuple[str, ...]] = {
    "framework": (
        "ir.program",
        "ir.variable",
        "ir.operator",
        "ir.block",
        "ir.types",
        "places",
        "flags",
    ),
    "backward": ("ir.backward",),
    "unique_name": ("ir.unique_name",),
    "reader": ("feeding.reader", "io"),
    "data_feeder": ("feeding.data_feeder",),
    "layer_helper": ("layers.helper",),
    "data_feed_desc": ("dataset.data_feed_desc",),
    "incubate.data_generator": ("feeding.data_generator",),
    "incubate.fleet.base.role_maker": ("fleet.role_maker",),
    "incubate.fleet.base.fleet_base": ("fleet.base",),
    "incubate.fleet.base.mode": ("fleet.base",),
    "incubate.fleet.collective": ("fleet.collective",),
    "incubate.fleet.parameter_server.distribute_transpiler": (
        "fleet.parameter_server.fleet",
        "fleet.parameter_server.strategies",
        "fleet.parameter_server.runtime_config",
    ),
    "incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy": (
        "fleet.parameter_server.strategies",
        "fleet.parameter_server.runtime_config",
    ),
    "incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy_factory": (
        "fleet.parameter_server.strategies",
    ),  # as Fluid's guide calls it
    "distributed.fs_wrapper": ("fleet.filesystem",),
    "communicator": ("distributed.trainer.communicator",),
    "layers.ops": ("layers",),
    "layers.detection": ("layers",),
    "layers.rnn": ("layers",),
    "layers.utils": ("layers",),
    "contrib.layers": ("layers.sequence_lod",),
}
# Files here that Fluid has too, with more in them: what they lack is looked for in the package.
_WIDER = {
    "layers.nn": "layers",
    "layers.tensor": "layers",
    "layers.control_flow": "layers",
    "layers.io": "layers",
    "layers.loss": "layers",
    "layers.metric_op": "layers",
    "layers.learning_rate_scheduler": "layers",
}

# Names of Fluid's top level whose modules cost time to import.
_LAZY = {
    "DatasetFactory": "dataset",
    "InMemoryDataset": "dataset",
    "QueueDataset": "dataset",
    "DataFeedDesc": "dataset.data_feed_desc",
}

# What to say of names that are missing, by the start of their path.
_HINTS = {
    "dygraph": "imperative mode is not in this release: build a Program and run it with Executor.run",
    "contrib": "this extension is not in this release",
    "incubate.fleet.utils.hdfs": "files elsewhere are reached through fsspec: give datasets addresses such as "
    "hdfs://host/path, and checkpoints a fluid.distributed.fs_wrapper.BDFS",
    "incubate.fleet": "fluid.incubate.fleet.collective and .parameter_server.distribute_transpiler have what this release has "
    "of the fleet",
    "transpiler": "DistributeTranspiler cuts and places variables by itself; this helper of Fluid's is not in this release",
    "layers": "this layer (detection, CTC ...) is not in this release",
}


def _read_table() -> dict[str, frozenset[str]]:
    """Fluid's public names by path; "" is `paddle.fluid` itself, with `paddle`'s own."""
    table: dict[str, set[str]] = {}
    for line in files("jfluid").joinpath("fluid_names.txt").read_text().splitlines():
        heading, _, names = line.partition(":")
        path = heading.removeprefix("paddle").removeprefix(".fluid").removeprefix(".")
        table.setdefault(path, set()).update(names.split())
    return {path: frozenset(names) for path, names in table.items()}


NAMES = _read_table()


def _packages() -> frozenset[str]:
    """Every path that a longer one starts with."""
    paths = set(NAMES) | set(ALIASES)
    return frozenset(".".join(p.split(".")[:i]) for p in paths for i in range(1, len(p.split("."))))


_PACKAGES = _packages()


class Missing:
    """A public name of Fluid that this release does not have; it raises UnsupportedError when
    called or subclassed.
    """

    def __init__(self, path: str):
        self._path = path

    def _refuse(self) -> errors.UnsupportedError:
        hint = next(
            (h for start, h in _HINTS.items() if self._path.startswith(start)),
            "it is not in this release",
        )
        return errors.UnsupportedError(f"fluid.{self._path}: {hint}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._refuse()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        raise self._refuse()

    def __getattr__(self, name: str) -> "Missing":
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._path}.{name}")

    def __repr__(self) -> str:
        return f"<fluid.{self._path}: not in this release>"


def look_up(path: str, name: str, sources: Sequence[str] = ()) -> Any:
    """What Fluid calls `name` in module `path`. Raises AttributeError when Fluid has no such name
    there.
    """
    if not name.startswith("__"):
        for source in sources:
            holder = importlib.import_module(f"jfluid.{source}")
            if name in vars(holder):
                return vars(holder)[name]
        if not path and name in _LAZY:
            return getattr(importlib.import_module(f"jfluid.{_LAZY[name]}"), name)
        child = f"{path}.{name}" if path else name
        if child in ALIASES or child in _PACKAGES or (child in NAMES and child != path):
            return importlib.import_module(f"jfluid.{child}")
        if name in NAMES.get(path, ()):
            top = vars(sys.modules["jfluid"])
            return (
                top[name] if path and name in top else Missing(f"{path}.{name}" if path else name)
            )
    raise AttributeError(
        f"module 'jfluid{'.' + path if path else ''}' has no attribute {name!r}"
        + errors.close_to(name, NAMES.get(path, ()))
    )


def complete(module: ModuleType, path: str, sources: Sequence[str] = ()) -> None:
    """Give a module all of Fluid's names of `path`."""

    def get(name: str) -> Any:
        return look_up(path, name, sources)

    def names() -> list[str]:
        return sorted(
            {n for n in vars(module) if not n.startswith("_")} | NAMES.get(path, frozenset())
        )

    module.__dict__.update(__getattr__=get, __dir__=names)


class _Finder(MetaPathFinder, Loader):
    """Makes the modules of the table that are no files. It stands last, so that files come
    first.
    """

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        inner = fullname.removeprefix("jfluid.")
        if inner == fullname or not (inner in ALIASES or inner in _PACKAGES or inner in NAMES):
            return None
        return ModuleSpec(fullname, self, is_package=inner in _PACKAGES)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        path = module.__name__.removeprefix("jfluid.")
        module.__doc__ = f"Fluid's `fluid.{path}`: names that live elsewhere in this package (see jfluid/surface.py)."
        complete(module, path, ALIASES.get(path, ()))


def install() -> None:
    """Complete the modules that are files, and have the others made when they are imported."""
    if not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.append(_Finder())
    for path in NAMES:
        module = sys.modules.get(f"jfluid.{path}" if path else "jfluid")
        if module is not None:
            complete(module, path)
    for path, wider in _WIDER.items():
        complete(sys.modules[f"jfluid.{path}"], path, (wider,))

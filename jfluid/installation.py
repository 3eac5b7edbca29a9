"""Versions and modes of the installation, for scripts that ask."""

import runpy
from pathlib import Path
from typing import Any

from jfluid import errors

__all__ = [
    "FLUID_VERSION",
    "VERSION",
    "load_op_library",
    "memory_optimize",
    "release_memory",
    "require_version",
]

VERSION = "0.1.0"  # of this package
FLUID_VERSION = "1.8.5"  # the release whose interface this is
_LOADED: set[str] = set()  # files of operators that were loaded


def _numbers(version: str, what: str) -> tuple[int, ...]:
    if not isinstance(version, str):
        raise TypeError(f"require_version, {what}: expected a string such as '1.8.0', found {type(version).__name__}")
    parts = version.split(".")
    if not 1 <= len(parts) <= 4 or not all(p.isdigit() for p in parts):
        raise errors.ProgramError(f"require_version, {what}: expected one to four numbers with dots, found {version!r}")
    return tuple(map(int, parts)) + (0,) * (4 - len(parts))


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Check that Fluid 1.8.5, the version of the package's interface, lies between the versions.

    Raises UnsupportedError when it does not.
    """
    have = _numbers(FLUID_VERSION, "version")
    low = _numbers(min_version, "min_version")
    high = _numbers(max_version, "max_version") if max_version is not None else have
    if not low <= have <= high:
        raise errors.UnsupportedError(
            f"Fluid {min_version}{f' to {max_version}' if max_version else ' or newer'} is asked "
            f"for; this package has the interface of Fluid {FLUID_VERSION}"
        )


def memory_optimize(
    input_program: Any,
    skip_opt_set: Any = None,
    print_log: bool = False,
    level: int = 0,
    skip_grads: bool = True,
) -> None:
    """No effect, as in Fluid 1.8: XLA plans a step's memory, and the Executor donates the state that it overwrites."""


def release_memory(input_program: Any, skip_opt_set: Any = None) -> None:
    """No effect, as in Fluid 1.8: XLA frees arrays that a step no longer needs."""


def load_op_library(lib_filename: str) -> None:
    """Load a file of operators: a Python file that registers JAX functions with `jfluid.ops.registry.op`.

    `LayerHelper.append_op` then takes the types of these operators, with gradients, as after Fluid's function. A file
    that was loaded before is not run again. Raises UnsupportedError for a library of operators compiled for Fluid,
    which calls Fluid's C++ framework (libpaddle_framework.so), FileNotFoundError for a missing file, and ProgramError
    for a file that registers no operator.
    """
    path = Path(lib_filename).resolve()
    if path.suffix != ".py":
        raise errors.UnsupportedError(
            f"fluid.load_op_library({lib_filename!r}): operators compiled for Fluid call its C++ framework "
            f"(libpaddle_framework.so), which jfluid does not have; write the operators as JAX functions in "
            f"{path.stem}.py (CONTRIBUTING.md shows how), and load this file"
        )
    if str(path) in _LOADED:
        return
    from jfluid.ops import registry

    before = set(registry.registered())
    runpy.run_path(str(path))
    if set(registry.registered()) == before:
        raise errors.ProgramError(
            f"fluid.load_op_library({lib_filename!r}): the file registers no operator; decorate a JAX function with "
            "jfluid.ops.registry.op"
        )
    _LOADED.add(str(path))

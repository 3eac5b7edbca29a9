"""Files of operators that scripts load."""

import runpy
from pathlib import Path

from jfluid import errors
from jfluid.ops import registry

__all__ = ["load_op_library"]

_LOADED: set[str] = set()  # files that were loaded


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
    before = set(registry.registered())
    runpy.run_path(str(path))
    if set(registry.registered()) == before:
        raise errors.ProgramError(
            f"fluid.load_op_library({lib_filename!r}): the file registers no operator; decorate a JAX function with "
            "jfluid.ops.registry.op"
        )
    _LOADED.add(str(path))

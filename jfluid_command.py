"""The command `jfluid` as it is installed. It stands beside the package, since `doctor` and `inspect`
need none of JAX, which the package's `__init__` imports.
"""

import sys
from importlib.machinery import PathFinder
from types import ModuleType

_WITHOUT_JAX = ("doctor", "inspect", "-h", "--help")


def main() -> int:
    """Run the command; returns the exit code."""
    if sys.argv[1:2] == [] or sys.argv[1] in _WITHOUT_JAX:
        _prepare()
    from jfluid.command import main as run

    return run()


def _prepare() -> None:
    """Let modules of the package be imported without its `__init__`."""
    spec = PathFinder.find_spec("jfluid")
    if "jfluid" not in sys.modules and spec is not None and spec.submodule_search_locations:
        package = ModuleType("jfluid")
        package.__path__ = list(spec.submodule_search_locations)
        package.__spec__ = spec
        sys.modules["jfluid"] = package


if __name__ == "__main__":
    sys.exit(main())

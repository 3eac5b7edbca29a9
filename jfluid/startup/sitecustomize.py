"""Module that each Python interpreter with this folder in PYTHONPATH runs before its script.

The first `import paddle` decides whether `paddle` is jfluid.

It imports nothing of jfluid before then, so that it costs a process no time, and it goes on with
the sitecustomize that it stands before. JFLUID_AS_PADDLE=1 chooses jfluid, 0 never; without it
jfluid is taken where no PaddlePaddle is installed.
"""

from __future__ import annotations

import collections
import importlib
import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # without the time that typing takes to load
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_CHOICE = "JFLUID_AS_PADDLE"
_ALIAS = '"""`paddle` is jfluid.'  # how the package that `jfluid install-alias` makes begins


def _say(text: str) -> None:
    print(f"jfluid: {text}", file=sys.stderr, flush=True)


def _is_alias(file: str) -> bool:
    with open(file, "rb") as opened:
        return opened.read(len(_ALIAS)) == _ALIAS.encode()


class _Chooser:
    """Stands first until `paddle` is imported."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != "paddle":
            return None
        choice = os.environ.get(_CHOICE, "")
        if choice not in ("", "0", "1"):
            raise ImportError(f"{_CHOICE}: expected 0 or 1, found {choice!r}", name=fullname)
        sys.meta_path.remove(self)
        found = PathFinder.find_spec(fullname)
        other = found.origin if found is not None else None  # a folder without files has none
        if other and _is_alias(other):
            other = None
        if choice == "0" or (other and choice != "1"):
            if not choice:
                _say(f"paddle is {other}; {_CHOICE}=1 takes jfluid instead")
            return None
        if other:
            _say(f"paddle is jfluid, not {other}; {_CHOICE}=0 takes that")
        try:
            paddle = importlib.import_module("jfluid.compat.paddle")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "jfluid":
                raise
            raise ModuleNotFoundError(
                f"no module named 'paddle': {_FOLDER} is on PYTHONPATH, but jfluid is not installed "
                f"for {sys.executable}",
                name=fullname,
            ) from None
        paddle.install()
        return sys.meta_path[0].find_spec(fullname, path, target)


def _give_back(name: str) -> Any:
    """Restore names of `collections` that Python 3.10 has dropped.

    Scripts import these before they import `paddle`, which restores all remaining names.
    """
    import collections.abc

    if name not in collections.abc.__all__:
        raise AttributeError(f"module 'collections' has no attribute {name!r}")
    _say(f"collections.{name} is no more; collections.abc.{name} means the same")
    value = vars(collections)[name] = getattr(collections.abc, name)
    return value


def _go_on() -> None:
    """Run the sitecustomize that would have been run without this one."""
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        import importlib.util

        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get(_CHOICE) != "0":
    sys.meta_path.insert(0, _Chooser())
    vars(collections)["__getattr__"] = _give_back
_go_on()

"""The package `paddle` of PaddlePaddle 1.8.5: `install()` has `import paddle` find it.

    from jfluid.compat import paddle
    paddle.install()
    import paddle.fluid as fluid        # is jfluid

`python -m jfluid script.py`, `jfluid-launch` and JFLUID_AS_PADDLE=1 do so by themselves.
"""

import importlib
import sys
from typing import Any

from jfluid import startup
from jfluid.compat import older_names
from jfluid.compat.paddle.aliases import AliasFinder, target
from jfluid.compat.paddle.check_import_scipy import check_import_scipy
from jfluid.compat.paddle.version import commit as __git_commit__
from jfluid.compat.paddle.version import full_version as __version__
from jfluid.errors import ProgramError
from jfluid.feeding.reader import batch

__all__ = ["__git_commit__", "__version__", "batch", "check_import_scipy", "install"]


def install() -> None:
    """Make `import paddle` find this package, here and in processes that are started later.

    Python and NumPy get back names that they had in 2020.

    Raises ProgramError when another `paddle` has been imported before.
    """
    other = sys.modules.get("paddle")
    if other is not None and other is not sys.modules[__name__]:
        raise ProgramError(
            f"install: paddle is imported already, from {getattr(other, '__file__', 'elsewhere')}; call this before "
            "it is"
        )
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder())
    older_names.restore()
    startup.share()


def __getattr__(name: str) -> Any:
    """Return a module of `paddle`, when it is first asked for."""
    place = target(f"paddle.{name}")
    if not name.startswith("__"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name != place:
                raise
    raise AttributeError(f"module 'paddle' has no attribute {name!r}")

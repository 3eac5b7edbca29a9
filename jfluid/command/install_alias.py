"""`jfluid install-alias`: a package `paddle` that stands for jfluid in the environment.

Every interpreter of the environment then runs `python train.py` and `python -m paddle.distributed.launch` as written.
"""

import argparse
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from jfluid import startup

_PACKAGE = f'''{startup.ALIAS} Made by `jfluid install-alias`; `jfluid install-alias --remove` takes it away."""

import importlib
import os
import sys

if os.environ.get("{startup.CHOICE}") == "0":
    raise ModuleNotFoundError("No module named 'paddle': {startup.CHOICE}=0 leaves jfluid out", name="paddle")
del sys.modules["paddle"]
importlib.import_module("jfluid.compat.paddle").install()
importlib.import_module("paddle")
'''


def main(arguments: Sequence[str]) -> int:
    """Write or remove the package; return the exit code, 1 where a foreign `paddle` is there."""
    options = arguments_parser().parse_args(arguments)
    folder = Path(options.target or sysconfig.get_path("purelib"))
    package = folder / "paddle"
    found = PathFinder.find_spec("paddle", [str(folder)])
    other = found is not None and not _is_alias(package / "__init__.py")
    if other or (options.remove and found is None):
        said = f"{package} is another paddle" if other else f"there is no paddle in {folder}"
        print(f"jfluid install-alias: {said}; nothing is changed", file=sys.stderr)
        return 1
    if options.remove:
        shutil.rmtree(package)
        print(f"{package} is removed")
        return 0
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(_PACKAGE)
    print(f"import paddle is jfluid, by {package}")
    return 0


def _is_alias(file: Path) -> bool:
    return file.exists() and file.read_text(errors="replace").startswith(startup.ALIAS)


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(
        prog="jfluid install-alias", description="Have `import paddle` find jfluid for good."
    )
    parser.add_argument("--remove", action="store_true", help="take it away again")
    parser.add_argument(
        "--target",
        metavar="FOLDER",
        help="where packages are, instead of this environment's folder",
    )
    return parser

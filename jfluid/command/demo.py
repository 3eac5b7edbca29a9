"""`jfluid demo`: an example that comes with the package, copied to a folder and run there."""

import argparse
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from jfluid import errors, launch
from jfluid.command.outputs import reason
from jfluid.printable import printable

_HOME = Path(__file__).resolve().parents[2]
_FOLDERS = ("examples", "configs")
_INSTALLED = "share/jfluid/"  # where a wheel has them
_SUFFIXES = (".py", ".yaml")
_NEEDED = ("matplotlib", "sklearn")  # what the extra demo brings


def main(arguments: Sequence[str]) -> int:
    """Copy the examples and run one; returns its exit code, 2 where there is none of that name."""
    parser = arguments_parser()
    options = parser.parse_args(arguments)
    try:
        files = dict(_files())
        jobs = {_short(name): name for name in sorted(files) if name.endswith(".yaml")}
        if options.list:
            for name, job in jobs.items():
                about = files[job].read_text().partition("\n")[0].removeprefix("# ")
                print(f"{name:28} {about}")
            return 0
        if options.name not in jobs:
            likely = errors.close_to(options.name, jobs)
            raise errors.DataError(f"there is no example {options.name}{likely}; --list shows all names")
        if not options.copy:
            _check_libraries()
        folder = Path(options.folder)
        _copy(files, folder)
    except OSError as error:
        print(printable(f"jfluid demo: {reason(error)}: name a different folder with --folder"), file=sys.stderr)
        return 2
    except errors.JFluidError as error:
        print(printable(f"jfluid demo: {error}"), file=sys.stderr)
        return 2
    job, where = jobs[options.name], printable(str(folder), lines=False)
    if options.copy:
        print(f"the examples are in {where}; to run this one: cd {where}; jfluid launch {job}")
        return 0
    print(f"the examples are in {where}, and this one writes there: jfluid launch {job}", flush=True)
    os.chdir(folder)
    changes = [word for change in options.overrides for word in ("--set", change)]
    return launch.main([job, *changes], name="jfluid demo")


def _files() -> Iterator[tuple[str, Path]]:
    """Yield the names and paths of the examples' files, such as `configs/ctr_dnn.yaml`.

    The files lie in the checkout, beside the package (pip install --target), or in the environment's data folder.
    Raises DataError where no such folder has the files.
    """
    for root in (_HOME, _HOME / _INSTALLED):
        if (root / "configs" / "ctr_dnn.yaml").is_file():
            for path in sorted(p for folder in _FOLDERS for p in (root / folder).rglob("*")):
                if path.suffix in _SUFFIXES:
                    yield path.relative_to(root).as_posix(), path
            return
    found = [f for f in metadata.files("jfluid") or () if _INSTALLED in f.as_posix() and f.suffix in _SUFFIXES]
    if not found:
        raise errors.DataError("this installation has no examples: install jfluid from a wheel")
    for file in found:
        yield file.as_posix().rpartition(_INSTALLED)[2], Path(str(file.locate()))


def _short(name: str) -> str:
    """Return the name of a job file's example: `ctr_dnn`, `gallery/din`."""
    return name.partition("/")[2].removesuffix(".yaml")


def _check_libraries() -> None:
    lacking = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if lacking:
        raise errors.DependencyError("an example", " and ".join(lacking), "demo")


def _copy(files: dict[str, Path], folder: Path) -> None:
    """Copy missing files; existing files stay unchanged."""
    for name, path in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copyfile(path, target)


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(
        prog="jfluid demo",
        description="Copies the examples to a folder and runs one there: by default two trainers and two "
        "parameter servers that learn to predict clicks, which draws a picture.",
        epilog="Exit codes: the example's; 2 where there is no such example, or a library is missing.",
    )
    parser.add_argument("name", nargs="?", default="ctr_dnn", help="which one (default: %(default)s)")
    parser.add_argument("--folder", default="jfluid-demo", metavar="DIR", help="where to (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="say which there are, and end")
    parser.add_argument("--copy", action="store_true", help="copy the files, and run nothing")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a value of the job, such as args.epochs=1 (may be given again)",
    )
    return parser

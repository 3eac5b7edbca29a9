"""Files, modules and variables that pages, docstrings and comments name, and which of them the tree
does not have.

    python -m tests.stated_names        # prints what is stale
"""

import functools
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jfluid"
# The changelog is left out: it tells of what was.
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("jfluid", "tests", "docs", "benchmarks", "scripts", "examples", "configs")
SOURCES = [
    path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if not path.stem.endswith("_pb2")
]

# What readers have themselves.
READERS_OWN = {
    "train.py",
    "old_train.py",
    "script.py",
    "profile.json",
    "job.yaml",
    "clicks.py",
    "clicks/train.py",
    "network.py",
    "reader.py",
    "train_servers.py",
    "digits.py",
    "examples/digits.py",
    "jfluid/job.yaml",
    "jfluid/secret",
}

_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(
    r"(?<![\w/~.:$*>-])((?:[\w.<>*-]+/)*[\w<>*-]+\.(?:py|md|yaml|yml|json|proto|toml|txt))(?:::(\w+))?\b"
)
_FOLDER = re.compile(rf"(?<![\w/~.:$*>-])((?:{'|'.join(FOLDERS)})/[\w/<>*-]+)(?![\w.<>*/-])")
# `jfluid.ps` is no module, but the package of the protocol.
_DOTTED = re.compile(r"(?<![\w./-])((?:jfluid(?!\.ps\b)|fluid|scripts|tests)(?:\.[A-Za-z_]\w*)+)")
_VARIABLE = re.compile(r"(?<!\w)((?:JFLUID|FLAGS)_\w*[a-zA-Z0-9])(?!\w)")


def stale_in_pages() -> Iterator[str]:
    """`page: name` for each name that a page states and that there is not."""
    variables = set(_VARIABLE.findall((ROOT / "docs" / "variables.md").read_text()))
    for page in PAGES:
        yield from (f"{page.relative_to(ROOT)}: {name}" for name in stale(page.read_text(), variables))


def stale(text: str, variables: set[str]) -> list[str]:
    """The files, tests, modules, attributes and environment variables that a page has in backticks
    and that there are not.
    """
    spans = re.findall(r"`([^`]+)`", _FENCE.sub("", text))
    found = [
        f"{name}{test and f'::{test}'}" for span in spans for name, test in _files(span) if not _is_file(name, test)
    ]
    found += [
        name for span in spans for name in _DOTTED.findall(span) if not _FILE.fullmatch(name) and not importable(name)
    ]
    found += [name for span in spans for name in _VARIABLE.findall(span) if name not in variables]
    return list(dict.fromkeys(found))


def stale_in_sources() -> Iterator[str]:
    """`file: name` for each file below one of FOLDERS, and each name of a module, that code,
    docstrings or comments state.

    Names of modules in tests are left out: a test may state one that there is not.
    """
    for source in SOURCES:
        text = source.read_text()
        names = [name for name, _ in _FILE.findall(text) if name.partition("/")[0] in FOLDERS and not _is_file(name)]
        if not source.is_relative_to(ROOT / "tests"):
            names += [
                name
                for name in set(re.findall(r"\bjfluid(?!\.(?:py|ps)\b)(?:\.[A-Za-z_]\w*)+", text))
                if not _stated_by_its_file(name) and not importable(name)
            ]
        yield from (f"{source.relative_to(ROOT)}: {name}" for name in dict.fromkeys(names))


def _files(span: str) -> Iterator[tuple[str, str]]:
    yield from _FILE.findall(span)
    yield from ((name, "") for name in _FOLDER.findall(span))


@functools.cache
def _is_file(name: str, test: str = "") -> bool:
    """Whether the tree, or the package, has a file of this path (with a function of that name). A
    name without a folder may stand anywhere in the package; `<family>` stands for any name."""
    if name in READERS_OWN:
        return True
    pattern = re.sub(r"<[^>]*>", "*", name.rstrip("/"))
    found = [path for folder in (ROOT, PACKAGE) for path in folder.glob(pattern)]
    if not found and "/" not in pattern:
        found = list(PACKAGE.rglob(pattern))
    return any(not test or f"def {test}(" in path.read_text() for path in found)


@functools.cache
def importable(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one; `fluid` stands for jfluid."""
    try:
        pkgutil.resolve_name(re.sub(r"^fluid\b", "jfluid", name))
    except (ImportError, AttributeError):
        return False
    return True


@functools.cache
def _stated_by_its_file(name: str) -> bool:
    """Whether the file that a dotted name begins with has the word that follows; no import is
    needed.
    """
    path, words = PACKAGE, name.split(".")[1:]
    while words and (path / words[0]).is_dir():
        path /= words.pop(0)
    if words and (path / f"{words[0]}.py").is_file():
        path = path / f"{words.pop(0)}.py"
    else:
        path /= "__init__.py"
    return not words or re.search(rf"\b{words[0]}\b", path.read_text()) is not None


if __name__ == "__main__":
    print(*stale_in_pages(), *stale_in_sources(), sep="\n")

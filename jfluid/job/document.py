"""YAML texts by the core rules of YAML 1.2, as plain values, each with its line and column."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from jfluid.job.errors import JobError

Key = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
_MOST_DEPTH = 32  # of lists and mappings in others
_LONGEST_WHOLE = 100  # characters: Python does not print numbers of thousands of digits
_LARGEST = 1 << 18  # bytes of a job file; YAML's parser takes some hundred times as many
# Tag: (pattern, possible first characters, how the text becomes a value).
_SCALARS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "null": (r"~|null|Null|NULL|", "~nN", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    "int": (
        r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
        "-+0123456789",
        lambda text: int(text, 0) if text[:2] in ("0o", "0x") else int(text),
    ),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
        lambda text: float(re.sub(r"\.(?=[iInN])", "", text)),
    ),
}


def _resolve_as_yaml_1_2(cls: Any) -> Any:
    """Replace PyYAML's YAML 1.1 rules (`no` is False, `1e-3` is text, `1:30` is 90) with YAML 1.2 rules."""
    cls.yaml_implicit_resolvers = {}
    for name, (pattern, first, _) in _SCALARS.items():
        cls.add_implicit_resolver(_TAG + name, re.compile(f"(?:{pattern})$"), [*first, *([""] * (name == "null"))])
    return cls


@_resolve_as_yaml_1_2
class _Loader(yaml.SafeLoader):
    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not supported", problem_mark=mark)
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=self.get_mark())
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def fetch_flow_collection_start(self, kind: Any) -> None:
        # The scanner looks ahead, and for each bracket at all that are open: minutes for a thousand
        # of them.
        if self.flow_level >= _MOST_DEPTH:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=self.get_mark())
        super().fetch_flow_collection_start(kind)


@_resolve_as_yaml_1_2
class Dumper(yaml.SafeDumper):
    """Writes YAML that reads back as the same values."""


class Document:
    """A YAML text as plain values, with the position of each value."""

    def __init__(self, text: str, source: str, with_position: bool = True):
        self.source = source
        self.with_position = with_position
        self.places: dict[Key, str] = {(): source}
        try:
            node = yaml.compose(text, Loader=_Loader)
            self.value = None if node is None else self._convert(node, ())
        except yaml.MarkedYAMLError as error:
            place = self._place(error.problem_mark or error.context_mark)
            problem = " ".join(part for part in (error.context, error.problem) if part)
            raise JobError(f"{place}: {problem}") from None
        except yaml.reader.ReaderError as error:
            raise JobError(f"{source}: not YAML text: {error.reason}") from None
        except RecursionError:
            raise JobError(f"{source}: nested too deeply") from None
        if isinstance(node, yaml.ScalarNode) and node.style is None and text[node.end_mark.index :].strip():
            raise JobError(f"{source}: a comment follows the value; quote the value if the # belongs to it")

    def _place(self, mark: Any) -> str:
        return f"{self.source}:{mark.line + 1}:{mark.column + 1}" if self.with_position and mark else self.source

    def _convert(self, node: yaml.Node, at: Key) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return self._mapping(node, at)
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            self.places.update({(*at, number): self._place(item.start_mark) for number, item in enumerate(node.value)})
            return [self._convert(item, (*at, number)) for number, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and kind == "str":
            return node.value
        if kind == "int" and len(node.value) > _LONGEST_WHOLE:
            raise JobError(
                f"{self._place(node.start_mark)}: a whole number of {len(node.value)} characters; quote it if it "
                "is text"
            )
        if isinstance(node, yaml.ScalarNode) and kind in _SCALARS:
            try:
                return _SCALARS[kind][2](node.value)
            except ValueError as error:
                raise JobError(f"{self._place(node.start_mark)}: {error}") from None
        raise JobError(f"{self._place(node.start_mark)}: the tag {node.tag!r} is not supported")

    def _mapping(self, node: yaml.MappingNode, at: Key) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node.start_mark)
            key = self._convert(key_node, at)
            if not isinstance(key, str):
                raise JobError(f"{place}: a key must be text, not {key!r}; quote it")
            if key in result:
                raise JobError(f"{place}: duplicate key {key!r}, first given at {self.places[*at, key]}")
            self.places[*at, key] = place
            result[key] = self._convert(value_node, (*at, key))
        return result


def read_yaml(path: Path) -> Any:
    """Return the values of a YAML file, by the rules of job files. Raises JobError."""
    return read_document(path).value


def read_document(path: str | Path) -> Document:
    """Return the document of a file. Raises JobError."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
        text = data.decode()
    except (OSError, ValueError) as error:
        looked = f" (looked in {Path.cwd()})" if isinstance(error, FileNotFoundError) else ""
        raise JobError(f"{path}: {getattr(error, 'strerror', None) or error}{looked}") from None
    if len(data) > _LARGEST:
        raise JobError(f"{path}: expected at most {_LARGEST} bytes, found more")
    return Document(text, str(path))

"""The job file: what `jfluid-launch job.yaml` runs, as a validated model.

    name: recognize_digits          # default: the script's name
    mode: local                     # one process
    script: examples/digits.py      # relative to the directory you launch from
    args: {epochs: 10, lr: 1e-3}    # --epochs 10 --lr 0.001; or a list, passed as it is
    env: {CPU_NUM: 2}               # added to the script's environment
    log_dir: mylog                  # what the script prints goes to mylog/workerlog.0 too

YAML is read by its version 1.2 core rules, so that `no` is text and `1e-3` a number; duplicate keys, tags and
aliases are refused. Every error names file, line and column.
"""
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator
from pydantic_core import ErrorDetails

from jfluid.errors import JFluidError, close_to

Key = tuple[str | int, ...]

# What this release cannot run yet.
LATER_MODES = {
    "collective": "several processes that train together",
    "parameter_server": "trainers and parameter servers",
}


class JobError(JFluidError, ValueError):
    """A job file or an override is wrong; the message has one line for each mistake."""


# ---- YAML ------------------------------------------------------------------------------------------------------

_TAG = "tag:yaml.org,2002:"
# Tag: (pattern, possible first characters, how the text becomes a value).
_SCALARS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "null": (r"~|null|Null|NULL|", "~nN", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789",
            lambda text: int(text, 0) if text[:2] in ("0o", "0x") else int(text)),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
              "-+.0123456789", lambda text: float(re.sub(r"\.(?=[iInN])", "", text))),
}


def _resolve_as_yaml_1_2(cls: Any) -> Any:
    """Replace PyYAML's YAML 1.1 rules (`no` is False, `1e-3` is text, `1:30` is 90) by those of YAML 1.2."""
    cls.yaml_implicit_resolvers = {}
    for name, (pattern, first, _) in _SCALARS.items():
        cls.add_implicit_resolver(_TAG + name, re.compile(f"(?:{pattern})$"), [*first, *([""] * (name == "null"))])
    return cls


@_resolve_as_yaml_1_2
class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not supported", problem_mark=mark)
        return super().compose_node(parent, index)


@_resolve_as_yaml_1_2
class _Dumper(yaml.SafeDumper):
    pass


class _Document:
    """A YAML text as plain values, and where each of them stands."""

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
        if isinstance(node, yaml.ScalarNode) and node.style is None and text[node.end_mark.index:].strip():
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


# ---- the model -------------------------------------------------------------------------------------------------

def _scalar(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise ValueError("must be text, a number, true or false")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("must not contain a null character")
    return value


def _argument(value: Any) -> Any:
    return [_scalar(item) for item in value] if isinstance(value, list) else _scalar(value)


def _environment_text(value: Any) -> str:
    if isinstance(value, bool):
        raise ValueError("must be text or a number: an environment variable has no true or false; quote it")
    return str(_scalar(value))


def _form_of_args(value: Any) -> str | None:
    if isinstance(value, dict):
        return "<mapping>"
    return "<list>" if isinstance(value, list) else None


ArgumentName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w-]*$")]
Arguments = Annotated[
    Annotated[dict[ArgumentName, Annotated[Any, AfterValidator(_argument)]], Tag("<mapping>")]
    | Annotated[list[Annotated[Any, AfterValidator(_scalar)]], Tag("<list>")],
    Discriminator(_form_of_args, custom_error_type="args_form",
                  custom_error_message="must be a mapping (epochs: 10 is passed as --epochs 10) or a list"),
]
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]


class Job(BaseModel):
    """One local job: a script that runs in one process.

    `args` as a mapping becomes options: `epochs: 10` is `--epochs 10`, `sizes: [8, 16]` is `--sizes 8 16`,
    `verbose: true` is `--verbose`, and `verbose: false` is left out. As a list it is passed as it is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    script: str
    name: Annotated[str, Field(pattern=r"^[\w.-]+$")] = Field(
        default_factory=lambda data: Path(data.get("script", "")).stem)
    mode: str = "local"
    args: Arguments = Field(default_factory=dict)
    env: dict[EnvironmentName, Annotated[Any, AfterValidator(_environment_text)]] = Field(default_factory=dict)
    log_dir: Annotated[str, Field(min_length=1)] = "mylog"

    @field_validator("script")
    @classmethod
    def _is_a_file(cls, script: str) -> str:
        if not Path(script).is_file():
            raise ValueError(f"there is no such file (looked in {Path.cwd()})")
        return script

    @field_validator("mode")
    @classmethod
    def _is_local(cls, mode: str) -> str:
        if mode in LATER_MODES:
            raise ValueError(f"{mode} jobs ({LATER_MODES[mode]}) are not supported yet; this release runs local jobs")
        if mode != "local":
            raise ValueError("must be local")
        return mode

    def arguments(self) -> list[str]:
        """The script's command line arguments."""
        if isinstance(self.args, list):
            return [str(value) for value in self.args]
        words: list[str] = []
        for key, value in self.args.items():
            if value is False:
                continue
            words.append(f"--{key}")
            if value is not True:
                words += map(str, value if isinstance(value, list) else [value])
        return words

    def command(self) -> list[str]:
        """The command line that runs the job."""
        return [sys.executable, self.script, *self.arguments()]

    def to_yaml(self) -> str:
        """The job as YAML that reads back as the same job, below a comment with its command line."""
        text = yaml.dump(self.model_dump(), Dumper=_Dumper, sort_keys=False, default_flow_style=False)
        command = shlex.join(self.command())
        visible = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in command)
        return f"# {visible}\n{text}"


# ---- reading ---------------------------------------------------------------------------------------------------

def read_job(path: str | Path, overrides: Iterable[str] = ()) -> Job:
    """The job of a YAML file, with overrides such as `args.epochs=3` applied. Raises JobError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    document = _Document(text, str(path))
    if not isinstance(document.value, dict):
        raise JobError(f"{path}: a job file holds a mapping with the keys {', '.join(Job.model_fields)}; "
                       f"found {'nothing' if document.value is None else _short(document.value)}")
    return _validated(document.value, document.places, overrides)


def script_job(script: str, arguments: Sequence[str], overrides: Iterable[str] = ()) -> Job:
    """The local job that runs `script` with `arguments`. Raises JobError."""
    places: dict[Key, str] = {(): "jfluid-launch"}
    return _validated({"script": script, "args": list(arguments)}, places, overrides)


def _validated(data: dict[str, Any], places: dict[Key, str], overrides: Iterable[str]) -> Job:
    for override in overrides:
        _override(data, places, override)
    try:
        return Job.model_validate(data)
    except ValidationError as error:
        # The default name only needs a valid script; the script's own mistake is in the list.
        mistakes = [item for item in error.errors() if item["type"] != "default_factory_not_called"]
        raise JobError("\n".join(_explain(item, places) for item in mistakes)) from None


def _override(data: dict[str, Any], places: dict[Key, str], override: str) -> None:
    """Set one value of `data`: `a.b=v`, where v is read as YAML."""
    source = f"--set {override}"
    name, equals, text = override.partition("=")
    path = name.split(".")
    if not equals or not all(path):
        raise JobError(f"{source}: must have the form key=value or key.key=value")
    for depth, key in enumerate(path[:-1], start=1):
        places.setdefault(tuple(path[:depth]), source)
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise JobError(f"{source}: {'.'.join(path[:depth])} is not a mapping but {_short(data)}; set it as a whole")
    document = _Document(text, source, with_position=False)
    data[path[-1]] = document.value
    for inside in [at for at in places if at[:len(path)] == tuple(path)]:
        del places[inside]
    places[tuple(path)] = source


def _explain(error: ErrorDetails, places: dict[Key, str]) -> str:
    """One mistake as `place: key: what is wrong`."""
    at = tuple(part for part in error["loc"] if part not in ("<mapping>", "<list>", "[key]"))
    place = next(places[at[:end]] for end in range(len(at), -1, -1) if at[:end] in places)
    key = ".".join(map(str, at))
    match error["type"]:
        case "extra_forbidden":
            return f"{place}: unknown key {key!r}{close_to(key, Job.model_fields) or _known_keys()}"
        case "missing":
            return f"{place}: the key {key!r} is missing"
        case "string_type":
            problem = "must be text; quote it"
        case "dict_type":
            problem = "must be a mapping"
        case "string_pattern_mismatch":
            problem = f"must match {error['ctx']['pattern']}"
        case _:
            problem = error["msg"].removeprefix("Value error, ")
    return f"{place}: {key}: {problem}, found {_short(error['input'])}"


def _known_keys() -> str:
    return f"; a job has the keys {', '.join(Job.model_fields)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."

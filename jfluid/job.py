"""The job file: what `jfluid-launch job.yaml` runs, as a validated model.

    name: recognize_digits          # default: the script's name
    mode: local                     # one process
    script: examples/digits.py      # relative to the directory you launch from
    args: {epochs: 10, lr: 1e-3}    # --epochs 10 --lr 0.001; or a list, passed as it is
    env: {CPU_NUM: 2}               # added to the script's environment
    log_dir: mylog                  # what the script prints goes to mylog/workerlog.0 too
    log_max_bytes: 268435456        # then it goes on as a new file, and the old one is mylog/workerlog.0.1
    log_backups: 1                  # how many such old files are kept of each process
    stall_timeout: 600              # end the job when no step comes for so many seconds
    max_restarts: 3                 # after a failure, start again so often

    mode: collective                # processes that train together
    gpus: 4                         # on each host: a process for each; or a list of GPUs, or all
    processes: 2                    # on each host; without gpus they run on the CPU
    nodes: 2                        # hosts, each of which runs jfluid-launch
    ips: [10.0.0.1, 10.0.0.2]       # their addresses, or the coordinator's: coordinator: "10.0.0.1:6069"
    secret_file: /home/me/secret    # has the job's secret (chmod 600), which several hosts need; or set JFLUID_JOB_TOKEN

    mode: parameter_server          # or ps
    servers: 2                      # on each host; or a list: ["10.0.0.1:6170", "10.0.0.2:6170"]
    trainers: 4
    server_grace: 10                # seconds that servers have to end by themselves once all trainers have
    restarts: {servers: 1, trainers: 1}             # how often one process is started again while the others go on
    snapshots: {folder: /data/ctr, every_s: 60}     # of the servers; a server that is started again has its rows from there

YAML is read by its version 1.2 core rules, so that `no` is text and `1e-3` a number; duplicate keys, tags and
aliases are refused. Every error names file, line and column.
"""
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from jfluid.errors import JFluidError, SecretError, close_to
from jfluid.security import secret

Key = tuple[str | int, ...]

# Variables that the launcher gives each process of a gang.
ASSIGNED = ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_CURRENT_ENDPOINT", "PADDLE_TRAINER_ENDPOINTS",
            "PADDLE_PSERVER_ID", "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PORT", "POD_IP", "TRAINING_ROLE",
            "FLAGS_selected_gpus", "CUDA_VISIBLE_DEVICES", "JFLUID_PS_RESTORE")
# What the section `snapshots` becomes.
SNAPSHOT_VARIABLES = ("JFLUID_PS_SNAPSHOT_FOLDER", "JFLUID_PS_SNAPSHOT_EVERY_S", "JFLUID_PS_KEEP_BYTES")


class JobError(JFluidError, ValueError):
    """A job file or an override is wrong; the message has one line for each mistake."""


# ---- YAML ------------------------------------------------------------------------------------------------------

_TAG = "tag:yaml.org,2002:"
_MOST_DEPTH = 32  # of lists and mappings in others
_LONGEST_WHOLE = 100  # characters: Python does not print numbers of thousands of digits
_LARGEST = 1 << 18  # bytes of a job file; YAML's parser takes some hundred times as many
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
        # The scanner looks ahead, and for each bracket at all that are open: minutes for a thousand of them.
        if self.flow_level >= _MOST_DEPTH:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=self.get_mark())
        super().fetch_flow_collection_start(kind)


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
        if kind == "int" and len(node.value) > _LONGEST_WHOLE:
            raise JobError(f"{self._place(node.start_mark)}: a whole number of {len(node.value)} characters; quote it if it "
                           "is text")
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
    """The values in a YAML file, by the rules of job files. Raises JobError."""
    return _document(path).value


def _document(path: str | Path) -> _Document:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
        text = data.decode()
    except (OSError, ValueError) as error:
        raise JobError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > _LARGEST:
        raise JobError(f"{path}: expected at most {_LARGEST} bytes, found more")
    return _Document(text, str(path))


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


def _gpus(value: Any) -> Any:
    if isinstance(value, list):
        if value and all(isinstance(gpu, str | int) and not isinstance(gpu, bool) and re.fullmatch(r"[\w/-]+", str(gpu))
                         for gpu in value) and len(set(map(str, value))) == len(value):
            return [str(gpu) for gpu in value]
        raise ValueError("a list of GPUs holds different numbers (or the names that nvidia-smi -L shows)")
    if value == "all" or (type(value) is int and value > 0):
        return value
    raise ValueError("must be a positive number of GPUs, a list of them such as [0, 1], or all")


def _ranks(value: Any) -> Any:
    if value == "all" or (isinstance(value, list) and all(type(rank) is int and rank >= 0 for rank in value)):
        return value
    raise ValueError("must be a list of ranks such as [0, 3], or all")


def endpoint(text: str) -> tuple[str, int]:
    """Host and port of `host:port`. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[\w.-]+|\[[0-9a-fA-F:]+\]", host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError("must have the form host:port")
    return host, int(port)


def _endpoint(text: str) -> str:
    endpoint(text)
    return text


def _places(value: Any) -> Any:
    if type(value) is int and value > 0:
        return value
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return [_endpoint(item) for item in value]
    raise ValueError("must be a positive number, or a list of host:port")


Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Port = Annotated[int, Field(ge=1024, le=65535)]
Host = Annotated[str, Field(pattern=r"^[\w.-]+$")]
Endpoint = Annotated[str, AfterValidator(_endpoint)]


class Job(BaseModel):
    """One local job: a script that runs in one process.

    `args` as a mapping becomes options: `epochs: 10` is `--epochs 10`, `sizes: [8, 16]` is `--sizes 8 16`,
    `verbose: true` is `--verbose`, and `verbose: false` is left out. As a list it is passed as it is.
    `stall_timeout` is in seconds. A process's log has up to `log_max_bytes` bytes, and `log_backups` files as large of what
    came before. A disk that does not take a log ends the log and not the job.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    script: str
    name: Annotated[str, Field(pattern=r"^[\w.-]+$")] = Field(
        default_factory=lambda data: Path(data.get("script", "")).stem)
    mode: str = "local"
    args: Arguments = Field(default_factory=dict)
    env: dict[EnvironmentName, Annotated[Any, AfterValidator(_environment_text)]] = Field(default_factory=dict)
    log_dir: Annotated[str, Field(min_length=1)] = "mylog"
    log_max_bytes: Annotated[int, Field(ge=4096)] = 256 << 20
    log_backups: Natural = 1
    stall_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_restarts: Natural = 0

    @field_validator("script")
    @classmethod
    def _is_a_file(cls, script: str) -> str:
        if not os.path.isfile(script):  # nor one that no file can have
            raise ValueError(f"there is no such file (looked in {Path.cwd()})")
        return script

    @field_validator("env")
    @classmethod
    def _has_no_secret(cls, env: dict[str, str]) -> dict[str, str]:
        shown = [name for name in env if name in (secret.VARIABLE, secret.OLDER_VARIABLE)]
        if shown:
            # The value must not show up in the error either.
            raise PydanticCustomError("secret", f"a job file is shown and copied, and no place for {shown[0]}: set it where "
                                                "jfluid-launch runs, or name a file that has the secret: secret_file")
        return env

    @field_validator("mode")
    @classmethod
    def _is_of_this_class(cls, mode: str) -> str:
        if JOBS.get(_full_mode(mode)) is not cls:
            raise ValueError(f"must be {' or '.join(JOBS)}")
        return str(_full_mode(mode))

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
        values = self.model_dump(exclude_defaults=True) | {
            key: getattr(self, key) for key in ("script", "name", "mode", "args", "env", "log_dir")}
        ordered = {key: values[key] for key in type(self).model_fields if key in values}
        text = yaml.dump(ordered, Dumper=_Dumper, sort_keys=False, default_flow_style=False)
        command = shlex.join(self.command())
        visible = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in command)
        return f"# {visible}\n{text}"


class GangJob(Job):
    """What jobs of several processes have in common.

    `console` says which trainers' output is shown, by rank. `started_port` is the first port of a host's processes.
    `secret_file` has the job's secret; without it the environment variable JFLUID_JOB_TOKEN does, or on one host the launcher
    makes one.
    """

    gpus: Annotated[Any, AfterValidator(_gpus)] = None
    nodes: Count | None = None
    ips: Annotated[list[Host], Field(min_length=1)] | None = None
    coordinator: Endpoint | None = None
    started_port: Port | None = None
    secret_file: str | None = None
    console: Annotated[Any, AfterValidator(_ranks)] = Field(default_factory=lambda: [0])

    @field_validator("env")
    @classmethod
    def _leaves_the_launchers_variables_alone(cls, env: dict[str, str]) -> dict[str, str]:
        taken = [name for name in env if name in ASSIGNED]
        if taken:
            raise ValueError(f"the launcher gives each process its own {' and '.join(taken)}; remove it")
        return env

    @field_validator("secret_file")
    @classmethod
    def _has_a_secret(cls, path: str | None) -> str | None:
        if path is not None:
            try:
                secret.from_file(path)
            except SecretError as error:
                raise ValueError(str(error)) from None
        return path

    @model_validator(mode="after")
    def _lists_every_host(self) -> Self:
        if self.ips is not None and self.nodes not in (None, len(self.ips)):
            raise ValueError(f"nodes is {self.nodes}, but ips has {len(self.ips)} addresses")
        return self

    def check_shares(self, processes: int | None) -> None:
        """Raises ValueError unless so many processes can share the GPUs evenly."""
        number = len(self.gpus) if isinstance(self.gpus, list) else self.gpus
        if processes is not None and isinstance(number, int) and number % processes:
            raise ValueError(f"{number} gpus cannot be shared evenly by {processes} processes")


class CollectiveJob(GangJob):
    """Processes that train together, on one host or several.

    Each host runs `processes` processes, which share its `gpus` evenly (one each when `processes` is left out), or
    run on the CPU when there are no `gpus`.
    """

    mode: str = "collective"
    processes: Count | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.gpus is None and self.processes is None:
            raise ValueError("a collective job needs gpus (such as gpus: 2) or processes (on the CPU), for each host")
        self.check_shares(self.processes)
        return self


class Restarts(BaseModel):
    """How often one server, and one trainer, is started again when it fails, while the other processes go on."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    servers: Natural = 0
    trainers: Natural = 0


class Snapshots(BaseModel):
    """Snapshots of the servers' tables and blocks, which a server that is started again begins with.

    Each server has a folder of its own in `folder`, on its host. Each trainer keeps up to `keep_bytes` of what it has pushed
    to a server since the last snapshot, and sends it again to one that was restored. With `resume` the servers begin with
    the newest snapshots, if there are any; without it the folder must hold none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    folder: Annotated[str, Field(min_length=1)]
    every_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    keep_bytes: Natural = 256 << 20
    resume: bool = False

    def variables(self) -> dict[str, str]:
        """What servers and trainers find in their environment."""
        return dict(zip(SNAPSHOT_VARIABLES, (os.path.abspath(self.folder), repr(self.every_s), str(self.keep_bytes)),
                        strict=True))


class ParameterServerJob(GangJob):
    """Parameter servers and trainers: so many on each host, or lists of `host:port`.

    The trainers on a host share its `gpus` evenly; servers run on the CPU. When all trainers have ended, the servers have
    `server_grace` seconds to end by themselves.
    """

    mode: str = "parameter_server"
    servers: Annotated[Any, AfterValidator(_places)] = 1
    trainers: Annotated[Any, AfterValidator(_places)] = 1
    server_grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0
    restarts: Restarts = Field(default_factory=Restarts)
    snapshots: Snapshots | None = None

    @field_validator("restarts", mode="before")
    @classmethod
    def _of_both_roles(cls, value: Any) -> Any:
        return {"servers": value, "trainers": value} if type(value) is int else value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        lists = self._lists()
        both = [place for places in lists for place in places]
        if len(set(both)) < len(both):
            raise ValueError("servers and trainers must all have different endpoints")
        if lists and self.ips is not None:
            raise ValueError("ips does not go with lists of host:port, which say where servers and trainers are")
        if (self.hosts() or self.nodes not in (None, 1)) and len(lists) == 1:
            raise ValueError("on several hosts servers and trainers must both be lists of host:port, or both numbers")
        if lists and self.nodes not in (None, len(self.hosts()) or 1):
            raise ValueError(f"nodes is {self.nodes}, but servers and trainers are on {len(self.hosts()) or 1} hosts")
        if not self.hosts():
            self.check_shares(len(self.trainers) if isinstance(self.trainers, list) else self.trainers)
        return self

    @model_validator(mode="after")
    def _keeps_what_servers_hold(self) -> Self:
        if self.restarts.servers and self.snapshots is None:
            raise ValueError("a server that is started again needs snapshots, or it has lost its rows: add "
                             "snapshots: {folder: ...}, or set restarts.servers to 0")
        taken = [name for name in SNAPSHOT_VARIABLES if self.snapshots is not None and name in self.env]
        if taken:
            raise ValueError(f"env sets {' and '.join(taken)}, which the section snapshots does; remove it")
        return self

    def _lists(self) -> list[list[str]]:
        return [places for places in (self.servers, self.trainers) if isinstance(places, list)]

    @property
    def is_listed(self) -> bool:
        """Whether endpoints are given, of servers, trainers or both."""
        return bool(self._lists())

    def hosts(self) -> list[str]:
        """The hosts of the lists of endpoints, if there are several, in order."""
        hosts = list(dict.fromkeys(endpoint(place)[0] for places in self._lists() for place in places))
        return hosts if len(hosts) > 1 else []


JOBS: dict[str, type[Job]] = {"local": Job, "collective": CollectiveJob, "parameter_server": ParameterServerJob}


def _full_mode(mode: Any) -> Any:
    return "parameter_server" if mode == "ps" else mode


# ---- reading ---------------------------------------------------------------------------------------------------

Options = Mapping[str, tuple[str, Any]]


def read_job(path: str | Path, overrides: Iterable[str] = (), options: Options | None = None) -> Job:
    """The job of a YAML file. Raises JobError.

    Overrides such as `args.epochs=3` are applied first, then `options`, which map a key to the command line words
    that set it and the value (None: the key is taken away). An option that local jobs do not have makes a local job
    one of the mode that has it.
    """
    document = _document(path)
    if not isinstance(document.value, dict):
        raise JobError(f"{path}: a job file holds a mapping with the keys {', '.join(Job.model_fields)}; "
                       f"found {'nothing' if document.value is None else _short(document.value)}")
    return _validated(document.value, document.places, overrides, options or {})


def script_job(script: str, arguments: Sequence[str], overrides: Iterable[str] = (), options: Options | None = None) -> Job:
    """The job that runs `script` with `arguments`; the rest as in `read_job`. Raises JobError."""
    places: dict[Key, str] = {(): "jfluid-launch"}
    return _validated({"script": script, "args": list(arguments)}, places, overrides, options or {})


def _validated(data: dict[str, Any], places: dict[Key, str], overrides: Iterable[str], options: Options) -> Job:
    for override in overrides:
        _override(data, places, override)
    for key, (source, value) in options.items():
        _put(data, places, (key,), value, source)
        if value is None:
            del data[key]
    needed = [key for key in options if key not in Job.model_fields]
    if needed and data.get("mode", "local") == "local":
        modes = [mode for mode in JOBS if all(mode in _modes_with(key) for key in needed)] or _modes_with(needed[0])
        _put(data, places, ("mode",), modes[0], options[needed[0]][0])
    mode = _full_mode(data.get("mode", "local"))
    kind = JOBS.get(mode, Job) if isinstance(mode, str) else Job
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        # The default name only needs a valid script; the script's own mistake is in the list.
        mistakes = [item for item in error.errors() if item["type"] != "default_factory_not_called"]
        raise JobError("\n".join(_explain(item, places, kind) for item in mistakes)) from None


def _modes_with(key: str) -> list[str]:
    """The modes whose jobs have a key."""
    return [mode for mode, kind in JOBS.items() if key in kind.model_fields]


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
    _put(data, places, tuple(path), _Document(text, source, with_position=False).value, source)


def _put(data: dict[str, Any], places: dict[Key, str], path: tuple[str, ...], value: Any, source: str) -> None:
    """Set the value at the end of a path; `data` is the mapping that holds it."""
    data[path[-1]] = value
    for inside in [at for at in places if at[:len(path)] == path]:
        del places[inside]
    places[path] = source


def _explain(error: ErrorDetails, places: dict[Key, str], kind: type[Job]) -> str:
    """One mistake as `place: key: what is wrong`."""
    at = tuple(part for part in error["loc"] if part not in ("<mapping>", "<list>", "[key]"))
    place = next(places[at[:end]] for end in range(len(at), -1, -1) if at[:end] in places)
    key = ".".join(map(str, at))
    match error["type"]:
        case "extra_forbidden":
            other = _modes_with(key)
            if other:
                return f"{place}: the key {key!r} belongs to jobs with mode: {' or '.join(other)}"
            section = _section(kind, at[:-1])
            return f"{place}: unknown key {key!r}{close_to(str(at[-1]), section.model_fields) or _known_keys(section)}"
        case "missing":
            return f"{place}: the key {key!r} is missing"
        case "string_type":
            problem = "must be text; quote it"
        case "secret":
            return f"{place}: {key}: {error['msg']}"
        case "dict_type" | "model_type":
            problem = "must be a mapping"
        case "string_pattern_mismatch":
            problem = f"must match {error['ctx']['pattern']}"
        case _:
            problem = error["msg"].removeprefix("Value error, ")
    if not key:
        return f"{place}: {problem}"
    return f"{place}: {key}: {problem}, found {_short(error['input'])}"


def _section(kind: type[BaseModel], at: Key) -> type[BaseModel]:
    """The model of a job, or of the section of it that stands at `at`."""
    for key in at:
        annotation = kind.model_fields[str(key)].annotation
        parts = (annotation, *get_args(annotation))
        kind = next(part for part in parts if isinstance(part, type) and issubclass(part, BaseModel))
    return kind


def _known_keys(kind: type[BaseModel]) -> str:
    return f"; {'a job' if issubclass(kind, Job) else 'it'} has the keys {', '.join(kind.model_fields)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."

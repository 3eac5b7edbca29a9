"""The command line of `jfluid-launch`."""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jfluid.installation import VERSION
from jfluid.job import Job, JobError, address, read_job, schema, script_job
from jfluid.launch.nodes import NodeOptions

_USAGE = """%(prog)s [options] job.yaml
       %(prog)s [options] script.py [arguments of the script]
       %(prog)s [options] -m module [arguments of the module]"""

_NO_PORT = "\0"  # which no argument can have in it
_PORT = re.compile(r"\d+|\S+:\d+")


@dataclass(frozen=True)
class Command:
    """A parsed command line.

    `action` is run, print, slurm, k8s or jobset. The manifests k8s and jobset have a container `image` and `sizes` of
    pods.
    """

    job: Job
    node: NodeOptions
    action: str
    image: str | None = None
    sizes: Mapping[str, str] = field(default_factory=dict)


class _Set(argparse.Action):
    """Records `key: (the text on the command line, value)` of options that set a key of the job."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: Any,
        option: str | None = None,
    ) -> None:
        words = f"{option} {','.join(map(str, value)) if isinstance(value, list) else value}"
        values = {"cpus": {"processes": value, "gpus": None}}.get(self.dest, {self.dest: value})
        chosen = namespace.job_options
        for key, item in values.items():
            if key in chosen and not _agree(chosen[key][1], item):
                parser.error(f"{words} does not go with {chosen[key][0]}")
        namespace.job_options = chosen | {
            key: (words, item) for key, item in values.items() if key not in chosen or isinstance(item, list)
        }


class _Schema(argparse.Action):
    """Prints the schema of job files, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *others: Any) -> None:
        print(json.dumps(schema(), indent=1))
        parser.exit()


def _agree(first: Any, second: Any) -> bool:
    """Return True if two values of one key agree; a number agrees with a list of that length."""
    counts = [len(value) if isinstance(value, list) else value for value in (first, second)]
    return bool(first == second or (type(first) is not type(second) and counts[0] == counts[1]))


def _gpus(text: str) -> Any:
    if text == "all" or text.isdecimal():
        return text if text == "all" else int(text)
    return _gpu_list(text)


def _gpu_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _places(text: str) -> Any:
    return int(text) if text.isdecimal() else _names(text)


def _page(text: str) -> Any:
    return 0 if text == _NO_PORT else int(text) if text.isdecimal() else text


def _with_port(arguments: Sequence[str]) -> list[str]:
    """Mark each `--dashboard` without a port, since argparse would take the script as the port."""
    following = [*arguments[1:], ""]
    return [
        f"--dashboard={_NO_PORT}" if word == "--dashboard" and not _PORT.fullmatch(after) else word
        for word, after in zip(arguments, following)
    ]


def _as_given(word: str) -> str:
    """Return an argument of the script without the mark."""
    return word.removesuffix(f"={_NO_PORT}")


def _ranks(text: str) -> Any:
    return text if text == "all" else [int(part) for part in text.split(",")]


def _add_collective_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("processes that train together (mode: collective)")
    add = group.add_argument
    add(
        "--gpus",
        action=_Set,
        type=_gpus,
        metavar="N|LIST|all",
        help="a process for each of so many GPUs of a host",
    )
    add(
        "--selected_gpus",
        action=_Set,
        dest="gpus",
        type=_gpu_list,
        metavar="LIST",
        help="the same, by their numbers",
    )
    add("--cpus", action=_Set, type=int, metavar="N", help="so many processes on a host, on its CPU")
    add(
        "--processes",
        "--nproc_per_node",
        action=_Set,
        type=int,
        metavar="N",
        help="so many processes on a host; with --gpus they share the GPUs evenly",
    )
    add(
        "--console",
        action=_Set,
        type=_ranks,
        metavar="LIST|all",
        help="the ranks whose output is shown (default: 0); all go to LOG_DIR/workerlog.RANK",
    )


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("parameter servers and trainers (mode: parameter_server)")
    add = group.add_argument
    add(
        "--servers",
        "--server_num",
        action=_Set,
        type=_places,
        metavar="N|LIST",
        help="so many parameter servers on each host, or their addresses HOST:PORT (each host starts its own)",
    )
    add(
        "--endpoints",
        action=_Set,
        dest="servers",
        type=_names,
        metavar="LIST",
        help="the servers' addresses",
    )
    add(
        "--trainers",
        "--workers",
        "--worker_num",
        action=_Set,
        type=_places,
        metavar="N|LIST",
        help="the same of trainers",
    )


def _add_host_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("several hosts, each of which runs jfluid-launch")
    add = group.add_argument
    add("--nodes", "--nnodes", action=_Set, type=int, metavar="N", help="number of hosts")
    add(
        "--ips",
        "--cluster_node_ips",
        action=_Set,
        type=_names,
        metavar="LIST",
        help="their addresses, in order of rank",
    )
    add(
        "--coordinator",
        action=_Set,
        metavar="HOST:PORT",
        help="where the launcher of host 0 listens to the others",
    )
    add(
        "--started_port",
        "--start_port",
        action=_Set,
        type=int,
        metavar="PORT",
        help="first port of a host's processes (default: 6070 with --ips, else free ones)",
    )
    add("--node-rank", type=int, metavar="K", help="number of this host, from 0")
    add("--node_ip", type=address, metavar="IP", help="address of this host")
    add("--use_paddlecloud", action="store_true", help="read the hosts from PaddleCloud's variables")


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override one value of the job, such as args.epochs=3 (may be repeated)",
    )
    add("--log_dir", action=_Set, metavar="DIR", help="where the log files go (default: mylog)")
    add(
        "--dashboard",
        action=_Set,
        type=_page,
        metavar="PORT|HOST:PORT",
        help="serve the job's page; without a port at any free one of this machine",
    )
    add(
        "--profile",
        action=_Set,
        metavar="FIRST:END",
        help="profile these steps of all trainers, and the servers' calls meanwhile: one trace in LOG_DIR",
    )
    add(
        "--stall-timeout",
        dest="stall_timeout",
        action=_Set,
        type=float,
        metavar="SECONDS",
        help="end the job when a process finishes no step for so long (without steps: writes nothing)",
    )
    add(
        "--max-restarts",
        dest="max_restarts",
        action=_Set,
        type=int,
        metavar="N",
        help="after a failure, start again so often",
    )


def _add_manifest_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--dry-run",
        action="store_const",
        const="print",
        default="run",
        dest="action",
        help="print the job that would run, and exit",
    )
    add(
        "--emit",
        choices=["k8s", "jobset", "slurm"],
        dest="action",
        help="print a manifest that runs the job there, and exit",
    )
    add(
        "--image",
        metavar="NAME",
        help="with --emit k8s or jobset: the container image, which holds jfluid and the script",
    )
    add("--memory", metavar="SIZE", help="with --image: what each pod gets, such as 16Gi")
    add(
        "--storage",
        metavar="SIZE",
        help="with --image: the volume for snapshots that all pods share (default: 100Gi)",
    )


def arguments_parser(with_target: bool, name: str = "jfluid-launch") -> argparse.ArgumentParser:
    """Return the parser of the options and of the target.

    Args:
        with_target: whether a job file or a script is among them.
        name: the command's name in usage and errors.
    """
    parser = argparse.ArgumentParser(
        prog=name,
        description="Run a training job: a job file or a script.",
        allow_abbrev=False,
        usage=_USAGE,
    )
    parser.set_defaults(job_options={})
    _add_run_options(parser)
    _add_manifest_options(parser)
    _add_collective_options(parser)
    _add_server_options(parser)
    _add_host_options(parser)
    group = parser.add_argument_group("options of Fluid's launchers that change nothing here")
    for option in ("--print_config", "--log_level"):
        group.add_argument(option, help="--dry-run prints a job" if option[2] == "p" else None)
    if with_target:
        add = parser.add_argument
        add("--version", action="version", version=f"jfluid {VERSION}")
        add(
            "--schema",
            action=_Schema,
            nargs=0,
            help="print a JSON schema of job files, for editors",
        )
        add(
            "-m",
            "--module",
            action="store_true",
            dest="as_module",
            help="the target is a module, and runs as python -m runs it",
        )
        add("target", help="a job file (.yaml or .yml), a Python script, or with -m a module")
        add("arguments", nargs=argparse.REMAINDER, help="arguments of the script").required = False
    return parser


def parse(arguments: Sequence[str], defaults: Mapping[str, Any] = {}, name: str = "jfluid-launch") -> Command:
    """Parse a command line. Raises JobError.

    Args:
        defaults: keys of the job where no option sets them.
        name: what usage and errors call the command.
    """
    parser = arguments_parser(with_target=True, name=name)
    options = parser.parse_args(_with_port(arguments))
    is_job_file = not options.as_module and re.search(r"\.ya?ml$", options.target) is not None
    if is_job_file:
        _, unknown = arguments_parser(with_target=False).parse_known_args(options.arguments, options)
        if unknown:
            raise JobError(
                f"jfluid-launch: {' '.join(unknown)}: not an option of the launcher; "
                "to change an argument of a job file's script use --set args.NAME=VALUE"
            )
        job = read_job(options.target, options.overrides, options.job_options)
    else:
        keys = {key: (name, value) for key, value in defaults.items()} | options.job_options
        if options.as_module:
            keys["module"] = ("-m", True)
        words = [_as_given(word) for word in options.arguments]
        job = script_job(options.target, words, options.overrides, keys)
    node = NodeOptions(options.node_rank, options.node_ip, options.use_paddlecloud)
    if node != NodeOptions() and job.mode == "local":
        raise JobError(
            "jfluid-launch: --node-rank, --node_ip and --use_paddlecloud are for jobs of several processes: "
            "say how many on each host with --gpus N or --cpus N"
        )
    if (options.image is not None) != (options.action in ("k8s", "jobset")):
        raise JobError(
            "jfluid-launch: --emit k8s (or jobset) and --image NAME (a container image with jfluid and the "
            "script) go together"
        )
    given = {"memory": options.memory, "storage": options.storage}
    sizes = {name: size for name, size in given.items() if size is not None}
    if sizes and options.image is None:
        raise JobError(f"jfluid-launch: --{next(iter(sizes))} goes with --emit k8s (or jobset)")
    return Command(job, node, options.action, options.image, sizes)

"""`jfluid serve`: a saved model over HTTP."""

import argparse
import contextlib
import logging
import os
import re
import socket
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from jfluid import errors, flags
from jfluid.command.inspect import add_allow_argument, add_file_arguments
from jfluid.command.numbers import port, positive, seconds, timeout
from jfluid.exports.model import LoadedModel
from jfluid.host import collector
from jfluid.places import CPUPlace, CUDAPlace
from jfluid.printable import printable
from jfluid.serving.requests import RequestLimits

_INTERPRETS = "FLAGS_interpret_first_steps"


def main(arguments: Sequence[str]) -> int:
    """Serve models until the process is ended; return the exit code.

    It is 2 where a model cannot be read or the port is taken, 1 where a model cannot be served.
    """
    options = arguments_parser().parse_args(arguments)
    if flags.given(_INTERPRETS) is None:  # warm-up compiles, and equal requests get equal answers
        flags.set_flags({_INTERPRETS: False})
    try:
        folders = named(options.models)
        listening = listen(options.host, options.port)
        with listening, contextlib.suppress(KeyboardInterrupt):  # how a server is ended by hand
            serve(folders, listening, options)
    except (errors.UnsupportedError, errors.UntrustedOperatorError, ImportError) as error:
        print(printable(f"jfluid serve: {error}"), file=sys.stderr)
        return 1
    except (errors.JFluidError, OSError) as error:
        print(printable(f"jfluid serve: {error}"), file=sys.stderr)
        return 2
    return 0


def named(models: Sequence[str]) -> dict[str, str]:
    """Return the folders of `NAME=FOLDER` by name; a folder alone has its last part as its name.

    Raises AttributeTypeError for a name that is no part of an address, or is there twice.
    """
    found: dict[str, str] = {}
    for text in models:
        name, equals, folder = text.partition("=")
        if not equals or os.path.exists(text):
            name, folder = os.path.basename(os.path.abspath(text)), text
        if not re.fullmatch(r"[\w.-]+", name) or name in found:
            what = "a name that is there once" if name in found else "letters, digits, '.', '_' or '-'"
            raise errors.AttributeTypeError(f"{text}: expected NAME=FOLDER with {what}, found {name!r}")
        found[name] = folder
    return found


def serve(folders: Mapping[str, str], listening: socket.socket, options: argparse.Namespace) -> None:
    """Serve models on a socket that listens."""
    from jfluid.serving.application import server
    from jfluid.serving.models import Models
    from jfluid.serving.service import ModelService, Resources

    # batches have few sizes, which are compiled at the start
    warnings.filterwarnings("ignore", "this program is compiled anew for each new shape", RuntimeWarning)
    logging.basicConfig(format="%(asctime)s %(message)s", stream=sys.stderr)
    if options.access_log:
        access, handler = logging.getLogger("jfluid.serving").getChild("access"), logging.StreamHandler(sys.stderr)
        access.addHandler(handler)
        access.setLevel(logging.INFO)
        access.propagate = False
    limits = RequestLimits(
        options.max_bytes,
        options.max_rows,
        options.max_elements,
        options.max_held,
        options.max_connections,
        options.timeout,
    )
    place = CPUPlace() if options.gpu is None else CUDAPlace(options.gpu)
    resources = Resources(limits)

    def load(folder: str, name: str, version: str) -> ModelService:
        files = options.model_filename, options.params_filename
        model = LoadedModel(folder, *files, place, options.allow, options.servers)
        delay = options.max_delay / 1000
        return ModelService(model, options.max_batch, delay, resources, name, version, options.warm_up_length)

    models = Models(folders, load, resources, collector.settle)
    host, port = listening.getsockname()[:2]
    where = f"[{host}]" if ":" in host else host
    print(printable(f"serving {', '.join(folders.values())} at http://{where}:{port}"), flush=True)
    sys.setswitchinterval(0.0005)  # for which the loop waits for other threads; 5 ms by default
    server(models, options.poll).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any free one. Raises OSError that names the address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise OSError(
            f"{host}:{port}: {reason}: name an address of this machine with --host, a free port with --port"
        ) from error


def addresses(text: str) -> list[str]:
    """Return the endpoints of `--servers`: of a list, or of the key `servers` of a job file.

    Raises ArgumentTypeError.
    """
    from jfluid import job
    from jfluid.environment.endpoints import fault_of

    endpoints: object = [part.strip() for part in text.split(",")]
    if text.endswith((".yaml", ".yml")):
        try:
            document = job.read_yaml(Path(text))
        except (job.JobError, OSError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        endpoints = document.get("servers") if isinstance(document, dict) else None
    if not isinstance(endpoints, list):
        raise argparse.ArgumentTypeError(
            f"{text}: expected a job file with `servers: [HOST:PORT, ...]`, found {endpoints or 'no servers'}: "
            "give the addresses that the launcher prints as HOST:PORT,..."
        )
    if fault := fault_of(endpoints := [str(endpoint) for endpoint in endpoints]):
        raise argparse.ArgumentTypeError(f"expected HOST:PORT,... or the path of a job file (.yaml), {fault}")
    return endpoints


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the models, their files and their tables."""
    parser.add_argument(
        "models",
        nargs="+",
        metavar="[NAME=]FOLDER",
        help=(
            "folder of save_inference_model, or a folder of numbered folders, one for each version; "
            "the first model answers /predict"
        ),
    )
    add_file_arguments(parser)
    add_allow_argument(parser)
    parser.add_argument(
        "--servers",
        type=addresses,
        default=(),
        metavar="HOST:PORT,...|JOB.yaml",
        help="running servers that have the rows of the models' tables, in the job's order; or the job file with these "
        "servers (default: the rows are in the folder)",
    )


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(
        prog="jfluid serve",
        description="Serves saved models over HTTP: POST /predict with JSON or .npz, the Open Inference Protocol "
        "below /v2, GET /health, /metrics, /docs and / (inputs and outputs). SIGHUP loads new versions.",
    )
    _add_model_arguments(parser)
    parser.add_argument("--port", type=port, default=8866, help="default %(default)s; 0 takes any free port")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address of the server (default %(default)s: clients of this machine only; the server has no login)",
    )
    defaults = RequestLimits()
    for name, type_, default, text in (
        ("--max-batch", positive, 64, "maximum rows of a batch"),
        ("--max-delay", seconds, 2.0, "maximum ms that the first request of a batch waits for further requests"),
        ("--max-bytes", positive, defaults.bytes, "maximum bytes of a request, and of the arrays of an answer"),
        ("--max-rows", positive, defaults.rows, "maximum rows of a request"),
        ("--max-elements", positive, defaults.elements, "maximum numbers and lists in a request"),
        ("--max-held", positive, defaults.held, "maximum bytes of all large requests in progress"),
        ("--max-connections", positive, defaults.connections, "maximum connections at a time"),
        (
            "--timeout",
            timeout,
            defaults.seconds,
            "seconds after which a client that sends or receives nothing is disconnected",
        ),
    ):
        parser.add_argument(name, type=type_, default=default, help=f"{text} (default %(default)s)")
    parser.add_argument(
        "--warm-up-length",
        type=positive,
        default=8,
        help="length of the sequences that warm-up batches have (default %(default)s)",
    )
    parser.add_argument(
        "--poll",
        type=seconds,
        default=0.0,
        help="seconds between two checks for new versions (default: no checks; SIGHUP requests a check)",
    )
    parser.add_argument("--access-log", action="store_true", help="write a line of JSON to stderr for each request")
    parser.add_argument("--gpu", type=int, help="number of the GPU that runs the models (default: the CPU)")
    return parser

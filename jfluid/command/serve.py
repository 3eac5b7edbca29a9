"""`jfluid serve`: a saved model over HTTP."""

import argparse
import contextlib
import logging
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence

from jfluid import errors, flags
from jfluid.command.inspect import add_allow_argument, add_file_arguments
from jfluid.command.numbers import positive, seconds, timeout
from jfluid.exports.model import LoadedModel
from jfluid.places import CPUPlace, CUDAPlace
from jfluid.printable import printable
from jfluid.serving.requests import Limits

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
    from jfluid.serving.service import Resources, Service

    logging.basicConfig(format="%(asctime)s %(message)s", stream=sys.stderr)
    if options.access_log:
        access, handler = logging.getLogger("jfluid.serving").getChild("access"), logging.StreamHandler(sys.stderr)
        access.addHandler(handler)
        access.setLevel(logging.INFO)
        access.propagate = False
    limits = Limits(
        options.max_bytes,
        options.max_rows,
        options.max_elements,
        options.max_held,
        options.max_connections,
        options.timeout,
    )
    place = CPUPlace() if options.gpu is None else CUDAPlace(options.gpu)
    resources = Resources(limits)

    def load(folder: str, name: str, version: str) -> Service:
        model = LoadedModel(folder, options.model_filename, options.params_filename, place, options.allow)
        delay = options.max_delay / 1000
        return Service(model, options.max_batch, delay, resources, name, version, options.warm_up_length)

    models = Models(folders, load, resources)
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
        raise OSError(f"{host}:{port}: {error}") from error


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(
        prog="jfluid serve",
        description="Serves saved models over HTTP: POST /predict with JSON or .npz, the Open Inference Protocol "
        "below /v2, GET /health, /metrics, /docs and / (inputs and outputs). SIGHUP loads new versions.",
    )
    parser.add_argument(
        "models",
        nargs="+",
        metavar="[NAME=]FOLDER",
        help=(
            "folder of save_inference_model, or of numbered folders, one for each version; the first one answers "
            "/predict"
        ),
    )
    add_file_arguments(parser)
    add_allow_argument(parser)
    parser.add_argument("--port", type=int, default=8866, help="default %(default)s; 0: any")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="default %(default)s: this machine only; there is no login",
    )
    defaults = Limits()
    for name, type_, default, text in (
        ("--max-batch", positive, 64, "rows that run together"),
        ("--max-delay", seconds, 2.0, "ms that a request waits for others"),
        ("--max-bytes", positive, defaults.bytes, "of a request, and of its answer's arrays"),
        ("--max-rows", positive, defaults.rows, "of a request"),
        ("--max-elements", positive, defaults.elements, "numbers and lists of a request"),
        ("--max-held", positive, defaults.held, "bytes of all large requests under way"),
        ("--max-connections", positive, defaults.connections, "at a time"),
        ("--timeout", timeout, defaults.seconds, "seconds that a client may have others wait"),
    ):
        parser.add_argument(name, type=type_, default=default, help=f"{text} (default %(default)s)")
    parser.add_argument(
        "--warm-up-length",
        type=positive,
        default=8,
        help="length of the sequences for which programs are compiled at the start (default %(default)s)",
    )
    parser.add_argument(
        "--poll",
        type=seconds,
        default=0.0,
        help="seconds between two looks for new versions (default: none; SIGHUP asks for one)",
    )
    parser.add_argument("--access-log", action="store_true", help="a line of JSON on stderr for each request")
    parser.add_argument("--gpu", type=int, help="the GPU to run on; by default the CPU")
    return parser

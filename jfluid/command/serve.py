"""`jfluid serve`: a saved model over HTTP."""

import argparse
import contextlib
import socket
import sys
from collections.abc import Sequence

from jfluid import errors
from jfluid.command.inspect import add_allow_argument, add_model_arguments
from jfluid.exports.model import LoadedModel
from jfluid.places import CPUPlace, CUDAPlace
from jfluid.printable import printable
from jfluid.serving.requests import Limits


def main(arguments: Sequence[str]) -> int:
    """Serve a model until the process is ended; returns the exit code, 2 where the model cannot be
    read or the port is taken, 1 where it cannot be served.
    """
    options = arguments_parser().parse_args(arguments)
    try:
        place = CPUPlace() if options.gpu is None else CUDAPlace(options.gpu)
        model = LoadedModel(options.model, options.model_filename, options.params_filename, place, options.allow)
        listening = listen(options.host, options.port)
        with listening, contextlib.suppress(KeyboardInterrupt):  # how a server is ended by hand
            serve(model, listening, options)
    except (errors.UnsupportedError, errors.UntrustedOperatorError, ImportError) as error:
        print(printable(f"jfluid serve: {error}"), file=sys.stderr)
        return 1
    except (errors.JFluidError, OSError) as error:
        print(printable(f"jfluid serve: {error}"), file=sys.stderr)
        return 2
    return 0


def serve(model: LoadedModel, listening: socket.socket, options: argparse.Namespace) -> None:
    """Serve a model on a socket that listens."""
    from jfluid.serving.application import Service, server

    limits = Limits(
        options.max_bytes,
        options.max_rows,
        options.max_elements,
        options.max_held,
        options.max_connections,
        options.timeout,
    )
    service = Service(model, options.max_batch, options.max_delay / 1000, limits)
    host, port = listening.getsockname()[:2]
    where = f"[{host}]" if ":" in host else host
    print(printable(f"serving {options.model} at http://{where}:{port}"), flush=True)
    sys.setswitchinterval(0.0005)  # for which the loop waits for other threads; 5 ms by default
    server(service).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any free one. Raises OSError that names the address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise OSError(f"{host}:{port}: {error}") from error


def arguments_parser() -> argparse.ArgumentParser:
    """Return what the arguments are."""
    parser = argparse.ArgumentParser(
        prog="jfluid serve",
        description="Serves a saved model over HTTP: POST /predict with JSON or .npz, GET /health, "
        "/metrics and / (what the model takes and gives).",
    )
    add_model_arguments(parser)
    add_allow_argument(parser)
    parser.add_argument("--port", type=int, default=8866, help="default %(default)s; 0: any")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="default %(default)s: this machine only; there is no login",
    )
    defaults = Limits()
    for name, type_, default, text in (
        ("--max-batch", _positive, 64, "rows that run together"),
        ("--max-delay", _seconds, 2.0, "ms that a request waits for others"),
        ("--max-bytes", _positive, defaults.bytes, "of a request, and of its answer's arrays"),
        ("--max-rows", _positive, defaults.rows, "of a request"),
        ("--max-elements", _positive, defaults.elements, "numbers and lists of a request"),
        ("--max-held", _positive, defaults.held, "bytes of all large requests under way"),
        ("--max-connections", _positive, defaults.connections, "at a time"),
        ("--timeout", _timeout, defaults.seconds, "seconds that a client may have others wait"),
    ):
        parser.add_argument(name, type=type_, default=default, help=f"{text} (default %(default)s)")
    parser.add_argument("--gpu", type=int, help="the GPU to run on; by default the CPU")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, found {text}")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, found {text}")
    return number


def _timeout(text: str) -> float:
    number = _seconds(text)
    if number == 0:
        raise argparse.ArgumentTypeError("expected a number above 0, found 0")
    return number

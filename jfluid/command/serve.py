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


def main(arguments: Sequence[str]) -> int:
    """Serve a model until the process is ended; returns the exit code, 2 where the model cannot be
    read or the port is taken, 1 where it cannot be served.
    """
    options = _parser().parse_args(arguments)
    try:
        place = CPUPlace() if options.gpu is None else CUDAPlace(options.gpu)
        model = LoadedModel(
            options.model, options.model_filename, options.params_filename, place, options.allow
        )
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

    service = Service(model, options.max_batch, options.max_delay / 1000, options.max_bytes)
    host, port = listening.getsockname()[:2]
    where = f"[{host}]" if ":" in host else host
    print(printable(f"serving {options.model} at http://{where}:{port}"), flush=True)
    server(service).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any free one. Raises OSError that names the address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise OSError(f"{host}:{port}: {error}") from error


def _parser() -> argparse.ArgumentParser:
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
    parser.add_argument(
        "--max-batch", type=int, default=64, help="rows that run together (default %(default)s)"
    )
    parser.add_argument(
        "--max-delay",
        type=float,
        default=2.0,
        help="ms that a request waits for others (default %(default)s)",
    )
    parser.add_argument(
        "--max-bytes", type=int, default=64 << 20, help="of a request (default %(default)s)"
    )
    parser.add_argument("--gpu", type=int, help="the GPU to run on; by default the CPU")
    return parser

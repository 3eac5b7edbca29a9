"""`python -m jfluid.ps_server`: one parameter server, by hand.

Prints one line, `listening on HOST:PORT`, when it takes calls. The job's secret comes from a file
or the environment variable JFLUID_JOB_TOKEN; without them a server on 127.0.0.1 takes that of this
user, which `jfluid.security.secret.job_secret()` returns. SIGTERM and SIGINT end the server after
the calls under way.
"""

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from jfluid import errors
from jfluid.environment.process import ServerVariables
from jfluid.host import heap
from jfluid.job import JobError, read_yaml
from jfluid.ps_server import server_log, snapshot, specs, validation
from jfluid.ps_server.manifest import Manifest
from jfluid.ps_server.server import Server, Settings
from jfluid.ps_server.store import Store
from jfluid.security import secret

_LOOK_S = 0.2  # between looks at whether a signal has come


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jfluid.ps_server", description="One parameter server.")
    add, defaults = parser.add_argument, ServerVariables()
    add("--host", default="127.0.0.1", help="where to listen (default: this machine only)")
    add("--port", type=int, default=0, help="0 (default): a free one")
    add("--server", type=int, default=0, help="the number of this server, from 0")
    add("--servers", type=int, default=1, help="how many servers the job has")
    add("--trainers", type=int, default=1, help="how many trainers the job has")
    add(
        "--secret-file",
        type=Path,
        metavar="FILE",
        help=(
            f"has the job's secret, for its owner only (default: the variable {secret.VARIABLE}, or this user's secret)"
        ),
    )
    add("--tables", type=Path, metavar="FILE", help="YAML or JSON: {tables: [...], blocks: [...]} to begin with")
    add("--restore", type=Path, metavar="FOLDER", help="begin with the newest complete snapshot in this folder")
    add("--save-root", type=Path, metavar="FOLDER", help="write and read snapshots below this folder only")
    add(
        "--silence",
        type=float,
        default=defaults.silence_s,
        metavar="SECONDS",
        help="a trainer not heard for longer is silent (%(default)g)",
    )
    add(
        "--on-silence",
        choices=["fail", "leave out"],
        default=defaults.on_silence,
        help="the effect of a silent trainer on the job",
    )
    add(
        "--start",
        type=float,
        default=defaults.start_s,
        metavar="SECONDS",
        help="with --restore: a trainer not heard for longer from the beginning is silent (%(default)g)",
    )
    add("--end-with-trainers", action="store_true", help="end when all trainers have left")
    add("--max-rows", type=int, metavar="ROWS", help="refuse new rows above this number in all tables together")
    add(
        "--max-bytes",
        type=int,
        metavar="BYTES",
        help="refuse new rows above this number of bytes in all tables together",
    )
    add("--metrics-port", type=int, metavar="PORT", help="answer Prometheus on this port")
    add("--tls-certificate", type=Path, metavar="PEM")
    add("--tls-key", type=Path, metavar="PEM")
    add("--tls-clients", type=Path, metavar="PEM", help="clients need a certificate of these authorities")
    return parser


class _Beginning(validation.Spec):
    tables: tuple[specs.TableSpec, ...] = ()
    blocks: tuple[specs.BlockSpec, ...] = ()


def _store(options: argparse.Namespace) -> tuple[Store, Manifest | None]:
    """Return the store that the server begins with, and the source of the restore."""
    store = Store()
    if options.tables is not None:
        beginning = validation.read(_Beginning, read_yaml(options.tables), str(options.tables))
        for table in beginning.tables:
            store.create_table(table)
        for block in beginning.blocks:
            store.create_block(block)
    manifest = None
    if options.restore is not None:
        manifest = snapshot.restore(store, options.restore, options.server, options.servers)
        print(f"restored snapshot {manifest.id}", flush=True)
    return store, manifest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a server; returns 0, or 2 when it could not start."""
    handler = logging.StreamHandler()
    handler.setFormatter(server_log.Formatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    options = _parser().parse_args(arguments)
    heap.keep_for_messages()
    try:
        settings = validation.read(
            Settings,
            {
                "token": secret.from_file(options.secret_file)
                if options.secret_file
                else secret.job_secret([options.host]),
                "host": options.host,
                "port": options.port,
                "server": options.server,
                "servers": options.servers,
                "trainers": options.trainers,
                "silence_s": options.silence,
                "on_silence": options.on_silence,
                "start_s": options.start,
                "end_with_trainers": options.end_with_trainers,
                "save_root": options.save_root,
                "metrics_port": options.metrics_port,
                "max_rows": options.max_rows,
                "max_bytes": options.max_bytes,
                "tls_certificate": options.tls_certificate,
                "tls_key": options.tls_key,
                "tls_clients": options.tls_clients,
            },
            "options",
        )
        store, restored = _store(options)
        server = Server(settings, store)
        if restored is not None:
            server.trainer_group.resume(restored.left)
        server.start()
    except (errors.ServerError, errors.SecretError, JobError, OSError) as error:
        print(f"python -m jfluid.ps_server: {error}", file=sys.stderr)
        return 2
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # No more than this: the thread may hold the locks of what it waits for.
        signal.signal(number, lambda number, _: told.append(number))
    print(f"listening on {settings.host}:{server.port}", flush=True)
    if server.metrics_port is not None:
        print(f"metrics on http://{settings.host}:{server.metrics_port}/metrics", flush=True)
    # A signal that arrives when the thread is about to wait does not wake it.
    while not told and not server.wait(_LOOK_S):
        pass
    server.stop()
    logging.info("holds at the end: %s", server_log.held(server.store))
    return 0


if __name__ == "__main__":
    sys.exit(main())

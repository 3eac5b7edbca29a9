"""Waiting until servers accept connections."""

import logging
import socket
import time
from collections.abc import Sequence

from jfluid import flags

_PAUSE_S = 0.2
_TELL_EVERY_S = 10.0
_LOG = logging.getLogger(__name__)


def wait_until_listening(endpoints: Sequence[str]) -> None:
    """Return when all servers accept connections; tells every ten seconds who is missing.

    Raises TimeoutError, naming the missing ones, after FLAGS_rpc_deadline milliseconds.
    """
    limit = flags.get("FLAGS_rpc_deadline") / 1000
    started = told = time.monotonic()
    missing = list(endpoints)
    while missing := [e for e in missing if not _listens(e)]:
        now = time.monotonic()
        if now - started > limit:
            raise TimeoutError(
                f"parameter servers {', '.join(missing)} do not listen after {limit:g} s (FLAGS_rpc_deadline); "
                "start them, or look into their logs"
            )
        if now - told > _TELL_EVERY_S:
            told = now
            _LOG.warning("waiting for parameter servers %s", ", ".join(missing))
        time.sleep(_PAUSE_S)


def _listens(endpoint: str) -> bool:
    host, port = endpoint.rsplit(":", 1)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
    except OSError:
        return False
    return True

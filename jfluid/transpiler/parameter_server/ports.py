"""Waiting until servers accept connections."""

import logging
import socket
import time
from collections.abc import Sequence

from jfluid import flags
from jfluid.environment.endpoints import host_and_port

_PAUSE_S = 0.2
_TELL_EVERY_S = 10.0
_LOG = logging.getLogger(__name__)


def wait_until_listening(endpoints: Sequence[str]) -> None:
    """Wait until all servers accept connections; every ten seconds log missing servers, with reasons.

    Raises TimeoutError, naming the missing ones, after FLAGS_rpc_deadline milliseconds.
    """
    limit = flags.get("FLAGS_rpc_deadline") / 1000
    started = told = time.monotonic()
    missing = dict.fromkeys(endpoints, "")
    while missing := {e: why for e in missing if (why := _fault(e))}:
        now = time.monotonic()
        named = ", ".join(f"{endpoint} ({why})" for endpoint, why in missing.items())
        if now - started > limit:
            raise TimeoutError(
                f"parameter servers do not listen after {limit:g} s (FLAGS_rpc_deadline): {named}; start the servers, "
                "or read their logs"
            )
        if now - told > _TELL_EVERY_S:
            told = now
            _LOG.warning("waiting for parameter servers %s", named)
        time.sleep(_PAUSE_S)


def _fault(endpoint: str) -> str | None:
    """Return the reason why no server accepts a connection there; None if a server does."""
    host, port = host_and_port(endpoint)
    try:
        socket.create_connection((host.strip("[]"), port), timeout=1).close()
    except OSError as error:
        return error.strerror or str(error)
    return None

"""The address of a page, and the key that it needs."""

import socket
from typing import NamedTuple

from jfluid.security import secret


class Access(NamedTuple):
    """The key in a page's link, and the token for its metrics.

    Both derive from the job's secret and do not reveal it.
    """

    key: str
    metrics_token: str


def access_of(host: str, job_secret: str) -> Access | None:
    """Return the key and token of a page at `host`, or None if `host` is a loopback address."""
    if secret.is_loopback(host):
        return None
    key = secret.key_for(job_secret, "dashboard").hex()
    return Access(key, secret.metrics_token(job_secret))


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any free one. Raises OSError that names the address."""
    bare = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in bare else socket.AF_INET
        return socket.create_server((bare, port), family=family, backlog=64)
    except (OSError, OverflowError) as error:
        raise OSError(f"{host}:{port}: {getattr(error, 'strerror', None) or error}") from error


def link(listening: socket.socket, access: Access | None) -> str:
    """Return the address of the page, with its key."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # all of this machine's
        host = socket.gethostname()
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/" + (f"?key={access.key}" if access else "")

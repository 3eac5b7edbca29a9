"""Where a page is, and who may see it."""

import hmac
import socket

from jfluid.security import secret


def key_of(job_secret: str) -> str:
    """Return what a link has: who knows it sees the page, and cannot take part in the job."""
    return hmac.new(job_secret.encode(), b"jfluid dashboard", "sha256").hexdigest()


def needs_key(host: str) -> bool:
    """Whether others than this machine can connect to an address."""
    return not secret.is_loopback(host)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any free one. Raises OSError that names the address."""
    bare = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in bare else socket.AF_INET
        return socket.create_server((bare, port), family=family, backlog=64)
    except (OSError, OverflowError) as error:
        raise OSError(f"{host}:{port}: {getattr(error, 'strerror', None) or error}") from error


def link(listening: socket.socket, key: str | None) -> str:
    """Return the address of the page, with its key."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # all of this machine's
        host = socket.gethostname()
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/" + (f"?key={key}" if key else "")

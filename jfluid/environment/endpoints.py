"""What an endpoint is: `host:port`, the host a name or an address, one of IPv6 in brackets."""

import re

_HOST = re.compile(r"[\w.-]+|\[[0-9a-fA-F:]+\]")


def host_and_port(text: str) -> tuple[str, int]:
    """Return the host and the port of an endpoint. Raises ValueError, which says what is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not _HOST.fullmatch(host) or not (port.isascii() and port.isdecimal()):
        raise ValueError("must have the form host:port")
    if not 0 < int(port) < 65536:
        raise ValueError(f"port {port} is none: ports go from 1 to 65535")
    return host, int(port)


def fault_of(endpoints: list[str] | tuple[str, ...]) -> str | None:
    """Return what is wrong with the endpoints of a job's processes; None for good ones."""
    if not endpoints:
        return "expected at least one endpoint"
    for endpoint in endpoints:
        try:
            host_and_port(endpoint)
        except ValueError as error:
            return f"{endpoint!r} {error}"
        if endpoints.count(endpoint) > 1:
            return f"{endpoint} stands twice"
    return None

"""Endpoints `host:port`: the host is a name or an address, an IPv6 address in brackets."""

import re

_HOST = re.compile(r"[\w.-]+|\[[0-9a-fA-F:]+\]")


def host_and_port(text: str) -> tuple[str, int]:
    """Return the host and the port of an endpoint. Raises ValueError for a malformed endpoint."""
    host, colon, port = text.rpartition(":")
    if not colon or not _HOST.fullmatch(host) or not (port.isascii() and port.isdecimal()):
        raise ValueError("must have the form host:port")
    if not 0 < int(port) < 65536:
        raise ValueError(f"port {port} is none: ports go from 1 to 65535")
    return host, int(port)


def fault_of(endpoints: list[str] | tuple[str, ...]) -> str | None:
    """Return the fault of the endpoints of a job's processes; None if all are well formed."""
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

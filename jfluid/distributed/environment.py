"""Environment variables of jobs with parameter servers, beyond Fluid's.

| variable | of | meaning |
|---|---|---|
| JFLUID_JOB_TOKEN | both | the job's secret (see jfluid.security.secret) |
| JFLUID_PS_SILENCE_S | servers | a trainer not heard for longer than this many seconds is silent (60) |
| JFLUID_PS_ON_SILENCE | servers | then the job fails ("fail"), or goes on without it until it is heard again ("leave out") |
| JFLUID_PS_START_S | servers | after a server was restored, a trainer that is not heard for so long is silent (600) |
| JFLUID_PS_MAX_ROWS, JFLUID_PS_MAX_BYTES | servers | what the tables of one server may hold together (see server.Settings) |
| JFLUID_PS_METRICS_PORT | servers | server 0 answers Prometheus on this port of its host, server 1 on the next, and so on |
| JFLUID_PS_TLS_CERTIFICATE, JFLUID_PS_TLS_KEY | both | PEM files; with them servers take TLS connections only |
| JFLUID_PS_TLS_CLIENTS | servers | a PEM file of authorities: trainers must show a certificate of one of them |
| JFLUID_PS_TLS_AUTHORITY | both | a PEM file of the authority whose certificates servers have: then connections use TLS |
| JFLUID_PS_SHARE_MEMORY | trainers | 0: messages to servers on the same machine go over the network, too (1) |
"""
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jfluid import errors

if TYPE_CHECKING:
    from jfluid.ps_server.server import Settings

_PREFIX = "JFLUID_PS_"
_OF_SERVERS = {"silence_s": float, "on_silence": str, "start_s": float, "max_rows": int, "max_bytes": int,
               "metrics_port": int, "tls_certificate": str, "tls_key": str, "tls_clients": str}


def given(name: str) -> str:
    """The value of JFLUID_PS_`name`; empty where there is none."""
    return os.environ.get(f"{_PREFIX}{name.upper()}", "").strip()


def _number(name: str, kind: type) -> Any:
    text = given(name)
    try:
        return kind(text)
    except ValueError:
        raise errors.ServerError(f"{_PREFIX}{name.upper()}: expected a number, found {text!r}") from None


def server_settings(number: int, **settings: Any) -> "Settings":
    """The settings of server `number`: what is given here, and what the environment says.

    Raises ServerError that names the variable which is wrong.
    """
    from jfluid.ps_server import specs
    from jfluid.ps_server.server import Settings
    told = {name: _number(name, kind) for name, kind in _OF_SERVERS.items() if given(name)}
    if "metrics_port" in told:
        told["metrics_port"] += number
    return specs.read(Settings, {**settings, "server": number, **told}, f"settings of server {number} ({_PREFIX}...)")


def client_options() -> dict[str, Any]:
    """What the environment says of a trainer's connections. Raises ServerError for a file that cannot be read."""
    options: dict[str, Any] = {}
    if given("share_memory"):
        if given("share_memory") not in ("0", "1"):
            raise errors.ServerError(f"{_PREFIX}SHARE_MEMORY: expected 0 or 1, found {given('share_memory')!r}")
        options["share_memory"] = given("share_memory") == "1"
    if not given("tls_authority"):
        return options
    for name in ("tls_authority", "tls_certificate", "tls_key"):
        if given(name):
            try:
                options[name] = Path(given(name)).read_bytes()
            except OSError as error:
                raise errors.ServerError(f"{_PREFIX}{name.upper()}: {error}") from None
    return options

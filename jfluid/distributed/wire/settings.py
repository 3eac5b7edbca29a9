"""Settings of servers and connections from the environment (see jfluid.environment.process)."""

from typing import TYPE_CHECKING, Any

from jfluid import errors

if TYPE_CHECKING:
    from jfluid.ps_server.server import Settings


def server_settings(number: int, on_host: int, **settings: Any) -> "Settings":
    """Return the settings of server `number`, which is number `on_host` on its host.

    The environment adds to the settings that are given here.

    Raises ServerError that names the variable which is wrong.
    """
    from jfluid.environment.process import ServerVariables
    from jfluid.ps_server import validation
    from jfluid.ps_server.server import Settings

    told = ServerVariables.from_env().model_dump(exclude_unset=True)
    if "metrics_port" in told:
        told["metrics_port"] += on_host
    return validation.read(
        Settings, {**settings, "server": number, **told}, f"settings of server {number} (JFLUID_PS_...)"
    )


def client_options() -> dict[str, Any]:
    """Return the options of a trainer's connections from the environment.

    Raises ServerError for a file that cannot be read.
    """
    from jfluid.environment.process import ConnectionVariables

    told, options = ConnectionVariables.from_env(), dict[str, Any]()
    if told.tls_authority is None:
        return options
    for field in ("tls_authority", "tls_certificate", "tls_key"):
        path = getattr(told, field)
        if path is not None:
            try:
                options[field] = path.read_bytes()
            except OSError as error:
                raise errors.ServerError(f"{told.name_of(field)}: {error}") from None
    return options


def writes_snapshots() -> bool:
    """Return whether this job's servers write snapshots, so that processes of it may be killed and started again."""
    from jfluid.environment.process import SnapshotVariables

    return SnapshotVariables.from_env().snapshot_folder is not None


def kept_bytes() -> int:
    """Return the bytes of pushes that a trainer keeps for each server.

    Raises ServerError for a variable that is no number.
    """
    from jfluid.environment.process import SnapshotVariables

    told = SnapshotVariables.from_env()
    return told.keep_bytes if told.snapshot_folder is not None or "keep_bytes" in told.model_fields_set else 0

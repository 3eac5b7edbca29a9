"""The secret of a job and its sources.

Processes that have it belong to the job; it is never sent.
"""

import base64
import hmac
import ipaddress
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from jfluid import environment, errors
from jfluid.security import private_files

VARIABLE, OLDER_VARIABLE = environment.JOB_TOKEN, environment.OLDER_JOB_TOKEN
_LONGEST = 1024
_SHAPE = re.compile(rf"[\x21-\x7e]{{16,{_LONGEST}}}")


def job_secret(addresses: Iterable[str] = ()) -> str:
    """Return the secret of this process's job: JFLUID_JOB_TOKEN, which the launcher sets.

    Without it processes that listen on this machine only, at `addresses` ("host" or "host:port"),
    use a secret of this user, which is created at the first call. Raises SecretError if other
    machines could connect, or the secret is invalid.
    """
    found = given()
    if found is not None:
        return found
    beyond = [address for address in addresses if not is_loopback(address)]
    if beyond:
        raise errors.SecretError(
            f"{', '.join(beyond)}: other machines can connect there, so the job needs a secret: set {VARIABLE} to the "
            "same "
            f"random text of 16 to {_LONGEST} characters for all its processes (`python -m jfluid.security new` "
            "prints one)"
        )
    return of_this_user()


def given() -> str | None:
    """Return the secret of the environment, or None. Raises SecretError for an invalid one."""
    from jfluid.environment.process import SecretVariables

    told = SecretVariables.from_env()
    for text, name in ((told.job_token, VARIABLE), (told.older_job_token, OLDER_VARIABLE)):
        if text is not None:
            return checked(text, name)
    return None


def checked(text: str, source: str) -> str:
    """Check a secret. Raises SecretError, which never contains it."""
    if not _SHAPE.fullmatch(text):
        raise errors.SecretError(
            f"{source}: expected 16 to {_LONGEST} printable characters without spaces, found {len(text)} characters"
        )
    return text


def fresh() -> str:
    """Return a new secret: 32 characters, 192 random bits."""
    return secrets.token_urlsafe(24)


def from_file(path: str | os.PathLike[str]) -> str:
    """Return the secret in a file; white space around it does not count.

    Raises SecretError when it cannot be read, when others than its owner can read or write it, or
    its owner is a different user.
    """
    try:
        # Opening a pipe without a writer would block otherwise.
        with open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NONBLOCK)) as file:
            about = os.fstat(file.fileno())
            problem = _problem_of(about)
            data = b"" if problem else file.read(4 * _LONGEST)
    except OSError as error:
        raise errors.SecretError(f"{path}: cannot read the job's secret: {error.strerror}") from None
    if problem:
        raise errors.SecretError(f"{path}: the job's secret is not safe there: {problem}")
    return checked(data.decode("ascii", errors="replace").strip(), str(path))


def _problem_of(about: os.stat_result) -> str:
    """Why a file cannot be trusted with a secret of this user; empty when it can."""
    if not stat.S_ISREG(about.st_mode):
        return "this is no file"
    return private_files.problem_of(about, forbidden=0o077)


def of_this_user() -> str:
    """Return the secret of this user's jobs on this machine alone.

    Raises SecretError when it can be neither read nor created.
    """
    path = _file_of_this_user()
    if not path.exists():
        try:
            _make(path)
        except OSError as error:
            raise errors.SecretError(
                f"{path}: cannot make a secret for this user: {error.strerror}; set {VARIABLE} instead, "
                "to the same random text for all processes of the job"
            ) from None
    return from_file(path)


def _file_of_this_user() -> Path:
    from jfluid.environment.process import FolderVariables

    return FolderVariables.from_env().cache_home.expanduser() / "jfluid" / "secret"


def _make(path: Path) -> None:
    private_files.make_folder(path.parent)
    whole = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    whole.touch(0o600)
    try:
        whole.write_text(f"{fresh()}\n")
        os.link(whole, path)  # fails where a different process was faster
    except FileExistsError:
        pass
    finally:
        whole.unlink()


def is_loopback(address: str) -> bool:
    """Return whether only this machine can connect to "host", "host:port" or "[host]:port"."""
    host = re.sub(r":\d+$", "", address) if address.startswith("[") or address.count(":") == 1 else address
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def metrics_token(secret: str) -> str:
    """Return the token with which Prometheus gets the metrics of the job's servers.

    It does not reveal the secret.
    """
    return base64.urlsafe_b64encode(key_for(secret, "metrics")).decode().rstrip("=")


def key_for(secret: str, purpose: str) -> bytes:
    """Return a key (32 bytes) for one purpose; a proof for one kind of listener is useless for all other kinds."""
    return hmac.digest(secret.encode(), b"jfluid 1 " + purpose.encode(), "sha256")

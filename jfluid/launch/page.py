"""The page of a running job, served by a separate process so that no browser slows the launcher."""

import contextlib
import importlib.util
import os
import subprocess
import sys

from jfluid.dashboard import address
from jfluid.environment import JOB_TOKEN, OLDER_JOB_TOKEN
from jfluid.environment.endpoints import host_and_port
from jfluid.job import Job, JobError
from jfluid.launch.logs import announce

_LOOPBACK = "127.0.0.1"
_SECONDS_TO_END = 5.0


class Page:
    """The page of a job, from now until `close`.

    Args:
        secret: the job's, from which the key of the link comes where others can connect.

    Raises JobError where the address is taken, or a package is missing.
    """

    def __init__(self, job: Job, secret: str):
        assert job.dashboard is not None
        missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
        if missing:
            raise JobError(
                f"jfluid-launch: dashboard: the page needs {' and '.join(missing)}: pip install 'jfluid[serve]'"
            )
        place = job.dashboard
        host, port = (_LOOPBACK, place) if isinstance(place, int) else host_and_port(place)
        access = address.access_of(host, secret)
        try:
            listening = address.listen(host, port)
        except OSError as error:
            raise JobError(f"jfluid-launch: dashboard: {error}") from None
        with listening:
            descriptor = listening.fileno()
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "jfluid.dashboard",
                    str(descriptor),
                    os.path.abspath(job.log_dir),
                ],
                env={name: value for name, value in os.environ.items() if name not in (JOB_TOKEN, OLDER_JOB_TOKEN)},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(descriptor,),
                start_new_session=True,
            )
            # By no argument, which all users of the machine can see.
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.write(" ".join(access or ()).encode() + b"\n")
                self._process.stdin.flush()
            announce(f"the page of {job.name} is at {address.link(listening, access)}")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

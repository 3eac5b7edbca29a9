"""The profile of a job: it is asked for, and its processes' parts are joined to one trace."""

import glob
import threading
import time
from collections.abc import Callable
from pathlib import Path

from jfluid.launch.logs import announce
from jfluid.launch.recording import JobRecord
from jfluid.record import lines, profiles

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_FOR_OTHERS = 30.0  # after the first trainer's part
_SECONDS_FOR_SERVERS = 5.0
_SECONDS_AT_END = 3.0


class Profiles:
    """Joins the parts of each profile that is asked for, in a thread of the launcher of host 0.

    Args:
        record: of this launcher.
        steps: (first, count) of a profile of the job's own; None without one.
    """

    def __init__(self, record: JobRecord, steps: tuple[int, int] | None):
        self._record, self._folder = record, record.folder
        self._ended = threading.Event()
        self._joined = ""
        profiles.forget(self._folder)
        if steps is not None:
            profiles.write_request(self._folder, profiles.ProfileRequest(profiles.fresh_id(), *steps))
        self._thread = threading.Thread(target=self._run, name="jfluid-profiles", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Join the parts written so far, and end."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN_LOOKS):
            self._look()
        self._look()
        request = profiles.read_request(self._folder)
        if request is not None and request.id != self._joined:
            at = "" if request.first is None else f": no trainer has reached step {request.first + request.steps}"
            self._tell(f"there is no profile{at}; choose earlier steps, FIRST:END")

    def _look(self) -> None:
        request = profiles.read_request(self._folder)
        if request is None or request.id == self._joined or not self._parts(request.id, "trainer"):
            return
        self._wait(_SECONDS_FOR_OTHERS, lambda: self._has_all(request.id, "trainer"))
        windows = [part for path in self._parts(request.id, "trainer") if (part := profiles.read_part(path))]
        if not windows:
            return
        begin, end = min(part["begin"] for part in windows), max(part["end"] for part in windows)
        try:
            profiles.write_request(self._folder, request._replace(begin=begin, end=end))
            self._wait(_SECONDS_FOR_SERVERS, lambda: self._has_all(request.id, "server"))
            path, count = profiles.joined(self._folder, request.id)
        except OSError as error:
            self._tell(f"the profile could not be written: {error}")
        else:
            self._record.event("profile", name=path.name, reason=f"{end - begin:.3f} s of {count} processes")
            announce(f"the profile of {count} processes is in {path} (https://ui.perfetto.dev opens it)")
        self._joined = request.id

    def _parts(self, id: str, role: str) -> list[Path]:
        folder = profiles.part_of(self._folder, id, role, 0).parent
        return sorted(folder.glob(f"{role}.*.json.gz"))

    def _has_all(self, id: str, role: str) -> bool:
        """Return True if each process of a role has written its part: each trainer of the job, each recorded server."""
        recorded = len(glob.glob(f"{glob.escape(str(self._folder))}/{role}.*{lines.SUFFIX}"))
        # the record of a trainer of a different host may come after the first parts
        return len(self._parts(id, role)) >= max(recorded, self._record.trainers if role == "trainer" else 0)

    def _wait(self, seconds: float, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not ready() and time.monotonic() < deadline:
            if self._ended.wait(_SECONDS_BETWEEN_LOOKS / 5):
                deadline = min(deadline, time.monotonic() + _SECONDS_AT_END)
                time.sleep(_SECONDS_BETWEEN_LOOKS / 5)

    def _tell(self, text: str) -> None:
        self._record.event("profile", reason=text)
        announce(text)

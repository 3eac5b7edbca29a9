"""A folder of snapshots belongs to one job."""

import errno
import fcntl
import json
import os
import threading
import time

import pytest

from jfluid import errors
from jfluid.distributed.server.snapshot_writers import ServerSnapshots
from jfluid.ps_server import snapshot, specs
from jfluid.ps_server.store import Store
from jfluid.security import snapshot_owner
from tests import forked

FIRST, SECOND = "the-secret-of-the-first-job", "the-secret-of-the-second-job"


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    monkeypatch.setattr(snapshot_owner, "_PATIENCE_S", 0.0)


def claimed(folder, token, restarted=False, earlier=None, peers=()):
    return snapshot_owner.claimed(folder, token, restarted, earlier, peers)


def write(folder, job, number=1):
    store = Store()
    store.create_block(specs.BlockSpec(name="w", shape=(3,), optimizer=specs.Sgd(learning_rate=1.0)))
    store.job = job
    with store.view() as view:
        return snapshot.write(view, folder, f"s{number}", 0, 1, keep=None)


def test_a_second_job_is_refused_and_names_the_first(tmp_path):
    folder = tmp_path / "server-0"
    with claimed(folder, FIRST) as job:
        assert job == snapshot_owner.mark_of(FIRST) and FIRST not in (folder / "owner").read_text()
        for earlier in (None, ""):  # whether it would go on from snapshots or not
            with (
                pytest.raises(
                    errors.ServerError,
                    match=rf"server-0 belongs to job {job} \(.*; process {os.getpid()} on .*, since 20.*\), "
                    "which is running: two jobs cannot",
                ),
                claimed(folder, SECOND, earlier=earlier),
            ):
                pass
        found = snapshot_owner.of_another_job([tmp_path / "server-1", folder], SECOND)
        assert found is not None and found.job == job
        assert snapshot_owner.of_another_job([folder], FIRST) is None
    assert snapshot_owner.of_another_job([folder], SECOND) is None
    with claimed(folder, SECOND) as job:  # nothing was saved: it begins
        assert job == snapshot_owner.mark_of(SECOND)
    assert (folder / "owner").stat().st_mode & 0o777 == 0o600


def hold(folder):
    with claimed(folder, FIRST):
        print("claimed", flush=True)
        time.sleep(1000)


@pytest.mark.process
def test_a_killed_server_has_no_folder(tmp_path):
    server, (printed,) = forked.start(hold, tmp_path, os.environ)
    with printed:
        assert printed.readline() == "claimed\n"
        match = f"process {server.pid} "
        with pytest.raises(errors.ServerError, match=match), claimed(tmp_path, SECOND):
            pass
        server.kill()
        server.join()
    with claimed(tmp_path, FIRST, restarted=True, earlier="") as job:
        assert job == snapshot_owner.mark_of(FIRST)


def test_the_lock_of_a_host_that_is_lost_is_awaited(tmp_path, monkeypatch):
    """A network file system holds it for a while."""
    hosts = iter(["lost", *["here"] * 1000])
    monkeypatch.setattr(snapshot_owner.socket, "gethostname", lambda: next(hosts))
    monkeypatch.setattr(snapshot_owner, "_LOOK_S", 0.01)
    first = claimed(tmp_path, FIRST)
    first.__enter__()
    thread = threading.Timer(0.2, first.__exit__, [None, None, None])
    with pytest.raises(errors.ServerError, match="process .* on lost"), claimed(tmp_path, SECOND):
        pass
    thread.start()
    with claimed(tmp_path, FIRST, earlier="") as job:
        assert job == snapshot_owner.mark_of(FIRST)
    thread.join()


def test_who_goes_on_from_snapshots_takes_the_folder_over(tmp_path, caplog):
    """Unless a launcher has only started a server again, whose folder is another job's by now."""
    with claimed(tmp_path, FIRST) as first:
        pass
    with (
        pytest.raises(
            errors.ServerError,
            match=rf"belongs to job {first} .* has taken it since this server's job began",
        ),
        claimed(tmp_path, SECOND, restarted=True, earlier=first),
    ):
        pass
    with claimed(tmp_path, SECOND, earlier=first) as job:
        assert job == first  # so that its snapshots still count
    assert f"belonged to job {first}" in caplog.text
    with claimed(tmp_path, SECOND, restarted=True, earlier=first) as job:
        assert job == first
    with (
        pytest.raises(errors.ServerError, match="has taken it"),
        claimed(tmp_path, FIRST, True, ""),
    ):
        pass


def test_snapshots_of_two_jobs_do_not_go_together(tmp_path):
    folders = [tmp_path / f"server-{n}" for n in range(3)]
    for folder, token in zip(folders, (FIRST, SECOND, FIRST), strict=True):
        with claimed(folder, token):
            pass
    with (
        pytest.raises(
            errors.ServerError,
            match=r"server-0 has snapshots of job \w+, and .*server-1 has snapshots of job",
        ),
        claimed(folders[0], FIRST, earlier="", peers=folders[1:]),
    ):
        pass
    with claimed(folders[0], FIRST, earlier="", peers=folders[2:]) as job:
        assert job == snapshot_owner.mark_of(FIRST)
    new = tmp_path / "server-3"  # its folder was lost
    with claimed(new, SECOND, earlier="", peers=[folders[0], folders[2]]) as job:
        assert job == snapshot_owner.mark_of(FIRST)


def test_a_job_is_told_by_its_snapshots_where_the_file_is_lost(tmp_path):
    write(tmp_path, "older", 1)
    write(tmp_path, "job-of-before", 2)
    assert snapshot.job_of(tmp_path) == "job-of-before"
    with claimed(tmp_path, FIRST, earlier=snapshot.job_of(tmp_path)) as job:
        assert job == "job-of-before"


def test_snapshots_of_other_jobs_are_passed_over(tmp_path, caplog):
    for number, job in enumerate(("", "mine", "other", "mine")):
        write(tmp_path, job, number)
    assert [m.id for m in snapshot.sound(tmp_path, "mine")] == ["s3", "s1", "s0"]
    assert "snapshot s2 in" in caplog.text and "it is of job other" in caplog.text
    assert len(snapshot.sound(tmp_path)) == 4


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100000,
        json.dumps(dict.fromkeys(("job", "by", "host", "process", "script", "since"), 1)).encode(),
        *[
            json.dumps({"job": job, "by": "", "host": host, "process": 1, "script": "", "since": ""}).encode()
            for job, host in (("a", "\x1b[2J"), ("a b", ""), ("", ""))
        ],
    ],
)
def test_a_file_that_says_nothing_is_written_anew(content, tmp_path):
    (tmp_path / "owner").write_bytes(content)
    assert snapshot_owner.read(tmp_path) is None
    with claimed(tmp_path, FIRST, restarted=True, earlier="") as job:
        assert job == snapshot_owner.mark_of(FIRST)
    found = snapshot_owner.read(tmp_path)
    assert found is not None and (found.job, found.process) == (job, os.getpid())


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(errors.ServerError, match="no snapshots can be written there: .*file"),
        claimed(tmp_path / "file" / "server-0", FIRST),
    ):
        pass


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch, caplog):
    def flock(handle, how):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with claimed(tmp_path, FIRST):
        pass
    assert "has no locks (no locks available): a second job could write there" in caplog.text


def test_a_new_job_is_told_whose_snapshots_there_are(tmp_path):
    with claimed(tmp_path, FIRST) as job:
        write(tmp_path, job)
    with (
        pytest.raises(
            errors.ServerError,
            match=f"holds a snapshot of an earlier job. .* It belongs to job {job}",
        ),
        ServerSnapshots(tmp_path, 60.0, restore=False).claimed(SECOND),
    ):
        pass
    with ServerSnapshots(tmp_path, 60.0, restore=True).claimed(SECOND) as found:
        assert found == job

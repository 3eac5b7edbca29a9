"""Checkpoints and datasets in an object store: a real S3 server in a thread, whose answers fail, are
slow, and end too early.
"""

import threading
import time
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

import numpy as np
import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

import jfluid as fluid
from jfluid.fleet import numbered_checkpoints
from jfluid.fleet.filesystem import RemoteFS
from jfluid.fleet.numbered_checkpoints import PREFIX, TrainStatus
from jfluid.ps_server import snapshot, specs
from jfluid.ps_server import store as server_state

# What clients try again, and what they do not.
REFUSALS = {"busy": ("503 Slow Down", "SlowDown"), "denied": ("403 Forbidden", "AccessDenied")}


class Store:
    """S3, with faults.

    Attributes:
        fault: called with the method and the path of each request; what it returns becomes of the
            answer: "busy" (503), "denied" (403), "slow" (a while later), "cut" (half of it), None
            (nothing).
        seen: how often each of these has happened.
    """

    def __init__(self):
        self._application = DomainDispatcherApplication(create_backend_app)
        self.quiet()

    def quiet(self):
        self.fault, self.seen, self._listed = (lambda method, path: None), {}, None

    def list_only(self, sizes):
        """From now on list these files, by their names in the bucket, whatever becomes of them."""
        self._listed = sizes

    def _listing(self, asked):
        prefix, delimiter = (asked.get(key, [""])[0] for key in ("prefix", "delimiter"))
        below = {key: size for key, size in self._listed.items() if key.startswith(prefix)}
        folders = {
            prefix + key[len(prefix) :].split(delimiter)[0] + delimiter
            for key in below
            if delimiter and delimiter in key[len(prefix) :]
        }
        text = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>x</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, size in below.items()
            if not any(key.startswith(folder) for folder in folders)
        )
        for folder in folders:
            text += f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{text}</ListBucketResult>"

    def __call__(self, environment, start):
        asked = parse_qs(environment["QUERY_STRING"])
        if self._listed is not None and "list-type" in asked:
            self.seen["old listing"] = self.seen.get("old listing", 0) + 1
            start("200 OK", [("Content-Type", "application/xml")])
            return [self._listing(asked).encode()]
        kind = self.fault(environment["REQUEST_METHOD"], environment["PATH_INFO"])
        self.seen[kind] = self.seen.get(kind, 0) + 1
        if kind in REFUSALS:
            environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
            status, code = REFUSALS[kind]
            start(status, [("Content-Type", "application/xml")])
            return [f'<?xml version="1.0"?><Error><Code>{code}</Code></Error>'.encode()]
        if kind == "slow":
            time.sleep(0.2)  # what is slow takes its time
        body = b"".join(self._application(environment, start))
        return [body[: len(body) // 2] if kind == "cut" else body]


@pytest.fixture(scope="module")
def server():
    store = Store()
    server = make_server("127.0.0.1", 0, store, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "anything")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("no_proxy", "127.0.0.1")
        yield store
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def there(server):
    """A file system in a bucket of the server."""
    server.quiet()
    fs = RemoteFS("s3://jobs/run7")
    fs._fs.makedirs("jobs", exist_ok=True)
    fs.delete("/")
    yield fs
    server.quiet()


def written(value):
    """What writes a checkpoint of two files."""

    def write(folder):
        for name in ("a", "b"):
            np.save(f"{folder}/{name}.npy", np.full(1000, value))

    return write


def loaded(fs, tmp_path):
    """The number that a checkpoint was written with, and its epoch; None where there is none."""
    found = []

    def read(folder):
        found.extend(np.load(f"{folder}/{name}.npy") for name in ("a", "b"))

    status = numbered_checkpoints.load("/c", 0, fs, str(tmp_path), read)
    if status is None:
        return None
    assert all((array == found[0][0]).all() and len(array) == 1000 for array in found)
    return found[0][0], status.next() - 1


def every(number, kind, methods=("GET", "HEAD", "PUT")):
    """A fault of each so many requests."""
    lock, count = threading.Lock(), [0]

    def fault(method, path):
        with lock:
            count[0] += method in methods
            return kind if method in methods and count[0] % number == 0 else None

    return fault


@pytest.mark.parametrize("kind", ["busy", "slow"])
def test_a_checkpoint_goes_through_a_store_with_faults(server, there, tmp_path, kind):
    server.fault = every(4, kind)
    numbered_checkpoints.save("/c", TrainStatus(3), there, str(tmp_path), written(7.0))
    assert loaded(there, tmp_path) == (7.0, 3)
    assert server.seen[kind] >= 2


def test_a_checkpoint_that_was_not_written_whole_does_not_count(server, there, tmp_path, caplog):
    numbered_checkpoints.save("/c", TrainStatus(0), there, str(tmp_path), written(1.0))
    for lost in ("b.npy", numbered_checkpoints.STATUS):

        def refuse(method, path, lost=lost):
            return "denied" if method == "PUT" and lost in path else None

        server.fault = refuse
        with pytest.raises(OSError):
            numbered_checkpoints.save("/c", TrainStatus(1), there, str(tmp_path), written(2.0))
        server.quiet()
        assert loaded(there, tmp_path) == (1.0, 0)
        assert "is passed over: it has no fleet_train_status" in caplog.text
        numbered_checkpoints.clean("/c", there, 1)
        assert loaded(there, tmp_path) == (1.0, 0), "the last whole one stays"
    numbered_checkpoints.save("/c", TrainStatus(1), there, str(tmp_path), written(2.0))
    numbered_checkpoints.clean("/c", there, 1)
    assert loaded(there, tmp_path) == (2.0, 1)
    assert there.list_dirs("/c") == [f"{PREFIX}.3"], "those that were not whole are gone, too"


def files_in(fs):
    """The bytes of each file in the bucket, by its name there."""
    found = fs._fs.find("jobs", detail=True, withdirs=False)
    return {name.removeprefix("jobs/"): entry["size"] for name, entry in found.items()}


def test_a_listing_that_is_out_of_date_hides_no_checkpoint_and_brings_none_back(server, there, tmp_path):
    for epoch in range(2):
        numbered_checkpoints.save("/c", TrainStatus(epoch), there, str(tmp_path), written(float(epoch)))
    server.list_only(files_in(there))
    for epoch in range(2, 4):
        numbered_checkpoints.save("/c", TrainStatus(epoch), there, str(tmp_path), written(float(epoch)))
        assert loaded(there, tmp_path) == (float(epoch), epoch)
    assert there.list_dirs("/c") == [f"{PREFIX}.0", f"{PREFIX}.1"], "the new ones are not listed"
    server.quiet()
    assert numbered_checkpoints.numbers("/c", there) == [0, 1, 2, 3], "none was written over another"

    server.list_only(files_in(there))
    there.delete(f"/c/{PREFIX}.3")
    assert f"{PREFIX}.3" in there.list_dirs("/c"), "one that is gone is listed"
    assert loaded(there, tmp_path) == (2.0, 2)
    numbered_checkpoints.clean("/c", there, 1)
    assert loaded(there, tmp_path) == (2.0, 2)
    server.quiet()
    assert numbered_checkpoints.numbers("/c", there) == [2]


def test_a_checkpoint_of_which_a_file_was_cut_off_is_refused(server, there, tmp_path):
    numbered_checkpoints.save("/c", TrainStatus(0), there, str(tmp_path), written(1.0))
    (tmp_path / "short").write_bytes(b"x")
    there.upload(str(tmp_path / "short"), f"/c/{PREFIX}.0/b.npy")
    with pytest.raises(fluid.errors.FileFormatError, match="expected .* bytes, as .* found 1"):
        loaded(there, tmp_path)


def test_uploads_and_downloads_say_how_far_they_are(there, tmp_path, monkeypatch):
    counted = []

    class Transfer:
        def __init__(self, description, total):
            counted.append([description, total])

        def add(self, count):
            counted[-1].append(count)

        def close(self):
            counted[-1].append("closed")

    monkeypatch.setattr("jfluid.fleet.filesystem.Transfer", Transfer)
    (tmp_path / "own" / "in").mkdir(parents=True)
    (tmp_path / "own" / "a").write_bytes(b"1" * 1000)
    (tmp_path / "own" / "in" / "b").write_bytes(b"2" * 30)
    there.upload(str(tmp_path / "own"), "/whole")
    there.download("/whole", str(tmp_path / "back"))
    there.download("/whole/in/b", str(tmp_path / "b"))
    for (description, total, *counts, end), expected in zip(
        counted,
        [
            ("upload jobs/run7/whole", 1030),
            ("download jobs/run7/whole", 1030),
            ("download jobs/run7/whole/in/b", 30),
        ],
        strict=True,
    ):
        assert (description, total, sum(counts), end) == (*expected, expected[1], "closed")
    assert (tmp_path / "back" / "in" / "b").read_bytes() == b"2" * 30


def test_parts_of_a_large_file_are_not_left_behind(server, there, tmp_path):
    chunk = 50 << 20  # of s3fs: larger files go in parts
    large = tmp_path / "large"
    with open(large, "wb") as file:
        file.truncate(2 * chunk + 1)

    def refuse(method, path):
        refuse.parts += method == "PUT"
        return "denied" if method == "PUT" and refuse.parts > 1 else None

    refuse.parts = 0
    server.fault = refuse
    with pytest.raises(OSError):
        there.upload(str(large), "/large")
    assert refuse.parts > 1
    assert not there._fs.list_multipart_uploads("jobs") and not there.stat("/large")


def test_a_snapshot_that_was_not_uploaded_whole_is_refused(server, there, tmp_path):
    table = specs.TableSpec(name="t", width=4, optimizer=specs.Sgd(learning_rate=0.5))
    ids, store = np.arange(1, 1000), server_state.Store()
    store.create_table(table)
    store.table("t").push(ids, np.ones((len(ids), 4), np.float32))
    with store.view() as view:
        snapshot.write(view, tmp_path / "cut", "a", 0, 1)
    for number, (lost, said) in enumerate(
        [(".json", "there is no complete snapshot"), (".rows", "missing or has a different size")]
    ):

        def refuse(method, path, lost=lost):
            return "denied" if method == "PUT" and path.endswith(lost) else None

        server.fault = refuse
        with pytest.raises(OSError):
            there.upload(str(tmp_path / "cut"), f"/cut{number}")
        server.quiet()
        there.download(f"/cut{number}", str(tmp_path / f"part{number}"))
        with pytest.raises(fluid.errors.ServerError, match=said):
            snapshot.restore(server_state.Store(), tmp_path / f"part{number}", 0, 1)
    there.upload(str(tmp_path / "cut"), "/whole")
    there.download("/whole", str(tmp_path / "whole"))
    restored = server_state.Store()
    snapshot.restore(restored, tmp_path / "whole", 0, 1)
    rows = [each.table("t").look_up(ids, train=False) for each in (store, restored)]
    np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize("kind", ["busy", "cut"])
def test_a_dataset_is_read_whole_or_not_at_all(server, there, tmp_path, kind):
    lines = "".join(f"1 {number}\n" for number in range(20000))
    (tmp_path / "part").write_text(lines)
    there.upload(str(tmp_path / "part"), "/part")
    number = fluid.data("number", [None, 1], "int64")
    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    dataset.set_use_var([number])
    dataset.set_batch_size(1000)
    dataset.set_filelist(["s3://jobs/run7/part"])
    gets = []

    def fault(method, path):
        if method == "GET" and path.endswith("/part"):
            gets.append(path)
            return kind if len(gets) == 1 else None
        return None

    server.fault = fault
    dataset.load_into_memory()
    assert dataset.get_memory_data_size() == 20000
    assert server.seen[kind]

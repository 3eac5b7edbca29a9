"""Servers and clients over real sockets."""

import contextlib
import random
import shutil
import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import snapshot, specs, validation, wire
from jfluid.ps_server.errors import JobFailedError, StateError, TooLargeError, UnknownNameError
from jfluid.ps_server.server import Server, Settings
from jfluid.ps_server.store import Change
from jfluid.ps_server.table import SparseTable
from jfluid.security.secret import metrics_token
from tests.ps_server.job import BLOCK, TABLE, TOKEN, raw
from tests.ps_server.test_table import ids_of, ones

TLS = Path(__file__).parents[1] / "golden" / "tls"


# ---- rows and blocks -----------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 2, 3, 4])
def test_any_number_of_servers_is_one_table(job, servers):
    client, local = job.start(servers).ready(), SparseTable(TABLE)
    ids = np.concatenate([ids_of(500), ids_of(300), np.array([0, -1, 2**63 - 1])])
    gradients = np.cos(np.arange(len(ids) * 4, dtype=np.float32)).reshape(-1, 4)
    for _ in range(3):
        np.testing.assert_array_equal(client.pull({"t": ids}).rows["t"].all(), local.look_up(ids))
        client.push({"t": (ids, gradients)})
        local.push(ids, gradients)
    np.testing.assert_array_equal(client.look_up("t", ids), local.look_up(ids, train=False))
    status = client.status()
    assert (
        sum(s.tables["t"].rows for s in status) == len(local) and [s.tables["t"].step for s in status] == [3] * servers
    )


def test_exchange_pushes_then_pulls(job):
    client = job.start(2).ready()
    ids = np.array([3, 3, 4])
    before = client.pull({"t": ids}, ["w"])
    assert before.blocks["w"].tolist() == [[1] * 3] * 2 and before.rows["t"].ids.tolist() == [3, 4]
    after = client.exchange({"t": (ids, ones(ids))}, {"w": np.ones((2, 3), np.float32)}, {"t": ids}, ["w"])
    np.testing.assert_allclose(after.rows["t"].all(), before.rows["t"].all() - 0.1, rtol=1e-4)
    assert after.blocks["w"].tolist() == [[0.5] * 3] * 2
    # an unchanged block does not travel
    assert client.pull(blocks=["w"]).blocks["w"] is after.blocks["w"]


def test_additions_new_values_and_rates(job):
    client, ids = job.start().ready(), np.array([1, 2])
    client.push({"t": (ids, ones(ids))}, {"w": np.zeros((2, 3), np.float32)}, change=Change.ASSIGN)
    client.push({"t": (ids, ones(ids))}, {"w": np.ones((2, 3), np.float32)}, change=Change.ADD)
    assert (client.look_up("t", ids) == 2).all()
    client.push({}, {"w": np.ones((2, 3), np.float32)}, learning_rate=2.0)
    assert client.pull(blocks=["w"]).blocks["w"].tolist() == [[-1] * 3] * 2


def test_large_calls_travel_in_chunks(job, monkeypatch):
    client, ids = job.start(2).ready(), ids_of(40_000)
    monkeypatch.setattr(wire, "LARGEST_MESSAGE", 1 << 18)
    monkeypatch.setattr(wire, "CHUNK", 10_000)
    local = SparseTable(TABLE)
    for _ in range(2):
        np.testing.assert_array_equal(client.pull({"t": ids}).rows["t"].all(), local.look_up(ids))
        client.push({"t": (ids, ones(ids))})
        local.push(ids, ones(ids))
    found = client.exchange({"t": (ids, ones(ids))}, {}, {"t": ids}).rows["t"].all()
    local.push(ids, ones(ids))
    np.testing.assert_array_equal(found, local.look_up(ids))
    np.testing.assert_array_equal(client.look_up("t", ids), found)
    monkeypatch.setattr(wire, "LARGEST_CALL", 1 << 18)
    with pytest.raises(
        TooLargeError,
        match="the request would have .* bytes, more than 262144; ask for less in one call",
    ):
        client.push({"t": (ids, ones(ids))})


def test_shrinking(job):
    client = job.start(2).ready()
    client.push({"t": (np.arange(100), np.ones((100, 4), np.float32))})
    for _ in range(2):
        client.push({"t": (np.arange(30), np.ones((30, 4), np.float32))})
    assert client.shrink("t", 2) == 70 and client.shrink("t", 2) == 0
    with pytest.raises(errors.ServerError, match="age: expected at least 1"):
        client.shrink("t", 0)


@pytest.mark.parametrize(
    "use, message",
    [
        (lambda c: c.pull({"t": [1]}), r"table t: ids: expected an array int64 \[n\], found list"),
        (
            lambda c: c.push({"t": (np.array([1]), np.ones((1, 3), np.float32))}),
            r"expected an array float32 \[1, 4\], found",
        ),
        (
            lambda c: c.push({}, {"w": np.ones(6)}),
            r"block w: expected an array float32 \[2, 3\], found float64 \[6\]",
        ),
        (lambda c: c.pull({"tt": np.array([1])}), r"there is no table 'tt'"),
        (lambda c: c.pull(blocks=["v"]), r"there is no block 'v'"),
        (
            lambda c: c.create([TABLE.model_copy(update={"width": 5})]),
            "t is there already, and is different",
        ),
        (
            lambda c: c.create([], {1: [BLOCK]}),
            r"there are 1 servers, numbered from 0; found \[1\]",
        ),
        (
            lambda c: c.save("relative"),
            "expected an absolute path on the server's machine, found 'relative'",
        ),
        (lambda c: c.restore("/does/not/exist"), "there is no such directory"),
    ],
)
def test_mistakes_are_named(job, use, message):
    with pytest.raises(errors.ServerError, match=message):
        use(job.start().ready())


def test_servers_in_another_order_are_noticed(job):
    job.start(2)
    with pytest.raises(
        errors.ServerError,
        match="this is server 1 of 2, not 0 of 2; give all trainers the same list",
    ):
        job.client(job.endpoints[::-1]).create([TABLE])


# ---- exactly once --------------------------------------------------------------------------------


def push_request(sequence, values=None, **more):
    values = ones([1]) if values is None else values
    caller = pb.Caller(trainer=0, incarnation=1, sequence=sequence, outstanding=1)
    return pb.PushRequest(
        caller=caller,
        rows=[pb.RowsChange(table="t", change=1, ids=np.array([7]).tobytes(), values=values.tobytes())],
        **more,
    )


def test_duplicates_and_reordering_change_nothing(job):
    client = job.start().ready()
    before = client.look_up("t", np.array([7]))
    order = [3, 1, 3, 2, 1, 2, 3]
    assert [raw(job, "Push", push_request(s)).applied for s in order] == [
        True,
        True,
        False,
        True,
        False,
        False,
        False,
    ]
    np.testing.assert_allclose(client.look_up("t", np.array([7])), before + 3, rtol=1e-6)
    with ThreadPoolExecutor(8) as threads:
        assert sum(r.applied for r in threads.map(lambda _: raw(job, "Push", push_request(4)), range(8))) == 1
    np.testing.assert_allclose(client.look_up("t", np.array([7])), before + 4, rtol=1e-6)


def test_a_pull_that_is_sent_again_counts_its_shows_once(job):
    job.start().client().create([TABLE.model_copy(update={"entry": specs.CountEntry(count=2)})])
    request = pb.PullRequest(
        caller=pb.Caller(trainer=0, incarnation=1, sequence=1, outstanding=1),
        rows=[pb.RowsWanted(table="t", ids=np.array([7]).tobytes())],
    )
    for _ in range(3):
        assert not np.frombuffer(raw(job, "Pull", request).rows[0], np.float32).any()
    request.caller.sequence = 2
    assert np.frombuffer(raw(job, "Pull", request).rows[0], np.float32).all()


class CuttingProxy(threading.Thread):
    """Passes connections on to a port, and cuts one as soon as the server answers with something
    large.
    """

    def __init__(self, port, cut_after):
        super().__init__(daemon=True)
        self.target, self.left, self.cuts, self.ends = port, cut_after, 0, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            self.ends += [client, server]
            for source, sink, counts in ((client, server, True), (server, client, False)):
                threading.Thread(target=self.copy, args=[source, sink, counts], daemon=True).start()

    def copy(self, source, sink, counts):
        try:
            while data := source.recv(1 << 16):
                if counts and self.cuts < 3:
                    self.left -= len(data)
                    if self.left < 0:
                        sink.sendall(data)  # the server gets it all; the client never hears of it
                        self.cuts, self.left = self.cuts + 1, 2_000_000
                        break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.join(120)
        self.listener.close()
        for end in self.ends:
            end.close()


def test_a_connection_that_is_cut_during_pushes(job):
    job.start()
    proxy = CuttingProxy(job.servers[0].port, cut_after=500_000)
    client, ids = job.client([f"127.0.0.1:{proxy.port}"]), np.arange(10_000)
    client.create([TABLE])
    client.push({"t": (ids, np.zeros((10_000, 4), np.float32))}, change=Change.ASSIGN)
    for _ in range(40):
        client.push({"t": (ids, ones(ids))}, change=Change.ADD)
    client.close()
    proxy.close()
    assert proxy.cuts == 3
    assert (job.client().look_up("t", ids) == 40).all()


def test_a_server_that_is_not_there(job):
    before = random.getstate()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(
        errors.ServerError,
        match=rf"127.0.0.1:{port}: Create: no answer within 0.5 s .*is it running",
    ):
        job.client([f"127.0.0.1:{port}"], timeout_s=0.5).create([TABLE])
    assert random.getstate() == before, "a script's random numbers are those of its seed"


def test_an_earlier_life_is_refused(job):
    job.start().ready(incarnation=5).push({"t": (np.array([1]), ones([1]))})
    job.ready(incarnation=6).push({"t": (np.array([1]), ones([1]))})
    with pytest.raises(StateError, match="trainer 0: incarnation 5 has ended; incarnation 6 is at work"):
        job.clients[0].push({"t": (np.array([1]), ones([1]))})


# ---- several trainers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "servers"),
    [
        (specs.Sgd(learning_rate=0.1), 3),
        (specs.Momentum(learning_rate=0.1, mu=0.9), 2),
        (specs.Adam(learning_rate=0.1), 1),
        (specs.Adagrad(learning_rate=0.1), 2),
    ],
)
def test_synchronous_trainers_equal_one_on_the_joined_batch(job, optimizer, servers):
    spec, rounds, rng = (
        TABLE.model_copy(update={"optimizer": optimizer}),
        8,
        np.random.RandomState(0),
    )
    batches = [[(rng.randint(0, 50, 20), rng.randn(20, 4).astype(np.float32)) for _ in range(2)] for _ in range(rounds)]
    job.start(servers, trainers=2)

    def train(trainer):
        client = job.client(trainer=trainer)
        client.create([spec], {servers - 1: [BLOCK]})
        for number, batch in enumerate(batches, 1):
            ids, gradients = batch[trainer]
            pulled = client.exchange(
                {"t": (ids, gradients)},
                {"w": np.full((2, 3), trainer, np.float32)},
                {"t": ids},
                ["w"],
                round=number,
            )
            assert pulled.rounds == number
        client.leave()
        return pulled.blocks["w"]

    with ThreadPoolExecutor(2) as threads:
        blocks = list(threads.map(train, range(2)))
    local = SparseTable(spec)
    for batch in batches:
        local.push(
            np.concatenate([ids for ids, _ in batch]),
            np.concatenate([g for _, g in batch]) / np.float32(2),
        )
    np.testing.assert_allclose(
        job.client().look_up("t", np.arange(50)), local.look_up(np.arange(50)), rtol=1e-4, atol=1e-6
    )
    for block in blocks:
        np.testing.assert_allclose(block, 1 - 0.5 * 0.5 * rounds)
    assert all(server.trainer_group.over for server in job.servers)


def test_barriers_and_the_end_of_the_job(job):
    job.start(2, trainers=2, end_with_trainers=True)
    first, second = job.client(trainer=0), job.client(trainer=1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(first.barrier)
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        second.barrier()
        waiting.result(120)
    first.leave()
    assert not job.servers[0].wait(0.05)
    second.leave()
    assert all(server.wait(120) for server in job.servers)


def test_a_silent_trainer_fails_the_job_by_name(job):
    job.start(trainers=2, silence_s=2)
    silent = job.client(trainer=1)
    silent._connections[0].call("Heartbeat", pb.HeartbeatRequest(caller=silent._connections.caller()))
    alive = job.client(trainer=0, heartbeat_s=0.1)
    with pytest.raises(JobFailedError, match=r"the job has failed: trainer 1 has been silent for .* \(limit 2 s\)"):
        alive.barrier()


# ---- snapshots -----------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [2, 3])
def test_saving_and_restoring(job, tmp_path, after):
    client, ids = job.start(2).ready(), ids_of(3000)
    client.push({"t": (ids, ones(ids))}, {"w": np.ones((2, 3), np.float32)})
    name, expected = client.save(str(tmp_path / "here")), client.look_up("t", ids)
    assert client.save(str(tmp_path / "here"), name) == name  # asked again: it is there
    client.push({"t": (ids, ones(ids))}, {"w": np.ones((2, 3), np.float32)})
    old, job.servers = job.servers, []
    again = job.start(after).ready()
    assert again.restore(str(tmp_path / "here")) == name
    np.testing.assert_array_equal(again.look_up("t", ids), expected)
    assert again.pull(blocks=["w"]).blocks["w"].tolist() == [[0.5] * 3] * 2
    again.push({"t": (ids, ones(ids))})
    np.testing.assert_array_equal(again.look_up("t", ids), client.look_up("t", ids))
    for server in old:
        server.stop(0.2)


def test_a_server_ends_without_calls_that_never_end(job, monkeypatch, caplog):
    job.start().ready()
    server = job.servers[0]
    monkeypatch.setattr("jfluid.ps_server.server._CANCELLED_S", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(server._grpc, "stop", lambda grace_s: threading.Event())
        server.stop(0.0)
    assert "gRPC still waits for calls that were cancelled" in caplog.text


def test_lost_calls_are_reported(job, tmp_path, caplog):
    client, ids = job.start().ready(), np.array([1])
    client.push({"t": (ids, ones(ids))})
    client.save(str(tmp_path))
    for _ in range(3):
        client.push({"t": (ids, ones(ids))})
    client.restore(str(tmp_path))
    client.push({"t": (ids, ones(ids))})
    assert client.status()[0].lost == 3 and client.status()[0].tables["t"].step == 2
    assert "trainer 0: 3 acknowledged calls are not in the snapshot" in caplog.text


def test_calls_that_were_refused_are_not_lost(job):
    client, ids = job.start().ready(), np.array([1])
    client.place_table("unknown", 4)
    for refused in (
        lambda: client.push({"unknown": (ids, ones(ids))}),
        lambda: client.shrink("t", 0),
        lambda: client.exchange({"t": (ids, ones(ids))}, {}, {"unknown": ids}),
    ):
        with pytest.raises(errors.ServerError):
            refused()
        client.push({"t": (ids, ones(ids))})
    assert client.status()[0].lost == 0 and client.status()[0].tables["t"].step == 3


def test_a_disk_that_is_full_does_not_end_the_server(job, tmp_path, monkeypatch, caplog):
    client, ids = job.start().ready(), np.array([1])
    client.push({"t": (ids, ones(ids))})
    client.save(str(tmp_path), "first")

    def full(self, array):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot._Output, "write", full)
    with pytest.raises(errors.ServerError, match="Save: OSError: .*No space left on device"):
        client.save(str(tmp_path), "second")
    monkeypatch.undo()
    client.push({"t": (ids, ones(ids))})
    assert client.restore(str(tmp_path)) == "first" and client.save(str(tmp_path), "third") == "third"


# ---- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, message",
    [
        ({"token": "short"}, "token"),
        ({"port": 70000}, "port"),
        ({"on_silence": "shrug"}, "on_silence"),
        ({"trainers": 0}, "trainers"),
    ],
)
def test_wrong_settings(change, message):
    with pytest.raises(errors.ServerError, match=f"settings: {message}"):
        validation.read(Settings, {"token": TOKEN} | change, "settings")


def test_a_secret_that_is_none_is_not_shown():
    with pytest.raises(ValueError) as error:
        Settings(token="a secret with spaces in it")
    assert "a secret" not in str(error.value) and "a-token" not in repr(Settings(token=TOKEN))


def test_settings_that_contradict_each_other(job):
    with pytest.raises(errors.ServerError, match="server: expected a number below 2, found 2"):
        Server(Settings(token=TOKEN, server=2, servers=2))
    with pytest.raises(errors.ServerError, match="expected both tls_certificate and tls_key"):
        Server(Settings(token=TOKEN, tls_key=TLS / "key.pem"))
    with pytest.raises(errors.ServerError, match="cannot listen on 127.0.0.1:.*is the port taken"):
        Server(Settings(token=TOKEN, port=job.start().servers[0].port))


def test_tls(job):
    files = {
        "tls_certificate": TLS / "certificate.pem",
        "tls_key": TLS / "key.pem",
        "tls_clients": TLS / "certificate.pem",
    }
    certificate, key = ((TLS / name).read_bytes() for name in ("certificate.pem", "key.pem"))
    job.start(**files)
    client = job.client(tls_authority=certificate, tls_certificate=certificate, tls_key=key)
    client.create([TABLE])
    assert client.pull({"t": np.array([1])}).rows["t"].values.shape == (1, 4)
    for more in ({}, {"tls_authority": certificate}):  # no TLS; no certificate of its own
        with pytest.raises(errors.ServerError, match="no answer within 0.3 s"):
            job.client(timeout_s=0.3, **more).status()


# ---- metrics -------------------------------------------------------------------------------------


def test_metrics_on_request(job):
    client, ids = job.start(metrics_port=0, trainers=1).ready(), np.arange(10)
    client.pull({"t": ids})
    client.push({"t": (ids, ones(ids))})
    client.push({"t": (ids, ones(ids))})
    client.barrier()
    with pytest.raises(UnknownNameError):
        client._connections[0].call("LookUp", pb.LookUpRequest(table="x"))
    url = f"http://127.0.0.1:{job.servers[0].metrics_port}/metrics"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {metrics_token(TOKEN)}"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = answer.read().decode()
    for line in (
        'jfluid_ps_calls_total{method="Push",status="OK"} 2.0',
        'jfluid_ps_calls_total{method="LookUp",status="NOT_FOUND"} 1.0',
        'jfluid_ps_rows_total{kind="pushed",table="t"} 20.0',
        'jfluid_ps_table_rows{table="t"} 10.0',
        'jfluid_ps_call_seconds_count{method="Pull"} 1.0',
        'jfluid_ps_wait_seconds_count{kind="barrier"} 1.0',
        'jfluid_ps_staleness_steps_sum{name="t"} 1.0',
        "jfluid_ps_lost_calls 0.0",
    ):
        assert line in text
    assert 'jfluid_ps_bytes_total{direction="in",method="Push"}' in text
    spent = dict(line.rsplit(" ", 1) for line in text.splitlines() if "_part_seconds_total{" in line)
    assert all(
        float(spent[f'jfluid_ps_part_seconds_total{{part="{part}"}}']) > 0
        for part in ("parse", "apply", "read", "reply")
    )
    assert all(seconds > 0 for seconds in client.seconds.values())
    assert Server(Settings(token=TOKEN)).start().metrics_port is None


def test_snapshots_stay_below_the_save_root(job, tmp_path):
    root = tmp_path / "saves"
    (root / "a").mkdir(parents=True)
    (tmp_path / "saves-of-others").mkdir()
    (root / "out").symlink_to(tmp_path / "saves-of-others")
    (root / "in").symlink_to(root / "a")
    client = job.start(save_root=root).ready()
    client.save(str(tmp_path / "saves-of-others" / ".." / "saves" / "in" / "new"))
    assert any((root / "a" / "new").iterdir())
    client.restore(str(root / "a" / "new"))
    outside = (
        tmp_path,
        root / "..",
        root / "out" / "b",
        tmp_path / "saves-of-others",
        root / "a" / ".." / ".." / "c",
        "/",
    )
    for folder in outside:
        for call in (client.save, client.restore):
            with pytest.raises(errors.ServerError, match=r"folder: expected .*/saves or one below it"):
                call(str(folder))
    assert not any((tmp_path / "saves-of-others").iterdir()) and not (tmp_path / "c").exists()


def test_everything_of_a_job_ends_with_it(job, tmp_path):
    """No thread is left that would keep a process alive, and no file outside the folder."""
    client = job.start().ready(heartbeat_s=0.05)
    client.save(str(tmp_path / "s"))
    client.leave()
    job.servers[0].stop()
    shutil.rmtree(tmp_path / "s")
    assert not any(
        t.name in ("jfluid-ps-watch", "jfluid-ps-heartbeat") and t.is_alive() and not t.daemon
        for t in threading.enumerate()
    )

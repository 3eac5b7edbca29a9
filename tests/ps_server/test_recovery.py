"""The recovery line: servers of a synchronous job cut at the same rounds, and go on together."""

import contextlib
import threading
import time

import numpy as np
import pytest

from jfluid import errors
from jfluid.distributed.server.snapshot_writers import ServerSnapshots
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import snapshot, specs
from jfluid.ps_server.client import Client
from jfluid.ps_server.errors import RollbackError
from jfluid.ps_server.recovery import Coordinator, PeerServers
from jfluid.ps_server.round_snapshots import RoundSnapshots, newest_common
from jfluid.ps_server.server import Server, Settings
from jfluid.ps_server.store import Change, Store

TOKEN = "0123456789-token-of-the-tests"
GRADIENT = np.ones(3, np.float32)
LIMIT_S = 120


def answer(*snapshots, decided=False, rounds=0, retained=()):
    return pb.RecoveryReply(decided=decided, rounds=rounds, snapshots=snapshots, retained=retained)


@pytest.mark.parametrize(
    "own, peers, expected",
    [
        ([3, 7], [answer(3, 7), answer(3, 7)], 7),
        ([3, 7], [answer(3, 7), answer(3)], 3),  # the last one was killed while it wrote
        ([3, 7], [answer(7, 9)], 7),
        ([3], [answer(7)], 0),
        ([], [answer(7)], 0),
        ([3, 7], [answer(decided=True, rounds=9)], 7),  # it serves: only this server was lost
        ([3, 7], [answer(decided=True, rounds=6)], 3),
        ([3, 7], [answer(decided=True, rounds=9), answer(3)], 3),
        ([3, 7], [], 7),
    ],
)
def test_the_newest_round_that_all_have(own, peers, expected):
    assert newest_common(own, peers) == expected


def until(condition):
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Cluster:
    """Servers that write into folders below one, with a block "w<number>" each, and their peers."""

    def __init__(self, folder, servers=2):
        self.servers, self.own, self.peers = [], [], []
        for i in range(servers):
            store = Store()
            store.create_block(
                specs.BlockSpec(name=f"w{i}", shape=(3,), optimizer=specs.Momentum(learning_rate=1.0, mu=0.5))
            )
            self.servers.append(Server(Settings(token=TOKEN, server=i, servers=servers), store))
            service, trainer_group = self.servers[i].service, self.servers[i].trainer_group
            self.own.append(RoundSnapshots(folder / f"server-{i}", store, trainer_group.left, service.is_saved))
            service.round_snapshots, trainer_group.on_round = self.own[i], self.own[i].on_round
            self.own[i].look()
        endpoints = [f"127.0.0.1:{s.port}" for s in self.servers]
        self.peers = [PeerServers(endpoints, i, TOKEN, None, timeout_s=LIMIT_S) for i in range(servers)]
        self.client = Client(endpoints, TOKEN)
        for i in range(servers):
            self.client.place_block(f"w{i}", i, (3,))

    def train(self, *rounds):
        for number in range(*rounds):
            self.client.push(
                blocks={f"w{i}": GRADIENT * number for i in range(len(self.servers))},
                round=number,
                hold=True,
                state=b"of round %d" % number,
            )
            self.client.pull(round=number, confirm=True)

    def values(self):
        return [float(s.store.block(f"w{i}").read()[0][0]) for i, s in enumerate(self.servers)]

    def snapshots(self):
        return [list(own.status().snapshots) for own in self.own]

    def agree(self):
        """What each server decides to go on from."""
        found = [0] * len(self.servers)

        def decide(i):
            found[i] = self.peers[i].agree(self.own[i])
            self.own[i].decide(found[i])

        threads = [threading.Thread(target=decide, args=[i]) for i in reversed(range(len(self.servers)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        return found

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for server in self.servers:
                stack.enter_context(server)
            for each in (*self.peers, self.client):
                stack.callback(each.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()


def test_servers_cut_at_the_same_rounds_and_keep_two(tmp_path):
    with Cluster(tmp_path) as job:
        for own in job.own:
            own.decide(0)
        coordinator = Coordinator(job.servers[0].service, job.peers[0], every_s=0.01)
        coordinator.start()
        try:
            number = 0
            while len(job.own[1].status().retained) < 2:
                number += 1
                job.train(number, number + 1)
                assert number < 2000
        finally:
            coordinator.stop()
        for own in job.own:
            assert own.settle(LIMIT_S)
        lines = [list(own.status().retained) for own in job.own]
        assert lines[0] == lines[1] and len(lines[0]) == 2
        assert all(set(lines[0]) <= set(found) and len(found) <= 3 for found in job.snapshots())
        values, push = job.values(), job.servers[0].service.push
        reply = push(
            pb.PushRequest(
                caller=pb.Caller(incarnation=job.client.incarnation, sequence=number, outstanding=number),
                round=number,
            )
        )
        # what is before all servers' snapshots is safe
        assert not reply.applied and lines[0][1] <= reply.durable <= number
    with Cluster(tmp_path) as again:
        newest = max(set.intersection(*map(set, again.snapshots())))
        assert again.agree() == [newest] * 2
        assert [s.store.rounds for s in again.servers] == [newest] * 2
        assert again.servers[0].store.trainer_states == {0: b"of round %d" % newest}
        again.train(newest + 1, number + 1)
        assert again.values() == values


def cut(job, number, servers=(0, 1)):
    """Train up to a round, and have these servers write a snapshot of it."""
    for i in servers:
        assert job.own[i].plan(number)
    job.train(job.servers[0].store.rounds + 1, number + 1)
    until(lambda: all(number in job.own[i].status().snapshots and not job.own[i].status().writing for i in servers))


def test_files_of_a_snapshot_are_not_removed_while_it_is_written(tmp_path, monkeypatch):
    """The server is told what to keep just when it begins another snapshot."""
    written = threading.Event()

    def write(*given, write=snapshot.write, **more):
        manifest = write(*given, **more)
        written.set()
        return manifest

    with Cluster(tmp_path, servers=1) as job:
        cut(job, 2, servers=[0])
        own = job.own[0]

        def retain(*given, retain=snapshot.retain):
            monkeypatch.setattr(snapshot, "retain", retain)
            assert own.plan(3)
            job.train(3, 4)
            written.wait(0.3)
            retain(*given)

        monkeypatch.setattr(snapshot, "write", write)
        monkeypatch.setattr(snapshot, "retain", retain)
        own.retain([2])
        assert own.settle(LIMIT_S)
        assert job.snapshots() == [[2, 3]]
        assert [manifest.rounds for manifest in snapshot.sound(own.folder)] == [3, 2]


def test_a_snapshot_that_only_some_have_is_given_up(tmp_path):
    with Cluster(tmp_path) as job:
        cut(job, 2)
        cut(job, 5, servers=[0])
        assert job.snapshots() == [[5], [2]]  # nobody has said that round 2 is to be kept
    with Cluster(tmp_path) as job:
        assert job.agree() == [0, 0]
        cut(job, 2)
        for own in job.own:
            own.retain([2])
        cut(job, 5, servers=[0])
        assert job.snapshots() == [[2, 5], [2]]
    with Cluster(tmp_path) as job:
        assert job.agree() == [2, 2] and job.snapshots() == [[2], [2]]
        assert not list(tmp_path.glob("server-0/round-5.*"))


@pytest.mark.parametrize("which", ["0", "1", "both"])
@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_a_job_that_goes_back_says_from_where_to_where_and_why(tmp_path, which, how, caplog):
    with Cluster(tmp_path) as job:
        for number in (2, 4):
            cut(job, number)
            for own in job.own:
                own.retain([2, number])
    for path in tmp_path.glob("server-*/round-4.*.json"):
        if which in path.parent.name or which == "both":
            path.unlink() if how == "deleted" else path.write_bytes(b"{")
    with Cluster(tmp_path) as job:
        assert job.agree() == [2, 2]
        reasons = "; ".join(
            f"server {n} has no whole snapshot of it (it has 2)" for n in (0, 1) if which in (str(n), "both")
        )
        text = f"the job goes back from round 4, the newest that was saved, to round 2: {reasons}"
        assert text in caplog.messages and job.client.status()[0].went_back == text
        assert job.own[1].went_back == (
            "the job goes back from round 4, the newest that was saved, to round 2: server 0 has decided on round 2"
        )
    caplog.clear()
    with Cluster(tmp_path) as job:
        assert job.agree() == [2, 2] and not job.client.status()[0].went_back
    assert "goes back" not in caplog.text


def test_one_server_goes_on_from_what_fits_the_others(tmp_path):
    with Cluster(tmp_path) as job:
        for own in job.own:
            own.decide(0)
        cut(job, 2)
        for own in job.own:
            own.retain([2])
        cut(job, 4)
        alone = RoundSnapshots(tmp_path / "server-1", Store(), dict, lambda name, ledger: None)
        alone.look()
        assert job.peers[1].agree(alone) == 4
        assert not alone.went_back
        job.servers[0].store.rounds = 3  # of which it has not heard when the other one was killed
        assert job.peers[1].agree(alone) == 2
        assert "from round 4, the newest that was saved, to round 2: server 0" in alone.went_back


def test_lost_snapshots_are_told_and_not_trained_anew(tmp_path):
    with Cluster(tmp_path) as job:
        cut(job, 2)
        for own in job.own:
            own.retain([2])
    for path in (tmp_path / "server-1").iterdir():
        path.unlink()
    with (
        Cluster(tmp_path) as job,
        pytest.raises(
            errors.ServerError,
            match="all servers had snapshots of round 2, .* server 0: 2; server 1: none. Put back",
        ),
    ):
        job.peers[0].agree(job.own[0])


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b"\xff" + path.read_bytes()[1:]),
        lambda path: path.unlink(),
    ],
    ids=["cut off", "changed", "gone"],
)
@pytest.mark.parametrize("suffix", ["0.numbers", "1.state", "json"])
def test_a_damaged_snapshot_falls_back_on_its_predecessor(tmp_path, damage, suffix, caplog):
    with Cluster(tmp_path, servers=1) as job:
        cut(job, 2, servers=[0])
        job.own[0].retain([2])
        before = job.values()
        cut(job, 4, servers=[0])
    (path,) = tmp_path.glob(f"server-0/round-4.*.{suffix}")
    damage(path)
    with Cluster(tmp_path, servers=1) as job:
        assert job.agree() == [2] and job.values() == before
    assert "snapshot round-4 is passed over" in caplog.text or (suffix == "json" and not path.exists())


def test_plans(tmp_path):
    with Cluster(tmp_path, servers=1) as job:
        (own,) = job.own
        assert own.plan(3) and own.plan(2)  # another one in its place
        job.train(1, 4)
        until(lambda: own.status().snapshots)
        assert own.settle(LIMIT_S) and list(own.status().snapshots) == [2] and own.status().planned == 0
        assert not own.plan(3) and not own.plan(1)
        with pytest.raises(
            errors.ServerError,
            match=r"expected rounds of snapshots that are here \(\[2\]\), found \[3\]",
        ):
            own.retain([3])


def test_a_server_that_does_not_know_yet_tells_only_its_peers(tmp_path):
    with Cluster(tmp_path, servers=1) as job:
        service = job.servers[0].service
        service.ready.clear()
        client = Client([f"127.0.0.1:{job.servers[0].port}"], TOKEN, timeout_s=0.2, heartbeat_s=0)
        with (
            client,
            pytest.raises(errors.ServerError, match="still reads its snapshot|no answer within"),
        ):
            client.status()
        assert service.recovery(pb.RecoveryRequest()).decided is False
        service.ready.set()
        job.train(1, 2)


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_server_that_starts_again_takes_no_call_before_it_has_read_its_snapshot(tmp_path, synchronous, monkeypatch):
    """What it took would be lost when it reads it."""
    monkeypatch.setattr(Store, "synchronous", synchronous)
    with Cluster(tmp_path / "first", servers=1) as job:
        job.own[0].decide(0)
        cut(job, 2, servers=[0])
    with Cluster(tmp_path / "second", servers=1) as job:
        server, service = job.servers[0], job.servers[0].service
        writer = ServerSnapshots(tmp_path / "first" / "server-0", 60.0, restore=True).writer(server, job.peers[0])
        client = Client([f"127.0.0.1:{server.port}"], TOKEN, timeout_s=0.2, heartbeat_s=0, incarnation=1)
        client.place_block("w0", 0, (3,))
        with (
            client,
            pytest.raises(errors.ServerError, match="still reads its snapshot|no answer within"),
        ):
            client.push(blocks={"w0": GRADIENT}, change=Change.ADD)
        assert job.values() == [0.0] and not service.ready.is_set()
        writer.begin()
        assert service.ready.is_set() and server.store.rounds == 2
        job.client.push(blocks={"w0": GRADIENT}, change=Change.ADD)


def test_an_asynchronous_server_falls_back_too(tmp_path, caplog):
    """On the snapshot before a damaged one; and it begins anew where there is none, and says so."""

    def begin(folder):
        with Cluster(tmp_path / "none", servers=1) as job:
            ServerSnapshots(folder, 60.0, restore=True).writer(job.servers[0], job.peers[0]).begin()
            return job.values()

    folder = tmp_path / "server-0"
    with Cluster(tmp_path, servers=1) as job:
        service = job.servers[0].service
        for number in (1, 2):
            job.client.push(blocks={"w0": GRADIENT * number}, change=Change.ADD)
            service.save_alone(folder)
        job.client.push(blocks={"w0": GRADIENT}, change=Change.ADD)
        service.save_alone(folder)
    (newest,) = snapshot.latest(folder)
    assert begin(folder) == [4.0] and len(list(folder.glob("*.json"))) == 2
    (folder / newest.blocks[0].file.name).unlink()
    assert begin(folder) == [3.0] and f"snapshot {newest.id} is passed over" in caplog.text
    assert (
        begin(tmp_path / "lost") == [0.0] and "lost holds no complete snapshot: this server begins anew" in caplog.text
    )


def test_a_life_that_only_pulled_before_the_snapshot_is_known_after_it(tmp_path):
    """Otherwise the next one could get a number below it, and be refused."""
    with Cluster(tmp_path, servers=1) as job:
        job.servers[0].store.create_table(specs.TableSpec(name="t", width=1, optimizer=specs.Sgd(learning_rate=1)))
        job.client.pull({"t": np.arange(3)})
        before = job.client.incarnation
        job.servers[0].service.save_alone(tmp_path / "server-0")
    with Cluster(tmp_path / "again", servers=1) as job:
        ServerSnapshots(tmp_path / "server-0", 60.0, restore=True).writer(job.servers[0], job.peers[0]).begin()
        assert job.client.incarnation >> 32 > before >> 32
        job.client.pull({"t": np.arange(3)})


def test_rounds_that_nobody_has_any_more(tmp_path):
    with (
        Cluster(tmp_path, servers=1) as job,
        pytest.raises(RollbackError, match="applied 0 rounds, and no process has"),
    ):
        job.client.push(blocks={"w0": GRADIENT}, round=3)

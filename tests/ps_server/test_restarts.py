"""Servers that end and start again, answers that are lost, and trainers that are idle or have left
meanwhile.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import grpc
import numpy as np
import pytest

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import server_connections, specs, wire
from jfluid.ps_server.auth import PROOF, Session
from jfluid.ps_server.client import Client
from jfluid.ps_server.errors import RollbackError, StateError
from jfluid.ps_server.store import Change
from jfluid.ps_server.zero_copy import OutgoingRequest
from tests.faults.calls import CallRelay, Fault
from tests.ps_server.site import BLOCK, LIMIT_S, ROWS, TABLE, TOKEN, WIDTH, Site, until

IDS = np.arange(ROWS, dtype=np.int64) ** 2
ONE = np.ones(BLOCK.shape, np.float32)


class Lost(grpc.RpcError):
    """No answer."""

    def __init__(self, code=grpc.StatusCode.UNAVAILABLE, metadata=()):
        self.code, self.trailing_metadata = lambda: code, lambda: metadata

    def details(self):
        return "the connection was lost"


@pytest.fixture
def site(tmp_path):
    """Makes a site of servers."""
    made = []

    def start(folder=tmp_path, **settings):
        made.append(Site(folder, **settings))
        return made[-1]

    yield start
    for each in made:
        each.end()


@pytest.fixture
def threads():
    pool = ThreadPoolExecutor(8)
    yield pool
    pool.shutdown(wait=False)  # what still waits ends with the site


def add(client, ids=IDS, **more):
    """Add 1 to the values of rows: after n times they are n."""
    client.push({"t": (ids, np.ones((len(ids), WIDTH), np.float32))}, change=Change.ADD, **more)


def rows(client, ids=IDS):
    return client.look_up("t", ids)[:, 0]


def step(client, number, size=1.0):
    """A round: gradients of both, above 64 KiB."""
    client.exchange(
        {"t": (IDS, np.full((ROWS, WIDTH), size, np.float32))},
        {"w": ONE * np.float32(size)},
        {"t": IDS},
        ["w"],
        round=number,
    )


# ---- waits ---------------------------------------------------------------------------------------


def test_lost_connections_use_up_no_thread(site):
    """Trainer 0 waits in a round over a connection that is lost more often than the server has
    threads.
    """
    job = site(trainers=2)
    job.client(1)
    round_1 = pb.PushRequest(
        caller=pb.Caller(trainer=0, incarnation=1, sequence=1, outstanding=1),
        round=1,
        blocks=[pb.BlockChange(block="w", values=ONE.tobytes())],
    ).SerializeToString()
    with grpc.insecure_channel(job.endpoints[0]) as channel:
        push = Session(channel, job.endpoints[0], TOKEN, 20).unary(f"/{wire.SERVICE}/Push", pb.PushReply.FromString)
        for _ in range(16 + 4 * 2 + 2):
            with pytest.raises(grpc.RpcError) as lost:
                push(round_1, 0.05)
            assert lost.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        until(lambda: job.clients[0].status()[0].rounds == 0, "an answer")
        pool = job.servers[0]._grpc._state.thread_pool
        until(
            lambda: pool._idle_semaphore._value == len(pool._threads),
            "the threads of calls that were lost",
        )
    job.clients[0].push(blocks={"w": ONE}, round=1)
    assert job.servers[0].store.rounds == 1


@pytest.mark.parametrize("code", ["UNAVAILABLE", "CANCELLED", "INTERNAL", "UNKNOWN"])
def test_a_call_without_an_answer_of_the_service_is_sent_again(site, code):
    """Whatever gRPC calls it: a server that ends cancels what is under way, and streams end in the
    middle.
    """
    client = site().client()
    connection, real, calls = client._connections[0], client._connections[0]._grpc._methods["Push"], []

    def losing(*call):
        calls.append(call)
        reply = real(*call)
        if len(calls) == 1:
            raise Lost(grpc.StatusCode[code])
        if len(calls) == 3:
            raise Lost(grpc.StatusCode[code], ((PROOF, b"of the service"),))
        return reply

    connection._grpc._methods["Push"] = losing
    few = np.array([7])
    add(client, few)
    assert len(calls) == 2 and rows(client, few) == 1
    if code in ("INTERNAL", "UNKNOWN"):  # that is an answer
        with pytest.raises(errors.ServerError, match=code):
            add(client, few)


# ---- what is kept, and for how long --------------------------------------------------------------


def test_only_what_a_restart_reads_ends_the_keeping(site, tmp_path):
    job = site()
    client = job.client()
    add(client)
    job.snapshot()
    for _ in range(3):
        add(client)
    client.save(str(tmp_path / "copy"))  # a trainer's own, elsewhere
    add(client)
    job.restart()
    add(client)
    assert (rows(client) == 6).all() and client.status()[0].lost == 0


def test_what_one_thread_has_not_heard_of_is_not_lost_when_another_mends_the_server(site, threads):
    """Two threads push through one client; the server ends when it has the second push and not the
    first.
    """
    job = site()
    client = job.client()
    add(client, np.array([0]))
    connection, real = client._connections[0], client._connections[0]._grpc._methods["Push"]
    under_way, go_on = threading.Event(), threading.Event()

    def losing(*call):
        if not under_way.is_set():
            under_way.set()
            assert go_on.wait(LIMIT_S)
            raise Lost()  # the request never reached the server
        return real(*call)

    connection._grpc._methods["Push"] = losing
    first = threads.submit(add, client, np.array([1]))
    assert under_way.wait(LIMIT_S)
    add(client, np.array([2]))
    job.restart()
    add(client, np.array([3]))  # finds out
    go_on.set()
    first.result(LIMIT_S)
    assert rows(client, np.arange(4)).tolist() == [1] * 4 and client.status()[0].lost == 0


def test_an_answer_of_an_earlier_life_that_comes_when_the_server_was_mended(site, threads):
    """The push was applied by the server that has ended; when the other thread mended its successor
    it was not kept yet.
    """
    job = site()
    client = job.client()
    add(client, np.array([0]))
    connection, real = client._connections[0], client._connections[0]._grpc._methods["Push"]
    answered, go_on = threading.Event(), threading.Event()

    def late(*call):
        reply = real(*call)
        if not answered.is_set():
            answered.set()
            assert go_on.wait(LIMIT_S)
        return reply

    connection._grpc._methods["Push"] = late
    first = threads.submit(add, client, np.array([1]))
    assert answered.wait(LIMIT_S)
    job.restart()
    add(client, np.array([2]))
    go_on.set()
    first.result(LIMIT_S)
    assert rows(client, np.arange(3)).tolist() == [1] * 3 and client.status()[0].lost == 0


def test_pushes_before_the_first_answer_are_of_one_life(site, threads):
    """The very first calls of a client go to a server that ends between them."""
    job = site()
    client = job.client()
    connection, real = client._connections[0], client._connections[0]._grpc._methods["Push"]
    order = threading.Lock()

    def restarted_between(*call):
        with order:
            reply = real(*call)
            if connection.restarts == 0 and not done:
                done.append(True)
                job.restart()
            return reply

    done = []
    connection._grpc._methods["Push"] = restarted_between
    for future in [threads.submit(add, client, np.array([i])) for i in range(4)]:
        future.result(LIMIT_S)
    assert rows(client, np.arange(4)).tolist() == [1] * 4 and client.status()[0].lost == 0


def test_what_is_beyond_the_bytes_to_be_kept_is_counted(site):
    job = site()
    client = job.client(keep_bytes=2_500)
    for i in range(5):  # some 1000 bytes each
        add(client, np.arange(16) + 100 * i)
    job.restart()
    add(client, np.array([1000]))
    assert rows(client, np.arange(5) * 100).tolist() == [0, 0, 0, 1, 1] and client.status()[0].lost == 3


def test_what_a_server_has_lost_is_still_told_when_it_starts_again_once_more(site):
    job = site()
    client = job.client(keep_bytes=0)
    add(client)
    job.snapshot()
    for _ in range(3):
        add(client)
    for _ in range(2):
        job.restart()
        add(client)
        assert client.status()[0].lost == 3
        job.snapshot()
    assert (rows(client) == 3).all()


def test_a_restarted_server_is_mended_before_rows_are_dropped(site):
    job = site()
    client = job.client()
    for ids in (IDS, IDS[:10], IDS[:10]):
        client.push({"t": (ids, np.ones((len(ids), WIDTH), np.float32))})
    job.restart()
    assert client.shrink("t", 2) == ROWS - 10
    job.restart()
    assert (rows(client)[:10] == -3).all() and not rows(client)[10:].any() and client.status()[0].lost == 0


def test_who_reads_sees_what_was_acknowledged(site):
    """Also from a server that has started again, before this trainer changes anything there."""
    job = site()
    client = job.client()
    add(client)
    client.push(blocks={"w": ONE}, change=Change.ADD)
    for read in (
        lambda: rows(client)[0],
        lambda: client.pull({"t": IDS}, train=False).rows["t"].all()[0, 0],
        lambda: client.pull(blocks=["w"], train=False).blocks["w"][0, 0],
    ):
        job.restart()
        assert read() == 1
    job.restart()
    client.barrier()
    assert job.servers[0].store.table("t").look_up(IDS[:1], train=False)[0, 0] == 1
    job.restart()
    client.save(str(job.folder / "copy"))
    assert job.servers[0].store.table("t").look_up(IDS[:1], train=False)[0, 0] == 1


def test_one_who_only_reads_is_not_given_the_value_of_an_earlier_life(site):
    """Two lives of a server give a block's versions the same numbers, and other values."""
    job = site()
    writer, reader = job.client(keep_bytes=0), job.client()
    writer.push(blocks={"w": ONE}, change=Change.ADD)
    assert reader.pull(blocks=["w"], train=False).blocks["w"][0, 0] == 1
    job.restart()
    writer.create([TABLE], {0: [BLOCK]})
    writer.push(blocks={"w": ONE * 5}, change=Change.ADD)
    assert reader.pull(blocks=["w"], train=False).blocks["w"][0, 0] == 5


RARE = specs.TableSpec(name="rare", width=4, optimizer=specs.Sgd(learning_rate=1.0), entry=specs.CountEntry(count=4))


def train_rare(job, ends, rounds):
    """(rows, how many wait) of a table whose ids get a row when they were shown four times, after
    steps between which `ends` is called."""
    client, random = job.client(), np.random.default_rng(0)
    client.create([RARE])
    for number in range(8):
        ids = random.integers(0, 20, 8)
        client.pull({"rare": ids})
        ends(number)
        client.push({"rare": (ids, np.full((8, 4), number, np.float32))}, round=(number + 1) * rounds)
        if number % 5 == 4:
            job.snapshot()
    client.shrink("rare", 3)
    ends(8)
    return client.look_up("rare", np.arange(20)), client.status()[0].tables["rare"].waiting


@pytest.mark.parametrize("rounds", [True, False])
def test_who_gets_a_row_is_the_same_when_the_server_was_restored(site, tmp_path, rounds):
    found = train_rare(job := site(), lambda number: job.restart(), rounds)
    wanted = train_rare(site(folder=tmp_path / "undisturbed"), lambda number: None, rounds)
    np.testing.assert_array_equal(found[0], wanted[0])
    assert found[1] == wanted[1] and 0 < np.count_nonzero(found[0][:, 0]) < 20


def test_shows_are_kept_until_they_are_in_a_snapshot(site):
    job = site()
    client = job.client()
    client.create([RARE])
    for _ in range(3):
        client.pull({"rare": np.arange(10)})
    client.pull({"t": IDS})  # nothing depends on these
    assert len(client._connections[0].replay_log) == 3
    job.snapshot()
    client.pull({"rare": np.arange(10)})
    assert len(client._connections[0].replay_log) == 1


# ---- fast channels -------------------------------------------------------------------------------


def test_after_a_restart_no_call_reads_the_memory_of_another(site):
    """Of two trainers the first is idle when the server starts again, and has a stream to the
    server that is no more.
    """
    job = site(trainers=2)
    first, second = (job.client(trainer) for trainer in range(2))
    for client in (first, second):
        add(client, IDS + 10**7 * client.trainer)
        client.pull({"t": IDS + 10**7 * client.trainer})
    job.restart()
    second.pull({"t": IDS + 10**7})
    second.pull({"t": IDS + 10**7})
    found = first.pull({"t": IDS + 10**9}).rows["t"].all()
    assert not found.any() and (first.pull({"t": IDS}).rows["t"].all() == 1).all()
    assert first.restarts == second.restarts == 1


def test_trainers_at_work_and_idle_ones_when_a_server_starts_again_and_again(site, threads):
    """Everything is kept: in the end every push was applied once."""
    trainers, steps, kills = 4, 12, 3
    job = site(trainers=trainers)
    clients = [job.client(trainer, heartbeat_s=0.1) for trainer in range(trainers)]
    at_work = threading.Barrier(trainers + 1, timeout=LIMIT_S)

    def train(client):
        for number in range(steps):
            if number % (steps // kills) == 1:
                at_work.wait()
                if client.trainer == 3:  # idle while the server ends
                    at_work.wait()
            client.exchange(
                {"t": (IDS, np.ones((ROWS, WIDTH), np.float32))},
                {"w": ONE},
                {"t": IDS},
                ["w"],
                change=Change.ADD,
            )
            if number % (steps // kills) == 1 and client.trainer != 3:
                at_work.wait()

    training = [threads.submit(train, client) for client in clients]
    for kill in range(kills):
        at_work.wait()
        if kill:
            job.snapshot()
        job.restart()
        at_work.wait()
    for future in training:
        future.result(LIMIT_S)
    assert (rows(clients[0]) == trainers * steps).all()
    assert (clients[0].pull(blocks=["w"]).blocks["w"] == trainers * steps).all()
    assert clients[0].status()[0].lost == 0


# ---- rounds --------------------------------------------------------------------------------------


def test_rounds_go_on_when_servers_start_again_one_after_the_other(site, threads):
    job = site(servers=2, trainers=2)
    clients = [job.client(trainer) for trainer in range(2)]
    for number in range(1, 7):
        if number % 2 == 0:
            job.snapshot(number // 2 % 2)
        if number % 3 == 0:
            job.restart(number % 2)
        wait(
            [threads.submit(step, client, number, size) for client, size in zip(clients, (1.0, 3.0))],
            LIMIT_S,
        )
    found = clients[0].pull({"t": IDS}, ["w"], train=False)
    assert (found.rows["t"].all() == -12).all() and (found.blocks["w"] == -12).all() and found.rounds == 6
    assert sum(status.lost for status in clients[0].status()) == 0


def test_an_idle_trainer_gives_a_restarted_server_what_it_lacks(site, threads):
    """One waits at a barrier, at server 0; the other cannot go on without what the first has pushed
    to server 1.
    """
    job = site(servers=2, trainers=2)
    idle, other = (job.client(trainer, heartbeat_s=0.1) for trainer in range(2))
    wait([threads.submit(step, client, 1) for client in (idle, other)], LIMIT_S)
    waiting = threads.submit(idle.barrier)
    until(
        lambda: any(barrier.waiting for barrier in job.servers[0].trainer_group._barriers.values()),
        "the idle one",
    )
    job.restart(1)
    found = threads.submit(lambda: other.pull({"t": IDS}, ["w"], train=False))
    assert found.result(LIMIT_S).blocks["w"][0, 0] == -1
    other.barrier()
    waiting.result(LIMIT_S)


def test_a_barrier_that_one_has_passed_when_server_0_starts_again(site, threads):
    """The answer to the other was lost with the server: it comes again, to one that does not know
    who has come.
    """
    job = site(trainers=2)
    first = job.client(0, heartbeat_s=0.1)
    with CallRelay(job.endpoints[0]) as relay:
        second = Client([relay.endpoint], TOKEN, trainer=1, heartbeat_s=0, timeout_s=LIMIT_S)
        job.clients.append(second)
        second.enter()
        passing = threads.submit(first.barrier)
        until(lambda: job.servers[0].trainer_group._barriers)
        connection, real = second._connections[0], second._connections[0]._grpc._methods["Barrier"]

        def lost_with_the_server(*call):
            connection._grpc._methods["Barrier"] = real
            real(*call)
            passing.result(LIMIT_S)
            job.restart()
            raise Lost()

        connection._grpc._methods["Barrier"] = lost_with_the_server
        threads.submit(second.barrier).result(LIMIT_S)


def test_gradients_that_are_not_confirmed_are_held_again(site, threads):
    """A server starts again between a push that is held and its confirmation: it holds it, as
    before.
    """
    job = site(servers=2, trainers=2)
    first, second = (job.client(trainer) for trainer in range(2))
    waiting = threads.submit(hold_and_confirm, second, 1)
    first.push({"t": (IDS, np.ones((ROWS, WIDTH), np.float32))}, {"w": ONE}, round=1, hold=True)
    until(lambda: job.servers[1].trainer_group.progress(1)[1])
    job.restart(1)
    threads.submit(first._connections.look).result(LIMIT_S)
    assert not job.servers[1].trainer_group.progress(0)[1] and [s.store.rounds for s in job.servers] == [0, 0]
    first.pull(blocks=["w"], round=1, confirm=True)
    waiting.result(LIMIT_S)
    assert [s.store.rounds for s in job.servers] == [1, 1]
    job.restart(1)  # and what was applied is not held, since nobody confirms it again
    wait([threads.submit(step, client, 2) for client in (first, second)], LIMIT_S)
    assert first.pull(blocks=["w"], train=False).blocks["w"][0, 0] == -2


def test_who_waits_at_one_server_learns_from_another_that_all_have_to_start_again(site, threads):
    """A trainer waits for a round at server 0. Server 1 has lost rounds that nobody can give it
    again.
    """
    job = site(servers=2, trainers=2)
    client = job.client()
    waiting = threads.submit(client._connections[0].exchange, request_of(client, round=1), 0, True)
    until(lambda: job.servers[0].trainer_group.at_work() == [0])
    with pytest.raises(
        RollbackError,
        match="round 5: this server has applied 0 rounds, and no process has the gradients",
    ):
        client._connections[1].exchange(request_of(client, round=5), 0, True)
    with pytest.raises(RollbackError, match="round 5"):
        waiting.result(LIMIT_S)
    with pytest.raises(RollbackError, match="round 5"):
        client.status()


def request_of(client, round):
    request = OutgoingRequest()
    request.push.message.caller.CopyFrom(client._connections.caller(1, 1))
    request.push.message.round = round
    request.push.add_rows(
        IDS,
        np.ones((ROWS, WIDTH), np.float32),
        table="t",
        change=int(Change.GRADIENT),
        learning_rate=None,
    )
    return request


def hold_and_confirm(client, number):
    client.push({"t": (IDS, np.ones((ROWS, WIDTH), np.float32))}, {"w": ONE}, round=number, hold=True)
    client.pull(blocks=["w"], round=number, confirm=True)


# ---- lives of trainers ---------------------------------------------------------------------------


def test_no_clock_says_which_life_of_a_trainer_is_the_later(site, monkeypatch):
    job = site(servers=2)
    lives = [job.client()]
    add(lives[0])
    for clock in (time.time_ns() + 3600 * 10**9, 1, time.time_ns() - 120 * 10**9):
        monkeypatch.setattr(time, "time_ns", lambda now=clock: now)
        lives.append(job.client())
        add(lives[-1])
        with pytest.raises(StateError, match="has ended"):
            add(lives[-2])
    assert sorted(life.incarnation for life in lives) == [life.incarnation for life in lives]


def test_any_server_that_knows_of_a_life_is_enough(site):
    job = site(servers=2)
    first = job.client(incarnation=77 << 32)
    first._connections[1].look(first._connections.caller(), at_once=True)
    job.restart(0)
    assert job.client().incarnation >> 32 == 78


def test_two_lives_that_begin_at_once_are_told_apart(site, threads):
    job = site()
    lives = [job.client() for _ in range(6)]
    barrier = threading.Barrier(len(lives))

    def begin(life):
        barrier.wait()
        try:
            add(life)
            add(life)
        except StateError:
            return False
        return True

    ended = list(threads.map(begin, lives))
    assert len({life.incarnation for life in lives}) == len(lives)
    last = max(lives, key=lambda life: life.incarnation)
    assert ended[lives.index(last)] and job.servers[0].store.ledger.through(0) == (
        last.incarnation,
        2,
    )


def test_incarnations_that_users_give(site):
    job = site()
    add(job.client(incarnation=5))
    add(job.client(incarnation=6))
    add(job.client())
    with pytest.raises(StateError, match="incarnation 5 has ended"):
        add(job.clients[0])
    for wrong in (0, -1, 1 << 64):
        with pytest.raises(errors.ServerError, match=r"incarnation: expected a number from 1 to 2\*\*64 - 1, found"):
            Client(job.endpoints, TOKEN, incarnation=wrong)
    add(job.client(incarnation=(1 << 64) - 1))
    with pytest.raises(errors.ServerError, match="there is no incarnation above 18446744073709551615"):
        add(job.client())


def test_a_trainer_that_starts_while_a_server_is_away_is_not_silent_to_the_others(site, threads):
    job = site(servers=2)
    add(job.client())
    job.kill(1)
    again = Client(job.endpoints, TOKEN, heartbeat_s=0.1, timeout_s=LIMIT_S)
    job.clients.append(again)
    again.place_table("t", WIDTH)
    entering = threads.submit(again.enter)
    heard = job.servers[0].trainer_group._known[0].heard_s
    until(lambda: job.servers[0].trainer_group._known[0].heard_s > heard + 0.3, "a sign of life")
    assert not entering.done()
    job.start(1)
    assert entering.result(LIMIT_S) == again.incarnation


def test_one_who_only_reads_is_no_trainer(site, tmp_path):
    job = site(silence_s=600)
    trainer, reader = job.client(), Client(job.endpoints, TOKEN, heartbeat_s=0.02)
    job.clients.append(reader)
    add(trainer)
    reader.place_table("t", WIDTH)
    reader.place_block("w", 0, BLOCK.shape)
    assert (rows(reader) == 1).all() and reader.pull({"t": IDS}, ["w"], train=False).blocks["w"].shape == BLOCK.shape
    reader.save(str(tmp_path / "copy"))
    reader.status()
    reader.close()
    add(trainer)
    assert job.servers[0].trainer_group.at_work() == [0] and not job.servers[0].trainer_group.over


# ---- goodbyes ------------------------------------------------------------------------------------


def test_a_goodbye_whose_answer_is_lost_is_said_again(site):
    job = site(end_with_trainers=True)
    with CallRelay(job.endpoints[0]) as relay:
        client = Client([relay.endpoint], TOKEN, heartbeat_s=0, timeout_s=LIMIT_S)
        client.create([TABLE])
        add(client)
        relay.next(Fault.LOSE_REPLY, Fault.LOSE_REPLY)
        client.leave()
        assert relay.happened[Fault.LOSE_REPLY] == 2
    assert job.servers[0].trainer_group.finished and job.servers[0].wait(LIMIT_S)


def test_who_leaves_a_restarted_server_gives_it_first_what_it_lacks(site):
    job = site(trainers=2)
    client, other = job.client(0), job.client(1)
    add(client)
    job.restart()
    threading.Timer(0.5, other.leave).start()
    client.leave()
    assert (job.servers[0].store.table("t").look_up(IDS, train=False) == 1).all()


def test_who_has_left_stays_until_its_last_pushes_are_in_a_snapshot(site, threads):
    """A server that is killed when a trainer has said goodbye still gets what it lacks."""
    job = site(servers=2, trainers=2)
    leaver, other = (job.client(trainer) for trainer in range(2))
    wait([threads.submit(step, client, 1) for client in (leaver, other)], LIMIT_S)
    leaving = threads.submit(leaver.leave)
    until(lambda: all(server.trainer_group.left() for server in job.servers))
    job.restart(1)
    assert other.pull(blocks=["w"], train=False).blocks["w"][0, 0] == -1
    assert not leaving.done()
    for number in range(2):
        job.snapshot(number)
    leaving.result(LIMIT_S)
    job.restart(1)
    assert other.pull(blocks=["w"], train=False).blocks["w"][0, 0] == -1


def test_who_has_left_does_not_stay_for_ever(site, monkeypatch, caplog):
    monkeypatch.setattr(server_connections, "_STAY_S", 0.3)
    job = site(trainers=2)
    client = job.client()
    add(client)
    client.leave()
    assert "has no snapshot of this trainer's last pushes" in caplog.text

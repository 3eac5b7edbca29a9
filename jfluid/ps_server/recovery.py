"""Recovery line of a synchronous job: the snapshots to begin with, and the rounds to write snapshots at.

Server 0 is the coordinator. When servers start again it asks each for its snapshots and decides; the
rest ask server 0. During training it names a round, a little ahead. Each server takes its view right after
that round. When all have written, all are told to retain it and the one before. So there is always a
round that every server can go back to, whichever processes are lost, and a server that is started
again by itself finds snapshots that the trainers can bring up to date.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server.connection import ServerConnection
from jfluid.ps_server.round_snapshots import RoundSnapshots, newest_common
from jfluid.ps_server.service import Service

_LOOK_S = 0.1
# Rounds between the plan of a snapshot and its round: at least the first number, and the rounds in the time of the
# second number of exchanges with all servers, so that all servers get the plan in time. Each further try doubles it.
_LEAST_LEAD, _LEAD_EXCHANGES, _TRIES = 2, 3, 8
logger = logging.getLogger(__name__)


class PeerServers:
    """Servers of a job, as seen from one server.

    Args:
        endpoints: of all servers, in the job's order.
        server: the number of this server.
        timeout_s: for how long to wait for the peers when all servers start.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        server: int,
        token: str,
        credentials: grpc.ChannelCredentials | None,
        timeout_s: float,
    ):
        self.server, self.timeout_s = server, timeout_s
        self._connections = {
            number: ServerConnection(endpoint, token, credentials, timeout_s)
            for number, endpoint in enumerate(endpoints)
            if number != server
        }

    def recovery(self, number: int) -> pb.RecoveryReply:
        """Return where a peer stands. Raises ServerError when it does not answer in time."""
        reply: pb.RecoveryReply = self._connections[number].call("Recovery", pb.RecoveryRequest())
        return reply

    def ask(self, method: str, request: Any) -> list[Any]:
        """Return the replies of all peers to one call. Raises ServerError."""
        return [connection.call(method, request) for connection in self._connections.values()]

    def agree(self, own: RoundSnapshots) -> int:
        """Return the round that this server goes on from, when it starts again: 0 for the beginning.

        Raises ServerError if a peer does not answer in time, or if servers have lost
        snapshots.
        """
        rounds, newest = list(own.status().snapshots), own.status().newest
        if self.server:
            leader = self._decision(0)
            chosen = max((number for number in rounds if number <= leader.rounds), default=0)
            if chosen < newest:
                _say(own, newest, chosen, f"server 0 has decided on round {leader.rounds}")
            return chosen
        replies = [self.recovery(number) for number in self._connections]
        chosen = newest_common(rounds, replies)
        line = max([0, *own.status().retained, *(number for reply in replies for number in reply.retained)])
        if line and not chosen:
            held = {0: rounds} | {number: list(reply.snapshots) for number, reply in zip(self._connections, replies)}
            raise errors.ServerError(
                f"all servers had snapshots of round {line}, and now have no common round: "
                + "; ".join(
                    f"server {number}: {', '.join(map(str, found)) or 'none'}" for number, found in held.items()
                )
                + ". Put back the missing folder, or remove the folders of all servers to begin anew"
            )
        peers = dict(zip(self._connections, replies))
        newest = max([newest, *(reply.newest for reply in replies if not reply.decided)])
        if chosen < newest:
            _say(own, newest, chosen, self._why_not(newest, rounds, peers))
        return chosen

    @staticmethod
    def _why_not(number: int, own: Sequence[int], peers: Mapping[int, pb.RecoveryReply]) -> str:
        """Return the reason why servers do not go on from a round that a server had a snapshot of."""
        held = {0: own} | {n: reply.snapshots for n, reply in peers.items() if not reply.decided}
        reasons = [
            f"server {n} has no whole snapshot of it (it has {', '.join(map(str, found)) or 'none'})"
            for n, found in sorted(held.items())
            if number not in found
        ] + [
            f"server {n} has applied {reply.rounds} rounds"
            for n, reply in sorted(peers.items())
            if reply.decided and reply.rounds < number
        ]
        return "; ".join(reasons)

    def _decision(self, number: int) -> pb.RecoveryReply:
        end = time.monotonic() + self.timeout_s
        while not (reply := self.recovery(number)).decided:
            if time.monotonic() > end:
                raise errors.ServerError(
                    f"server {number} has not found out within {self.timeout_s:g} s which snapshot the "
                    "job goes on from; do all servers run?"
                )
            time.sleep(_LOOK_S)
        return reply

    def close(self) -> None:
        """Give the connections up."""
        for connection in self._connections.values():
            connection.close()


def _say(own: RoundSnapshots, newest: int, chosen: int, why: str) -> None:
    own.went_back = f"the job goes back from round {newest}, the newest that was saved, to round {chosen}: {why}"
    logger.warning("%s", own.went_back)


class Coordinator:
    """Plans the snapshots of all servers, in a thread of server 0.

    Args:
        every_s: seconds between two.
    """

    def __init__(self, service: Service, peers: PeerServers, every_s: float):
        self._service, self._peers, self._every_s = service, peers, every_s
        self._due, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="jfluid-ps-recovery", daemon=True)
        self._seen = time.monotonic(), service.store.rounds

    def start(self) -> None:
        """Start the thread that plans snapshots."""
        self._thread.start()

    def hurry(self) -> None:
        """Plan the next one now."""
        self._due.set()

    def stop(self) -> None:
        """Plan no more."""
        self._ended.set()
        self._due.set()
        self._peers.close()  # the awaited answer may never come
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._due.wait(self._every_s)
            self._due.clear()
            if self._ended.is_set():
                return
            try:
                number = self._planned()
                if number and self._written(number):
                    self._retain(number)
            except errors.ServerError as error:
                if not self._ended.is_set():
                    logger.warning("no snapshot of all servers: %s", error)
            except Exception:
                logger.exception("no snapshot of all servers")

    def _planned(self) -> int:
        """Return the round of the next snapshot of all servers; 0 if the servers could not agree."""
        rate, lead = self._rate(), _LEAST_LEAD
        for _ in range(_TRIES):
            start = time.monotonic()
            replies = self._where_they_stand()
            if self._ended.is_set():
                return 0
            lead = max(lead, math.ceil(rate * _LEAD_EXCHANGES * (time.monotonic() - start)))
            number: int = max(reply.rounds for reply in replies) + lead
            plan = pb.PlanSnapshotRequest(round=number)
            if all(reply.accepted for reply in self._all("PlanSnapshot", plan, self._service.plan_snapshot)):
                return number
            lead *= 2
        logger.warning(
            "no snapshot of all servers: after %d tries each planned round had already begun on a server", _TRIES
        )
        return 0

    def _where_they_stand(self) -> list[pb.RecoveryReply]:
        """Return the answers of all servers when no server writes any more."""
        while True:
            replies = self._all("Recovery", pb.RecoveryRequest(), self._service.recovery)
            if not any(reply.writing for reply in replies) or self._ended.wait(_LOOK_S):
                return replies

    def _rate(self) -> float:
        """Return the rounds per second since the last call."""
        (before, rounds), self._seen = self._seen, (time.monotonic(), self._service.store.rounds)
        return (self._seen[1] - rounds) / max(self._seen[0] - before, 1e-3)

    def _written(self, number: int) -> bool:
        """Wait until all servers have a snapshot of a round; False where one could not write it."""
        while not self._ended.wait(_LOOK_S):
            replies = self._all("Recovery", pb.RecoveryRequest(), self._service.recovery)
            if all(number in reply.snapshots for reply in replies):
                return True
            if any(
                reply.rounds >= number and reply.writing != number and number not in reply.snapshots
                for reply in replies
            ):
                logger.warning("no snapshot of all servers after round %d: not every server could write it", number)
                return False
        return False

    def _retain(self, number: int) -> None:
        """Have all servers keep this round, and the newest before it that all have."""
        replies = self._all("Recovery", pb.RecoveryRequest(), self._service.recovery)
        common = set[int].intersection(*(set(reply.snapshots) for reply in replies))
        rounds = sorted(r for r in common if r <= number)[-2:]
        self._all("RetainSnapshots", pb.RetainSnapshotsRequest(rounds=rounds), self._service.retain_snapshots)
        logger.info("all servers have a snapshot of round %d", number)

    def _all(self, method: str, request: Any, own: Callable[[Any], Any]) -> list[Any]:
        return [own(request), *self._peers.ask(method, request)]

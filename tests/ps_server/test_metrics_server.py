"""Who is told a server's metrics."""

import contextlib
import errno
import hmac
import http.client
import itertools
import socket
import ssl
import threading
import time
from pathlib import Path
from socketserver import TCPServer

import pytest

from jfluid import errors
from jfluid.ps_server import metrics_server
from jfluid.ps_server.server import Server, Settings
from jfluid.security import __main__ as command
from jfluid.security import secret, sockets
from tests.security.wiretap import Wiretap

SECRET, LIMIT = "a-secret-of-the-job", 120
TLS = Path(__file__).parents[1] / "golden" / "tls"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JFLUID_JOB_TOKEN", raising=False)


@pytest.fixture
def server():
    with Server(Settings(token=SECRET, metrics_port=0)) as server:
        yield server


def asked(port, *authorization, context=None, method="GET"):
    """(status, body) of a request with these headers."""
    kind = http.client.HTTPConnection if context is None else http.client.HTTPSConnection
    with contextlib.closing(
        kind("127.0.0.1", port, timeout=LIMIT, **({"context": context} if context else {}))
    ) as connection:
        connection.putrequest(method, "/metrics")
        for value in authorization:
            connection.putheader("Authorization", value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def printed(capsys, *arguments):
    assert command.main(["metrics-token", *arguments]) == 0
    return capsys.readouterr().out.strip()


def test_the_token_follows_from_the_jobs_secret(server, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("JFLUID_JOB_TOKEN", SECRET)
    token = printed(capsys)
    status, text = asked(server.metrics_port, f"Bearer {token}")
    assert status == 200 and "jfluid_ps_lost_calls 0.0" in text
    file = tmp_path / "file"
    file.write_text(SECRET)
    file.chmod(0o644)
    assert command.main(["metrics-token", "--secret-file", str(file)]) == 2
    assert "others can use the file" in capsys.readouterr().err
    file.chmod(0o600)
    assert printed(capsys, "--secret-file", str(file)) == token != SECRET


def test_on_one_machine_its_user_needs_to_know_nothing(server, capsys):
    assert asked(server.metrics_port, f"Bearer {printed(capsys)}")[0] == 200
    beyond = Settings(token=SECRET, host="0.0.0.0", metrics_port=0)
    with Server(beyond) as reachable:
        assert asked(reachable.metrics_port, f"Bearer {printed(capsys)}")[0] == 401
        assert asked(reachable.metrics_port, f"Bearer {secret.metrics_token(SECRET)}")[0] == 200


def test_a_user_without_a_home(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with Server(Settings(token=SECRET, metrics_port=0)) as server:
        assert "only a token from the job's secret is taken" in caplog.text
        assert asked(server.metrics_port, f"Bearer {secret.metrics_token(SECRET)}")[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [""],
        ["Bearer"],
        ["Bearer "],
        [f"Bearer {SECRET}"],
        [f"Basic {SECRET}"],
        ["Bearer \xff\xfe"],
        [f"Bearer {secret.metrics_token('another-secret-of-another')}"],
        [f"bearer{secret.metrics_token(SECRET)}"],
        ["x" * 60_000],
        ["wrong", f"Bearer {secret.metrics_token(SECRET)}"],
    ],
)
def test_who_brings_no_token_is_told_nothing(server, headers):
    status, text = asked(server.metrics_port, *headers)
    assert status == 401 and "jfluid_ps" not in text and "python -m jfluid.security metrics-token" in text


def test_other_requests(server):
    token = f"Bearer {secret.metrics_token(SECRET)}"
    assert asked(server.metrics_port, token, method="POST")[0] == 501
    for said in (
        b"[" * 200_000,
        b"GET\r\n\r\n",
        b"\0" * 100 + b"\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.metrics_port), timeout=LIMIT) as stranger:
            with contextlib.suppress(OSError):  # it may be closed while this is sent
                stranger.sendall(said)
                stranger.shutdown(socket.SHUT_WR)
                assert b"jfluid_ps" not in stranger.recv(1 << 16)
    assert asked(server.metrics_port, token)[0] == 200


def test_tokens_are_compared_in_constant_time(server, monkeypatch):
    compared, compare = [], hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda *pair: compared.append(pair) or compare(*pair))
    assert asked(server.metrics_port, "Bearer x")[0] == 401
    assert len(compared) == 2 and all(one == b"Bearer x" for one, _ in compared)


def test_idle_strangers_hold_nobody_up_and_go(server, monkeypatch):
    monkeypatch.setattr(metrics_server, "_MOST_CONNECTIONS", 8)
    monkeypatch.setattr(metrics_server._Handler, "timeout", 1000.0)
    token, threads = f"Bearer {secret.metrics_token(SECRET)}", threading.active_count()
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.metrics_port), timeout=LIMIT))
            for _ in range(40)
        ]
        for stream in idle[::2]:
            stream.sendall(b"GET /metrics HTTP/1.1\r\n")
        for _ in range(3):
            assert asked(server.metrics_port, token)[0] == 200
        assert idle[0].recv(100) == b"", "the oldest are gone"
        deadline = time.monotonic() + LIMIT
        while threading.active_count() > threads + 9:
            assert time.monotonic() < deadline, "threads of strangers stay"


def test_a_stranger_that_says_nothing_goes(server, monkeypatch):
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.1)
    with socket.create_connection(("127.0.0.1", server.metrics_port), timeout=LIMIT) as stranger:
        stranger.sendall(b"GET")
        assert stranger.recv(100) == b""


def test_the_secret_does_not_travel(server):
    with Wiretap(server.metrics_port) as wiretap:
        assert asked(wiretap.port, f"Bearer {secret.metrics_token(SECRET)}")[0] == 200
        assert b"Authorization" in wiretap and SECRET.encode() not in wiretap


def test_with_tls_metrics_are_told_over_tls():
    files = {"tls_certificate": TLS / "certificate.pem", "tls_key": TLS / "key.pem"}
    client = ssl.create_default_context(cafile=str(TLS / "certificate.pem"))
    token = f"Bearer {secret.metrics_token(SECRET)}"
    with Server(Settings(token=SECRET, metrics_port=0, **files)) as server:
        assert asked(server.metrics_port, token, context=client)[0] == 200
        with pytest.raises((http.client.HTTPException, OSError)):
            asked(server.metrics_port, token)
    with Server(Settings(token=SECRET, metrics_port=0, tls_clients=TLS / "certificate.pem", **files)) as server:
        with pytest.raises((http.client.HTTPException, OSError)):
            asked(server.metrics_port, token, context=client)
        client.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
        assert asked(server.metrics_port, token, context=client)[0] == 200


def test_a_port_that_is_taken(server):
    with pytest.raises(
        errors.ServerError,
        match=f"metrics: cannot listen on 127.0.0.1:{server.metrics_port}: Address",
    ):
        Server(Settings(token=SECRET, metrics_port=server.metrics_port)).start()


def test_a_server_whose_files_have_run_out_rests(monkeypatch, caplog):
    asked_at, real = [], TCPServer.get_request
    poor = threading.Event()

    def get_request(self):
        asked_at.append(time.monotonic())
        if poor.is_set():
            raise OSError(errno.EMFILE, "Too many open files")
        return real(self)

    monkeypatch.setattr(TCPServer, "get_request", get_request)
    with Server(Settings(token=SECRET, metrics_port=0)) as server:
        poor.set()
        with socket.create_connection(("127.0.0.1", server.metrics_port), timeout=LIMIT):
            end = time.monotonic() + LIMIT
            while len(asked_at) < 4:
                assert time.monotonic() < end, "nobody tried again"
                time.sleep(0.01)
            pauses = [later - one for one, later in itertools.pairwise(asked_at)]
            assert min(pauses) >= sockets.PAUSE_S
            assert caplog.text.count("metrics: cannot accept connections") == 1
            poor.clear()
            token = secret.metrics_token(SECRET)
            assert asked(server.metrics_port, f"Bearer {token}")[0] == 200
            poor.set()
    assert len(asked_at) < 20

"""What the environment says of servers and trainers."""

import pytest

from jfluid import errors
from jfluid.distributed.wire.settings import client_options, server_settings

TOKEN = "0123456789-token-of-the-tests"


def test_settings_of_servers(monkeypatch):
    monkeypatch.setenv("JFLUID_PS_SILENCE_S", "2.5")
    monkeypatch.setenv("JFLUID_PS_ON_SILENCE", "leave out")
    monkeypatch.setenv("JFLUID_PS_METRICS_PORT", "9100")
    settings = server_settings(3, 1, token=TOKEN, servers=4)
    assert (settings.server, settings.silence_s, settings.on_silence, settings.metrics_port) == (
        3,
        2.5,
        "leave out",
        9101,
    )


@pytest.mark.parametrize(
    "name, value, message",
    [
        (
            "SILENCE_S",
            "soon",
            "JFLUID_PS_SILENCE_S: expected a number of seconds above 0, found 'soon'",
        ),
        (
            "SILENCE_S",
            "-1",
            "JFLUID_PS_SILENCE_S: expected a number of seconds above 0, found '-1'",
        ),
        ("ON_SILENCE", "wait", "JFLUID_PS_ON_SILENCE: expected fail or leave out, found 'wait'"),
        (
            "METRICS_PORT",
            "70000",
            "JFLUID_PS_METRICS_PORT: expected an integer from 0 to 65535, found '70000'",
        ),
        ("METRICS_PORT", "65535", "metrics_port: Input should be less than or equal to 65535"),
    ],
)
def test_wrong_settings_are_named(name, value, message, monkeypatch):
    monkeypatch.setenv(f"JFLUID_PS_{name}", value)
    with pytest.raises(errors.ServerError, match=message):
        server_settings(1, 1, token=TOKEN, servers=2)


def test_trainers_read_their_certificates(monkeypatch, tmp_path):
    assert client_options() == {}
    (tmp_path / "ca.pem").write_bytes(b"pem")
    monkeypatch.setenv("JFLUID_PS_TLS_AUTHORITY", str(tmp_path / "ca.pem"))
    assert client_options() == {"tls_authority": b"pem"}
    monkeypatch.setenv("JFLUID_PS_TLS_KEY", str(tmp_path / "absent.pem"))
    with pytest.raises(errors.ServerError, match="JFLUID_PS_TLS_KEY: .*absent.pem"):
        client_options()

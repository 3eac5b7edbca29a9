"""Environment variables as typed fields: what they take, how wrong ones are named, that they are
written as they are read.
"""

from pathlib import Path

import pytest

import jfluid as fluid
from jfluid import errors, places
from jfluid.environment.process import (
    ASSIGNED,
    DeviceVariables,
    FolderVariables,
    ProcessEnvironment,
    RoleVariables,
    SecretVariables,
    ServerVariables,
    SnapshotVariables,
)

GIVEN = ProcessEnvironment(
    training_role="PSERVER",
    trainer_id=1,
    trainers_num=2,
    num_trainers=2,
    trainer_endpoints=("a:1", "b:1"),
    pserver_id=0,
    port=6170,
    pserver_endpoints=("c:1",),
    current_endpoint="c:1",
    host="c",
    restarts=3,
    cpu_num=4,
    selected_gpus=(0, 2),
    visible_gpus=(),
    silence_s=2.5,
    on_silence="leave out",
    max_rows=10,
    tls_key=Path("key.pem"),
    tls_authority=Path("ca.pem"),
    snapshot_folder=Path("/cuts"),
    restore=True,
    keep_bytes=0,
    job_token="a-secret-of-the-tests",
)


def test_variables_are_texts():
    assert GIVEN.to_env() == {
        "TRAINING_ROLE": "PSERVER",
        "PADDLE_TRAINER_ID": "1",
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_NUM_TRAINERS": "2",
        "PADDLE_TRAINER_ENDPOINTS": "a:1,b:1",
        "PADDLE_PSERVER_ID": "0",
        "PADDLE_PORT": "6170",
        "PADDLE_PSERVERS_IP_PORT_LIST": "c:1",
        "PADDLE_CURRENT_ENDPOINT": "c:1",
        "POD_IP": "c",
        "JFLUID_RESTARTS": "3",
        "CPU_NUM": "4",
        "FLAGS_selected_gpus": "0,2",
        "CUDA_VISIBLE_DEVICES": "",
        "JFLUID_PS_SILENCE_S": "2.5",
        "JFLUID_PS_ON_SILENCE": "leave out",
        "JFLUID_PS_MAX_ROWS": "10",
        "JFLUID_PS_TLS_KEY": "key.pem",
        "JFLUID_PS_TLS_AUTHORITY": "ca.pem",
        "JFLUID_PS_SNAPSHOT_FOLDER": "/cuts",
        "JFLUID_PS_RESTORE": "1",
        "JFLUID_PS_KEEP_BYTES": "0",
        "JFLUID_JOB_TOKEN": "a-secret-of-the-tests",
    }


def test_what_is_written_is_what_is_read():
    again = ProcessEnvironment.from_env(GIVEN.to_env())
    assert again.to_env() | {"CUDA_VISIBLE_DEVICES": ""} == GIVEN.to_env()
    for kind in ProcessEnvironment.__bases__:
        assert kind.from_env(GIVEN.to_env()).to_env().items() <= GIVEN.to_env().items()


def test_defaults_and_empty_variables():
    for empty in ({}, dict.fromkeys(ProcessEnvironment.fields(), "")):
        found = ProcessEnvironment.from_env(empty)
        assert found == ProcessEnvironment() and found.to_env() == {}
        assert (found.cpu_num, found.silence_s, found.snapshot_every_s) == (1, 60, 60)
    assert SecretVariables.from_env({"JFLUID_JOB_TOKEN": ""}).job_token == "", (
        "an empty secret is none that can be used"
    )


def test_variables_are_those_of_this_process(monkeypatch):
    monkeypatch.setenv("CPU_NUM", " 3 ")
    assert DeviceVariables.from_env().cpu_num == 3
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert FolderVariables.from_env().cache_home == Path("/c")


def test_devices(monkeypatch):
    monkeypatch.setenv("FLAGS_selected_gpus", "0,2")
    assert places.selected_gpus() == (0, 2)
    monkeypatch.setattr("jfluid.flags._values", {})
    fluid.set_flags({"FLAGS_selected_gpus": "1"})
    assert places.selected_gpus() == (1,), "set_flags comes before the environment"
    fluid.set_flags({"FLAGS_selected_gpus": "b"})
    with pytest.raises(
        errors.PlaceError,
        match="FLAGS_selected_gpus: expected numbers of GPUs such as 0,1, found 'b'",
    ):
        fluid.cuda_places()
    monkeypatch.setenv("CPU_NUM", "two")
    with pytest.raises(errors.PlaceError, match="CPU_NUM: expected an integer from 1 on, found 'two'"):
        fluid.cpu_places()
    assert len(fluid.cpu_places(2)) == 2


@pytest.mark.parametrize(
    ("kind", "error", "name", "text", "expected"),
    [
        (RoleVariables, errors.ProgramError, "PADDLE_TRAINER_ID", "x", "an integer from 0 on"),
        (RoleVariables, errors.ProgramError, "PADDLE_TRAINER_ID", "-1", "an integer from 0 on"),
        (RoleVariables, errors.ProgramError, "PADDLE_TRAINERS_NUM", "1_0", "an integer from 0 on"),
        (RoleVariables, errors.ProgramError, "PADDLE_PORT", "65536", "an integer from 0 to 65535"),
        (RoleVariables, errors.ProgramError, "TRAINING_ROLE", "MASTER", "TRAINER or PSERVER"),
        (
            RoleVariables,
            errors.ProgramError,
            "PADDLE_TRAINER_ENDPOINTS",
            "a:1,a:1",
            "different endpoints with ports up to 65535, such as 10.0.0.1:6170,",
        ),
        (DeviceVariables, errors.PlaceError, "CPU_NUM", "0", "an integer from 1 on"),
        (DeviceVariables, errors.PlaceError, "CPU_NUM", "2.0", "an integer from 1 on"),
        (
            DeviceVariables,
            errors.PlaceError,
            "FLAGS_selected_gpus",
            "0,b",
            "numbers of GPUs such as 0,1",
        ),
        (
            ServerVariables,
            errors.ServerError,
            "JFLUID_PS_SILENCE_S",
            "nan",
            "a number of seconds above 0",
        ),
        (ServerVariables, errors.ServerError, "JFLUID_PS_ON_SILENCE", "go on", "fail or leave out"),
        (
            SnapshotVariables,
            errors.ServerError,
            "JFLUID_PS_SNAPSHOT_EVERY_S",
            "inf",
            "a number of seconds above 0",
        ),
    ],
)
def test_wrong_variables_are_named(kind, error, name, text, expected):
    with pytest.raises(error) as raised:
        kind.from_env({name: text})
    assert f"{name}: expected {expected}" in str(raised.value) and f", found {text!r}" in str(raised.value)
    with pytest.raises(errors.ProgramError, match=f"{name}: expected"):
        ProcessEnvironment.from_env({name: text})


def test_each_wrong_variable_has_a_line():
    with pytest.raises(errors.ServerError) as raised:
        ServerVariables.from_env({"JFLUID_PS_MAX_ROWS": "0", "JFLUID_PS_START_S": "soon"})
    assert len(str(raised.value).splitlines()) == 2


def test_a_secret_is_not_shown():
    assert "a-secret" not in repr(GIVEN) and "a-secret" not in repr(SecretVariables(older_job_token="a-secret"))


def test_a_variable_that_is_needed_and_not_set():
    with pytest.raises(
        errors.ProgramError,
        match="the environment variable PADDLE_TRAINERS_NUM is not set: start the script",
    ):
        RoleVariables.from_env({}).required("trainers_num")


def test_jobs_leave_the_launchers_variables_alone():
    assert sorted(ASSIGNED) == [
        "CUDA_VISIBLE_DEVICES",
        "FLAGS_selected_gpus",
        "JFLUID_PS_RESTORE",
        "PADDLE_CURRENT_ENDPOINT",
        "PADDLE_NUM_TRAINERS",
        "PADDLE_PORT",
        "PADDLE_PSERVERS_IP_PORT_LIST",
        "PADDLE_PSERVER_ID",
        "PADDLE_TRAINERS_NUM",
        "PADDLE_TRAINER_ENDPOINTS",
        "PADDLE_TRAINER_ID",
        "POD_IP",
        "TRAINING_ROLE",
    ]

"""Where the secret of a job comes from, and what it must be."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from jfluid import errors
from jfluid.job import JobError, read_job, script_job
from jfluid.launch.nodes import Node
from jfluid.launch.runs import _secret
from jfluid.security import __main__ as command
from jfluid.security import secret

GOOD = "0123456789-good-secret"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (secret.VARIABLE, secret.OLDER_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def kept(text=GOOD, mode=0o600):
    with open("secret-file", "w") as file:
        file.write(text)
    os.chmod("secret-file", mode)
    return "secret-file"


# ---- the environment -----------------------------------------------------------------------------


def test_the_variable_and_its_older_name(monkeypatch):
    assert secret.given() is None
    monkeypatch.setenv("JFLUID_PS_TOKEN", GOOD)
    assert secret.job_secret(["10.0.0.1:2"]) == GOOD
    monkeypatch.setenv("JFLUID_JOB_TOKEN", GOOD[::-1])
    assert secret.job_secret(["10.0.0.1:2"]) == GOOD[::-1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        "with a space in the middle",
        "x" * 1025,
        "newline-at-the-end-\n",
        "häß-lich-häß-lich",
    ],
)
def test_what_is_no_secret_is_refused_and_not_shown(monkeypatch, text):
    monkeypatch.setenv("JFLUID_JOB_TOKEN", text)
    with pytest.raises(
        errors.SecretError, match=f"JFLUID_JOB_TOKEN: expected 16 to 1024 .* found {len(text)}"
    ) as error:
        secret.job_secret()
    assert not text or text not in str(error.value)


def test_a_new_one_is_good_and_another_each_time(capsys):
    assert command.main(["new"]) == 0
    printed = capsys.readouterr().out.strip()
    assert secret.checked(printed, "printed") != secret.fresh()


# ---- one machine ---------------------------------------------------------------------------------


def test_one_machine_needs_nothing(folder):
    with ThreadPoolExecutor(8) as threads:
        found = set(
            threads.map(
                lambda _: secret.job_secret(["127.0.0.1:1", "localhost:2", "[::1]:3", "::1"]),
                range(8),
            )
        )
    assert len(found) == 1, "the same for all processes of this user"
    assert os.listdir(folder / "cache" / "jfluid") == ["secret"]
    assert (folder / "cache" / "jfluid" / "secret").stat().st_mode & 0o777 == 0o600


def test_where_other_machines_can_connect_it_must_be_given(folder):
    for address in (
        "10.0.0.1:2",
        "0.0.0.0:1",
        "[::]:1",
        "host.of.a.job:1",
        "localhost.example.org:7",
        "128.0.0.1",
        "[fe80::1]:1",
    ):
        with pytest.raises(errors.SecretError) as error:
            secret.job_secret(["127.0.0.1:1", address])
        assert str(error.value).startswith(
            f"{address}: other machines can connect there, so the job needs a secret: set JFLUID_JOB_TOKEN"
        )
    assert not (folder / "cache").exists()


def test_a_home_that_cannot_be_written(folder):
    (folder / "cache").write_text("")
    with pytest.raises(
        errors.SecretError,
        match="cannot make a secret for this user: .*; set JFLUID_JOB_TOKEN instead",
    ):
        secret.of_this_user()


# ---- files ---------------------------------------------------------------------------------------


def test_a_file_of_its_owner_alone():
    assert secret.from_file(kept(f"  {GOOD}\n")) == GOOD
    assert secret.from_file(kept(mode=0o400)) == GOOD


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610, 0o601, 0o644])
def test_a_file_that_others_can_use_is_refused(mode):
    with pytest.raises(
        errors.SecretError,
        match=f"others can use the file, whose permissions are {mode:o}; run chmod 600",
    ):
        secret.from_file(kept(mode=mode))
    with pytest.raises(errors.SecretError, match="others can use the file"):
        os.makedirs("cache/jfluid")
        os.rename("secret-file", "cache/jfluid/secret")
        secret.of_this_user()


def test_a_file_of_another_user_is_refused():
    kept()
    about = os.stat("secret-file")
    other = os.stat_result([about.st_mode, *about[1:4], about.st_uid + 1, *about[5:10]])
    assert secret._problem_of(about) == ""
    assert f"belongs to user {about.st_uid + 1}, expected {about.st_uid}" in secret._problem_of(other)


def test_what_is_no_file_of_a_secret(folder):
    os.mkfifo("pipe", 0o600)
    os.mkdir("folder", 0o700)
    for path, message in (
        ("absent", "cannot read the job's secret: No such file"),
        ("folder", "Is a directory"),
        ("pipe", "this is no file"),
    ):
        with pytest.raises(errors.SecretError, match=f"^{path}: .*{message}"):
            secret.from_file(path)
    for text in ("", "short", "two words in a file", "\udcff" * 20, "x" * 2000, "x" * (1 << 20)):
        with open("secret-file", "wb") as file:
            file.write(text.encode(errors="surrogateescape"))
        os.chmod("secret-file", 0o600)
        with pytest.raises(errors.SecretError, match="secret-file: expected 16 to 1024 printable characters"):
            secret.from_file("secret-file")


# ---- jobs ----------------------------------------------------------------------------------------


def job(**fields):
    open("train.py", "w").close()
    return script_job(
        "train.py",
        [],
        (),
        {key: (key, value) for key, value in ({"processes": 2} | fields).items()},
    )


def described(text):
    open("train.py", "w").close()
    with open("job.yaml", "w") as file:
        file.write(f"script: train.py\n{text}\n")
    return read_job("job.yaml")


SEVERAL = Node(1, 2, None, ("10.0.0.1", 7000))


def test_secrets_of_launchers(monkeypatch):
    one = [_secret(job(), Node()) for _ in range(2)]
    assert one[0] != one[1], "jobs on one host do not know each other"
    together = [_secret(job(), Node(rank, 2, None, ("127.0.0.1", 7000))) for rank in range(2)]
    assert together == [secret.of_this_user()] * 2
    with pytest.raises(
        JobError,
        match="a job on several hosts needs a secret.*set JFLUID_JOB_TOKEN .*secret_file=PATH",
    ):
        _secret(job(), SEVERAL)
    monkeypatch.setenv("JFLUID_JOB_TOKEN", GOOD)
    assert _secret(job(), SEVERAL) == _secret(job(), Node()) == GOOD
    monkeypatch.setenv("JFLUID_JOB_TOKEN", "bad")
    with pytest.raises(JobError, match="jfluid-launch: JFLUID_JOB_TOKEN: expected 16 to 1024"):
        _secret(job(), SEVERAL)
    assert _secret(described(f"mode: collective\nprocesses: 2\nsecret_file: {kept()}"), SEVERAL) == GOOD


def test_the_secret_file_of_a_job_is_checked():
    with pytest.raises(
        JobError,
        match="job.yaml:3:1: secret_file: secret-file: .*others can use the file.*chmod 600",
    ):
        described(f"mode: ps\nsecret_file: {kept(mode=0o644)}")
    with pytest.raises(JobError, match="job.yaml:3:1: secret_file: absent: cannot read"):
        described("mode: ps\nsecret_file: absent")
    assert described(f"mode: ps\nsecret_file: {kept()}").secret_file == "secret-file"


@pytest.mark.parametrize("mode", ["local", "ps", "collective\nprocesses: 2"])
@pytest.mark.parametrize("name", ["JFLUID_JOB_TOKEN", "JFLUID_PS_TOKEN"])
def test_a_job_file_is_no_place_for_a_secret(mode, name):
    with pytest.raises(JobError, match=f"env: a job file is shown .* no place for {name}: .*secret_file") as error:
        described(f"mode: {mode}\nenv: {{{name}: {GOOD}}}")
    assert GOOD not in str(error.value)

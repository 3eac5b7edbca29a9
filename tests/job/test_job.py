"""The job file: what is accepted, what is refused and with which words."""

import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jfluid.job import Job, JobError, read_job, script_job
from tests.fuzz.harness import fuzzed

KEYS = (
    "module, script, name, mode, args, env, shape_buckets, log_dir, log_max_bytes, log_backups, log_times, record, "
    "dashboard, profile, stall_timeout, max_restarts"
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def read(text, *overrides):
    with open("job.yaml", "w", encoding="utf-8") as file:
        file.write(text)
    return read_job("job.yaml", overrides)


def mistakes(text, *overrides):
    with pytest.raises(JobError) as raised:
        read(text, *overrides)
    return str(raised.value).splitlines()


def args(text):
    return read(f"script: train.py\nargs: {{value: {text}}}").args["value"]


def test_defaults():
    assert read("script: train.py").model_dump() == {
        "module": False,
        "script": "train.py",
        "name": "train",
        "mode": "local",
        "args": {},
        "env": {},
        "shape_buckets": {},
        "log_dir": "mylog",
        "log_max_bytes": 256 << 20,
        "log_backups": 1,
        "log_times": True,
        "record": True,
        "dashboard": None,
        "profile": None,
        "stall_timeout": None,
        "max_restarts": 0,
    }


def test_a_module_in_place_of_a_script():
    job = read("script: news.train\nmodule: true\nargs: {epochs: 3}")
    assert job.command() == [sys.executable, "-m", "news.train", "--epochs", "3"]
    assert job.name == "train" and read(job.to_yaml()) == job
    assert mistakes("script: news/train.py\nmodule: true") == [
        "job.yaml:1:1: script: with module: true it must be a module's name, such as news.train, found 'news/train.py'"
    ]


def test_arguments_from_a_mapping():
    job = read("script: train.py\nargs: {epochs: 3, lr: 1e-3, verbose: true, quiet: false, sizes: [8, x]}")
    assert job.command() == [
        sys.executable,
        "train.py",
        "--epochs",
        "3",
        "--lr",
        "0.001",
        "--verbose",
        "--sizes",
        "8",
        "x",
    ]


def test_arguments_from_a_list():
    assert read("script: train.py\nargs: [-v, 2, false]").arguments() == ["-v", "2", "False"]


def test_environment_is_text():
    assert read("script: train.py\nenv: {CPU_NUM: 2, RATE: 0.5, NAME: no}").env == {
        "CPU_NUM": "2",
        "RATE": "0.5",
        "NAME": "no",
    }


def test_sizes_of_batches():
    job = read('script: train.py\nshape_buckets: {ids: {"1": [64, 32], "0": [8]}}\nenv: {A: 1}')
    assert job.shape_buckets == {"ids": {"1": [32, 64], "0": [8]}}
    assert job.variables() == {
        "A": "1",
        "FLAGS_shape_buckets": '{"ids": {"1": [32, 64], "0": [8]}}',
    }
    assert read(job.to_yaml()).shape_buckets == job.shape_buckets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[32]", "expected a mapping of the names of feeds, found [32]"),
        ("{ids: [32]}", "ids: expected a mapping of dimensions to sizes"),
        ("{ids: {one: [32]}}", "ids: expected the number of a dimension, from 0 on, found 'one'"),
        ('{ids: {"1": []}}', "ids, dimension 1: expected a list of 1 to 64 sizes, found []"),
        (
            '{ids: {"1": [32, 0]}}',
            "ids, dimension 1: expected sizes, whole numbers from 1 on, found 0",
        ),
    ],
)
def test_sizes_of_batches_that_are_none(text, expected):
    (line,) = mistakes(f"script: train.py\nshape_buckets: {text}")
    assert line.startswith("job.yaml:2:") and expected in line


def test_sizes_of_batches_are_given_once():
    (line,) = mistakes('script: train.py\nshape_buckets: {ids: {"1": [32]}}\nenv: {FLAGS_shape_buckets: ""}')
    assert "env sets FLAGS_shape_buckets, which shape_buckets does; remove it" in line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 1e5),
        (".5", 0.5),
        ("-2.", -2.0),
        (".inf", float("inf")),
        ("-.Inf", float("-inf")),
        ("12", 12),
        ("-12", -12),
        ("0x1F", 31),
        ("0o17", 15),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("Off", "Off"),
        ("y", "y"),
        ("2020-01-01", "2020-01-01"),
        ("'1e-3'", "1e-3"),
        ('"true"', "true"),
        ("=", "="),
        ("<<", "<<"),
    ],
)
def test_yaml_1_2_scalars(text, value):
    assert (type(args(text)), args(text)) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [f"job.yaml: a job file holds a mapping with the keys {KEYS}; found nothing"]),
        ("- a", [f"job.yaml: a job file holds a mapping with the keys {KEYS}; found ['a']"]),
        (
            "script: train.py\nscrpt: 3",
            ["job.yaml:2:1: unknown key 'scrpt' (did you mean script?)"],
        ),
        (
            "script: train.py\n\nfoo: 1",
            [f"job.yaml:3:1: unknown key 'foo'; a job has the keys {KEYS}"],
        ),
        ("name: x", ["job.yaml: the key 'script' is missing"]),
        ("script: 3", ["job.yaml:1:1: script: must be text; quote it, found 3"]),
        ("script: train.py\nname: a b", [r"job.yaml:2:1: name: must match ^[\w.-]+$, found 'a b'"]),
        (
            "script: train.py\nmode: remote",
            ["job.yaml:2:1: mode: must be local or collective or parameter_server, found 'remote'"],
        ),
        (
            "script: train.py\nargs: 3",
            ["job.yaml:2:1: args: must be a mapping (epochs: 10 is passed as --epochs 10) or a list, found 3"],
        ),
        (
            "script: train.py\nargs:\n  a: {b: 1}\n  e: [[1]]",
            [
                "job.yaml:3:3: args.a: must be text, a number, true or false, found {'b': 1}",
                "job.yaml:4:3: args.e: must be text, a number, true or false, found [[1]]",
            ],
        ),
        (
            "script: train.py\nargs: [1, null]",
            ["job.yaml:2:11: args.1: must be text, a number, true or false, found None"],
        ),
        (
            'script: train.py\nargs: {"a b": 1}',
            [r"job.yaml:2:8: args.a b: must match ^[A-Za-z_][\w-]*$, found 'a b'"],
        ),
        (
            'script: train.py\nargs: {a: "\\0"}',
            [r"job.yaml:2:8: args.a: must not contain a null character, found '\x00'"],
        ),
        ("script: train.py\nenv: [1]", ["job.yaml:2:1: env: must be a mapping, found [1]"]),
        (
            "script: train.py\nenv: {A: true}",
            [
                "job.yaml:2:7: env.A: must be text or a number: an environment variable has no true or false; quote "
                "it, found True"
            ],
        ),
        (
            "script: train.py\nscript: train.py",
            ["job.yaml:2:1: duplicate key 'script', first given at job.yaml:1:1"],
        ),
        (
            "script: train.py\nargs: {a: 1, a: 2}",
            ["job.yaml:2:14: duplicate key 'a', first given at job.yaml:2:8"],
        ),
        ("1: 2", ["job.yaml:1:1: a key must be text, not 1; quote it"]),
        ("script: &a train.py\nname: *a", ["job.yaml:2:7: aliases (*name) are not supported"]),
        (
            "script: !!python/name:os.system x",
            ["job.yaml:1:9: the tag 'tag:yaml.org,2002:python/name:os.system' is not supported"],
        ),
        (
            "script: [",
            ["job.yaml:1:10: while parsing a flow node expected the node content, but found '<stream end>'"],
        ),
        (
            "a: 1\n---\nb: 1",
            ["job.yaml:2:1: expected a single document in the stream but found another document"],
        ),
        ("a: \x07", ["job.yaml: not YAML text: special characters are not allowed"]),
        ("[" * 5000, ["job.yaml:1:33: nested too deeply"]),
    ],
)
def test_mistakes(text, expected):
    assert mistakes(text) == expected


# ---- collective jobs -----------------------------------------------------------------------------


def collective(text, *overrides):
    return read(f"script: train.py\nmode: collective\n{text}", *overrides)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpus: 2", 2),
        ("gpus: all", "all"),
        ("gpus: [0, 2]", ["0", "2"]),
        ("gpus: [GPU-12ab-34]", ["GPU-12ab-34"]),
        ("gpus: 4\nprocesses: 2", 4),
    ],
)
def test_gpus(text, gpus):
    assert collective(text).gpus == gpus


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "",
            "job.yaml: a collective job needs gpus (such as gpus: 2) or processes (on the CPU), for each host",
        ),
        (
            "gpus: 0",
            "job.yaml:3:1: gpus: must be a positive number of GPUs, a list such as [0, 1], or all, found 0",
        ),
        (
            "gpus: [1, 1]",
            "job.yaml:3:1: gpus: a list of GPUs holds different numbers (or the names that nvidia-smi -L shows), "
            "found [1, 1]",
        ),
        ("gpus: 3\nprocesses: 2", "job.yaml: 3 gpus cannot be shared evenly by 2 processes"),
        (
            "processes: 0",
            "job.yaml:3:1: processes: expected a number from 1, found 0",
        ),
        ("processes: 1\nnodes: 3\nips: [a, b]", "job.yaml: nodes is 3, but ips has 2 addresses"),
        (
            "processes: 1\ncoordinator: host",
            "job.yaml:4:1: coordinator: must have the form host:port, found 'host'",
        ),
        (
            "processes: 1\nstarted_port: 80",
            "job.yaml:4:1: started_port: expected a number from 1024, found 80",
        ),
        (
            "processes: 1\nconsole: [x]",
            "job.yaml:4:1: console: must be a list of ranks such as [0, 3], or all, found ['x']",
        ),
        (
            "processes: 1\nmax_restarts: -1",
            "job.yaml:4:1: max_restarts: expected a number from 0, found -1",
        ),
        (
            "processes: 1\nenv: {PADDLE_TRAINER_ID: 1}",
            "job.yaml:4:1: env: the launcher sets PADDLE_TRAINER_ID for each process; remove it, "
            "found {'PADDLE_TRAINER_ID': 1}",
        ),
    ],
)
def test_mistakes_of_collective_jobs(text, expected):
    assert mistakes(f"script: train.py\nmode: collective\n{text}") == [expected]


def test_a_key_of_another_mode():
    assert mistakes("script: train.py\ngpus: 2") == [
        "job.yaml:2:1: the key 'gpus' belongs to jobs with mode: collective or parameter_server"
    ]


def test_a_collective_job_reads_back_as_the_same():
    job = collective("gpus: [0, 1]\nips: [10.0.0.1, 10.0.0.2]\nstall_timeout: 60\nconsole: all")
    assert read(job.to_yaml()) == job


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "servers: 0",
            "job.yaml:3:1: servers: must be a positive number, or a list of host:port, found 0",
        ),
        ("servers: [a]", "job.yaml:3:1: servers: must have the form host:port, found ['a']"),
        (
            'servers: ["a:65536"]',
            "job.yaml:3:1: servers: port 65536 is none: ports go from 1 to 65535, found ['a:65536']",
        ),
        (
            'servers: ["a:1", "b:1"]',
            "job.yaml: on several hosts servers and trainers must both be lists of host:port, or both numbers",
        ),
        (
            'servers: ["a:1", "a:2"]\ntrainers: ["a:1"]',
            "job.yaml: servers and trainers must all have different endpoints",
        ),
        (
            'servers: ["a:1", "a:2"]\nips: [a]',
            "job.yaml: ips does not go with lists of host:port, which say where servers and trainers are",
        ),
        (
            'servers: ["a:1"]\ntrainers: ["a:2"]\nnodes: 2',
            "job.yaml: nodes is 2, but servers and trainers are on 1 hosts",
        ),
        ("gpus: 3\ntrainers: 2", "job.yaml: 3 gpus cannot be shared evenly by 2 processes"),
        ("processes: 3", "job.yaml:3:1: the key 'processes' belongs to jobs with mode: collective"),
    ],
)
def test_mistakes_of_parameter_server_jobs(text, expected):
    assert mistakes(f"script: train.py\nmode: parameter_server\n{text}") == [expected]


def test_hosts_of_a_parameter_server_job():
    job = read('script: train.py\nmode: parameter_server\nservers: ["a:1", "b:1"]\ntrainers: ["b:2", "c:1"]')
    assert job.hosts() == ["a", "b", "c"]
    assert read("script: train.py\nmode: parameter_server\nservers: 3").hosts() == []


def test_options_choose_the_mode():
    gpus, servers = (
        {"gpus": ("--gpus 2", 2)},
        {"servers": ("--servers 2", 2), "trainers": ("--trainers 2", 2)},
    )
    assert script_job("train.py", [], options=gpus).mode == "collective"
    assert script_job("train.py", [], options=gpus | servers).mode == "parameter_server"
    with pytest.raises(JobError, match="--servers 2: the key 'servers' belongs to jobs with mode: parameter_server"):
        script_job("train.py", [], options={"processes": ("--cpus 2", 2)} | servers)


def test_an_option_makes_a_job_collective(folder):
    (folder / "job.yaml").write_text("script: train.py\nmode: local")
    job = read_job("job.yaml", options={"processes": ("--cpus 2", 2)})
    assert (job.mode, job.processes) == ("collective", 2)
    with pytest.raises(
        JobError,
        match=r"^--cpus 0: processes: expected a number from 1, found 0",
    ):
        read_job("job.yaml", options={"processes": ("--cpus 0", 0)})


def test_all_mistakes_are_listed_at_once(folder):
    assert mistakes("script: no.py\nlog_dir: 3\nfoo: 1") == [
        f"job.yaml:1:1: script: there is no such file (looked in {folder}), found 'no.py'",
        "job.yaml:2:1: log_dir: must be text; quote it, found 3",
        f"job.yaml:3:1: unknown key 'foo'; a job has the keys {KEYS}",
    ]


def test_files_that_cannot_be_read(folder):
    with pytest.raises(JobError, match=r"nowhere\.yaml: No such file"):
        read_job("nowhere.yaml")
    # YAML's parser takes hundreds of bytes for each
    (folder / "large.yaml").write_bytes(b"- a\n" * 100_000)
    with pytest.raises(JobError, match=r"large\.yaml: expected at most 262144 bytes"):
        read_job("large.yaml")
    (folder / "latin.yaml").write_bytes(b"name: \xff")
    with pytest.raises(JobError, match=r"latin\.yaml: 'utf-8' codec can't decode"):
        read_job("latin.yaml")


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, "-0o" + "7" * 5000])
def test_numbers_that_python_does_not_print_are_refused(folder, number):
    if not number.startswith("-"):
        (line,) = mistakes(f"script: train.py\nargs: {{value: {number}}}")
        assert line.startswith("job.yaml:2:15: a whole number of 500")
    else:  # no number in YAML, but text
        assert args(number) == number


@pytest.mark.parametrize(
    "text",
    [
        "[" * 3000,
        "{a: " * 3000,
        "- " * 3000,
        "? " * 3000,
        "\n" + "".join(" " * i + "a:\n" for i in range(500)),
        "x: " + "[{a: " * 1500,
    ],
)
def test_what_is_nested_without_end_is_refused_at_once(text):
    """YAML's scanner took minutes for three thousand brackets."""
    started = time.process_time()
    (line,) = mistakes(text)
    assert "nested too deeply" in line or "mapping values are not allowed" in line
    assert time.process_time() - started < 5


def test_overrides():
    job = read(
        "script: train.py\nargs: {epochs: 1, lr: 0.1}",
        "args.lr=1e-3",
        "name=a",
        "env.A=no",
        'args.tag="x #1"',
    )
    assert (job.args, job.name, job.env) == (
        {"epochs": 1, "lr": 0.001, "tag": "x #1"},
        "a",
        {"A": "no"},
    )
    assert read("script: train.py\nargs: {a: 1}", "args=[-x, 1]").args == ["-x", 1]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("args", "--set args: must have the form key=value or key.key=value"),
        ("args.=1", "--set args.=1: must have the form key=value or key.key=value"),
        ("arg.a=1", "--set arg.a=1: unknown key 'arg' (did you mean args?)"),
        (
            "script.a=1",
            "--set script.a=1: script is not a mapping but 'train.py'; set it as a whole",
        ),
        ("args.a=", "--set args.a=: args.a: must be text, a number, true or false, found None"),
        (
            "args.a=[null]",
            "--set args.a=[null]: args.a: must be text, a number, true or false, found [None]",
        ),
        (
            "args.a=1 #2",
            "--set args.a=1 #2: a comment follows the value; quote the value if the # belongs to it",
        ),
        (
            "args.a={",
            "--set args.a={: while parsing a flow node expected the node content, but found '<stream end>'",
        ),
    ],
)
def test_wrong_overrides(override, expected):
    assert mistakes("script: train.py", override) == [expected]


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


@fuzzed(60)
@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,5}", fullmatch=True),
        TEXT | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.lists(st.integers()),
    )
)
def test_a_printed_job_reads_back_as_the_same(arguments):
    job = Job(script="train.py", args=arguments)
    assert read(job.to_yaml()) == job


def test_a_script_is_a_job_too():
    assert script_job("train.py", ["-x", "1e-3"]).arguments() == ["-x", "1e-3"]
    with pytest.raises(JobError, match=r"jfluid-launch: script: there is no such file"):
        script_job("no.py", [])

"""The JSON schema of job files, against the models that it is made from."""

import json
from pathlib import Path

import pytest

from jfluid import job, launch

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).parents[2]
JOBS = [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "examples").rglob("*.yaml")]


@pytest.fixture
def valid(capsys):
    """Whether a job, as YAML or by its values, fits the schema that the command prints."""
    with pytest.raises(SystemExit) as ended:
        launch.main(["--schema"])
    assert ended.value.code == 0
    checker = jsonschema.Draft202012Validator(json.loads(capsys.readouterr().out))
    checker.check_schema(checker.schema)
    return lambda values: checker.is_valid(values)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_jobs_of_the_examples_fit(valid, path):
    assert valid(job.read_yaml(path))


def test_what_a_mode_takes(valid):
    servers = {"mode": "ps", "script": "a.py", "servers": 2, "trainers": ["a:1", "b:1"]}
    for right in (
        {"script": "a.py"},
        {"script": "news.train", "module": True, "args": ["-x", 1]},
        {"mode": "collective", "script": "a.py", "gpus": "all"},
        {"mode": "collective", "script": "a.py", "gpus": [0, 2], "console": "all"},
        servers,
        servers | {"restarts": 2},
        servers | {"restarts": {"servers": 1}, "snapshots": {"folder": "/cuts", "every_s": 60}},
    ):
        assert valid(right), right
    for wrong in (
        {},
        {"script": "a.py", "servers": 2},
        {"script": "a.py", "mode": "other"},
        {"script": "a.py", "max_restarts": -1},
        {"mode": "collective", "script": "a.py", "gpus": 0},
        servers | {"servers": 0},
        servers | {"restarts": {"server": 1}},
        servers | {"snapshots": {"every_s": 60}},
    ):
        assert not valid(wrong), wrong

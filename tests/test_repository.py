"""Files of the repository that no program here reads: workflows, templates, the citation, README."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from jfluid import installation

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(path):
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_have_what_they_need(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow[True]  # YAML reads `on` as a boolean
    for name, job in workflow["jobs"].items():
        assert "runs-on" in job, name
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), (name, step)
            assert "@" in step.get("uses", "@"), step
        assert set(job.get("needs", "").split()) <= set(workflow["jobs"])


def test_workflows_call_targets_that_there_are():
    targets = set(re.findall(r"^([\w./$()-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {
        target for path in WORKFLOWS for target in re.findall(r"run: make ([\w-]+)$", path.read_text(), re.MULTILINE)
    }
    assert called and called <= targets


def test_all_supported_pythons_are_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = [c.rpartition(" ")[2] for c in project["classifiers"] if ":: 3." in c]
    matrix = read(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == stated
    assert project["requires-python"] == f">={stated[0]}"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_ask_something(path):
    form = read(path)
    assert form["name"] and form["description"]
    fields = [field["id"] for field in form["body"]]
    assert len(fields) == len(set(fields)) > 0


def test_the_citation_is_of_this_version():
    assert read(ROOT / "CITATION.cff")["version"] == installation.VERSION


def test_the_readme_is_read_in_a_few_minutes():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120

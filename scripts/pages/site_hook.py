"""Hook of MkDocs (mkdocs.yml): adds pages when the site is built.

These are the pages of Fluid's public names, their list, and CHANGELOG.md as release_notes.md.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mkdocs.structure.files import File, Files

from scripts.pages import public_names

_CHANGES = Path(__file__).resolve().parents[2] / "CHANGELOG.md"


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each public object of Fluid, and the release notes."""
    for one in public_names.public_names():
        files.append(File.generated(config, one.path, content=public_names.page(one)))
    notes = _CHANGES.read_text().replace("](docs/", "](")
    files.append(File.generated(config, "release_notes.md", content=notes))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add the list of names to its page."""
    return markdown + "\n" + public_names.index() if page.file.src_uri == "api/names.md" else markdown

"""Hook of MkDocs (mkdocs.yml): adds the pages of Fluid's public names, and their list, when the site is built."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mkdocs.structure.files import File, Files

from scripts.pages import public_names


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each public object of Fluid."""
    for one in public_names.public_names():
        files.append(File.generated(config, one.path, content=public_names.page(one)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add the list of names to its page."""
    return markdown + "\n" + public_names.index() if page.file.src_uri == "api/names.md" else markdown

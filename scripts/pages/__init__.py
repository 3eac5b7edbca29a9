"""Pages of docs/ that are made from the code: `python -m scripts.pages` writes them,
tests/test_pages.py holds them.
"""

from collections.abc import Callable
from pathlib import Path

from scripts.pages import coverage, job_file, variables

FOLDER = Path(__file__).resolve().parents[2] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "coverage.md": coverage.page,
    "job_file.md": job_file.page,
    "variables.md": variables.page,
}

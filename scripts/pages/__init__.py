"""Pages of docs/, and tables of the package, that are made from the code: `python -m scripts.pages` writes them,
tests/test_pages.py holds them.
"""

from collections.abc import Callable
from pathlib import Path

from scripts.pages import (
    coverage,
    differences,
    fluid_api,
    job_file,
    performance,
    speed_chart,
    variables,
)

FOLDER = Path(__file__).resolve().parents[2]
PAGES: dict[str, Callable[[], str]] = {
    "docs/coverage.md": coverage.page,
    "docs/differences.md": differences.page,
    "docs/job_file.md": job_file.page,
    "docs/performance.md": performance.page,
    "docs/speed.svg": speed_chart.chart,
    "docs/variables.md": variables.page,
    "jfluid/doctor/fluid_api.json": fluid_api.text,
}

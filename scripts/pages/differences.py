"""docs/differences.md: where this package differs from Fluid, from jfluid/doctor/differences.toml, which
`jfluid doctor` reads, too.
"""

from typing import Any

from jfluid.doctor import rules
from scripts.pages.tables import NOTE


def page() -> str:
    """Return the text of the page."""
    record = rules.differences()
    sections = "".join(_section(section) for section in record["section"])
    return f"{NOTE}# {record['title']}\n\n{record['introduction'].strip()}\n{sections}"


def _section(section: dict[str, Any]) -> str:
    parts, before = [f"\n## {section['title']}\n"], False
    for difference in section["difference"]:
        bullet, text = difference.get("bullet", True), difference["text"].strip()
        if bullet:
            text = "- " + text.replace("\n", "\n  ")
        parts.append(("" if bullet and before else "\n") + text + "\n")
        before = bullet
    return "".join(parts)

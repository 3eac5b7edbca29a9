"""What the pages have in common."""

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic.fields import FieldInfo

NOTE = "<!-- Made by `python -m scripts.pages`: change the code that it is made from, not this page. -->\n"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def default(field: FieldInfo, text: Any = str) -> str:
    """What a field has without anybody's word; `text` writes a value."""
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        takes_data = field.default_factory_takes_validated_data
        return "" if takes_data else f"`{text(field.default_factory())}`"  # type: ignore[call-arg]
    value = int(field.default) if isinstance(field.default, float) and field.default.is_integer() else field.default
    return "" if value in (None, "", ()) else f"`{text(value)}`"

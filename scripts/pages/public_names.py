"""Pages of Fluid's public names, one for each object: the site's hook (site_hook.py) makes them when the site is built.

A page has the signature, the docstring by sections, the example of examples/names, differences from Fluid and the
source.
"""

import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from jfluid import surface
from jfluid.doctor import rules
from scripts.pages import examples_of_names
from scripts.pages.examples_of_names import Example
from scripts.pages.tables import table

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "api/names"
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Note|Notes):\s*$", re.MULTILINE)
_TITLES = {"Args": "Arguments", "Raises": "Errors", "Returns": "Result", "Yields": "Result", "Notes": "Note"}


class PublicName(NamedTuple):
    """An object with its names in Fluid; the first name is the page's."""

    names: list[str]
    value: Any
    example: Example

    @property
    def path(self) -> str:
        """The page, below the folder of pages."""
        return f"{FOLDER}/{self.names[0].removeprefix('fluid.')}.md"


@functools.cache
def public_names() -> list[PublicName]:
    """Return all public names, those of one object together. An object without an example is an error."""
    examples = {name: example for example in examples_of_names.examples() for name in example.names}
    objects: dict[int, tuple[list[str], Any]] = {}
    for path in sorted(surface.NAMES):
        module = importlib.import_module(f"jfluid.{path}" if path else "jfluid")
        for name in sorted(surface.NAMES[path]):
            value = getattr(module, name)
            place = _place_of(value) if isinstance(value, surface.Missing) else id(value)
            objects.setdefault(place, ([], value))[0].append(".".join(filter(None, ("fluid", path, name))))
    found = []
    for names, value in objects.values():
        titles = [name for name in names if name in examples]
        if not titles:
            raise ValueError(f"examples/names has no example of {' or '.join(names)}")
        rest = [name for name in names if name != titles[0]]
        found.append(PublicName([titles[0], *rest], value, examples[titles[0]]))
    return sorted(found, key=lambda one: one.names[0].lower())


def _place_of(missing: surface.Missing) -> int:
    """Return a key by the path: a missing name is a new object at each look."""
    return hash(repr(missing))


def index() -> str:
    """Return a list of all names by module, with the summary of each."""
    modules: dict[str, list[tuple[str, str, str]]] = {}
    for one in public_names():
        for name in one.names:
            module, _, last = name.rpartition(".")
            link = one.path.removeprefix("api/")
            modules.setdefault(module, []).append((last, link, _summary(one.value)))
    parts = []
    for module, names in sorted(modules.items()):
        rows = [[f"[`{last}`]({link})", summary] for last, link, summary in sorted(names)]
        parts.append(f"## {module}\n\n{table(['name', 'summary'], rows)}")
    return "\n".join(parts)


def page(one: PublicName) -> str:
    """Return the page of an object."""
    title, *others = one.names
    parts = [f"# {title}\n"]
    if others:
        parts.append(f"The same object: {', '.join(f'`{name}`' for name in others)}.\n")
    if callable(one.value) and (signature := _signature(title, one.value)):
        parts.append(f"```python\n{signature}\n```\n")
    about, heading, sections = _about(one.value).partition("## ")
    table_of = "" if "## Arguments\n" in heading + sections else _parameter_table(one.value)
    parts += [about, table_of, heading + sections]
    text = "\n".join(filter(None, [*parts, _accepted(one), _methods(one.value)]))
    rest = [_example(one.example), _differences(one.names), _source(one.value)]
    return "\n".join([_with_links(text, one), *filter(None, rest)])


# ---- sections -----------------------------------------------------------------------------------


def _doc(value: Any) -> str:
    if isinstance(value, surface.Missing):
        return f"Raises UnsupportedError: {value!r}."
    about = inspect.getdoc(value) or ""
    if inspect.isclass(value) and value.__init__.__doc__ and value.__init__ is not object.__init__:
        own = inspect.getdoc(value.__init__) or ""
        about += "" if own in about or own.startswith("Initialize self") else f"\n\n{own}"
    return about


def _summary(value: Any) -> str:
    first = " ".join(_doc(value).split("\n\n")[0].split())
    return _escaped(first)


def _escaped(text: str) -> str:
    """Return text in which angle brackets and brackets outside of code are no markup."""
    return re.sub(r"(`[^`]*`)|([<\[\]*_])", lambda m: m[1] or "\\" + m[2], text)


def _about(value: Any) -> str:
    """Return the docstring as Markdown, its sections under headings, its links relative to the page."""
    text = _linked(_doc(value))
    cuts = [*_SECTION.finditer(text)]
    parts = [_paragraphs(text[: cuts[0].start()] if cuts else text)]
    for cut, end in zip(cuts, [*(c.start() for c in cuts[1:]), len(text)]):
        # a section ends where the indentation does
        inside, _, after = re.split(r"(\n(?=\S))", text[cut.end() :][: end - cut.end()] + "\n\x00", maxsplit=1)
        title = _TITLES.get(cut[1], cut[1])
        body = textwrap.dedent(inside).strip("\n")
        parts.append(f"## {title}\n\n{_entries(body) if cut[1] in ('Args', 'Attributes') else _escaped(body)}\n")
        if rest := after.rstrip("\x00").strip():
            parts.append(_paragraphs(rest, first=False))
    return "\n".join(filter(None, parts))


def _parameter_table(value: Any) -> str:
    """Return the parameters with their types and defaults, for an object whose docstring has no table of them."""
    rows = []
    for p in _parameters_of(value):
        kind = "" if p.annotation is p.empty else str(p.replace(default=p.empty)).partition(": ")[2].strip("'\"")
        default = "" if p.default is p.empty else f"`{p.default!r}`"
        rows.append([f"`{p.name}`", f"`{_short_type(kind)}`" if kind else "any", default])
    return f"## Arguments\n\n{table(['name', 'type', 'default'], rows)}" if rows else ""


def _with_links(text: str, one: PublicName) -> str:
    """Return text with links at names of Fluid in backticks, such as `conv2d` or `layers.conv2d`."""
    module = one.names[0].rpartition(".")[0]
    pages, own = _pages(), {p.name for p in _parameters_of(one.value)}

    def linked(match: re.Match[str]) -> str:
        names = () if match[1] in own else (f"{module}.{match[1]}", f"fluid.{match[1]}", match[1])
        path = next((pages[name] for name in names if name in pages), one.path)
        return match[0] if path == one.path else f"[`{match[1]}`]({path.removeprefix(f'{FOLDER}/')})"

    # rows begin with a name that is no reference; headings, signatures and links stay
    parts = re.split(r"(?m)(^```[\s\S]*?^```$|^#.*$|\[[^\]]*\]\([^)]*\)|^\| `[^`]*` \|)", text)
    return "".join(part if i % 2 else re.sub(r"`([A-Za-z][\w.]+)`", linked, part) for i, part in enumerate(parts))


@functools.cache
def _pages() -> dict[str, str]:
    return {name: one.path for one in public_names() for name in one.names}


def _linked(text: str) -> str:
    """Return text of a page of docs/ with its links relative to a page of a name."""
    return re.sub(r"\]\((?:docs/)?([\w/]+\.md)", r"](../../\1", text)


def _paragraphs(text: str, first: bool = True) -> str:
    """Return free text; a paragraph that begins with "Raises" goes under a heading if it is not the first."""
    parts = []
    for paragraph in filter(None, text.strip().split("\n\n")):
        if re.match(r"Raises? [A-Z]\w*(Error|Exit)", paragraph) and (parts or not first):
            parts.append("## Errors\n")
        parts.append(_escaped(paragraph) + "\n")
    return "\n".join(parts)


def _entries(body: str) -> str:
    """Return the entries of a section of arguments as a table."""
    rows = []
    for entry in re.split(r"\n(?=\S)", body):
        name, _, text = entry.partition(":")
        rows.append([f"`{name.strip()}`", _escaped(" ".join(text.split()))])
    return table(["name", "meaning"], rows)


def _accepted(one: PublicName) -> str:
    """Return the table of accepted types of the arguments, as Fluid's own checks have them."""
    layer = one.names[0].rpartition(".")[2]
    if one.value is not getattr(importlib.import_module("jfluid.layers"), layer, None):
        return ""
    rows = _argument_types().get(layer)
    if not rows:
        return ""
    text = "A call with another type or dtype raises TypeError, as in Fluid.\n"
    return f"## Accepted types\n\n{text}\n{table(['argument', 'type', 'dtypes of a Variable'], rows)}"


@functools.cache
def _argument_types() -> dict[str, list[list[str]]]:
    """Return the rows of each layer's table of accepted types."""
    rows: dict[str, list[list[str]]] = {}
    for line in (ROOT / "jfluid" / "layers" / "argument_types.txt").read_text().splitlines():
        layer, argument, types, dtypes = (part.strip() for part in line.split("|"))
        name, _, each = argument.partition(" ")
        kinds = " or ".join(dict.fromkeys(types.split())) or "any"
        row = [f"`{name}`" + ", each element" * bool(each), kinds, ", ".join(dtypes.split()) or "any"]
        rows.setdefault(layer, []).append(row)
    return rows


def _example(example: Example) -> str:
    note = f"\nTests do not run this example: {example.not_run}.\n" if example.not_run else ""
    return f"## Example\n{note}\n```python\n{example.text.strip()}\n```\n"


def _differences(names: list[str]) -> str:
    """Return the differences from Fluid that concern the names."""
    paths = {name.removeprefix("fluid.") for name in names}
    found = []
    for section in rules.differences()["section"]:
        for difference in section["difference"]:
            used = {use for place in difference.get("found", []) for use in place.get("uses", [])}
            used |= {use.partition(".")[0] for place in difference.get("found", []) for use in place.get("assigns", [])}
            if paths & used or any(f"`{path}`" in difference["text"] for path in paths):
                found.append("- " + difference["text"].strip().replace("\n", "\n  "))
    text = _linked("\n".join(found)) or "None is known; [differences](../../differences.md) has the general ones."
    return f"## Differences from Fluid 1.8.5\n\n{text}\n"


def _methods(value: Any) -> str:
    if not inspect.isclass(value):
        return ""
    rows = []
    for name, member in inspect.getmembers(value):
        if not name.startswith("_") and (callable(member) or isinstance(member, property)):
            shown = name if isinstance(member, property) else f"{name}{_parameters(member)}"
            rows.append([f"`{shown}`", _summary(member)])
    return f"## Methods and properties\n\n{table(['name', 'summary'], rows)}" if rows else ""


def _source(value: Any) -> str:
    """Return the place of the source, and the source folded."""
    found = inspect.unwrap(value) if callable(value) and not isinstance(value, surface.Missing) else value
    try:
        path = Path(inspect.getsourcefile(found) or "").resolve().relative_to(ROOT)
        lines, first = inspect.getsourcelines(found)
    except (TypeError, OSError, ValueError):
        return ""
    if isinstance(found, ModuleType) or len(lines) > 400:
        return f"## Source\n\n`{path}`, from line {max(first, 1)}.\n"
    source = textwrap.indent(textwrap.dedent("".join(lines)).rstrip(), "    ")
    return f'## Source\n\n??? note "`{path}`, line {first}"\n\n    ```python\n{source}\n    ```\n'


# ---- signatures ---------------------------------------------------------------------------------


def _parameters(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    names = [str(p.replace(annotation=p.empty)) for p in signature.parameters.values() if p.name != "self"]
    return f"({', '.join(names)})"


def _parameters_of(value: Any) -> list[inspect.Parameter]:
    """Return the parameters of a call; none of an object without a known signature."""
    if not callable(value) or isinstance(value, surface.Missing):
        return []
    try:
        return [*inspect.signature(value).parameters.values()]
    except (TypeError, ValueError):
        return []


def _signature(title: str, value: Any) -> str:
    """Return the call of a function or class, a line for each parameter if it is long."""
    if isinstance(value, surface.Missing):
        return ""
    try:
        inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    shown = [_short_type(str(p)) for p in _parameters_of(value)]
    line = f"{title}({', '.join(shown)})"
    return line if len(line) < 90 else f"{title}(\n" + "".join(f"    {p},\n" for p in shown) + ")"


def _short_type(text: str) -> str:
    """Return the text of an annotation without the modules of its classes."""
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text)


def unknown_names() -> Iterator[str]:
    """Yield the names of examples that Fluid does not have."""
    known = {name for one in public_names() for name in one.names}
    for example in examples_of_names.examples():
        yield from (name for name in example.names if name not in known)

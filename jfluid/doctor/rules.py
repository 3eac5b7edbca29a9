"""Rules on uses of Fluid, beside names and signatures.

They are the differences of differences.toml, from which docs/differences.md is made, and the rules of rules.toml.
"""

import fnmatch
import functools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from jfluid.doctor.findings import Severity
from jfluid.doctor.fluid_api import Api, FluidName

# What an argument is where a call leaves it out, and where it is no constant.
ABSENT, COMPUTED = object(), object()


@dataclass(frozen=True)
class UseRule:
    """Rule on uses of Fluid. All given conditions must hold.

    Attributes:
        uses: names that are called, relative to `paddle.fluid` ("layers.auc", "Executor.run").
        assigns: attributes that are set ("Program.random_seed").
        operators: types of operators in saved models.
        given, absent: arguments that the call has, or lacks.
        equal, unlike: arguments whose constant is one of some values, or none of them.
        above: arguments whose constant is larger.
        images: arguments whose constant is a shape of images of any height and width.
        certain: whether it holds only for what is run in any case, outside of conditions.
        severity, code, happens, do: of the finding.
    """

    severity: Severity
    code: str
    happens: str
    do: str = ""
    uses: tuple[str, ...] = ()
    assigns: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    equal: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    unlike: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    above: Mapping[str, float] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    certain: bool = False

    def holds(self, arguments: Mapping[str, Any]) -> bool:
        """Return True if the rule applies to a call with these arguments; missing arguments are ABSENT."""

        def constant(name: str) -> Any:
            return arguments.get(name, ABSENT)

        return (
            all(constant(name) is not ABSENT for name in self.given)
            and all(constant(name) is ABSENT for name in self.absent)
            and all(_known(v := constant(n)) and v in some for n, some in self.equal.items())
            and all(_known(v := constant(n)) and v not in some for n, some in self.unlike.items())
            and all(_is_number(v := constant(n)) and v > bound for n, bound in self.above.items())
            and all(_is_image(constant(n)) for n in self.images)
        )


@dataclass(frozen=True)
class Setting:
    """Environment variables and flags by pattern, and their effect here."""

    names: tuple[str, ...]
    happens: str
    do: str = ""

    def matches(self, name: str) -> bool:
        """Return whether it is about a variable of that name."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names)


def _known(value: Any) -> bool:
    return value is not ABSENT and value is not COMPUTED and value is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_image(value: Any) -> bool:
    """Return True if a shape ends with one or three channels, and with a height and a width that vary."""
    return isinstance(value, list) and value[-3:-2] in ([1], [3]) and set(value[-2:]) <= {None, -1}


def differences() -> dict[str, Any]:
    """Return the content of differences.toml: a title, an introduction, sections of differences."""
    return _toml("differences.toml")


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads(files("jfluid.doctor").joinpath(name).read_text("utf-8"))


@functools.cache
def rules() -> tuple[UseRule, ...]:
    """Return all rules, the rules of the differences first."""
    return (*_of_differences(), *(_rule(record) for record in _toml("rules.toml")["rule"]))


@functools.cache
def settings() -> tuple[Setting, ...]:
    """Return the settings with a known effect; most have no effect."""
    return tuple(
        Setting(tuple(record["names"]), record["happens"], record.get("do", ""))
        for record in _toml("rules.toml")["setting"]
    )


@functools.cache
def python() -> dict[str, Any]:
    """Return names that Python, NumPy and other libraries have removed: tables by kind of name."""
    found: dict[str, Any] = _toml("rules.toml")["python"]
    return found


def _of_differences() -> Iterator[UseRule]:
    for section in differences()["section"]:
        for difference in section["difference"]:
            for record in difference.get("found", ()):
                yield _rule({"severity": "difference", "happens": plain(difference["text"])} | record)


def _rule(record: dict[str, Any]) -> UseRule:
    severity = Severity[record["severity"].upper()]
    lists = ("uses", "assigns", "operators", "given", "absent", "images")
    return UseRule(
        **record
        | {name: tuple(record.get(name, ())) for name in lists}
        | {"severity": severity, "code": record.get("code", severity.name.lower())}
    )


def plain(markdown: str) -> str:
    """Return a text of a page in one line, without marks."""
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", markdown)
    return " ".join(text.replace("`", "").split())


class RulesByUse:
    """Rules by the entry that is called."""

    def __init__(self, api: Api):
        self._calls: dict[int, list[UseRule]] = {}
        self._assigns: dict[str, list[UseRule]] = {}
        for rule in rules():
            for use in rule.uses:
                self._calls.setdefault(id(resolve(api, use)), []).append(rule)
            for attribute in rule.assigns:
                self._assigns.setdefault(attribute, []).append(rule)

    @classmethod
    @functools.cache
    def of(cls, api: Api) -> "RulesByUse":
        """Return the rules for a table of names; sorted once."""
        return cls(api)

    def of_call(self, entry: FluidName, arguments: Mapping[str, Any]) -> list[UseRule]:
        """Return the rules that a call meets."""
        return [rule for rule in self._calls.get(id(entry), ()) if rule.holds(arguments)]

    def of_assignment(self, owner: str, attribute: str, value: Any) -> list[UseRule]:
        """Return the rules that `owner.attribute = value` meets."""
        found = self._assigns.get(f"{owner}.{attribute}", ())
        return [rule for rule in found if rule.holds({attribute: value})]


def resolve(api: Api, use: str) -> FluidName:
    """Return the entry of a name that a rule uses. Raises KeyError when there is none."""
    module, _, name = f"paddle.fluid.{use}".rpartition(".")
    found = api.names(module).get(name)
    if found is None:
        holder, _, owner = module.rpartition(".")
        found = api.names(holder)[owner].methods[name]
    return found

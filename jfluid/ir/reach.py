"""Side effects of operators, and the refusal of loaded operators with side effects.

A program that was loaded, from a file or from bytes, is not trusted: it computes, and has no side effects.
Its operators that reach files, networks, processes, Python or the terminal are refused, unless the
caller names them, or sets the attributes that say where they reach.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from jfluid import errors

_LONGEST_QUOTED = 80  # characters of an attribute's value


@dataclass(frozen=True)
class Reach:
    """Side effects of an operator.

    Attributes:
        what: "files", "network", "process", "python" (functions of the process) or "terminal".
        chosen_by: attributes that say where. An operator that was loaded is trusted if the
            caller has set all of them.
        only_with: the operator acts only if, in each of these tuples, an attribute is neither
            missing, nor False, nor empty; without tuples it always acts.
    """

    what: str
    chosen_by: tuple[str, ...] = ()
    only_with: tuple[tuple[str, ...], ...] = ()

    def is_of(self, attrs: Mapping[str, Any]) -> bool:
        """Return True if an operator with these attributes acts."""
        return all(any(attrs.get(name) for name in names) for names in self.only_with)


class _Op(Protocol):
    type: str
    attrs: dict[str, Any]
    claimed: frozenset[str] | None


class _HasOperators(Protocol):
    idx: int

    @property
    def ops(self) -> Iterable[_Op]: ...


def refused(
    blocks: Iterable[_HasOperators], reach_of: Callable[[str], Reach | None]
) -> Iterator[errors.ActingOperator]:
    """Yield the loaded operators of a program that act without permission of the caller.

    Args:
        blocks: blocks of the program.
        reach_of: function of an operator type that returns its side effects.
    """
    for block in blocks:
        for position, op in enumerate(block.ops):
            if op.claimed is None:
                continue
            reach = reach_of(op.type)
            if reach is None or not reach.is_of(op.attrs):
                continue
            if reach.chosen_by and op.claimed.issuperset(reach.chosen_by):
                continue
            chosen = ", ".join(f"{name}={_quoted(op.attrs[name])}" for name in reach.chosen_by if name in op.attrs)
            yield errors.ActingOperator(op.type, block.idx, position, reach.what, chosen)


def refuse(blocks: Iterable[_HasOperators], reach_of: Callable[[str], Reach | None]) -> None:
    """Raise UntrustedOperatorError with the operators of `refused`, if there are any."""
    found = list(refused(blocks, reach_of))
    if found:
        raise errors.UntrustedOperatorError(found)


def check_allowed(
    names: Iterable[str], reach_of: Callable[[str], Reach | None], acting: Callable[[], Iterable[str]]
) -> frozenset[str]:
    """Return names of operators that a caller allows to act.

    Args:
        names: the argument of the caller.
        reach_of: how the operators of a type act.
        acting: returns all operators that act, for the text of an error.

    Raises TypeError unless it is a list of names, ProgramError for a name of an operator without side effects.
    """
    if isinstance(names, (str, bytes)):
        raise TypeError(f"allow: expected names of operators, such as ({names!r},), found a text")
    given = tuple(names)
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"allow: expected names of operators, found {_quoted(name)}")
        if reach_of(name) is None:
            known = sorted(acting())
            raise errors.ProgramError(
                f"allow: {_quoted(name)} is no operator with side effects"
                f"{errors.close_to(name, known)}; operators with side effects: {', '.join(known)}"
            )
    return frozenset(given)


def _quoted(value: Any) -> str:
    """Return a value of elsewhere as a short text of printable characters."""
    if isinstance(value, (str, bytes)):
        value = value[:_LONGEST_QUOTED]
    elif isinstance(value, (list, tuple)):
        value = value[:8]
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTED else text[:_LONGEST_QUOTED] + "..."

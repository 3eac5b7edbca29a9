"""The named errors.

Each says what was expected, what was found, where, and what to do; a traceback ends with the address of its
entry in docs/faq.md.
"""

import difflib
import functools
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from jfluid.printable import printable

# characters: names from elsewhere may have millions, and comparing them takes that squared
_LONGEST_LIKENED = 512
_LONGEST_TEXT = 20_000  # of an error
_FAQ = "docs/faq.md"


class JFluidError(Exception):
    """Base of all errors that the project raises on purpose.

    Its text can be shown on a terminal whatever names and values of others it quotes, and is bounded.
    """

    located = False  # whether its text says which operator of a program failed
    address: ClassVar[str] = f"{_FAQ}#jfluiderror"  # where more is said of it

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__ == __name__:  # others have the entry of the one that they extend
            cls.address = f"{_FAQ}#{cls.__name__.lower()}"

    @functools.cached_property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # an attribute, made when it is asked for
        """Lines that a traceback shows below the text of the error."""
        return [f"What to do about it: {self.address}"]

    def add_note(self, note: str) -> None:
        """Add a line below the error, except JAX's note about hidden frames."""
        if "JAX has removed its internal frames" not in note:
            self.__notes__.append(note)

    def __str__(self) -> str:
        text = super().__str__()
        left_out = len(text) - _LONGEST_TEXT
        if left_out > 0:
            half = _LONGEST_TEXT // 2
            text = f"{text[:half]} ... {left_out} characters ... {text[-half:]}"
        return printable(text)


class UnsupportedError(JFluidError, NotImplementedError):
    """A name of Fluid that this release does not provide."""


class UnsupportedOpError(UnsupportedError, ValueError):
    """A program contains operators that are not registered; the text lists all at once."""

    def __init__(self, *op_types: str, suggestions: str = "", where: Iterable[str] = ()):
        self.op_types = op_types
        lines = [
            f"{'operators' if len(op_types) > 1 else 'operator'} not supported: {', '.join(op_types)}{suggestions}"
        ]
        lines += [f"  {line}" for line in where]
        lines.append(
            "Rewrite the program without them, or register them with jfluid.ops.registry.op "
            "(CONTRIBUTING.md shows how)."
        )
        super().__init__("\n".join(lines))


class ProgramError(JFluidError, ValueError):
    """A program is not well formed: an unknown slot, attribute, variable or block."""


class ActingOperator(NamedTuple):
    """Operator that acts outside of the computation.

    It has a type, a place in a program, a reach (files, networks ...), and the attributes that choose the target, as
    printable text.
    """

    type: str
    block: int
    position: int
    what: str
    chosen: str

    def __str__(self) -> str:
        where = f" ({self.chosen})" if self.chosen else ""
        return f"{self.type} (block {self.block}, position {self.position}) reaches {self.what}{where}"


class UntrustedOperatorError(ProgramError):
    """A program that was read, from a file or from bytes, has operators that act outside of the computation.

    `operators` has all, the text the first `most`.
    """

    most = 20

    def __init__(self, operators: Sequence[ActingOperator]):
        self.operators = tuple(operators)
        types = tuple(dict.fromkeys(op.type for op in operators))
        lines = [
            "a program that was read may come from anybody, and acts on nothing unless you allow it; "
            "this one has operators that reach beyond it:"
        ]
        lines += [f"  {op}" for op in operators[: self.most]]
        if len(operators) > self.most:
            lines.append(f"  and {len(operators) - self.most} more")
        lines.append(
            "If you trust who made it, read it again with "
            f"allow={types!r} (load_inference_model, Program.parse_from_string, ...), "
            f"AnalysisConfig.allow_operators{types if len(types) > 1 else f'({types[0]!r})'}, or "
            f"{' '.join(f'--allow {t}' for t in types)} (jfluid serve, jfluid export); "
            "or set the attributes in parentheses yourself (op._set_attr; pserver_endpoints of "
            "load_inference_model for look-ups); else save it without them."
        )
        super().__init__("\n".join(lines))


class AttributeTypeError(ProgramError, TypeError):
    """An operator's attribute or input, or a layer's argument, has a wrong type, is unknown, or is missing."""


class ShapeError(ProgramError):
    """An operator cannot be applied to inputs of these shapes or dtypes."""


class PositionError(ShapeError, IndexError):
    """A Variable is indexed by a position that it does not have."""


class DtypeError(ShapeError, TypeError):
    """An operator cannot be applied to inputs of these dtypes, or a dtype is unknown."""


class OperandError(ShapeError):
    """An operator cannot be applied to these values: offsets, lengths or labels that do not fit the rows."""


class DygraphError(ProgramError, AssertionError):
    """A feature of dygraph mode is used outside of it, or in an unsupported way."""


class OpError(JFluidError, RuntimeError):
    """An operator failed while its program was lowered or run."""


class OutOfMemoryError(JFluidError, MemoryError):
    """Compiling or running a program, or moving its values, takes more memory than there is."""


class FeedError(JFluidError, ValueError):
    """A feed has a missing or unknown name, or a wrong rank, shape or dtype."""


class ReaderError(JFluidError, RuntimeError):
    """A reader that feeds a program failed, or is used out of turn."""


class FetchError(JFluidError, ValueError):
    """A fetch names a variable that the program does not compute."""


class UninitializedError(JFluidError, RuntimeError):
    """A program reads a variable that has no value in the scope: the startup program was not run."""


class FileFormatError(JFluidError, ValueError):
    """A file is truncated, oversized, or does not fit the program."""


class PlaceError(JFluidError, RuntimeError):
    """A device was asked for that this machine does not have."""


class DataError(JFluidError, ValueError):
    """Data cannot be read: a file, a line of it, or the command that it goes through."""


class NoSuchFileError(FileFormatError, FileNotFoundError, RuntimeError):
    """A file that is to be read is not there.

    Scripts that begin anew then catch IOError, or, of `load_dygraph`, RuntimeError.
    """


class DownloadError(JFluidError, RuntimeError):
    """A file of a data set is not there, and cannot be downloaded."""


class DependencyError(JFluidError, ImportError):
    """A library or command that a feature needs is not installed.

    Args:
        feature: what needs it.
        needs: the library's or command's name.
        extra: the extra of the package that has it; empty: none.
        otherwise: what else helps.
    """

    def __init__(self, feature: str, needs: str, extra: str = "", otherwise: str = ""):
        install = f": pip install 'jfluid[{extra}]'" if extra else "; install it"
        super().__init__(f"{feature} needs {needs}{install}{otherwise and f', {otherwise}'}")


class RankError(JFluidError, RuntimeError):
    """A rank of a collective job waits for a rank that has ended, or that makes a different collective call."""


class ServerError(JFluidError, RuntimeError):
    """A parameter server refused a call, cannot be reached, or contradicts the call."""


class SecretError(JFluidError, RuntimeError):
    """The job's secret is missing on a reachable host, is readable by other users, or differs from the peer's."""


class NotPrivateError(JFluidError, PermissionError):
    """A file or folder that has to be private can be changed or read by other users."""


class MessageError(JFluidError, ValueError):
    """Bytes that came over a connection are no message of the protocol."""


class EOFException(JFluidError):
    """A reader has no more data (Fluid's `fluid.core.EOFException`)."""


def close_to(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean ...?)` for a name that looks like a known one, else the empty string."""
    if len(name) > _LONGEST_LIKENED:
        return ""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.7)
    return f" (did you mean {' or '.join(near)}?)" if near else ""

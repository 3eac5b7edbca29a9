"""Versions and modes of the installation, for scripts that ask."""

from typing import Any

from jfluid import errors

__all__ = [
    "FLUID_VERSION",
    "VERSION",
    "memory_optimize",
    "release_memory",
    "require_version",
]

VERSION = "0.1.0"  # of this package
FLUID_VERSION = "1.8.5"  # the release whose interface this is


def _numbers(version: str, what: str) -> tuple[int, ...]:
    if not isinstance(version, str):
        raise TypeError(f"require_version, {what}: expected a string such as '1.8.0', found {type(version).__name__}")
    parts = version.split(".")
    if not 1 <= len(parts) <= 4 or not all(p.isdigit() for p in parts):
        raise errors.ProgramError(f"require_version, {what}: expected one to four numbers with dots, found {version!r}")
    return tuple(map(int, parts)) + (0,) * (4 - len(parts))


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Check that Fluid 1.8.5, the version of the package's interface, lies between the versions.

    Raises UnsupportedError when it does not.
    """
    have = _numbers(FLUID_VERSION, "version")
    low = _numbers(min_version, "min_version")
    high = _numbers(max_version, "max_version") if max_version is not None else have
    if not low <= have <= high:
        raise errors.UnsupportedError(
            f"Fluid {min_version}{f' to {max_version}' if max_version else ' or newer'} is asked "
            f"for; this package has the interface of Fluid {FLUID_VERSION}"
        )


def memory_optimize(
    input_program: Any,
    skip_opt_set: Any = None,
    print_log: bool = False,
    level: int = 0,
    skip_grads: bool = True,
) -> None:
    """No effect, as in Fluid 1.8: XLA plans a step's memory, and the Executor donates the state that it overwrites."""


def release_memory(input_program: Any, skip_opt_set: Any = None) -> None:
    """No effect, as in Fluid 1.8: XLA frees arrays that a step no longer needs."""

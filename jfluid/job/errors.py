"""Errors of a job file."""

from typing import Any

from jfluid.errors import JFluidError


class JobError(JFluidError, ValueError):
    """A job file or an override is wrong; the message has one line for each mistake."""


def short(value: Any) -> str:
    """Return a value as messages show it."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."

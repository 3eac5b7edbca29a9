"""What is wrong with a job file."""

from typing import Any

from jfluid.errors import JFluidError


class JobError(JFluidError, ValueError):
    """A job file or an override is wrong; the message has one line for each mistake."""


def short(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."

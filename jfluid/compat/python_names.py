"""Names that Python had in 2020 and has dropped since (see `jfluid.compat.older_names`).

Source: Python's pages "What's New", 3.7 to 3.13.
"""

import base64
import collections.abc
import errno
import inspect
import math
import time
from typing import Any, NamedTuple

Names = dict[str, tuple[str, Any]]


class ArgSpec(NamedTuple):
    """Result of `inspect.getargspec`."""

    args: list[str]
    varargs: str | None
    keywords: str | None
    defaults: tuple[Any, ...] | None


def _getargspec(func: Any) -> ArgSpec:
    """Raise ValueError for a function with keyword-only arguments, as it did."""
    found = inspect.getfullargspec(func)
    if found.kwonlyargs:
        raise ValueError(f"inspect.getargspec: {func!r} has keyword-only arguments")
    return ArgSpec(found.args, found.varargs, found.varkw, found.defaults)


# Of each module: the name -> what means the same today, as scripts would write it.
TODAY: dict[str, Names] = {
    "base64": {
        "encodestring": ("base64.encodebytes", base64.encodebytes),
        "decodestring": ("base64.decodebytes", base64.decodebytes),
    },
    "collections": {
        name: (f"collections.abc.{name}", getattr(collections.abc, name)) for name in collections.abc.__all__
    },
    "fractions": {"gcd": ("math.gcd", math.gcd)},
    "inspect": {"getargspec": ("inspect.getfullargspec", _getargspec)},
    "os": {"errno": ("errno", errno)},
    "time": {"clock": ("time.process_time", time.process_time)},
}

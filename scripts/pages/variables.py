"""docs/variables.md: the environment variables of a process, from jfluid.environment.process and
jfluid.flags.
"""

from collections.abc import Collection, Mapping

from pydantic.fields import FieldInfo

from jfluid import flags
from jfluid.environment.field_types import expected
from jfluid.environment.process import ASSIGNED, ProcessEnvironment
from jfluid.environment.variables import to_text
from jfluid.launch.schedulers import SCHEDULERS
from scripts.pages.tables import NOTE, default, table

_ABOUT = """# Environment variables

This page is for users that configure jobs by environment variables. It lists the variables that a process reads, by
subject. jfluid-launch sets the variables marked with * in each process of a job; a job file sets all further variables
with `env:`. An empty variable counts as not set, except for the job's secret, and for `CUDA_VISIBLE_DEVICES`, which
then shows no GPU. A wrong value is an error that names the variable, the expected and the found value.
"""
_LAUNCHER = """
## The launcher

jfluid-launch finds its rank among the launchers of a job by the job file and the command line, then by these variables.
The processes of a job do not get `http_proxy` and `https_proxy`.
"""


def page() -> str:
    """Return the text of the page."""
    parts, seen = [NOTE + _ABOUT], set()
    for section in (kind for kind in ProcessEnvironment.__mro__ if kind in ProcessEnvironment.__bases__):
        own = {name: field for name, field in section.fields().items() if name not in seen}
        seen |= set(own)
        parts.append(f"\n## {(section.__doc__ or '').rstrip('.')}\n\n" + _table(own, marked=ASSIGNED))
    rows = [
        [f"`{name}`", f"`{to_text(flag.default)}`" if flag.default != "" else "", flag.meaning]
        for name, flag in sorted(flags.EFFECTIVE.items())
    ]
    parts.append(
        "\n## Flags\n\n`fluid.set_flags` sets flags, too, and comes before the environment.\n\n"
        + table(["flag", "default", "meaning"], rows)
    )
    parts.append(
        "\nThe following flags are kept and returned, and change nothing. Each belongs to Fluid's allocator, garbage "
        "collector, kernels or threads:\n" + ",\n".join(f"`{name}`" for name in sorted(flags.NO_EFFECT)) + ".\n"
    )
    parts.append(_LAUNCHER)
    parts += [f"\n### {(section.__doc__ or '').rstrip('.')}\n\n" + _table(section.fields()) for section in SCHEDULERS]
    return "".join(parts)


def _table(fields: Mapping[str, FieldInfo], marked: Collection[str] = ()) -> str:
    rows = [
        [
            f"`{name}`{' *' if name in marked else ''}",
            expected(field),
            default(field, to_text),
            field.description or "",
        ]
        for name, field in fields.items()
    ]
    return table(["variable", "takes", "default", "meaning"], rows)

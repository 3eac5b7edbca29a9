"""docs/job_file.md: the keys of a job file, from jfluid.job."""

import inspect

import yaml
from pydantic import BaseModel

from jfluid import job
from jfluid.environment.field_types import expected
from scripts.pages.tables import NOTE, default, table

_ABOUT = """# The job file

`jfluid-launch job.yaml` runs the job that a file describes; `--set key=value` overrides a key of it, and `--dry-run` prints
the job as it would run. What is wrong (an unknown or missing key, a value that cannot be, keys that do not go together) is
named with line and column, and the job does not start. YAML is read by its version 1.2 core rules, so that `no` is text and
`1e-3` a number; duplicate keys, tags and aliases are refused.

`jfluid launch --schema` prints a JSON schema, by which editors complete and check keys. Written to a file beside it,
a job begins with `# yaml-language-server: $schema=FILE`.
"""
_SECTIONS: list[tuple[str, type[BaseModel], type[BaseModel] | None]] = [
    ("Keys of all jobs", job.Job, None),
    ("Keys of jobs of several processes", job.GangJob, job.Job),
    ("`mode: collective`", job.CollectiveJob, job.GangJob),
    ("`mode: parameter_server`", job.ParameterServerJob, job.GangJob),
    ("The section `restarts`", job.Restarts, None),
    ("The section `snapshots`", job.Snapshots, None),
]


def page() -> str:
    """The page's text."""
    examples = inspect.cleandoc(job.__doc__ or "").partition("\n\n")[2].partition("\n\nYAML is read")[0]
    return (
        NOTE
        + _ABOUT
        + f"\n```yaml\n{inspect.cleandoc(examples)}\n```\n"
        + "".join(
            f"\n## {title}\n\n{inspect.getdoc(model)}\n\n{_keys(model, parent)}" for title, model, parent in _SECTIONS
        )
    )


def _keys(model: type[BaseModel], parent: type[BaseModel] | None) -> str:
    known = parent.model_fields if parent else {}
    rows = [
        [f"`{name}`", expected(field), default(field, _text), field.description or ""]
        for name, field in model.model_fields.items()
        if name not in known
    ]
    return table(["key", "takes", "default", "meaning"], rows)


def _text(value: object) -> str:
    plain = value.model_dump() if isinstance(value, BaseModel) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("...").strip()

"""docs/job_file.md: the keys of a job file, from jfluid.job."""

import inspect

import yaml
from pydantic import BaseModel

from jfluid import job
from jfluid.environment.field_types import expected
from scripts.pages.tables import NOTE, default, table

_ABOUT = """# The job file

This page is for users that write job files. It lists every key, its values and its default. `jfluid-launch job.yaml`
runs the job of a file; `--set key=value` overrides a key, and `--dry-run` prints the job without running it. An error
(an unknown or missing key, an impossible value, conflicting keys) names line and column, and the job does not start.
YAML is read by the core rules of version 1.2, so `no` is text and `1e-3` a number; duplicate keys, tags and aliases are
refused.

`jfluid launch --schema` prints a JSON schema, by which editors complete and check keys. Write the schema to a file, and
begin the job file with `# yaml-language-server: $schema=FILE`.
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
    """Return the text of the page."""
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

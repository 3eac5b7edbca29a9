"""A JSON schema of job files, made from the models, for completion and checks in editors."""

from typing import Any

from pydantic import TypeAdapter

from jfluid.job.model import CollectiveJob, Job, ParameterServerJob

_MODES = {
    Job: ["local"],
    CollectiveJob: ["collective"],
    ParameterServerJob: ["parameter_server", "ps"],
}


def schema() -> dict[str, Any]:
    """Return the schema: one alternative for each mode."""
    made = TypeAdapter(Job | CollectiveJob | ParameterServerJob).json_schema()
    about = Job.model_fields["mode"].description
    for kind, modes in _MODES.items():
        keys = made["$defs"][kind.__name__]
        keys["properties"]["mode"] = {"enum": modes, "description": about}
        if kind is not Job:
            keys["required"].append("mode")
    both = made["$defs"][ParameterServerJob.__name__]["properties"]["restarts"]
    both["anyOf"] = [{"$ref": both.pop("$ref")}, {"type": "integer", "minimum": 0}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a job of jfluid",
        **made,
    }

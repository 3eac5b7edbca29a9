"""Reading a job from a file or a command line, with overrides."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from jfluid.job.document import Document, Key, read_document
from jfluid.job.errors import JobError, short
from jfluid.job.explain import explain, modes_with
from jfluid.job.model import JOBS, Job, full_mode

Options = Mapping[str, tuple[str, Any]]


def read_job(path: str | Path, overrides: Iterable[str] = (), options: Options | None = None) -> Job:
    """Return the job of a YAML file. Raises JobError.

    Args:
        overrides: such as "args.epochs=3"; they are applied first.
        options: for each key the words of the command line that set it, and the value; None removes
            the key. An option that local jobs do not have makes a local job one of the mode that
            has it.
    """
    document = read_document(path)
    if not isinstance(document.value, dict):
        raise JobError(
            f"{path}: a job file holds a mapping with the keys {', '.join(Job.model_fields)}; "
            f"found {'nothing' if document.value is None else short(document.value)}"
        )
    return _validated(document.value, document.places, overrides, options or {})


def script_job(
    script: str,
    arguments: Sequence[str],
    overrides: Iterable[str] = (),
    options: Options | None = None,
) -> Job:
    """Return the job that runs `script` with `arguments`.

    The others are as those of `read_job`. Raises JobError.
    """
    places: dict[Key, str] = {(): "jfluid-launch"}
    return _validated({"script": script, "args": list(arguments)}, places, overrides, options or {})


def _validated(data: dict[str, Any], places: dict[Key, str], overrides: Iterable[str], options: Options) -> Job:
    for override in overrides:
        _override(data, places, override)
    for key, (source, value) in options.items():
        _put(data, places, (key,), value, source)
        if value is None:
            del data[key]
    needed = [key for key in options if key not in Job.model_fields]
    if needed and data.get("mode", "local") == "local":
        modes = [mode for mode in JOBS if all(mode in modes_with(key) for key in needed)] or modes_with(needed[0])
        _put(data, places, ("mode",), modes[0], options[needed[0]][0])
    mode = full_mode(data.get("mode", "local"))
    kind = JOBS.get(mode, Job) if isinstance(mode, str) else Job
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        # The default name only needs a valid script; the script's own mistake is in the list.
        mistakes = [item for item in error.errors() if item["type"] != "default_factory_not_called"]
        raise JobError("\n".join(explain(item, places, kind) for item in mistakes)) from None


def _override(data: dict[str, Any], places: dict[Key, str], override: str) -> None:
    """Set one value of `data`: `a.b=v`, where v is read as YAML."""
    source = f"--set {override}"
    name, equals, text = override.partition("=")
    path = name.split(".")
    if not equals or not all(path):
        raise JobError(f"{source}: must have the form key=value or key.key=value")
    for depth, key in enumerate(path[:-1], start=1):
        places.setdefault(tuple(path[:depth]), source)
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise JobError(f"{source}: {'.'.join(path[:depth])} is not a mapping but {short(data)}; set it as a whole")
    _put(data, places, tuple(path), Document(text, source, with_position=False).value, source)


def _put(data: dict[str, Any], places: dict[Key, str], path: tuple[str, ...], value: Any, source: str) -> None:
    """Set the value at the end of a path; `data` is the mapping that holds it."""
    data[path[-1]] = value
    for inside in [at for at in places if at[: len(path)] == path]:
        del places[inside]
    places[path] = source

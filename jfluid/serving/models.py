"""Models of a server by name and version, which are reloaded while requests are answered."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping

from jfluid import errors
from jfluid.files.storage import MODEL
from jfluid.serving.requests import BadRequest, shown
from jfluid.serving.service import ModelService, Resources

_log = logging.getLogger("jfluid.serving")

# Builds the service of a folder, a name and a version.
Load = Callable[[str, str, str], ModelService]
# Names, sizes and times of the files of a folder: a model whose files changed has another one.
State = tuple[tuple[str, int, int], ...]


def versions_of(folder: str) -> dict[str, str]:
    """Return the folders of a model's versions: numbered folders in it, or the folder alone as version 1."""
    if not os.path.exists(os.path.join(folder, MODEL)) and os.path.isdir(folder):
        numbered = [entry.name for entry in os.scandir(folder) if entry.name.isdecimal() and entry.is_dir()]
        if numbered:
            return {name: os.path.join(folder, name) for name in sorted(numbered, key=int)}
    return {"1": folder}


def _state(folder: str) -> State:
    found = []
    for root, _, files in os.walk(folder if os.path.isdir(folder) else os.path.dirname(folder) or "."):
        for name in files:
            status = os.stat(os.path.join(root, name))
            found.append((os.path.join(root, name), status.st_size, status.st_mtime_ns))
    return tuple(sorted(found))


class Models:
    """The models of a server.

    Attributes:
        resources: shared by all models.
        default: name of the model that requests without a name ask.
    """

    def __init__(
        self, folders: Mapping[str, str], load: Load, resources: Resources, loaded: Callable[[], None] = lambda: None
    ):
        """Load all versions of all models. Raises the error of a model that cannot be loaded.

        Args:
            folders: folder of each model by name.
            load: builds a service.
            resources: shared by all models.
            loaded: called when all models are loaded, and after a reload that changed a model.
        """
        self._folders, self._load, self.resources = dict(folders), load, resources
        self.default = next(iter(folders))
        self._services: dict[str, dict[str, ModelService]] = {}
        self._states: dict[tuple[str, str], State] = {}
        self._failures: dict[str, str] = {}  # logged reasons
        self._reloading = asyncio.Lock()
        for name, folder in self._folders.items():
            self._services[name] = {v: self._loaded(path, name, v) for v, path in versions_of(folder).items()}
        self._loaded_all = loaded
        loaded()

    def _loaded(self, folder: str, name: str, version: str) -> ModelService:
        state = _state(folder)
        service = self._load(folder, name, version)
        self._states[name, version] = state
        return service

    @property
    def names(self) -> list[str]:
        """Names of the models."""
        return list(self._services)

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model, the oldest first. Raises BadRequest for an unknown model."""
        if name not in self._services:
            raise BadRequest(f"expected one of the models {', '.join(self._services)}, found {shown(name)}", 404)
        return sorted(self._services[name], key=int)

    def find(self, name: str | None = None, version: str | None = None) -> ModelService:
        """Return a version of a model: the newest of the default one where none is named. Raises BadRequest."""
        name = name or self.default
        versions = self.versions(name)
        if version is not None and version not in versions:
            raise BadRequest(f"{name}: expected one of the versions {', '.join(versions)}, found {shown(version)}", 404)
        return self._services[name][version or versions[-1]]

    async def reload(self) -> None:
        """Load new and changed versions, then retire replaced and removed versions.

        A request under way ends with the version that it began with. A version that cannot be loaded is logged
        once for each reason; all other versions stay or are loaded.
        """
        async with self._reloading:
            before = dict(self._states)
            for name, folder in self._folders.items():
                try:
                    await self._reload(name, await asyncio.to_thread(versions_of, folder))
                except OSError as error:  # the folder itself cannot be read
                    self._note_failure(name, name, error)
            if self._states != before:
                self._loaded_all()

    async def _reload(self, name: str, found: Mapping[str, str]) -> None:
        services = self._services[name]
        for version, folder in found.items():
            label = f"{name}, version {version}"
            try:
                if await asyncio.to_thread(_state, folder) == self._states.get((name, version)):
                    continue
                service = await asyncio.to_thread(self._loaded, folder, name, version)
            except (errors.JFluidError, OSError) as error:
                self._note_failure(name, label, error)
                continue
            self._failures.pop(label, None)
            old, services[version] = services.get(version), service
            if old is not None:
                old.retire()
            service.resources.metrics.loaded.labels(name, version).set(1)
            self.resources.metrics.reloads.labels(name, "loaded").inc()
            _log.warning("%s, version %s: loaded from %s", name, version, folder)
        if not services.keys() & found.keys():
            return  # the last versions stay until a different version is loaded
        for version in [version for version in services if version not in found]:
            del self._states[name, version]
            services.pop(version).retire()
            _log.warning("%s, version %s: gone", name, version)

    def _note_failure(self, name: str, label: str, error: Exception) -> None:
        """Count a failed reload, and log a reason that the log does not have yet."""
        self.resources.metrics.reloads.labels(name, "failed").inc()
        if self._failures.get(label) != str(error):
            self._failures[label] = str(error)
            _log.error("%s: not loaded, all loaded versions stay: %s", label, error)

    def close(self) -> None:
        """Answer queued requests, and end the threads."""
        for services in self._services.values():
            for service in services.values():
                service.close()
        self.resources.close()

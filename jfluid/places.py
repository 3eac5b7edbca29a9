"""Places: the devices that programs run on."""

import logging
from dataclasses import dataclass

import jax

from jfluid import environment, errors, flags
from jfluid.host import cpu_threads, heap

_log = logging.getLogger(__name__)


class Place:
    """Device that programs run on. `core.Place()` is set later by `set_place`."""

    _told: "Place | None" = None

    def set_place(self, place: "Place") -> None:
        """Become this place.

        Raises PlaceError for a value that is no place, and on a CPUPlace, CUDAPlace or CUDAPinnedPlace, which do not
        change.
        """
        if type(self) is not Place or not isinstance(place, Place):
            raise errors.PlaceError(
                f"set_place: expected a place such as CPUPlace() for a core.Place(), found {place!r} for {self!r}"
            )
        self._told = place.kind()

    def kind(self) -> "Place":
        """Return the CPUPlace, CUDAPlace or CUDAPinnedPlace that this is.

        Raises PlaceError for a `core.Place()` that was not told yet.
        """
        place = self if type(self) is not Place else self._told
        if place is None:
            raise errors.PlaceError("core.Place(): no place yet: call set_place(CPUPlace()) on it")
        return place

    def device(self) -> jax.Device:
        """Return the JAX device."""
        return self.kind().device()

    def is_cpu_place(self) -> bool:
        """Return True for a CPUPlace."""
        return isinstance(self.kind(), CPUPlace)

    def is_gpu_place(self) -> bool:
        """Return True for a CUDAPlace."""
        return isinstance(self.kind(), CUDAPlace)

    def is_cuda_pinned_place(self) -> bool:
        """Return True for a CUDAPinnedPlace."""
        return isinstance(self.kind(), CUDAPinnedPlace)

    def _equals(self, other: "Place") -> bool:
        return self.kind() == other.kind()

    def _type(self) -> int:
        """Return the number of Fluid's place type; a `core.Place()` that was not set counts as CUDAPlace."""
        if type(self) is Place and self._told is None:
            return 0
        return (CUDAPlace, CPUPlace, CUDAPinnedPlace).index(type(self.kind()))


@dataclass(frozen=True)
class CPUPlace(Place):
    """CPUs of this host."""

    def device(self) -> jax.Device:
        """Return the first CPU device of JAX.

        The first use starts JAX: the CPU gets as many devices as CPU_NUM says at that time.
        """
        prepare_cpus(cpu_number())
        found = jax.local_devices(backend="cpu")[0]
        cpu_threads.bind()
        return found

    def __repr__(self) -> str:
        return "CPUPlace"


@dataclass(frozen=True)
class CUDAPlace(Place):
    """GPU `id` in JAX's list of GPUs."""

    id: int = 0

    def device(self) -> jax.Device:
        """Return the JAX device. Raises PlaceError when there is no such GPU."""
        gpus = _gpus()
        if not 0 <= self.id < len(gpus):
            raise errors.PlaceError(
                f"CUDAPlace({self.id}): JAX sees {len(gpus)} GPU(s) here. Use CPUPlace(), or install "
                "JAX with CUDA (pip install 'jax[cuda13]') on a machine that has one."
            )
        return gpus[self.id]

    def get_device_id(self) -> int:
        """Return the index of the GPU."""
        return self.id

    gpu_device_id = get_device_id

    def __repr__(self) -> str:
        return f"CUDAPlace({self.id})"


@dataclass(frozen=True)
class CUDAPinnedPlace(Place):
    """Page-locked host memory in Fluid; plain host memory here, since XLA stages transfers."""

    def device(self) -> jax.Device:
        return jax.local_devices(backend="cpu")[0]


def place_to_run(place: Place | None) -> Place:
    """Return the place of a run: `place`, or for None the first GPU that JAX sees, else the CPU.

    A parameter server without GPUs runs on the CPU whatever place its script names, and logs that: servers of a job
    get no GPU from the launcher.

    Raises PlaceError for what is no place, and for a GPU that JAX does not see.
    """
    if place is None:
        place = CUDAPlace(0) if is_compiled_with_cuda() else CPUPlace()
    if not isinstance(place, Place):
        raise errors.PlaceError(f"place: expected CPUPlace() or CUDAPlace(i), found {place!r}")
    place = place.kind()
    if isinstance(place, CUDAPlace) and not _gpus() and environment.text("TRAINING_ROLE") == "PSERVER":
        _log.warning("%r: this parameter server sees no GPU; tables and updates are on the host", place)
        return CPUPlace()
    if not isinstance(place, CPUPlace):
        place.device()  # an absent GPU is an error here
    return place


def prepare_cpus(number: int) -> None:
    """Prepare the CPU before JAX starts: provide `number` devices, and reuse memory between steps."""
    heap.keep_for_steps()
    if number > 1 and jax.config.jax_num_cpu_devices < number:  # type: ignore[attr-defined]
        try:
            jax.config.update("jax_num_cpu_devices", number)
        except RuntimeError:
            pass  # JAX has started: jfluid.parallel.devices creates more devices on demand


def _gpus() -> list[jax.Device]:
    prepare_cpus(cpu_number())  # JAX starts here
    try:
        found: list[jax.Device] = jax.local_devices(backend="gpu")
        return found
    except RuntimeError:
        return []


def is_compiled_with_cuda() -> bool:
    """Return True if JAX sees a GPU. Starts JAX's backends."""
    return bool(_gpus())


def get_cuda_device_count() -> int:
    """Return the number of GPUs that JAX sees. Starts JAX's backends."""
    return len(_gpus())


def cpu_number() -> int:
    """Return the number of CPU replicas from CPU_NUM; 1 if it is not set.

    Raises PlaceError.
    """
    if not environment.text("CPU_NUM"):
        return environment.DEFAULT_CPU_NUM
    from jfluid.environment.process import DeviceVariables

    return DeviceVariables.from_env().cpu_num


def selected_gpus() -> tuple[int, ...]:
    """Return the GPU indices in FLAGS_selected_gpus; none if it is not set.

    Raises PlaceError.
    """
    if not flags.get("FLAGS_selected_gpus"):
        return ()
    from jfluid.environment.process import DeviceVariables

    return DeviceVariables.from_env({"FLAGS_selected_gpus": flags.get("FLAGS_selected_gpus")}).selected_gpus


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """Return `device_count` CPUPlaces; by default CPU_NUM, else one.

    If JAX has not started, it will start with that number of CPU devices.
    """
    number = cpu_number() if device_count is None else device_count
    prepare_cpus(number)
    return [CPUPlace()] * number


def cuda_places(device_ids: list[int] | None = None) -> list[CUDAPlace]:
    """Return a CUDAPlace for each id; by default for FLAGS_selected_gpus, else for all GPUs.

    Raises PlaceError without GPUs.
    """
    if device_ids is None:
        device_ids = list(selected_gpus() or range(get_cuda_device_count()))
    places = [CUDAPlace(i) for i in device_ids]
    if not places:
        raise errors.PlaceError("cuda_places: JAX sees no GPU here. Use cpu_places(), or install JAX with CUDA.")
    for place in places:
        place.device()
    return places


def cuda_pinned_places(device_count: int | None = None) -> list[CUDAPinnedPlace]:
    """Return `device_count` CUDAPinnedPlaces; by default CPU_NUM, else one."""
    return [CUDAPinnedPlace()] * len(cpu_places(device_count))

"""A check of the installation: Fluid's `fluid.install_check`."""

import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from jfluid import errors, installation, layers
from jfluid.compiler import CompiledProgram
from jfluid.executor import Executor
from jfluid.input import data
from jfluid.ir import unique_name
from jfluid.ir.program import Program, program_guard
from jfluid.optimizer import SGD
from jfluid.places import CUDAPlace, Place, cpu_places, cuda_places, place_to_run
from jfluid.scope import Scope, scope_guard

__all__ = ["Machine", "machine", "run_check"]

_PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")
_INSTALL = "pip install 'jfluid[cuda13]' (NVIDIA driver 580 or newer), or 'jfluid[cuda12]' (525 or newer)"
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # PCI's vendor, and its classes of displays and accelerators


@dataclass(frozen=True)
class Machine:
    """Device of programs on this machine, and obstacles to using a GPU.

    Attributes:
        place: the default place of an Executor.
        device: JAX's name of the device kind.
        count: number of devices of that kind that JAX sees.
        gpus: number of GPUs that the NVIDIA driver shows to this process.
        driver: release of the NVIDIA driver; "" without a driver.
        versions: of jfluid, JAX, jaxlib and JAX's CUDA plugin, if it is installed.
        missing: what to do so that programs run on a GPU; "" if they do, or without a GPU.
    """

    place: Place
    device: str
    count: int
    gpus: int
    driver: str
    versions: dict[str, str]
    missing: str

    def text(self) -> str:
        """Return it in a sentence or two."""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        driver = f", NVIDIA driver {self.driver}" if self.driver else ""
        found = f"{self.place}: {self.count} x {self.device} ({versions}{driver})"
        return f"{found}. {self.missing}" if self.missing else found


def machine() -> Machine:
    """Return a description of this machine's devices.

    Starts JAX.
    """
    from jfluid.launch.devices import visible_gpus

    place = place_to_run(None)
    on_gpu = isinstance(place, CUDAPlace)
    versions = {"jfluid": installation.VERSION}
    for name in ("jax", "jaxlib", *_PLUGINS):
        if (version := _version(name)) is not None:
            versions[name] = version
    gpus, driver = len(visible_gpus()), _driver()
    missing = "" if on_gpu else _missing(gpus, driver, not set(_PLUGINS).isdisjoint(versions))
    count = len(jax.local_devices(backend="gpu")) if on_gpu else 1
    return Machine(place, place.device().device_kind, count, gpus, driver, versions, missing)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver(proc: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Return the release of the NVIDIA kernel module; "" if it is not loaded."""
    try:
        found = re.search(r"\b(\d+\.\d+(\.\d+)?)\b", proc.read_text())
    except OSError:
        return ""
    return found[1] if found else "of an unknown release"


def _on_the_bus(devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Return True if an NVIDIA GPU is on the PCI bus, with or without a driver."""

    def read(path: Path) -> str:
        try:
            return path.read_text()
        except OSError:
            return ""

    return any(
        read(device / "vendor").startswith(_NVIDIA) and read(device / "class").startswith(_DISPLAY)
        for device in (devices.iterdir() if devices.is_dir() else ())
    )


def _missing(gpus: int, driver: str, plugin: bool) -> str:
    """Return the reason why programs cannot use a GPU; "" without a usable GPU."""
    if gpus and not plugin:
        return f"The driver shows {gpus} GPU(s), but JAX is installed without CUDA: {_INSTALL}."
    if gpus:
        return f"The driver shows {gpus} GPU(s), but JAX does not use them: {_refusal()}."
    if driver:
        return (
            "The NVIDIA driver is loaded, but shows no GPU to this process: look at nvidia-smi, at "
            "CUDA_VISIBLE_DEVICES, and, in a container, at its options (docker run --gpus all)."
        )
    if _on_the_bus():
        return "An NVIDIA GPU is on the PCI bus, but its driver is not loaded: install the driver."
    return "JAX's CUDA plugin is installed, but no NVIDIA driver is loaded." if plugin else ""


def _refusal() -> str:
    """Return JAX's message about the missing GPU."""
    try:
        jax.devices("gpu")
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "it takes another platform by default"


def run_check() -> None:
    """Train a small program on the default device, and on several devices, and print a report.

    The report has the device, the versions, and the missing parts for a GPU.

    Raises OpError for a wrong loss.
    """
    found = machine()
    _train(found.place, [])
    several = cuda_places() if found.count > 1 else cpu_places()
    if len(several) > 1:
        _train(found.place, several)
        print(f"jfluid works on {len(several)} devices together.")
    print(f"jfluid works on {found.text()}")


def _train(place: Place, replicas: Sequence[Place]) -> None:
    main, startup = Program(), Program()
    with program_guard(main, startup), scope_guard(Scope()), unique_name.guard():
        x = data(name="x", shape=[None, 2], dtype="float32")
        loss = layers.mean(layers.fc(x, 3))
        SGD(learning_rate=0.01).minimize(loss)
        exe = Executor(place)
        exe.run(startup)
        program: Program | CompiledProgram = main
        if replicas:
            program = CompiledProgram(main).with_data_parallel(loss.name, places=replicas)
        rows = np.ones((4 * max(len(replicas), 1), 2), "float32")
        (value,) = exe.run(program, feed={"x": rows}, fetch_list=[loss])
        if not np.isfinite(value).all():
            raise errors.OpError(f"run_check: the loss of a small program is {value}")

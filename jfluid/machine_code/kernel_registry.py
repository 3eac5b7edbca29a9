"""Registry of CPU kernels: compiles a group of kernels for this processor, and registers the group with XLA.

A group is a file `<group>_kernels.py`, named in `flags.CPU_KERNELS`. The file declares the group's kernels as
`KERNELS`; the names of the kernels begin with `jfluid_<group>`.
"""

import ctypes
import functools
import hashlib
import importlib
import logging
import re
import threading

import jax
import jaxlib.version

from jfluid import flags
from jfluid.caches import kept_files
from jfluid.machine_code import ffi_runtime, llvm_writer, processor
from jfluid.machine_code.extents import KernelGroup

_MOST_FILES = 12
_NAME = re.compile(r"jfluid_([a-z]+)(?:_\w+)?")
_registering = threading.Lock()
_refusals: list[Exception] = []
_log = logging.getLogger(__name__)


@functools.cache
def group(name: str) -> KernelGroup:
    """Return the kernels of a group."""
    found: KernelGroup = importlib.import_module(f"jfluid.machine_code.{name}_kernels").KERNELS
    return found


@functools.cache
def group_of(kernel: str) -> KernelGroup:
    """Return the group of a kernel. Raises KeyError."""
    match = _NAME.fullmatch(kernel)
    if match and match[1] in flags.CPU_KERNELS and kernel in group(match[1]).names:
        return group(match[1])
    raise KeyError(kernel)


def kernels() -> list[str]:
    """Return the names of all kernels that the processor supports."""
    return [kernel for name in flags.CPU_KERNELS if supports(name) for kernel in group(name).names]


def supports(name: str) -> bool:
    """Return True if the processor has the vectors that a group needs, and XLA_FLAGS does not exclude the vectors."""
    return processor.vectors().bits >= group(name).bits


def is_on(name: str) -> bool:
    """Return True if steps may call the kernels of a group; the first call registers the group with XLA.

    FLAGS_cpu_kernels, the processor, XLA_FLAGS and XLA's version can turn a group off. Every dispatch calls this.
    """
    if name not in flags.cpu_kernels():
        return False
    with _registering:
        _report_limits()
        return _is_registered(name)


@functools.cache
def _report_limits() -> None:
    """Log the groups that the processor or XLA_FLAGS turns off."""
    if off := [name for name in flags.CPU_KERNELS if not supports(name)]:
        _log.info("CPU kernels are off, and XLA computes instead: %s; %s", ", ".join(off), processor.vectors().limit)


def _report_refusal(error: Exception) -> None:
    """Log the first refusal by XLA; XLA refuses all kernels alike."""
    if _refusals:
        return
    _refusals.append(error)
    version = ".".join(map(str, ffi_runtime.VERSION))
    _log.warning(
        "CPU kernels are off, and XLA computes instead: jaxlib %s has no interface %s for foreign functions: %s",
        jaxlib.version.__version__,
        version,
        error,
    )


@functools.cache
def _is_registered(name: str) -> bool:
    if not supports(name):
        return False
    jax.local_devices(backend="cpu")  # without a backend, JAX registers later, and XLA refuses the backend
    names = group(name).names
    for kernel, address in zip(names, llvm_writer.load(object_file(name), names)):
        try:
            function = jax.ffi.pycapsule(ctypes.c_void_p(address))
            jax.ffi.register_ffi_target(kernel, function, platform="cpu")
        except jax.errors.JaxRuntimeError as error:
            _report_refusal(error)
            return False
    return True


def object_file(name: str) -> bytes:
    """Return the object file of a group, from the cache or newly compiled."""
    folder = kept_files.folder()
    identity = repr((name, llvm_writer.identity(), kept_files.sources()))
    path = folder and folder / f"functions-{hashlib.sha256(identity.encode()).hexdigest()}"
    found = path and kept_files.read(path)
    if not found:
        module = llvm_writer.Module()
        group(name).write(module)
        found = module.machine_code()
        if path:
            kept_files.write(path, found, _MOST_FILES)
    return found

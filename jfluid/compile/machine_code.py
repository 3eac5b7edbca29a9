"""Machine code of our own that steps on CPUs call, made for this machine and made known to XLA."""

import ctypes
import functools
import hashlib
import threading

import jax

from jfluid import kept_files
from jfluid.compile import direct_kernels, gru_kernels, llvm_writer, lstm_kernels, product_kernels

_WRITERS = (direct_kernels, product_kernels, lstm_kernels, gru_kernels)
_MOST_FILES = 4
_registering = threading.Lock()


def registered() -> bool:
    """Make the machine code known to XLA; False where there is none for this machine or this XLA."""
    with _registering:
        return _register()


@functools.cache
def _register() -> bool:
    names = [name for writer in _WRITERS for name in writer.names()]
    for name, address in zip(names, llvm_writer.load(_object_file(), names) if names else ()):
        try:
            function = jax.ffi.pycapsule(ctypes.c_void_p(address))
            jax.ffi.register_ffi_target(name, function, platform="cpu")
        except jax.errors.JaxRuntimeError:
            return False  # it has another interface
    return bool(names)


def _object_file() -> bytes:
    """Of this process's file of it, or a new one."""
    folder = kept_files.folder()
    identity = repr((llvm_writer.identity(), kept_files.sources()))
    path = folder and folder / f"functions-{hashlib.sha256(identity.encode()).hexdigest()}"
    found = path and kept_files.read(path)
    if not found:
        module = llvm_writer.Module()
        for writer in _WRITERS:
            writer.write(module)
        found = module.machine_code()
        if path:
            kept_files.write(path, found, _MOST_FILES)
    return found

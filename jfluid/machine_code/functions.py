"""Compilation of LLVM kernels for this processor, and their registration with XLA."""

import ctypes
import functools
import hashlib
import threading
from typing import Any

import jax

from jfluid import flags
from jfluid.caches import kept_files
from jfluid.machine_code import (
    channel_kernels,
    convolution_kernels,
    gru_kernels,
    llvm_writer,
    lstm_kernels,
    overlap_kernels,
    pool_kernels,
    product_kernels,
    row_kernels,
    window_kernels,
)

# What is made, kept and loaded together: a program calls all of it, or none.
_IMAGES = (convolution_kernels, channel_kernels, overlap_kernels)
_WINDOWS = (window_kernels,)
_PRODUCTS = (product_kernels,)
_LOOPS = (lstm_kernels, gru_kernels, pool_kernels)
_ROWS = (row_kernels,)
_GROUPS = (_IMAGES, _WINDOWS, _PRODUCTS, _LOOPS, _ROWS)
_MOST_FILES = 12
_registering = threading.Lock()


def images_registered() -> bool:
    """Register the kernels of convolutions and images with XLA, and return True if that succeeded.

    False where no kernel supports this processor or this XLA, or FLAGS_cpu_kernels is off.
    """
    with _registering:
        return _register(_IMAGES)


def windows_registered() -> bool:
    """Register the kernel of image gradients by rows of windows; see `images_registered`."""
    with _registering:
        return _register(_WINDOWS)


def products_registered() -> bool:
    """Register the GEMM kernels; see `images_registered`."""
    with _registering:
        return _register(_PRODUCTS)


def loops_registered() -> bool:
    """Register the kernels of loops over sequences; see `images_registered`."""
    with _registering:
        return _register(_LOOPS)


def rows_registered() -> bool:
    """Register the kernels of table rows; see `images_registered`."""
    with _registering:
        return _register(_ROWS)


@functools.cache
def writer(name: str) -> Any:
    """Return the module that writes a kernel and its extents. Raises KeyError."""
    return {known: one for group in _GROUPS for one in group for known in one.names()}[name]


def _register(writers: tuple[Any, ...]) -> bool:
    """Register the kernels of `writers` unless FLAGS_cpu_kernels is off. Every dispatch calls this."""
    return bool(flags.get("FLAGS_cpu_kernels")) and _made_known(writers)


@functools.cache
def _made_known(writers: tuple[Any, ...]) -> bool:
    names = [name for writer in writers for name in writer.names()]
    for name, address in zip(names, llvm_writer.load(_object_file(writers), names) if names else ()):
        try:
            function = jax.ffi.pycapsule(ctypes.c_void_p(address))
            jax.ffi.register_ffi_target(name, function, platform="cpu")
        except jax.errors.JaxRuntimeError:
            return False  # it has another interface
    return bool(names)


def _object_file(writers: tuple[Any, ...]) -> bytes:
    """Return the object file of `writers`, from the cache or newly compiled."""
    folder = kept_files.folder()
    parts = [writer.__name__ for writer in writers]
    identity = repr((parts, llvm_writer.identity(), kept_files.sources()))
    path = folder and folder / f"functions-{hashlib.sha256(identity.encode()).hexdigest()}"
    found = path and kept_files.read(path)
    if not found:
        module = llvm_writer.Module()
        for writer in writers:
            if writer.names():
                writer.write(module)
        found = module.machine_code()
        if path:
            kept_files.write(path, found, _MOST_FILES)
    return found

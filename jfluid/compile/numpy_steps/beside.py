"""A compilation that goes on beside the steps, which NumPy runs until it is done."""

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import partial_eval
from jaxlib import xla_client

from jfluid import flags, processes
from jfluid.compile.numpy_steps import blas_threads, elementwise, indexing, kernels, shapes, sums
from jfluid.compile.numpy_steps.interpreter import MOST_BYTES, Listing, NotInterpretable, host_value
from jfluid.compile.numpy_steps.operation import Interrupted
from jfluid.compile.runtime import jax_caches

_RULES = (elementwise, shapes, sums, indexing, kernels)  # their import registers the rules
# Least seconds of a first call until the compilation begins: a shape that comes once is not compiled.
_FIRST_CALL = 2.0
# Interpreted seconds, for each second of tracing, from which on a compilation pays: it takes about five. An operator by
# itself is traced in a millisecond, and compiled in twenty or more: of `_LEAST` seconds on.
_PAYS, _LEAST = 1.0, 0.05
_FEWEST_BYTES = 4096  # of a result whose copy costs time
THREAD = "jfluid-compile"
_one_at_a_time = threading.Lock()


def device_of_interpreter(device: jax.Device) -> jax.Device | None:
    """Return the device if steps are interpreted during their compilation; None if steps wait for it."""
    fixed = flags.get("FLAGS_cudnn_deterministic") or processes.count() > 1
    wanted = flags.get("FLAGS_interpret_first_steps") and device.platform == "cpu"
    return device if wanted and not fixed else None


def interpreted(
    listing: Listing, arguments: Sequence[Any], device: jax.Device, stop: Callable[[], bool] | None = None
) -> list[jax.Array]:
    """Return the results of NumPy as arrays of a device.

    Raises as `Listing.run`, and NotInterpretable for a listing with more than `MOST_BYTES` of intermediate results.
    """
    if listing.most_bytes > MOST_BYTES:
        raise NotInterpretable(f"it holds {listing.most_bytes} bytes of intermediate results")
    values = [host_value(v) for v in jax.tree.leaves(arguments)]
    with np.errstate(all="ignore"), blas_threads.one_thread():
        found = listing.run(values, stop)
    return _placed_results(found, values, device)


@functools.lru_cache(maxsize=4096)
def _kind(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    with jax.enable_x64(True):
        return jax.typeof(np.broadcast_to(np.zeros((), dtype), shape))


def placed(arrays: Sequence[Any], device: jax.Device) -> list[jax.Array]:
    """Return arrays of a device. `jax.device_put` does the same, but its checks take longer than a small step."""
    sharding = jax.sharding.SingleDeviceSharding(device)
    place = xla_client.batched_device_put
    return [place(_kind(a.shape, a.dtype), sharding, [a], [device]) for a in arrays]


def _placed_results(results: list[Any], arguments: Sequence[Any], device: jax.Device) -> list[jax.Array]:
    """Return NumPy results as arrays of a device, without common memory, in the list of the results.

    JAX copies NumPy arrays that do not begin at a cache line: each result is dropped once it is copied, because new
    parameters take as much memory as the old ones.
    """
    shared = set(map(id, arguments))
    for at, value in enumerate(results):
        own = _unshared(value, shared)
        shared.add(id(value))
        (results[at],) = placed([own], device)
    return results


def _unshared(value: Any, shared: set[int]) -> Any:
    """Return a result, or a copy of a result that may share memory with an argument, a constant or a further result.

    JAX does not copy all NumPy arrays, and XLA may overwrite the memory. Small arrays are copied in any case; constants
    of a listing cannot be written.
    """
    kept = isinstance(value, np.ndarray) and value.nbytes >= _FEWEST_BYTES and id(value) not in shared
    flags = value.flags
    return value if kept and flags.owndata and flags.writeable and flags.c_contiguous else np.array(value)


def needed(closed: Any) -> Any:
    """Return a closed jaxpr without the operations that no result depends on. XLA drops these; NumPy would run all."""
    live, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return closed.replace(jaxpr=live)


class Beside:
    """Traced function that is interpreted while a thread compiles it.

    The compilation begins once the calls have taken as long as tracing did, about a fifth of what compiling takes. So
    small steps that run a few times are never compiled, and large steps are compiled almost at once.

    Args:
        traced: result of `jax.jit(...).trace`.
        seconds: time that tracing took.
        compile: returns the executable.
        device: device of the results.
        spent: seconds for which other forms of the function were interpreted, in place of this form.

    Attributes:
        done: True once the compilation has ended.
        is_guess: True, until the second call, for sizes that a second batch may not need: the first call begins no
            compilation.
        interpreting: seconds of interpreted calls.
        seconds: time that the compilation took.
    """

    def __init__(self, traced: Any, seconds: float, compile: Callable[[], Any], device: jax.Device, spent: float = 0.0):
        self._jaxpr = traced.jaxpr  # None once it is a listing, or has none
        self._listing: Listing | None = None
        self._results = jax.tree.structure(traced.out_info)
        self._compile, self._device = compile, device
        self._thread: threading.Thread | None = None
        self.done, self._given_up, self._makes = False, False, False
        self._tracing, self.interpreting, self.seconds = seconds, spent, 0.0
        self._called, self.is_guess = spent > 0, False
        self._compiled: Any = None
        self._error: BaseException | None = None

    def run(self, arguments: Sequence[Any]) -> Any:
        """Return the results of a step; None once the function is compiled, or if it must be."""
        if self._jaxpr is not None:
            with contextlib.suppress(NotInterpretable):
                self._listing = Listing(needed(self._jaxpr))
            self._jaxpr = None
        if self.done or self._listing is None:
            return None
        start, spent = time.perf_counter(), self.interpreting
        first_call = 0.0 if self._called else (math.inf if self.is_guess else _FIRST_CALL)
        self.is_guess = self.is_guess and not self._called
        until = start + max(_PAYS * max(self._tracing, _LEAST) - spent, first_call)
        self._called = True

        def stop() -> bool:
            if self._thread is None and time.perf_counter() > until:
                self.begin()
            return self.done

        try:
            placed = interpreted(self._listing, arguments, self._device, stop)
        except Interrupted:
            return None
        except NotInterpretable:
            self._listing = None
            return None
        self.interpreting = spent + time.perf_counter() - start
        return jax.tree.unflatten(self._results, placed)

    def compiled(self) -> Any:
        """Wait for the executable. Raises the errors of the compilation."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._compiled if self.done else self._compile()

    def begin(self) -> bool:
        """Begin to compile, if that was not begun; returns True once the function is compiled."""
        if self._thread is None and not self.done:
            self._thread = threading.Thread(target=self._make, name=THREAD)
            self._thread.start()
        return self.done

    def give_up(self) -> bool:
        """Forgo a compilation that no thread has begun; returns False for one in progress or done."""
        self._given_up = True
        return not self._makes

    def _make(self) -> None:
        with _one_at_a_time:
            if self._given_up or not threading.main_thread().is_alive():
                return  # the process ends, or a wider form is compiled
            self._makes, start = True, time.perf_counter()
            try:
                with jax.enable_x64(True), jax.default_device(self._device), jax_caches.not_kept():
                    self._compiled = self._compile()
            except BaseException as error:  # the step raises it
                self._error = error
            self.seconds = time.perf_counter() - start
            self.done = True

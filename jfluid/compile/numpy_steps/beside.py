"""A compilation that goes on beside the steps, which NumPy runs until it is done."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jfluid import flags, processes
from jfluid.compile import jax_caches
from jfluid.compile.numpy_steps import elementwise, indexing, shapes, sums
from jfluid.compile.numpy_steps.interpreter import Interrupted, Listing, NoRule, host_value

_RULES = (elementwise, shapes, sums, indexing)  # to import them registers their rules
# Seconds for which a first step is interpreted before its compilation begins, too. A shape that comes once costs none.
_PATIENCE = 2.0
THREAD = "jfluid-compile"
_one_at_a_time = threading.Lock()


def device_of_interpreter(device: jax.Device) -> jax.Device | None:
    """Return the device if steps on it are interpreted until they are compiled; None if they wait."""
    fixed = flags.get("FLAGS_cudnn_deterministic") or processes.count() > 1
    wanted = flags.get("FLAGS_interpret_first_steps") and device.platform == "cpu"
    return device if wanted and not fixed else None


class Beside:
    """A traced function that is compiled in another thread, and interpreted meanwhile.

    The compilation begins with the second call, or when the first takes long: many functions are called once.

    Args:
        traced: what `jax.jit(...).trace` gives.
        compile: returns the executable for arguments. These are held only while it compiles.
        device: where results are put.
    """

    def __init__(self, traced: Any, compile: Callable[[Sequence[Any]], Any], device: jax.Device):
        self._listing: Listing | None = None
        with contextlib.suppress(NoRule):
            self._listing = Listing(traced.jaxpr)
        self._results = jax.tree.structure(traced.out_info)
        self._compile, self._device = compile, device
        self._thread: threading.Thread | None = None
        self._called = self._done = False
        self._compiled: Any = None
        self._error: BaseException | None = None

    def run(self, arguments: Sequence[Any]) -> Any:
        """Return the results of a step; None once the function is compiled, or if it must be."""
        if self._done or self._listing is None:
            return None
        if self._called:
            self.begin(arguments)
        self._called, until = True, time.perf_counter() + _PATIENCE

        def stop() -> bool:
            if self._thread is None and time.perf_counter() > until:
                self.begin(arguments)
            return self._done

        try:
            values = [host_value(v) for v in jax.tree.leaves(arguments)]
            with np.errstate(all="ignore"):
                found = self._listing.run(values, stop)
        except Interrupted:
            return None
        except NoRule:
            self._listing = None
            return None
        # Results may share memory with arguments and with each other. JAX takes NumPy arrays as they lie, and XLA may
        # overwrite them: each gets memory of its own.
        placed = jax.device_put([np.array(v) for v in found], self._device)
        return jax.tree.unflatten(self._results, placed)

    def compiled(self, arguments: Sequence[Any]) -> Any:
        """Wait for the executable. Raises what its compilation raises."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._compiled if self._done else self._compile(arguments)

    def begin(self, arguments: Sequence[Any]) -> bool:
        """Begin to compile, if that was not begun; returns True once the function is compiled."""
        if self._thread is None and not self._done:
            self._thread = threading.Thread(target=self._make, args=(arguments,), name=THREAD)
            self._thread.start()
        return self._done

    def _make(self, arguments: Sequence[Any]) -> None:
        with _one_at_a_time:
            if not threading.main_thread().is_alive():
                return  # the process ends
            try:
                with jax.enable_x64(True), jax.default_device(self._device), jax_caches.not_kept():
                    self._compiled = self._compile(arguments)
            except BaseException as error:  # the step raises it
                self._error = error
            self._done = True

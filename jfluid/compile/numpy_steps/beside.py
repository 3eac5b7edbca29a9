"""A compilation that goes on beside the steps, which NumPy runs until it is done."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jfluid import flags, processes
from jfluid.compile.numpy_steps import elementwise, indexing, shapes, sums
from jfluid.compile.numpy_steps.interpreter import Interrupted, Listing, NoRule, host_value
from jfluid.compile.runtime import jax_caches

_RULES = (elementwise, shapes, sums, indexing)  # their import registers the rules
# Seconds for which a first step is interpreted before its compilation begins, too. A shape that comes once costs none.
_PATIENCE = 2.0
# Bytes of intermediate results from which on a step waits for its compilation: XLA fuses operations, and a step of
# ResNet-50 takes three times as much memory without.
MOST_BYTES = 512 << 20
THREAD = "jfluid-compile"
_one_at_a_time = threading.Lock()


def device_of_interpreter(device: jax.Device) -> jax.Device | None:
    """Return the device if steps are interpreted during their compilation; None if steps wait for it."""
    fixed = flags.get("FLAGS_cudnn_deterministic") or processes.count() > 1
    wanted = flags.get("FLAGS_interpret_first_steps") and device.platform == "cpu"
    return device if wanted and not fixed else None


class Beside:
    """Traced function that is interpreted while a thread compiles it.

    The compilation begins with the second call, or when the first takes long: many functions are called once.

    Args:
        traced: result of `jax.jit(...).trace`.
        compile: returns the executable.
        device: device of the results.
    """

    def __init__(self, traced: Any, compile: Callable[[], Any], device: jax.Device):
        self._listing: Listing | None = None
        with contextlib.suppress(NoRule):
            listing = Listing(traced.jaxpr)
            self._listing = listing if listing.most_bytes <= MOST_BYTES else None
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
            self.begin()
        self._called, until = True, time.perf_counter() + _PATIENCE

        def stop() -> bool:
            if self._thread is None and time.perf_counter() > until:
                self.begin()
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
        # Results may share memory with arguments and with each other. JAX does not copy NumPy arrays, and XLA may
        # overwrite the memory: each result is copied.
        placed = jax.device_put([np.array(v) for v in found], self._device)
        return jax.tree.unflatten(self._results, placed)

    def compiled(self) -> Any:
        """Wait for the executable. Raises the errors of the compilation."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._compiled if self._done else self._compile()

    def begin(self) -> bool:
        """Begin to compile, if that was not begun; returns True once the function is compiled."""
        if self._thread is None and not self._done:
            self._thread = threading.Thread(target=self._make, name=THREAD)
            self._thread.start()
        return self._done

    def _make(self) -> None:
        with _one_at_a_time:
            if not threading.main_thread().is_alive():
                return  # the process ends
            try:
                with jax.enable_x64(True), jax.default_device(self._device), jax_caches.not_kept():
                    self._compiled = self._compile()
            except BaseException as error:  # the step raises it
                self._error = error
            self._done = True

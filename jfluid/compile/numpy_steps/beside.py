"""A compilation that goes on beside the steps, which NumPy runs until it is done."""

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
_PATIENCE = 0.1  # seconds for which a first step is interpreted before its compilation begins, too
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
        compile: returns the executable.
        device: where results are put.

    Raises interpreter.NoRule if it cannot be interpreted.
    """

    def __init__(self, traced: Any, compile: Callable[[], Any], device: jax.Device):
        self._listing: Listing | None = Listing(traced.jaxpr)
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
            self._begin()
        self._called, until = True, time.perf_counter() + _PATIENCE

        def stop() -> bool:
            if self._thread is None and time.perf_counter() > until:
                self._begin()
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
        # Results may share memory with arguments, which the user may change: they are copied before this returns.
        placed = jax.device_put(list(map(np.asarray, found)), self._device, may_alias=False)
        return jax.tree.unflatten(self._results, jax.block_until_ready(placed))

    def compiled(self) -> Any:
        """Wait for the executable. Raises what its compilation raises."""
        if self._thread is None:
            return self._compile()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._compiled

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._make, name=THREAD)
            self._thread.start()

    def _make(self) -> None:
        with _one_at_a_time:
            if self._listing is not None and not threading.main_thread().is_alive():
                return  # the process ends
            try:
                with jax.enable_x64(True), jax.default_device(self._device), jax_caches.not_kept():
                    self._compiled = self._compile()
            except BaseException as error:  # the step raises it
                self._error = error
            self._done = True

"""Number of XLA's threads, and notices of data parallelism, once a process: defaults, settings without effect."""

import functools
import logging
import os
import warnings
from typing import Any

from jfluid import environment, processes

_LOG = logging.getLogger(__name__)


def threads() -> int:
    """Return how many threads XLA runs steps on the CPU with."""
    if environment.text("PJRT_NPROC"):
        from jfluid.environment.process import DeviceVariables

        chosen = DeviceVariables.from_env().xla_threads
        assert chosen is not None  # it is set
        return chosen
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def bound_threads(execution: Any) -> None:
    """Limit XLA's threads to `num_threads` of an ExecutionStrategy that a script has chosen, if JAX has not started."""
    wanted = execution.num_threads
    if "num_threads" in execution._chosen and 0 < wanted < threads() and not processes.has_started():
        environment.tell_children("PJRT_NPROC", str(wanted))


@functools.cache
def of_one_replica() -> None:
    """Log that the number of replicas is not set."""
    if threads() > 1:
        _LOG.warning(
            "CPU_NUM is not set: the program runs in one replica. XLA spreads its steps over all %d "
            "processors that the process may use, with the results of one device, as Fluid 1.8 does. "
            "CPU_NUM=%d divides each batch among %d replicas",
            *[threads()] * 3,
        )


def of_settings(execution: Any, platform: str) -> None:
    """Warn of settings of an ExecutionStrategy that a script has chosen and that change nothing."""
    wanted = execution.num_threads
    if platform == "cpu" and "num_threads" in execution._chosen and 0 < wanted < threads():
        _warn(
            f"ExecutionStrategy.num_threads={wanted}: XLA runs steps on {threads()} threads, which it "
            f"made when JAX started, and a program cannot take fewer. To use {wanted}, call with_data_parallel "
            f"before the first run of an Executor, or start the script with PJRT_NPROC={wanted} in its environment"
        )
    if "num_iteration_per_drop_scope" in execution._chosen:
        _warn(
            f"ExecutionStrategy.num_iteration_per_drop_scope={execution.num_iteration_per_drop_scope}: "
            "XLA frees a step's memory at the end of each step. For less memory use "
            "BuildStrategy.ReduceStrategy.Reduce or fluid.optimizer.RecomputeOptimizer"
        )


@functools.cache
def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)

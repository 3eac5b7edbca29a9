"""Log lines and warnings of data parallelism, once a process: chosen defaults, and settings without effect."""

import functools
import logging
import os
import warnings
from typing import Any

from jfluid import environment

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


@functools.cache
def of_one_replica() -> None:
    """Log that the number of replicas is not set."""
    if threads() > 1:
        _LOG.warning(
            "CPU_NUM is not set: the program runs in one replica, whose steps XLA spreads over all %d "
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
            f"makes when JAX starts, and a program cannot take fewer. To use {wanted}, start the script "
            f"with PJRT_NPROC={wanted} in its environment, or on fewer processors (taskset -c)"
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

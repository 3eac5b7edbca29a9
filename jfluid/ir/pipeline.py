"""Options of pipeline parallelism: the division of a program into sections on several devices."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PipelineOptions:
    """Options of `fluid.optimizer.PipelineOptimizer`.

    Attributes:
        cuts: names of the variables that each section computes; empty if the operators name
            their devices (`device_guard`).
        places: the place of each section; empty if the devices, or the Executor's place, determine it.
        micro_batches: the largest number of parts of a batch; 0 for the number of sections.
    """

    cuts: tuple[tuple[str, ...], ...] = ()
    places: tuple[Any, ...] = ()
    micro_batches: int = 0

"""How a program is divided into sections that run on several devices, one after the other."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PipelineOptions:
    """What `fluid.optimizer.PipelineOptimizer` was told.

    Attributes:
        cuts: names of the variables that each section computes; empty where the operators name
            their devices (`device_guard`).
        places: the place of each section; empty for those that the devices, or the Executor's
            place, tell.
        micro_batches: into how many parts a batch is divided at most; 0 for as many as there are
            sections.
    """

    cuts: tuple[tuple[str, ...], ...] = ()
    places: tuple[Any, ...] = ()
    micro_batches: int = 0

"""Training in sections on several devices."""

from collections.abc import Iterable, Sequence
from typing import Any

from jfluid.ir.operator import Operator
from jfluid.ir.pipeline import PipelineOptions
from jfluid.ir.program import Program
from jfluid.ir.variable import Parameter, Variable
from jfluid.optimizer.base import Optimizer, ParamGrad
from jfluid.optimizer.dygraph_mode import refuse_eagerly


class PipelineOptimizer:
    """Pipeline parallelism: sections of a program on separate devices, through which micro-batches flow.

    The inner optimizer updates once per batch, by the mean of the micro-batches' gradients. For a loss that is
    a mean over the batch, results equal the results of the undivided program.

        with fluid.device_guard("gpu:0"):
            hidden = fluid.layers.fc(x, 100)
        with fluid.device_guard("gpu:1"):
            loss = ...
        fluid.optimizer.PipelineOptimizer(fluid.optimizer.SGD(0.1)).minimize(loss)
        exe.run(feed=...)  # or exe.train_from_dataset

    A section's parameters, and their optimizer state, are stored on its device. Statistics that
    operators keep (batch norm) are updated by each micro-batch in turn. Fetches of the micro-batches are
    joined by rows if the variable's first dimension is -1; else floating-point numbers are averaged, integers
    summed. Batches with LoD are not divided.

    Args:
        optimizer: the inner optimizer.
        cut_list: the variables that each section computes, a list for each section; the last section
            computes the rest. None if operators name their devices by `device_guard`: each
            device is a section.
        place_list: the place of each section, also of 2k - 1 places for k sections as in Fluid:
            backward sections run on the devices of forward sections. CPU places take the CPU's devices
            (CPU_NUM) in turn.
        concurrency_list: no effect: sections wait for each other's values.
        queue_size: no effect.
        sync_steps: no effect: every step is synchronous.
        start_cpu_core_id: no effect.
        num_microbatches: the number of micro-batches; fewer if the batch is not divisible by it. None for the
            number of sections.

    Raises TypeError or ValueError for a wrong argument.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        cut_list: Sequence[Sequence[Variable]] | None = None,
        place_list: Sequence[Any] | None = None,
        concurrency_list: Sequence[int] | None = None,
        queue_size: int = 30,
        sync_steps: int = 1,
        start_cpu_core_id: int = 0,
        num_microbatches: int | None = None,
    ):
        refuse_eagerly("PipelineOptimizer", "build a Program")
        if not callable(getattr(optimizer, "minimize", None)):
            raise TypeError(f"PipelineOptimizer, optimizer: expected an optimizer, found {optimizer!r}")
        cuts: list[list[Any]] = [list(cut) if isinstance(cut, list | tuple) else [cut] for cut in cut_list or ()]
        if not all(isinstance(v, Variable) for cut in cuts for v in cut):
            raise TypeError("PipelineOptimizer, cut_list: expected lists of Variables")
        places = list(place_list or ())
        if not all(hasattr(place, "device") for place in places):
            raise TypeError(f"PipelineOptimizer, place_list: expected places, found {place_list!r}")
        if cuts and places and len(places) not in (len(cuts), 2 * len(cuts) - 1):
            raise ValueError(
                f"PipelineOptimizer, place_list: expected {len(cuts)} or {2 * len(cuts) - 1} places "
                f"for {len(cuts)} sections, found {len(places)}"
            )
        if num_microbatches is not None and num_microbatches < 1:
            raise ValueError(f"PipelineOptimizer, num_microbatches: expected 1 or more, found {num_microbatches}")
        self._optimizer = optimizer
        self._options = PipelineOptions(
            tuple(tuple(v.name for v in cut) for cut in cuts),
            tuple(places[: len(cuts)] if cuts else places),
            num_microbatches or 0,
        )

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
    ) -> tuple[list[Operator], list[ParamGrad]]:
        """Call the inner optimizer's `minimize`, and run the program in sections from now on."""
        found = self._optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)
        loss.block.program._pipeline_opt = self._options
        return found

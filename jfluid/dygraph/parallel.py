"""Training by several processes, each with a part of the data.

    with fluid.dygraph.guard():
        strategy = fluid.dygraph.prepare_context()
        net = fluid.dygraph.DataParallel(net, strategy)
        ...
        loss = net.scale_loss(loss)
        loss.backward()
        net.apply_collective_grads()
        optimizer.minimize(loss)

`jfluid-launch --cpus N script.py` or `--gpus N` starts the processes.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jfluid import errors, processes
from jfluid.compile.runtime.collective_jit import CollectiveJit, mesh_with
from jfluid.dygraph.base import enabled, real_variable
from jfluid.dygraph.job import Env, ParallelEnv, ParallelStrategy, joined_as
from jfluid.dygraph.layers import Layer
from jfluid.dygraph.lazy_graph import array_of
from jfluid.dygraph.lazy_values import constant
from jfluid.dygraph.varbase import tracer
from jfluid.ir.variable import Variable
from jfluid.ops.collective import AXIS
from jfluid.ops.selected_rows import SelectedRows

__all__ = ["DataParallel", "Env", "ParallelEnv", "ParallelStrategy", "prepare_context"]


def prepare_context(strategy: ParallelStrategy | None = None) -> ParallelStrategy | None:
    """Join the processes that train together, and return the strategy, or None for a single process.

    Args:
        strategy: place of this process; from the launcher's variables when None.

    Raises DygraphError outside of dygraph mode, ProgramError for several processes without endpoints, PlaceError if the
    processes cannot be joined any more or do not come.
    """
    if not enabled():
        raise errors.DygraphError("prepare_context: call it within fluid.dygraph.guard()")
    if strategy is None:
        told, strategy = ParallelEnv(), ParallelStrategy()
        strategy.nranks, strategy.local_rank = told.nranks, told.local_rank
        strategy.trainer_endpoints = told.trainer_endpoints
        strategy.current_endpoint = told.current_endpoint
    if strategy.nranks < 2:
        return None
    joined_as(strategy)
    return strategy


def _is_data_parallel_mode() -> bool:
    """Return True if several processes train, as scripts ask `fluid.dygraph.parallel_helper`."""
    return ParallelEnv().nranks > 1


class DataParallel(Layer):
    """A layer that several processes train, each on a part of the data.

    The first call gives all processes the parameters of the first process.

    Args:
        layers: the layer.
        strategy: result of `prepare_context`; None for a single process.

    Raises TypeError for an argument of a wrong type.
    """

    def __init__(self, layers: Layer, strategy: ParallelStrategy | None):
        if not isinstance(layers, Layer):
            raise TypeError(f"DataParallel, layers: expected a Layer, found {type(layers).__name__}")
        if strategy is not None and not isinstance(strategy, ParallelStrategy):
            raise TypeError(
                f"DataParallel, strategy: expected the result of prepare_context, found {type(strategy).__name__}"
            )
        super().__init__(layers.full_name() + "_data_parallel")
        self._layers = layers
        self._strategy = strategy or ParallelStrategy()
        self._add_up: CollectiveJit | None = None

    def _build_once(self, *inputs: Any, **kwargs: Any) -> None:
        """Give all processes the parameters of the first."""
        if self._is_data_parallel_mode():
            params: list[Any] = self._layers.parameters()
            first = processes.broadcast([param.numpy() for param in params])
            for param, value in zip(params, first, strict=True):
                param.set_value(np.array(value))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the layer."""
        return self._layers(*inputs, **kwargs)

    def scale_loss(self, loss: Variable) -> Variable:
        """Divide the loss by the number of processes.

        The sum of all processes' gradients then is the gradient of the mean.
        """
        if not self._is_data_parallel_mode():
            return loss
        number = np.array([self._strategy.nranks], np.float32)
        return loss / real_variable(number)

    def apply_collective_grads(self) -> None:
        """Replace the gradients of all trainable parameters by sums over all processes.

        All processes must have gradients of the same parameters.

        Raises UnsupportedError for a gradient of sparse rows.
        """
        if not self._is_data_parallel_mode():
            return
        present: list[Any] = [
            param
            for param in self.parameters()
            if param.trainable and param._grad_ivar() is not None  # type: ignore[attr-defined]
        ]
        arrays = []
        for param in present:
            array = array_of(param._grad_ivar().held)
            if isinstance(array, SelectedRows):
                raise errors.UnsupportedError(
                    f"apply_collective_grads: the gradient of {param.name} holds sparse rows: "
                    "make it with is_sparse=False"
                )
            arrays.append(array)
        if not arrays:
            return
        if self._add_up is None:
            device = tracer().device
            self._add_up = CollectiveJit(_summed, device, mesh_with(device))
        with jax.enable_x64(True):
            sums = self._add_up((), tuple(arrays), None)
        for param, total in zip(present, sums, strict=True):
            param.hold_gradient(constant(total))

    def _is_data_parallel_mode(self) -> bool:
        """Return True if there are several processes."""
        return self._strategy.nranks > 1

    def state_dict(
        self,
        destination: "OrderedDict[str, Variable] | None" = None,
        include_sublayers: bool = True,
        structured_name_prefix: str = "",
    ) -> "OrderedDict[str, Variable]":
        """Return the `state_dict` of the wrapped layer."""
        return self._layers.state_dict(destination, include_sublayers, structured_name_prefix)

    def set_dict(
        self,
        stat_dict: Mapping[str, Any],
        include_sublayers: bool = True,
        use_structured_name: bool = True,
    ) -> None:
        """Set the `state_dict` of the wrapped layer, with the arguments and errors of `Layer`."""
        self._layers.set_dict(stat_dict, include_sublayers, use_structured_name)

    load_dict = set_dict


def _summed(_donated: tuple[Any, ...], arrays: tuple[Any, ...], _key: Any) -> tuple[Any, ...]:
    return tuple(jax.lax.psum(array, AXIS) for array in arrays)

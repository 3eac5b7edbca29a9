"""Recurrent cells, and running a cell over dense sequences."""

from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.ir.types import var_type
from jfluid.ir.variable import Variable
from jfluid.layers.activation import sigmoid, tanh
from jfluid.layers.control_flow import _flat, _map
from jfluid.layers.helper import LayerHelper, emit
from jfluid.layers.math import elementwise_add, elementwise_mul
from jfluid.layers.sequence_lod import sequence_mask
from jfluid.layers.shape import reverse, transpose
from jfluid.layers.static_rnn import StaticRNN
from jfluid.layers.tensor import concat

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "rnn"]


class RNNCell:
    """Interface of a step of a recurrent network: `call(inputs, states)` returns (outputs, new states).

    A subclass defines `call` and `state_shape`.
    """

    def call(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Do one step.

        Arguments are (inputs, states) and whatever else the cell takes. Raises NotImplementedError here.
        """
        raise NotImplementedError(f"{type(self).__name__} must define call(inputs, states)")

    def __call__(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        return self.call(inputs, states, **kwargs)

    @property
    def state_shape(self) -> Any:
        """Return the shapes of the states, without the batch: a list of integers, or a nested structure.

        Raises NotImplementedError here.
        """
        raise NotImplementedError(f"{type(self).__name__} must define state_shape")

    @property
    def state_dtype(self) -> Any:
        """The dtypes of the states, in the structure of `state_shape`.

        Raises NotImplementedError here.
        """
        raise NotImplementedError(f"{type(self).__name__} must define state_dtype")

    def get_initial_states(
        self, batch_ref: Any, shape: Any = None, dtype: Any = "float32", init_value: float = 0, batch_dim_idx: int = 0
    ) -> Any:
        """Return states with one number everywhere.

        Args:
            batch_ref: a Variable that has the batch, or a structure of them, of which the first
                counts.
            shape: the shapes of the states, without the batch or with -1 for it; `state_shape` when
                None.
            dtype: of the states.
            init_value: the number.
            batch_dim_idx: which dimension of `batch_ref` is the batch.
        """
        reference = _flat(batch_ref)[0]
        shapes = self.state_shape if shape is None else shape

        def made(shape: Sequence[int]) -> Variable:
            dims = list(shape) if shape and shape[0] == -1 else [-1, *shape]
            return emit(
                "fill_constant_batch_size_like",
                {"Input": reference},
                {
                    "shape": dims,
                    "value": float(init_value),
                    "dtype": int(var_type(dtype)),
                    "input_dim_idx": batch_dim_idx,
                },
            )

        return _over_shapes(made, shapes)


def _over_shapes(function: Any, shapes: Any) -> Any:
    """Apply `function` to the lists of integers of a nested structure of shapes."""
    if isinstance(shapes, (list, tuple)) and all(isinstance(n, int) for n in shapes):
        return function(list(shapes))
    if isinstance(shapes, dict):
        return {k: _over_shapes(function, v) for k, v in shapes.items()}
    return type(shapes)(_over_shapes(function, s) for s in shapes)


class _Unit:
    """Weights of a cell, created at its first step and shared by all steps."""

    def __init__(self, name: str, param_attr: Any, bias_attr: Any, dtype: Any):
        self.helper = LayerHelper(name, param_attr=param_attr, bias_attr=bias_attr)
        self.dtype = dtype
        self.made: list[Any] = []

    def weights(self, shapes: Sequence[tuple[Sequence[int], bool]]) -> list[Any]:
        """Return parameters for pairs (shape, True for a bias); None for a bias with `bias_attr` False."""
        if not self.made:
            for shape, is_bias in shapes:
                attr = self.helper.bias_attr if is_bias else self.helper.param_attr
                self.made.append(
                    self.helper.create_parameter(attr=attr, shape=shape, dtype=self.dtype, is_bias=is_bias)
                )
        return self.made


def _times(x: Variable, weight: Variable, bias: Variable | None) -> Variable:
    out = emit("matmul", {"X": x, "Y": weight})
    return out if bias is None else elementwise_add(out, bias)


def _halves(x: Variable, parts: int) -> list[Variable]:
    return emit("split", {"X": x}, {"num": parts, "axis": 1, "sections": []}, outs={"Out": parts})


class GRUCell(RNNCell):
    """Gated recurrent unit (Cho et al. 2014) with the state update h' = u h + (1 - u) c.

    Args:
        hidden_size: the width of the state.
        param_attr: ParamAttr of the weights: [inputs + hidden, 2 hidden] of the gates, and [inputs
            + hidden, hidden] of the candidate.
        bias_attr: ParamAttr of the biases; False for none.
        gate_activation: function of a Variable; sigmoid when None.
        activation: function of a Variable; tanh when None.
        dtype: dtype of the parameters.
        name: prefix of the parameters' names.
    """

    def __init__(
        self,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Any = None,
        activation: Any = None,
        dtype: Any = "float32",
        name: str = "GRUCell",
    ):
        self.hidden_size = hidden_size
        self._gate, self._activation = gate_activation or sigmoid, activation or tanh
        self._unit = _Unit(f"{name}/BasicGRUUnit", param_attr, bias_attr, dtype)

    def call(self, inputs: Variable, states: Variable) -> tuple[Variable, Variable]:
        """Return (the new state, the new state) for inputs [batch, inputs] and a state [batch, hidden_size]."""
        n, width = inputs.shape[-1] + self.hidden_size, self.hidden_size
        gate_weight, weight, gate_bias, bias = self._unit.weights(
            [([n, 2 * width], False), ([n, width], False), ([2 * width], True), ([width], True)]
        )
        gates = self._gate(_times(concat([inputs, states], axis=1), gate_weight, gate_bias))
        reset, update = _halves(gates, 2)
        candidate = self._activation(_times(concat([inputs, elementwise_mul(reset, states)], axis=1), weight, bias))
        new = elementwise_add(elementwise_mul(update, states), elementwise_mul(1.0 - update, candidate))
        return new, new

    @property
    def state_shape(self) -> list[int]:
        return [self.hidden_size]

    @property
    def state_dtype(self) -> str:
        return "float32"


class LSTMCell(RNNCell):
    """Long short-term memory without peepholes; its states are the list [hidden, cell].

    Args:
        hidden_size: the width of each state.
        param_attr: ParamAttr of the weight, [inputs + hidden, 4 hidden] (input, candidate, forget,
            output).
        bias_attr: ParamAttr of the bias; False for none.
        gate_activation, activation: functions of a Variable; sigmoid and tanh when None.
        forget_bias: is added to the forget gate before its activation.
        dtype: of the parameters.
        name: prefix of their names.
    """

    def __init__(
        self,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Any = None,
        activation: Any = None,
        forget_bias: float = 1.0,
        dtype: Any = "float32",
        name: str = "LSTMCell",
    ):
        self.hidden_size, self.forget_bias = hidden_size, forget_bias
        self._gate, self._activation = gate_activation or sigmoid, activation or tanh
        self._unit = _Unit(f"{name}/BasicLSTMUnit", param_attr, bias_attr, dtype)

    def call(self, inputs: Variable, states: Sequence[Variable]) -> tuple[Variable, list[Variable]]:
        """Return (the new hidden state, [the new hidden state, the new cell]) for inputs [batch, inputs]."""
        hidden, cell = states
        n, width = inputs.shape[-1] + self.hidden_size, self.hidden_size
        weight, bias = self._unit.weights([([n, 4 * width], False), ([4 * width], True)])
        enter, candidate, forget, leave = _halves(_times(concat([inputs, hidden], axis=1), weight, bias), 4)
        kept = elementwise_mul(cell, self._gate(forget + self.forget_bias))
        cell = elementwise_add(kept, elementwise_mul(self._gate(enter), self._activation(candidate)))
        hidden = elementwise_mul(self._activation(cell), self._gate(leave))
        return hidden, [hidden, cell]

    @property
    def state_shape(self) -> list[list[int]]:
        return [[self.hidden_size], [self.hidden_size]]

    @property
    def state_dtype(self) -> list[str]:
        return ["float32", "float32"]


def rnn(
    cell: RNNCell,
    inputs: Any,
    initial_states: Any = None,
    sequence_length: Variable | None = None,
    time_major: bool = False,
    is_reverse: bool = False,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """Run a cell over dense sequences; returns (the outputs of all steps, the states after the last).

    Args:
        cell: an RNNCell.
        inputs: [batch, time, ...], or with `time_major` [time, batch, ...]; or a structure of such.
        initial_states: in the cell's structure; zeros when None.
        sequence_length: integers [batch]: after the end of a sequence its states stay as they are.
        time_major: True if time is the first dimension, of inputs and outputs.
        is_reverse: go from the last step to the first.
        kwargs: are passed to the cell.

    Raises TypeError if `cell` has no `call`.
    """
    if not hasattr(cell, "call"):
        raise TypeError(f"rnn, cell: expected an RNNCell, found {type(cell).__name__}")

    def turned(x: Variable) -> Variable:
        return transpose(x, [1, 0, *range(2, len(x.shape))])

    def backwards(x: Variable) -> Variable:
        return reverse(x, axis=[0])

    if initial_states is None:
        initial_states = cell.get_initial_states(batch_ref=inputs, batch_dim_idx=1 if time_major else 0)
    if not time_major:
        inputs = _map(turned, inputs)
    mask = None
    if sequence_length is not None:
        steps = emit(
            "slice", {"Input": emit("shape", {"Input": _flat(inputs)[0]})}, {"axes": [0], "starts": [0], "ends": [1]}
        )
        mask = turned(sequence_mask(sequence_length, maxlen=steps, dtype=_flat(initial_states)[0].dtype))
    if is_reverse:
        inputs = _map(backwards, inputs)
        mask = backwards(mask) if mask is not None else None
    network = StaticRNN()
    with network.step():
        now = _map(network.step_input, inputs)
        states = _map(lambda s: network.memory(init=s), initial_states)
        outputs, new = cell.call(now, states, **kwargs)
        if _shape_differs(states, new):
            raise errors.ProgramError("rnn: the cell returns states of a different structure than its input states")
        if mask is not None:
            here = network.step_input(mask)
            new = _map(lambda s, n: _kept(s, n, here), states, new)
        _map(network.update_memory, states, new)
        flat = _flat(outputs) + _flat(new)
        for each in flat:
            network.step_output(each)
    found = network() if len(flat) > 1 else [network()]
    n = len(_flat(outputs))
    last = [
        emit("slice", {"Input": v}, {"axes": [0], "starts": [-1], "ends": [2**31 - 1], "decrease_axis": [0]})
        for v in found[n:]
    ]
    results = found[:n]
    if is_reverse:
        results = [backwards(v) for v in results]
    if not time_major:
        results = [turned(v) for v in results]
    return _packed(outputs, results), _packed(new, last)


def _kept(old: Variable, new: Variable, here: Variable) -> Variable:
    """Return `new` for steps inside of the sequence, else `old`."""
    return elementwise_add(elementwise_mul(new, here, axis=0), elementwise_mul(old, 1.0 - here, axis=0))


def _shape_differs(a: Any, b: Any) -> bool:
    return len(_flat(a)) != len(_flat(b))


def _packed(like: Any, values: list[Any]) -> Any:
    """Return the values in the structure of `like`."""
    rest = iter(values)
    return _map(lambda _: next(rest), like)

"""LSTM and GRU of plain operators, over dense sequences of one length: several layers, both directions."""

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from jfluid.ir import unique_name
from jfluid.ir.variable import Variable
from jfluid.layers.activation import sigmoid, tanh
from jfluid.layers.creation import fill_constant
from jfluid.layers.helper import LayerHelper, check_variable
from jfluid.layers.math import elementwise_add, elementwise_mul, matmul
from jfluid.layers.nn import dropout
from jfluid.layers.sequence_lod import sequence_mask
from jfluid.layers.shape import reshape, reverse, split, transpose
from jfluid.layers.static_rnn import StaticRNN
from jfluid.layers.tensor import concat, shape

__all__ = ["BasicGRUUnit", "BasicLSTMUnit", "basic_gru", "basic_lstm"]

Activation = Callable[[Variable], Variable]


def _renamed(attr: Any, suffix: str) -> Any:
    """Return a copy of a ParamAttr with a part added to the name; without a name `attr` itself."""
    if attr is None or getattr(attr, "name", None) is None:
        return attr
    found = copy.deepcopy(attr)
    found.name += suffix
    return found


class _Unit:
    """Step of a recurrent layer; the first call creates the parameters for the width of the input."""

    def __init__(self, name_scope: str, hidden_size: int, param_attr: Any, bias_attr: Any, dtype: Any):
        self._full_name = unique_name.generate(f"{name_scope}/{type(self).__name__}")
        self._helper = LayerHelper(type(self).__name__, name=self._full_name)
        self._width, self._dtype = hidden_size, dtype
        self._param_attr, self._bias_attr = param_attr, bias_attr
        self._made: list[Variable] = []

    def _parameter(self, attr: Any, size: Sequence[int], is_bias: bool = False) -> Variable:
        made = self._helper.create_parameter(attr, size, self._dtype, is_bias=is_bias)
        if made is None:
            raise TypeError(f"{type(self).__name__}: attributes of parameters cannot be False")
        self._made.append(made)
        return made

    def full_name(self) -> str:
        """Return the name that the parameters' names begin with."""
        return self._full_name

    def parameters(self) -> list[Variable]:
        """Return the parameters that were made: none before the first call."""
        return list(self._made)


class BasicGRUUnit(_Unit):
    """Step of a GRU (Cho et al., 2014): h' = u h + (1 - u) c.

    It is called with (input [batch, width], hidden [batch, hidden_size]), and returns the new hidden state.

    Args:
        name_scope: prefix of the parameters' names.
        hidden_size: the width of the state.
        param_attr: ParamAttr of the weights, [width + hidden_size, 2 hidden_size] of both gates and
            [width + hidden_size, hidden_size]; a name gets "_gate" and "_candidate" added.
        bias_attr: ParamAttr of the biases, likewise.
        gate_activation, activation: functions; sigmoid and tanh when None.
        dtype: of the parameters.
    """

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        dtype: Any = "float32",
    ):
        super().__init__(name_scope, hidden_size, param_attr, bias_attr, dtype)
        self._gate, self._candidate = gate_activation or sigmoid, activation or tanh

    def _build(self, input: Variable) -> None:
        rows = input.shape[-1] + self._width
        for part, columns in (("_gate", 2 * self._width), ("_candidate", self._width)):
            self._parameter(_renamed(self._param_attr, part), [rows, columns])
        for part, columns in (("_gate", 2 * self._width), ("_candidate", self._width)):
            self._parameter(_renamed(self._bias_attr, part), [columns], is_bias=True)

    def __call__(self, input: Variable, pre_hidden: Variable) -> Variable:
        return self.forward(input, pre_hidden)

    def forward(self, input: Variable, pre_hidden: Variable) -> Variable:
        """Return the new hidden state."""
        if not self._made:
            self._build(input)
        gate_weight, weight, gate_bias, bias = self._made
        gates = matmul(concat([input, pre_hidden], 1), gate_weight)
        r, u = split(self._gate(elementwise_add(gates, gate_bias)), num_or_sections=2, dim=1)
        candidate = matmul(concat([input, r * pre_hidden], 1), weight)
        c = self._candidate(elementwise_add(candidate, bias))
        return u * pre_hidden + (1.0 - u) * c


class BasicLSTMUnit(_Unit):
    """Step of an LSTM without peepholes (Hochreiter and Schmidhuber, 1997).

    It is called with (input [batch, width], hidden, cell [batch, hidden_size]), and returns (the new hidden state,
    the new cell).

    Args:
        name_scope: prefix of the parameters' names.
        hidden_size: the width of the states.
        param_attr: ParamAttr of the weight, [width + hidden_size, 4 hidden_size]; its columns are
            the input gate, the candidate, the forget gate and the output gate.
        bias_attr: ParamAttr of the bias, [4 hidden_size].
        gate_activation, activation: no effect, as in Fluid, which always takes sigmoid and tanh;
            further activations warn.
        forget_bias: a number that is added to the forget gate before its sigmoid.
        dtype: of the parameters.
    """

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        forget_bias: float = 1.0,
        dtype: Any = "float32",
    ):
        super().__init__(name_scope, hidden_size, param_attr, bias_attr, dtype)
        if gate_activation not in (None, sigmoid) or activation not in (None, tanh):
            warnings.warn(
                "BasicLSTMUnit takes sigmoid and tanh and ignores gate_activation and activation, as in Fluid",
                stacklevel=2,
            )
        self._forget_bias = fill_constant([1], dtype=dtype, value=forget_bias)
        self._forget_bias.stop_gradient = False

    def __call__(self, input: Variable, pre_hidden: Variable, pre_cell: Variable) -> tuple[Variable, Variable]:
        return self.forward(input, pre_hidden, pre_cell)

    def forward(self, input: Variable, pre_hidden: Variable, pre_cell: Variable) -> tuple[Variable, Variable]:
        """Return (the new hidden state, the new cell)."""
        if not self._made:
            self._parameter(self._param_attr, [input.shape[-1] + self._width, 4 * self._width])
            self._parameter(self._bias_attr, [4 * self._width], is_bias=True)
        weight, bias = self._made
        gates = elementwise_add(matmul(concat([input, pre_hidden], 1), weight), bias)
        i, j, f, o = split(gates, num_or_sections=4, dim=-1)
        kept = elementwise_mul(pre_cell, sigmoid(elementwise_add(f, self._forget_bias)))
        cell = elementwise_add(kept, elementwise_mul(sigmoid(i), tanh(j)))
        return tanh(cell) * sigmoid(o), cell


Step = Callable[[Variable, list[Variable]], list[Variable]]


def _masked(new: Variable, old: Variable, here: Variable) -> Variable:
    """Return `new` where the step is inside of the sequence, else `old`."""
    kept = elementwise_mul(old, here - 1.0, axis=0)
    return elementwise_mul(new, here, axis=0) - kept


def _one_way(
    x: Variable,
    units: Sequence[Step],
    starts: Sequence[Sequence[Variable]] | None,
    states: int,
    width: int,
    mask: Variable | None,
    after: Callable[[Variable], Variable],
) -> tuple[Variable, list[Variable]]:
    """Run layers of steps over [time, batch, ...].

    Returns the outputs of the last layer, and for each kind of state the final states of all layers,
    [layers, batch, width].
    """
    rnn = StaticRNN()
    with rnn.step():
        now = rnn.step_input(x)
        here = rnn.step_input(mask) if mask is not None else None
        for layer, unit in enumerate(units):
            if starts is not None:
                before = [rnn.memory(init=starts[k][layer]) for k in range(states)]
            else:
                before = [rnn.memory(batch_ref=x, shape=[-1, width]) for _ in range(states)]
            new = unit(now, before)
            if here is not None:
                new = [_masked(n, b, here) for n, b in zip(new, before, strict=True)]
            for b, n in zip(before, new, strict=True):
                rnn.update_memory(b, n)
                rnn.step_output(n)
            now = after(new[0])
        rnn.step_output(now)
    outs = rnn()
    last = [
        reshape(
            concat([outs[layer * states + k][-1] for layer in range(len(units))], axis=0),
            shape=[len(units), -1, width],
        )
        for k in range(states)
    ]
    return outs[-1], last


def _both_ways(
    x: Variable,
    units: Sequence[Sequence[Step]],
    init: Sequence[Variable | None],
    width: int,
    sequence_length: Variable | None,
    batch_first: bool,
    after: Callable[[Variable], Variable],
) -> tuple[Variable, ...]:
    """Run the units of each direction; `init` has [layers * directions, batch, width] or None for each state."""
    check_variable(x, "contrib.layers", "input")
    ways, layers, states = len(units), len(units[0]), len(init)
    if batch_first:
        x = transpose(x, [1, 0, 2])
    mask = None
    if sequence_length is not None:
        mask = transpose(sequence_mask(sequence_length, maxlen=shape(x)[0], dtype="float32"), [1, 0])
    starts = None
    if init[0] is not None:
        starts = [reshape(s, shape=[layers, ways, -1, width]) for s in init if s is not None]
        if len(starts) < states:
            raise TypeError("contrib.layers.basic_lstm: give both init_hidden and init_cell, or none")
    outs, lasts = [], []
    for way, own in enumerate(units):
        steps, inside = x, mask
        if way:
            steps = reverse(x, axis=[0])
            inside = reverse(mask, axis=[0]) if mask is not None else None
        begin: list[list[Variable]] | None = None
        if starts is not None:
            begin = [[s[layer, way] for layer in range(layers)] for s in starts]
        out, last = _one_way(steps, own, begin, states, width, inside, after)
        outs.append(reverse(out, axis=[0]) if way else out)
        lasts.append(last)
    out = concat(outs, axis=2) if ways > 1 else outs[0]
    if batch_first:
        out = transpose(out, [1, 0, 2])
    if ways == 1:
        return (out, *lasts[0])
    joined = [concat([last[k] for last in lasts], axis=1) for k in range(states)]
    return (out, *(reshape(j, shape=[layers * ways, -1, width]) for j in joined))


def _attributes(
    param_attr: Any, bias_attr: Any, name: str, num_layers: int, bidirectional: bool
) -> list[list[tuple[str, Any, Any]]]:
    """Return (name, attribute of weights, of biases) of each layer, by direction."""
    return [
        [
            (
                f"{name}{middle}_layers_{i}",
                _renamed(param_attr, f"_{way}_w_{i}"),
                _renamed(bias_attr, f"_{way}_b_{i}"),
            )
            for i in range(num_layers)
        ]
        for way, middle in (("fw", ""), ("bw", "_reverse"))[: 2 if bidirectional else 1]
    ]


def basic_gru(
    input: Variable,
    init_hidden: Variable | None,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Variable | None = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: Any = None,
    bias_attr: Any = None,
    gate_activation: Activation | None = None,
    activation: Activation | None = None,
    dtype: Any = "float32",
    name: str = "basic_gru",
) -> tuple[Variable, Variable]:
    """Run layers of `BasicGRUUnit` over sequences.

    Args:
        input: [batch, time, width], or [time, batch, width] without `batch_first`.
        init_hidden: [num_layers * directions, batch, hidden_size]; None for zeros.
        hidden_size: the width of the states.
        num_layers: each takes the outputs of the one before, in its own direction.
        sequence_length: integers [batch]: after so many steps states stay as they are.
        dropout_prob: of the outputs of each layer.
        bidirectional: whether there are layers that run from the end, too.
        batch_first: whether the batch is the first dimension of input and output.
        param_attr, bias_attr: ParamAttr of all layers; a name gets the direction and the layer
            added.
        gate_activation, activation, dtype: as those of BasicGRUUnit.
        name: prefix of the parameters' names.

    Returns:
        (outputs of the last layer, [batch, time, directions * hidden_size]; hidden states after the
            last step, [num_layers * directions, batch, hidden_size]).
    """
    units = [
        [BasicGRUUnit(scope, hidden_size, w, b, gate_activation, activation, dtype) for scope, w, b in way]
        for way in _attributes(param_attr, bias_attr, name, num_layers, bidirectional)
    ]

    def step(unit: BasicGRUUnit) -> Step:
        return lambda x, states: [unit(x, states[0])]

    def after(out: Variable) -> Variable:
        return dropout(out, dropout_prob=dropout_prob) if dropout_prob else out

    steps = [[step(u) for u in way] for way in units]
    out, last = _both_ways(input, steps, [init_hidden], hidden_size, sequence_length, batch_first, after)
    return out, last


def basic_lstm(
    input: Variable,
    init_hidden: Variable | None,
    init_cell: Variable | None,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Variable | None = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: Any = None,
    bias_attr: Any = None,
    gate_activation: Activation | None = None,
    activation: Activation | None = None,
    forget_bias: float = 1.0,
    dtype: Any = "float32",
    name: str = "basic_lstm",
) -> tuple[Variable, Variable, Variable]:
    """Run layers of `BasicLSTMUnit` over sequences.

    Args:
        input: [batch, time, width], or [time, batch, width] without `batch_first`.
        init_hidden, init_cell: [num_layers * directions, batch, hidden_size]; None for zeros.
        hidden_size: the width of the states.
        num_layers: each takes the outputs of the one before, in its own direction.
        sequence_length: integers [batch]: after so many steps states stay as they are.
        dropout_prob: of the outputs of each layer, which are scaled up in training.
        bidirectional: whether there are layers that run from the end, too.
        batch_first: whether the batch is the first dimension of input and output.
        param_attr, bias_attr: ParamAttr of all layers; a name gets the direction and the layer
            added.
        gate_activation, activation, forget_bias, dtype: as those of BasicLSTMUnit.
        name: prefix of the parameters' names.

    Returns:
        (outputs of the last layer, [batch, time, directions * hidden_size]; hidden states and cells
            after the last step, each [num_layers * directions, batch, hidden_size]).
    """
    units = [
        [
            BasicLSTMUnit(scope, hidden_size, w, b, gate_activation, activation, forget_bias, dtype)
            for scope, w, b in way
        ]
        for way in _attributes(param_attr, bias_attr, name, num_layers, bidirectional)
    ]

    def step(unit: BasicLSTMUnit) -> Step:
        return lambda x, states: list(unit(x, *states))

    def after(out: Variable) -> Variable:
        if not dropout_prob:
            return out
        return dropout(out, dropout_prob, dropout_implementation="upscale_in_train")

    steps = [[step(u) for u in way] for way in units]
    init = [init_hidden, init_cell]
    out, hidden, cell = _both_ways(input, steps, init, hidden_size, sequence_length, batch_first, after)
    return out, hidden, cell

"""Recurrent layers over sequences, and their single steps."""

from typing import Any

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable, emit
from jfluid.layers.nn import fc
from jfluid.layers.tensor import concat

__all__ = ["dynamic_gru", "dynamic_lstm", "dynamic_lstmp", "gather_tree", "gru_unit", "lstm", "lstm_unit"]

_NUMBERS = {"identity": 0, "sigmoid": 1, "tanh": 2, "relu": 3}


def activation_number(layer: str, argument: str, name: str) -> int:
    """Return the number that recurrent operators know an activation by.

    Raises ProgramError for a different name.
    """
    if name not in _NUMBERS:
        raise errors.ProgramError(f"{layer}, {argument}: expected one of {', '.join(_NUMBERS)}, found {name!r}")
    return _NUMBERS[name]


def _divided(layer: str, size: int, by: int) -> int:
    if size <= 0 or size % by:
        raise errors.ShapeError(f"{layer}, size: expected a positive multiple of {by}, found {size}")
    return size // by


def dynamic_lstm(
    input: Variable,
    size: int,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    dtype: str = "float32",
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Run an LSTM, by default with peepholes, over each sequence (Gers et al. 2002).

    Args:
        input: projected inputs [rows, size] with a LoD, from an `fc` of width `size`.
        size: four times the width of the hidden state.
        h_0: initial states [number of sequences, size / 4]; zeros when None. Give both `h_0` and `c_0`, or
            neither.
        c_0: initial cells, like `h_0`.
        param_attr: ParamAttr of the recurrent weight, [size / 4, size].
        bias_attr: ParamAttr of the bias: [1, size]; with peepholes [1, 7 size / 4], where the peepholes' weights
            follow the biases.
        use_peepholes: True if gates see the cells.
        is_reverse: go from the end of each sequence to its start.
        gate_activation: "sigmoid", "tanh", "relu" or "identity".
        cell_activation: see `gate_activation`.
        candidate_activation: see `gate_activation`.
        dtype: of the parameters.
        name: see `jfluid.layers`.

    Returns:
        (hidden states, cells), each [rows, size / 4] with the LoD of `input`.

    Raises ShapeError if 4 does not divide `size`, ProgramError for one initial state without the
    other or another activation.
    """
    for argument, value in (
        ("gate_activation", gate_activation),
        ("cell_activation", cell_activation),
        ("candidate_activation", candidate_activation),
    ):
        activation_number("dynamic_lstm", argument, value)
    check_variable(input, "dynamic_lstm", "input")
    helper = LayerHelper("lstm", param_attr=param_attr, bias_attr=bias_attr, name=name)
    width = _divided("dynamic_lstm", size, 4)
    weight = helper.create_parameter(attr=helper.param_attr, shape=[width, 4 * width], dtype=dtype)
    bias = helper.create_parameter(
        attr=helper.bias_attr, shape=[1, (7 if use_peepholes else 4) * width], dtype=dtype, is_bias=True
    )
    if c_0 is not None and h_0 is None:
        raise errors.ProgramError("dynamic_lstm: c_0 needs h_0")
    outs = {
        s: helper.create_variable_for_type_inference(dtype) for s in ("Hidden", "Cell", "BatchGate", "BatchCellPreAct")
    }
    helper.append_op(
        type="lstm",
        inputs=_given({"Input": input, "Weight": weight, "Bias": bias, "H0": h_0, "C0": c_0}),
        outputs=outs,
        attrs={
            "use_peepholes": use_peepholes,
            "is_reverse": is_reverse,
            "gate_activation": gate_activation,
            "cell_activation": cell_activation,
            "candidate_activation": candidate_activation,
        },
    )
    return outs["Hidden"], outs["Cell"]


def _given(inputs: dict[str, Variable | None]) -> dict[str, Variable]:
    return {slot: v for slot, v in inputs.items() if v is not None}


def dynamic_lstmp(
    input: Variable,
    size: int,
    proj_size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    proj_activation: str = "tanh",
    dtype: str = "float32",
    name: str | None = None,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
) -> tuple[Variable, Variable]:
    """Run an LSTM with a projected recurrent state over each sequence (Sak et al. 2014).

    Args:
        input: see `dynamic_lstm`.
        size: see `dynamic_lstm`.
        proj_size: the width of the projection.
        param_attr: ParamAttr of the recurrent weight, [proj_size, size], and of the projection,
            [size / 4, proj_size].
        bias_attr: see `dynamic_lstm`.
        use_peepholes: see `dynamic_lstm`.
        is_reverse: see `dynamic_lstm`.
        gate_activation: see `dynamic_lstm`.
        cell_activation: see `dynamic_lstm`.
        candidate_activation: see `dynamic_lstm`.
        proj_activation: activation of the projection.
        dtype: dtype of the parameters.
        name: see `jfluid.layers`.
        h_0: the initial projected state [number of sequences, proj_size]; zeros when None.
        c_0: see `dynamic_lstm`.
        cell_clip: bound on the magnitude of cells; None for none.
        proj_clip: bound on the magnitude of projections; None for none.

    Returns:
        (projections [rows, proj_size], cells [rows, size / 4]), with the LoD of `input`.

    For errors see `dynamic_lstm`.
    """
    check_variable(input, "dynamic_lstmp", "input")
    helper = LayerHelper("lstmp", param_attr=param_attr, bias_attr=bias_attr, name=name)
    width = _divided("dynamic_lstmp", size, 4)
    weight = helper.create_parameter(attr=helper.param_attr, shape=[proj_size, 4 * width], dtype=dtype)
    projection = helper.create_parameter(attr=helper.param_attr, shape=[width, proj_size], dtype=dtype)
    bias = helper.create_parameter(
        attr=helper.bias_attr, shape=[1, (7 if use_peepholes else 4) * width], dtype=dtype, is_bias=True
    )
    if c_0 is not None and h_0 is None:
        raise errors.ProgramError("dynamic_lstmp: c_0 needs h_0")
    outs = {
        s: helper.create_variable_for_type_inference(dtype)
        for s in ("Projection", "Cell", "BatchHidden", "BatchGate", "BatchCellPreAct")
    }
    attrs = {
        "use_peepholes": use_peepholes,
        "is_reverse": is_reverse,
        "gate_activation": gate_activation,
        "cell_activation": cell_activation,
        "candidate_activation": candidate_activation,
        "proj_activation": proj_activation,
        "cell_clip": cell_clip or 0.0,
        "proj_clip": proj_clip or 0.0,
    }
    inputs = _given({"Input": input, "Weight": weight, "ProjWeight": projection, "Bias": bias, "H0": h_0, "C0": c_0})
    helper.append_op(type="lstmp", inputs=inputs, outputs=outs, attrs=attrs)
    return outs["Projection"], outs["Cell"]


def dynamic_gru(
    input: Variable,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    candidate_activation: str = "tanh",
    h_0: Variable | None = None,
    origin_mode: bool = False,
) -> Variable:
    """Run a GRU over each sequence (Cho et al. 2014; Chung et al. 2014).

    Args:
        input: projected inputs [rows, 3 size] with a LoD: update, reset, candidate.
        size: the width of the hidden state.
        param_attr: ParamAttr of the recurrent weight, [size, 3 size].
        bias_attr: ParamAttr of the bias, [1, 3 size]; False for none.
        is_reverse: go from the end of each sequence to its start.
        gate_activation: "sigmoid", "tanh", "relu" or "identity".
        candidate_activation: see `gate_activation`.
        h_0: the initial state [number of sequences, size]; zeros when None.
        origin_mode: compute h' = u h + (1 - u) c as in Cho et al., instead of (1 - u) h + u c.

    Returns:
        Hidden states [rows, size] with the LoD of `input`.

    Raises ProgramError for another activation.
    """
    for argument, value in (("gate_activation", gate_activation), ("candidate_activation", candidate_activation)):
        activation_number("dynamic_gru", argument, value)
    check_variable(input, "dynamic_gru", "input")
    helper = LayerHelper("gru", input=input, param_attr=param_attr, bias_attr=bias_attr)
    dtype = helper.input_dtype()
    weight = helper.create_parameter(attr=helper.param_attr, shape=[size, 3 * size], dtype=dtype)
    bias = helper.create_parameter(attr=helper.bias_attr, shape=[1, 3 * size], dtype=dtype, is_bias=True)
    outs = {
        s: helper.create_variable_for_type_inference(dtype)
        for s in ("Hidden", "BatchGate", "BatchResetHiddenPrev", "BatchHidden")
    }
    helper.append_op(
        type="gru",
        inputs=_given({"Input": input, "Weight": weight, "Bias": bias, "H0": h_0}),
        outputs=outs,
        attrs={
            "is_reverse": is_reverse,
            "gate_activation": gate_activation,
            "activation": candidate_activation,
            "origin_mode": origin_mode,
        },
    )
    return outs["Hidden"]


def gru_unit(
    input: Variable,
    hidden: Variable,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    origin_mode: bool = False,
) -> tuple[Variable, Variable, Variable]:
    """Run one step of a GRU.

    Args:
        input: projected inputs [batch, size]: update, reset, candidate.
        hidden: the former state [batch, size / 3].
        size: three times the width of the state.
        param_attr: ParamAttr of the recurrent weight, [size / 3, size].
        bias_attr: ParamAttr of the bias, [1, size]; False for none.
        activation: activation of the candidate: "sigmoid", "tanh", "relu" or "identity".
        gate_activation: activation of the gates, like `activation`.
        origin_mode: see `dynamic_gru`.

    Returns:
        (the new state [batch, size / 3], the reset state [batch, size / 3], gates and candidate
            [batch, size]).
    """
    check_variable(input, "gru_unit", "input")
    attrs = {
        "activation": activation_number("gru_unit", "activation", activation),
        "gate_activation": activation_number("gru_unit", "gate_activation", gate_activation),
        "origin_mode": origin_mode,
    }
    helper = LayerHelper("gru_unit", input=input, param_attr=param_attr, bias_attr=bias_attr)
    dtype = helper.input_dtype()
    width = _divided("gru_unit", size, 3)
    weight = helper.create_parameter(attr=helper.param_attr, shape=[width, 3 * width], dtype=dtype)
    gate, reset, new = (helper.create_variable_for_type_inference(dtype) for _ in range(3))
    bias = helper.create_parameter(attr=helper.bias_attr, shape=[1, 3 * width], dtype=dtype, is_bias=True)
    helper.append_op(
        type="gru_unit",
        inputs=_given({"Input": input, "HiddenPrev": hidden, "Weight": weight, "Bias": bias}),
        outputs={"Gate": gate, "ResetHiddenPrev": reset, "Hidden": new},
        attrs=attrs,
    )
    return new, reset, gate


def lstm_unit(
    x_t: Variable,
    hidden_t_prev: Variable,
    cell_t_prev: Variable,
    forget_bias: float = 0.0,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Run one step of an LSTM without peepholes: an `fc` of input and former state, then the gates.

    Args:
        x_t: the input [batch, inputs].
        hidden_t_prev: the former state [batch, width].
        cell_t_prev: the former cell [batch, width].
        forget_bias: is added to the forget gate before its sigmoid.
        param_attr: ParamAttr of the weight, [inputs + width, 4 width].
        bias_attr: ParamAttr of the bias, [4 width].
        name: see `jfluid.layers`.

    Returns:
        (the new hidden state, the new cell), each [batch, width].

    Raises ShapeError if the shapes do not match.
    """
    check_variable(x_t, "lstm_unit", "x_t")
    for argument, value in (("x_t", x_t), ("hidden_t_prev", hidden_t_prev), ("cell_t_prev", cell_t_prev)):
        if len(value.shape) != 2:
            raise errors.ShapeError(f"lstm_unit, {argument}: expected two dimensions, found {list(value.shape)}")
    if hidden_t_prev.shape[1] != cell_t_prev.shape[1]:
        raise errors.ShapeError(
            f"lstm_unit: hidden_t_prev has {hidden_t_prev.shape[1]} columns, cell_t_prev {cell_t_prev.shape[1]}"
        )
    helper = LayerHelper("lstm_unit", name=name)
    joined = concat(input=[x_t, hidden_t_prev], axis=1)
    projected = fc(
        input=joined,
        size=4 * cell_t_prev.shape[1],
        param_attr=param_attr,
        bias_attr=True if bias_attr is None else bias_attr,
    )
    cell, hidden = (helper.create_variable_for_type_inference(x_t.dtype) for _ in range(2))
    helper.append_op(
        type="lstm_unit",
        inputs={"X": projected, "C_prev": cell_t_prev},
        outputs={"C": cell, "H": hidden},
        attrs={"forget_bias": forget_bias},
    )
    return hidden, cell


def lstm(
    input: Variable,
    init_h: Variable,
    init_c: Variable,
    max_len: int,
    hidden_size: int,
    num_layers: int,
    dropout_prob: float = 0.0,
    is_bidirec: bool = False,
    is_test: bool = False,
    name: str | None = None,
    default_initializer: Any = None,
    seed: int = -1,
) -> tuple[Variable, Variable, Variable]:
    """Run several layers of LSTM over dense sequences, as cuDNN does.

    All weights lie in one parameter, in cuDNN's order: for each layer and direction the input
    weights [4 hidden, inputs] and the recurrent ones [4 hidden, hidden] (input, forget, candidate,
    output), then the biases of both.

    Args:
        input: [time, batch, inputs].
        init_h: initial states [num_layers (times 2 when bidirectional), batch, hidden_size].
        init_c: initial cells, like `init_h`.
        max_len: no effect: the length is that of `input`.
        hidden_size: the width of the state.
        num_layers: the number of layers.
        dropout_prob: the probability of dropout between the layers.
        is_bidirec: run each layer in both directions; the next one sees both.
        is_test: True if this is the test form, without dropout.
        name: see `jfluid.layers`.
        default_initializer: of the parameter; None is Xavier's.
        seed: of the dropout; -1 draws anew in each step.

    Returns:
        (outputs [time, batch, hidden_size (times 2 when bidirectional)], the last hidden states,
            the last cells), the states in the shape of `init_h`.
    """
    check_variable(input, "lstm", "input")
    helper = LayerHelper("cudnn_lstm", input=input, name=name)
    dtype = input.dtype
    directions = 2 if is_bidirec else 1
    size, width = 0, input.shape[-1]
    for layer in range(num_layers):
        inputs = width if layer == 0 else hidden_size * directions
        size += (inputs + hidden_size + 2) * hidden_size * 4 * directions
    weight = helper.create_parameter(
        attr=helper.param_attr, shape=[size], dtype=dtype, default_initializer=default_initializer
    )
    out, last_h, last_c = (helper.create_variable_for_type_inference(dtype) for _ in range(3))
    helper.append_op(
        type="cudnn_lstm",
        inputs={"Input": input, "InitH": init_h, "InitC": init_c, "W": weight},
        outputs={"Out": out, "last_h": last_h, "last_c": last_c},
        attrs={
            "max_len": max_len,
            "is_bidirec": is_bidirec,
            "input_size": width,
            "hidden_size": hidden_size,
            "num_layers": num_layers,
            "is_test": is_test,
            "dropout_prob": dropout_prob,
            "seed": seed,
        },
    )
    return out, last_h, last_c


def gather_tree(ids: Variable, parents: Variable) -> Variable:
    """Return the whole sequences of a beam search, by following `parents` from the last step to the first.

    Args:
        ids: integers [time, batch, beam]: the token of each step.
        parents: integers [time, batch, beam]: the index of the parent beam in the step before.

    Returns:
        Tokens [time, batch, beam].
    """
    return emit("gather_tree", {"Ids": ids, "Parents": parents})

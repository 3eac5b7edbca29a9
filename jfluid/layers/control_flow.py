"""Loops and conditions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jfluid import errors
from jfluid.ir.program import default_main_program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers.arrays import array_to_lod_tensor as array_to_lod_tensor
from jfluid.layers.arrays import lod_rank_table as lod_rank_table
from jfluid.layers.arrays import lod_tensor_to_array as lod_tensor_to_array
from jfluid.layers.arrays import max_sequence_len as max_sequence_len
from jfluid.layers.arrays import merge_lod_tensor as merge_lod_tensor
from jfluid.layers.arrays import shrink_memory as shrink_memory
from jfluid.layers.arrays import split_lod_tensor as split_lod_tensor
from jfluid.layers.blocks import Inside, captured, conditional
from jfluid.layers.creation import assign, fill_constant
from jfluid.layers.helper import LayerHelper, emit

__all__ = ["Switch", "While", "case", "cond", "switch_case", "while_loop"]


def _check_condition(layer: str, argument: str, value: Any) -> None:
    if not isinstance(value, Variable) or value.dtype != VarType.BOOL:
        found = value.dtype.name if isinstance(value, Variable) else type(value).__name__
        raise TypeError(f"{layer}, {argument}: expected a boolean Variable, found {found}")
    if any(d not in (1, -1) for d in value.shape):
        raise TypeError(f"{layer}, {argument}: expected one element, found shape {list(value.shape)}")


class While:
    """Loop that runs its block while a condition is true.

        i = layers.fill_constant([1], "int64", 0)
        going = layers.less_than(i, limit)
        loop = layers.While(going)
        with loop.block():
            ...
            layers.increment(i)
            layers.less_than(i, limit, cond=going)

    The block must write the condition. After the loop, variables from outside have the values that
    the last iteration wrote. A loop that gradients flow through, or that writes arrays, needs a
    bound that follows from its condition: a counter compared with a constant or with the length of
    sequences.

    Args:
        cond: a boolean Variable of one element.
        is_test: stays in the program without effect.

    Raises TypeError for another `cond`, ProgramError when the block does not write it.
    """

    BEFORE_WHILE_BLOCK, IN_WHILE_BLOCK, AFTER_WHILE_BLOCK = range(3)

    def __init__(self, cond: Variable, is_test: bool = False, name: str | None = None):
        self.helper = LayerHelper("while", name=name)
        _check_condition("While", "cond", cond)
        self.status, self.cond_var, self.is_test = While.BEFORE_WHILE_BLOCK, cond, is_test

    def block(self) -> "_WhileBlock":
        """Return the context in which the operators of the loop's body are built."""
        return _WhileBlock(self)


class _WhileBlock(Inside):
    def __init__(self, loop: While):
        super().__init__()
        self.loop = loop

    def __enter__(self) -> Any:
        self.loop.status = While.IN_WHILE_BLOCK
        return super().__enter__()

    def close(self) -> None:
        self.loop.status = While.AFTER_WHILE_BLOCK
        reads, writes = captured(self.inside)
        condition = self.loop.cond_var
        if condition.name not in writes:
            raise errors.ProgramError(
                f"While: the block never writes the condition {condition.name}, so that the loop would "
                "not end; compute it anew, for example with layers.less_than(..., cond=condition)"
            )
        scope = self.outside.create_var(type=VarType.STEP_SCOPES)
        names = sorted((set(reads) | set(writes)) - {condition.name})
        self.outside.append_op(
            "while",
            {"X": names, "Condition": [condition]},
            {"Out": writes, "StepScopes": [scope]},
            {"sub_block": self.inside, "is_test": self.loop.is_test},
        )


def _flat(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [x for k in sorted(value) for x in _flat(value[k])]
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in _flat(v)]
    return [value]


def _map(function: Callable[..., Any], *values: Any) -> Any:
    """Apply `function` to the leaves of nested lists, tuples and dicts, all of one structure."""
    first: Any = values[0]
    kind: Any = type(first)
    if isinstance(first, Mapping):
        return kind((k, _map(function, *(v[k] for v in values))) for k in first)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return kind(*(_map(function, *parts) for parts in zip(*values)))
    if isinstance(first, (list, tuple)):
        return kind(_map(function, *parts) for parts in zip(*values))
    return function(*values)


def _shape_of(value: Any) -> Any:
    """Return the structure of a nested value, for comparing."""
    if isinstance(value, Mapping):
        return {k: _shape_of(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shape_of(v) for v in value]
    return None


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Sequence[Any],
    is_test: bool = False,
    name: str | None = None,
) -> Sequence[Any]:
    """Run `vars = body(*vars)` while `cond(*vars)` holds.

    Args:
        cond: a function of the loop variables that returns a boolean Variable of one element.
        body: a function of the loop variables that returns variables of the same structure, shapes and dtypes.
        loop_vars: a list or tuple of Variables, arrays of tensors, or nested structures of them.
        is_test: stays in the program without effect.
        name: prefix of the names of results.

    Returns:
        `loop_vars`, which have their values after the loop. What `While` says of bounds holds here,
            too. In dygraph mode, what `body` returned last.

    Raises TypeError for arguments of other kinds, ProgramError for an empty list or another
    structure from `body`.
    """
    if not callable(cond) or not callable(body):
        raise TypeError("while_loop: cond and body are functions")
    if not isinstance(loop_vars, (list, tuple)):
        raise TypeError(f"while_loop, loop_vars: expected a list or tuple, found {type(loop_vars).__name__}")
    if not loop_vars:
        raise errors.ProgramError("while_loop, loop_vars: expected at least one variable")
    condition = cond(*loop_vars)
    _check_condition("while_loop", "the result of cond", condition)
    if default_main_program().eager:
        while condition:
            results = body(*loop_vars)
            loop_vars = results if isinstance(results, (list, tuple)) else [results]
            condition = cond(*loop_vars)
        return loop_vars
    with While(condition, is_test, name).block():
        results = body(*loop_vars)
        results = results if isinstance(results, (list, tuple)) else [results]
        if _shape_of(list(results)) != _shape_of(list(loop_vars)):
            raise errors.ProgramError(
                "while_loop: body returns a different structure than loop_vars: "
                f"{_shape_of(list(results))} for {_shape_of(list(loop_vars))}"
            )
        again = cond(*results)
        for new, old in zip(_flat(results), _flat(loop_vars)):
            if old.type != VarType.LOD_TENSOR_ARRAY:  # arrays are written in place
                assign(new, old)
        assign(again, condition)
    return loop_vars


def _to_outside(value: Any) -> Any:
    """Return a variable outside of the block that gets the value of one inside."""
    if not isinstance(value, Variable):
        raise TypeError(f"a branch may return Variables (or nothing), found {type(value).__name__}")
    outside = default_main_program().current_block().parent
    assert outside is not None  # a branch's block is nested
    out = outside.create_var(dtype=value.dtype, shape=value.shape, lod_level=value.lod_level, type=value.type)
    return assign(value, out)


def cond(
    pred: Variable,
    true_fn: Callable[..., Any] | None = None,
    false_fn: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """Run `true_fn` if `pred` is true, else `false_fn`, and return the result.

    A step runs only the selected branch.

    Args:
        pred: a boolean Variable of one element.
        true_fn: function that builds the operators of a branch and returns Variables or None. Both
            functions return the same (nested) structure, shapes and dtypes. None is an empty branch.
        false_fn: see `true_fn`.
        name: no effect.

    Raises TypeError for arguments of wrong types, ProgramError if the branches differ in structure.
    """
    _check_condition("cond", "pred", pred)
    for argument, function in (("true_fn", true_fn), ("false_fn", false_fn)):
        if function is not None and not callable(function):
            raise TypeError(f"cond, {argument}: expected a function, found {type(function).__name__}")
    if default_main_program().eager:
        chosen = true_fn if pred else false_fn
        return None if chosen is None else chosen()
    LayerHelper("cond", name=name)
    results: list[Any] = []
    for function, fails in ((true_fn, False), (false_fn, True)):
        results.append(None)
        if function is None:
            continue
        with conditional(emit("logical_not", {"X": pred}) if fails else pred):
            found = function()
            results[-1] = None if found is None else _map(_to_outside, found)
    true, false = results
    if true is None and false is None:
        return None
    if true is None or false is None or _shape_of(true) != _shape_of(false):
        found = [None if r is None else _shape_of(r) for r in (true, false)]
        raise errors.ProgramError(f"cond: the branches return different structures: {found[0]} and {found[1]}")
    mask = emit("cast", {"X": pred}, {"in_dtype": int(pred.dtype), "out_dtype": int(VarType.INT32)})
    return _map(lambda f, t: _select([f, t], mask), false, true)


def _select(inputs: Sequence[Variable], mask: Variable) -> Variable:
    block = default_main_program().current_block()
    out = block.create_var(dtype=inputs[0].dtype)
    block.append_op("select_input", {"X": list(inputs), "Mask": mask}, {"Out": out})
    return out


def case(
    pred_fn_pairs: Sequence[tuple[Variable, Callable[..., Any]]],
    default: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """Run the function of the first true condition, and return the result.

    Args:
        pred_fn_pairs: pairs of a boolean Variable of one element and a function; see `cond` for results of
            functions.
        default: function that runs if no condition is true; the last function of the pairs when None.
        name: no effect.

    Raises TypeError for arguments of wrong types.
    """
    if not isinstance(pred_fn_pairs, (list, tuple)) or not pred_fn_pairs:
        raise TypeError("case, pred_fn_pairs: expected a list of (condition, function) pairs")
    for pair in pred_fn_pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not callable(pair[1]):
            raise TypeError(f"case, pred_fn_pairs: expected (condition, function), found {pair!r}")
        _check_condition("case", "a condition", pair[0])
    if default is not None and not callable(default):
        raise TypeError(f"case, default: expected a function, found {type(default).__name__}")
    pairs = list(pred_fn_pairs)
    final = default or pairs.pop()[1]
    if not pairs:
        return final()
    for pred, function in reversed(pairs):
        final = _branch(pred, function, final)
    return final()


def _branch(pred: Variable, function: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: cond(pred, function, otherwise)


def switch_case(
    branch_index: Variable, branch_fns: Any, default: Callable[..., Any] | None = None, name: str | None = None
) -> Any:
    """Run the function with the index `branch_index`, and return its result.

    Args:
        branch_index: an integer Variable of one element.
        branch_fns: a dict from integers to functions, or a list of functions or of (integer,
            function) pairs; see `cond` for results of functions.
        default: function that runs if no index matches; the function of the largest index when None.
        name: no effect.

    Raises TypeError for arguments of wrong types, ProgramError for a duplicate index.
    """
    if not isinstance(branch_index, Variable) or branch_index.dtype not in (
        VarType.INT32,
        VarType.INT64,
        VarType.UINT8,
    ):
        raise TypeError("switch_case, branch_index: expected an integer Variable of one element")
    if not isinstance(branch_fns, (dict, list, tuple)) or not branch_fns:
        raise TypeError("switch_case, branch_fns: expected a dict or a list of functions")
    pairs = list(branch_fns.items()) if isinstance(branch_fns, dict) else list(branch_fns)
    if all(callable(f) for f in pairs):
        pairs = list(enumerate(pairs))
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], int) or not callable(pair[1]):
            raise TypeError(f"switch_case, branch_fns: expected (integer, function), found {pair!r}")
    if len({i for i, _ in pairs}) != len(pairs):
        raise errors.ProgramError(f"switch_case, branch_fns: an index occurs twice in {[i for i, _ in pairs]}")
    pairs.sort(key=lambda pair: pair[0])
    final = default or pairs.pop()[1]
    for index, function in reversed(pairs):
        wanted = fill_constant([1], branch_index.dtype, index)
        final = _branch(emit("equal", {"X": branch_index, "Y": wanted}), function, final)
    return final()


class ConditionalBlock:
    """Block that runs if all of `inputs` are true; prefer `Switch` or `cond`.

        with ConditionalBlock([holds], is_scalar_condition=True).block():
            layers.assign(small, rate)

    Args:
        inputs: boolean Variables of one element. Without `is_scalar_condition` Variables whose rows
            the block computes with.
        is_scalar_condition: True if they are conditions.
        name: of the operator's helper.

    Raises TypeError unless it is a list of Variables.
    """

    def __init__(self, inputs: Sequence[Variable], is_scalar_condition: bool = False, name: str | None = None):
        for each in inputs:
            if not isinstance(each, Variable):
                raise TypeError(f"ConditionalBlock, inputs: expected Variables, found {type(each).__name__}")
        self.inputs, self.is_scalar_condition = inputs, is_scalar_condition
        self.helper = LayerHelper("conditional_block", name=name)

    def block(self) -> conditional:
        """Return a context for the block's operators."""
        return conditional(self.inputs, self.is_scalar_condition)


def select_input(inputs: Sequence[Variable], mask: Variable) -> Variable:
    """Return the Variable of `inputs` at the index `mask`, an int32 Variable of one element.

    Raises TypeError for arguments of wrong types.
    """
    if not isinstance(inputs, (list, tuple)):
        raise TypeError(f"select_input, inputs: expected a list, found {type(inputs).__name__}")
    if not isinstance(mask, Variable) or mask.dtype != VarType.INT32:
        raise TypeError("select_input, mask: expected a Variable of int32")
    return _select(inputs, mask)


class Switch:
    """Conditional branches: the first case with a true condition runs, else the default.

        with layers.Switch() as switch:
            with switch.case(step < warmup):
                layers.assign(small, rate)
            with switch.default():
                layers.assign(large, rate)

    Conditions are boolean Variables of one element. A case writes its results by `layers.assign` to
    variables that were created before. Raises ProgramError outside of `with`, and for a `default`
    before the first case.
    """

    def __init__(self, name: str | None = None):
        self.helper = LayerHelper("switch", name=name)
        self.inside_scope = False
        self.pre_not_conditions: list[Variable] = []

    def __enter__(self) -> "Switch":
        self.inside_scope = True
        return self

    def __exit__(self, *error: object) -> None:
        self.inside_scope = False

    def case(self, condition: Variable) -> conditional:
        """Return a context for operators that run if `condition` is the first true condition."""
        if not self.inside_scope:
            raise errors.ProgramError("Switch.case: use it inside of `with Switch() as switch:`")
        if not isinstance(condition, Variable) or condition.dtype != VarType.BOOL:
            found = condition.dtype.name if isinstance(condition, Variable) else type(condition).__name__
            raise TypeError(f"Switch.case, condition: expected a boolean Variable, found {found}")
        fails = emit("logical_not", {"X": condition})
        if self.pre_not_conditions:
            before = self.pre_not_conditions[-1]
            fails = emit("logical_and", {"X": before, "Y": fails})
            condition = emit("logical_and", {"X": before, "Y": condition})
        self.pre_not_conditions.append(fails)
        return conditional(condition)

    def default(self) -> conditional:
        """Return a context for operators that run if no condition is true."""
        if not self.pre_not_conditions:
            raise errors.ProgramError("Switch.default: there must be a case before it")
        return conditional(self.pre_not_conditions[-1])

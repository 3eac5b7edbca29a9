"""`check`: one operator held against expected values, numeric gradients, inferred shapes, itself
without jit, and itself with padding rows.

XLA compiles a case once in float32, and in float64 once for all numeric differences and once for
the gradients. Without jit it compiles every primitive by itself, so that only operators are run so
that compute with static values, which they may do in another way; others are traced in float64.
"""

import functools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile import padding
from jfluid.ir.types import is_float, var_type
from jfluid.lod_tensor import LoDTensor
from jfluid.ops import gradients, ragged_dispatch, registry
from jfluid.ops.ragged import Ragged
from jfluid.ops.schema import normalise

EPS = 1e-6


def _build(
    op_type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any],
    outs: Mapping[str, int],
    unknown_rows: Collection[str] = (),
) -> tuple[Any, dict, dict]:
    """A program of the one operator: (program, feeds, output slot -> names).

    `unknown_rows`: the input slots whose first dimension is declared unknown.
    """
    program = fluid.Program()
    block = program.global_block()
    feeds, in_names = {}, {}
    for slot, value in inputs.items():
        in_names[slot] = []
        for i, given in enumerate(_list(value)):
            name = f"{slot}_{i}"
            array = _rows(given)
            shape = list(array.shape)
            if shape and (slot in unknown_rows or isinstance(given, LoDTensor)):
                shape[0] = -1
            block.create_var(
                name=name,
                shape=shape,
                dtype=var_type(array.dtype),
                lod_level=len(_lod(given)),
                is_data=True,
            )
            feeds[name] = given
            in_names[slot].append(name)
    out_names = {slot: [f"{slot}_out_{i}" for i in range(n)] for slot, n in outs.items()}
    block.append_op(op_type, in_names, out_names, attrs)
    return program, feeds, out_names


def check(
    op_type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    expect: Mapping[str, Any],
    grad: Sequence[str] = (),
    rtol: float = 1e-5,
    atol: float = 1e-6,
    grad_rtol: float = 1e-5,
    infer: bool = True,
    rows: Collection[str] | None = None,
    ragged: Collection[str] = (),
    padded: bool = True,
) -> dict[str, list]:
    """Run operator `op_type` through a program and hold it against `expect`.

    Args:
        inputs: slot -> array or LoDTensor, or list of them for a slot of many.
        expect: output slot -> array or LoDTensor (or list); outputs not named are not compared. A
            slot that maps to None is produced and has its inferred shape checked, but not its
            value. Of a ragged output an array holds the rows; a LoDTensor holds the lod too.
        grad: input slots whose gradients are held against central differences in float64.
        infer: whether inferred shapes are checked (not for operators that run on the host).
        rows: input slots whose first dimension is a batch, and may be unknown when shapes are
            inferred (None: all).
        ragged: slots of dense inputs whose first dimension is that of ragged rows: as such they
            must give the same.
        padded: whether the operator supports padding rows. If so, it must give the same rows,
            outputs and gradients in a larger bucket; if not, it must say that it needs exact rows.

    Returns the outputs by slot: arrays, and LoDTensors where the lod is not empty.
    """
    attrs = dict(attrs or {})
    counts = {s: len(_list(v)) for s, v in expect.items()}
    inputs = _each(inputs, lambda v: v if isinstance(v, LoDTensor) else np.asarray(v))
    program, feeds, out_names = _build(op_type, inputs, attrs, counts)
    flat = [n for names in out_names.values() for n in names]
    values = dict(zip(flat, _run(program, feeds, flat, {**inputs, **expect}, padded)))
    got = {slot: [values[n] for n in names] for slot, names in out_names.items()}
    for slot, want in expect.items():
        for name, have, target in zip(out_names[slot], got[slot], _list(want)):
            if infer:
                _check_inferred(slot, program.global_block().var(name), have, _holds_lod(inputs))
            if target is not None:
                _compare(f"{op_type}.{slot}", have, target, rtol, atol)
    if not registry.get(op_type).wants_ctx:
        _check_without_jit(op_type, inputs, attrs, got)
    if infer:
        _check_unknown_rows(op_type, inputs, attrs, counts, got, inputs if rows is None else rows)
    wide = _each(inputs, _wide)
    pads = (ragged or _holds_lod(inputs)) and not registry.get(op_type).host
    if grad or pads:
        sources = [(s, i) for s in grad for i in range(len(_list(wide[s])))]
        forward = _compiled(op_type, wide, attrs, sources)
        outs = _trimmed(forward(wide), expect)
        if grad:
            _check_gradient(op_type, wide, attrs, outs, sources, forward, grad_rtol)
        if pads:
            _check_padding(op_type, wide, attrs, outs, grad, ragged, padded)
    return got


def _list(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def _each(inputs: Mapping[str, Any], function: Callable[[Any], Any]) -> dict[str, Any]:
    """`function` of every value of every slot."""
    return {
        s: [function(a) for a in v] if isinstance(v, list) else function(v)
        for s, v in inputs.items()
    }


def _rows(value: Any) -> Any:
    """The array of a value that may be a LoDTensor."""
    return value.value if isinstance(value, LoDTensor) else value


def _lod(value: Any) -> list:
    return value.lod() if isinstance(value, LoDTensor) else []


def _holds_lod(values: Mapping[str, Any]) -> bool:
    return any(isinstance(v, LoDTensor) for given in values.values() for v in _list(given))


def _run(
    program: Any, feeds: Mapping[str, Any], fetches: list, values: Mapping[str, Any], padded: bool
) -> list:
    """The fetches: arrays; where one of `values` has a lod, LoDTensors for those that have one
    too.
    """
    exe = fluid.Executor(fluid.CPUPlace())
    if not _holds_lod(values):
        return exe.run(program, feed=feeds, fetch_list=fetches, scope=fluid.Scope())
    with warnings.catch_warnings():
        if not padded:
            warnings.filterwarnings("ignore", "this program is compiled anew", RuntimeWarning)
        found = exe.run(
            program, feed=feeds, fetch_list=fetches, scope=fluid.Scope(), return_numpy=False
        )
    return [v if _lod(v) else np.array(v) for v in found]


def _check_inferred(slot: str, var: Any, have: Any, unknown: bool) -> None:
    """The inferred shape, dtype and number of levels against the real ones; `unknown`: a dimension
    may be -1.
    """
    shape, dtype = _rows(have).shape, _rows(have).dtype
    fits = len(var.shape) == len(shape) and all(
        i == r or (unknown and i == -1) for i, r in zip(var.shape, shape)
    )
    assert fits, f"{slot}: inferred {var.shape}, got {shape}"
    assert var.np_dtype == dtype, f"{slot}: inferred {var.np_dtype}, got {dtype}"
    assert var.lod_level == len(_lod(have)), (
        f"{slot}: inferred {var.lod_level} levels, got lod {_lod(have)}"
    )


def _compare(what: str, have: Any, target: Any, rtol: float, atol: float) -> None:
    if isinstance(target, LoDTensor):
        assert _lod(have) == target.lod(), f"{what}: expected lod {target.lod()}, got {_lod(have)}"
    have, target = np.asarray(_rows(have)), np.asarray(_rows(target))
    assert have.shape == target.shape, f"{what}: expected shape {target.shape}, got {have.shape}"
    assert target.dtype in (have.dtype, np.float64), (
        f"{what}: expected {target.dtype}, got {have.dtype}"
    )
    np.testing.assert_allclose(have, target, rtol=rtol, atol=atol, err_msg=what)


def _arguments(
    op_type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any]
) -> tuple[Any, list, dict]:
    """The operator's definition, its inputs in the order of its slots, and its keywords."""
    definition = registry.get(op_type)
    kwargs = {
        n: normalise(v, definition.attrs[n].kind) for n, v in attrs.items() if n in definition.attrs
    }
    if definition.rng:
        kwargs["key"] = jax.random.key(0)
    return definition, [inputs.get(s.name, [] if s.many else None) for s in definition.ins], kwargs


def _exact(value: Any) -> Any:
    """A LoDTensor as `Ragged` without padding."""
    if not isinstance(value, LoDTensor):
        return value
    lod = [np.asarray(level, np.int32) for level in value.lod()]
    return jax.tree.map(jnp.asarray, padding.fill(value.value, lod, padding.Size.of(lod), True))


def _call(op_type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The operator's outputs by slot, not jitted."""
    definition, given, kwargs = _arguments(op_type, _each(inputs, _exact), attrs)
    outs = ragged_dispatch.call(definition, given, kwargs)
    return {s.name: o for s, o in zip(definition.outs, outs) if o is not None}


def _check_without_jit(
    op_type: str, inputs: Mapping, attrs: Mapping, got: Mapping[str, list]
) -> None:
    """Where 64 bits are allowed the outputs have the same types, and, of operators that may compute
    with static values, the same values (random operators: shapes).
    """
    definition = registry.get(op_type)
    runs = definition.fold or definition.host
    with jax.enable_x64(True):
        outs = (
            _call(op_type, inputs, attrs)
            if runs
            else jax.eval_shape(functools.partial(_call, op_type, _each(inputs, _traceable), attrs))
        )
    for slot, values in got.items():
        for a, b in zip(values, _list(outs[slot])):
            if runs:
                b = padding.trimmed(b)
                assert _lod(a) == _lod(b), f"{slot}: jitted {_lod(a)}, else {_lod(b)}"
            # traced rows are those of the feeds, without padding
            a, b = _rows(a), _rows(_ragged_rows(b))
            assert a.shape == b.shape and a.dtype == b.dtype, (
                f"{slot}: jitted {a.dtype}{a.shape}, else {b.dtype}{b.shape}"
            )
            if runs and not definition.rng:
                np.testing.assert_allclose(np.asarray(b, a.dtype), a, rtol=1e-4, atol=1e-5)


def _check_unknown_rows(
    op_type: str,
    inputs: Mapping,
    attrs: Mapping,
    counts: Mapping,
    got: Mapping[str, list],
    rows: Collection[str],
) -> None:
    """With an unknown first dimension each inferred dimension is the real one or -1."""
    program, _, out_names = _build(op_type, inputs, attrs, counts, rows)
    for slot, names in out_names.items():
        for name, have in zip(names, got[slot]):
            shape, real = program.global_block().var(name).shape, _rows(have).shape
            assert len(shape) == len(real) and all(i in (-1, r) for i, r in zip(shape, real)), (
                f"{slot}: inferred {shape} with unknown rows, real {real}"
            )


def _check_gradient(
    op_type: str,
    wide: Mapping,
    attrs: Mapping,
    outs: Mapping[str, list],
    sources: Sequence[tuple[str, int]],
    forward: Callable[[Mapping], dict],
    rtol: float,
) -> None:
    """Gradients of a weighted sum of the outputs, by gradient operators, against central
    differences in float64.
    """
    weights = _weights(outs)

    def loss(values: Mapping) -> float:
        found = forward(values)  # not trimmed: padding rows come last
        return sum(
            float((_front(np.asarray(_ragged_rows(a)), w) * w).sum())
            for s, ws in weights.items()
            for a, w in zip(_list(found[s]), ws)
            if w is not None
        )

    counts = {s: len(ws) for s, ws in weights.items()}
    program, feeds, out_names = _build(op_type, wide, attrs, counts)
    block = program.global_block()
    targets, seeds = [], []
    for slot, ws in weights.items():
        for name, w, out in zip(out_names[slot], ws, outs[slot]):
            if w is not None:
                seed = block.create_var(
                    name=f"{name}_seed",
                    shape=block.var(name).shape,
                    dtype="float64",
                    lod_level=len(_lod(out)),
                    is_data=True,
                )
                feeds[seed.name] = LoDTensor(w, out.lod()) if _lod(out) else w
                targets.append(block.var(name))
                seeds.append(seed)
    grads = fluid.gradients(targets, [block.var(f"{s}_{i}") for s, i in sources], seeds)
    assert all(g is not None for g in grads), f"no gradient for some of {sources}"
    # A fed seed is padded on its own, perhaps to other rows than the output: the step may have to
    # be exact.
    found = _run(program, feeds, grads, {**wide, **outs}, False)
    for (slot, i), analytic in zip(sources, found):
        numeric = _numeric(loss, wide, slot, i)
        np.testing.assert_allclose(
            _rows(analytic), numeric, rtol=rtol, atol=1e-6, err_msg=f"gradient of {op_type}.{slot}"
        )


def _compiled(
    op_type: str, inputs: Mapping, attrs: Mapping, sources: Sequence[tuple[str, int]]
) -> Callable[[Mapping], dict]:
    """The outputs by slot as a function of the inputs, compiled once; only those at `sources` may
    differ from `inputs`.
    """
    with jax.enable_x64(True):  # integers may have to be known
        fixed = _each(inputs, lambda v: _traceable(v) if is_float(_rows(v).dtype) else v)

    def outputs(arrays: Sequence[Any]) -> dict[str, Any]:
        changed = {slot: list(_list(value)) for slot, value in fixed.items()}
        for (slot, i), array in zip(sources, arrays):
            given = changed[slot][i]
            changed[slot][i] = (
                LoDTensor(array, given.lod()) if isinstance(given, LoDTensor) else array
            )
        return _call(
            op_type,
            {s: v if isinstance(inputs[s], list) else v[0] for s, v in changed.items()},
            attrs,
        )

    function = outputs if registry.get(op_type).host else jax.jit(outputs)

    def run(values: Mapping) -> dict[str, Any]:
        with jax.enable_x64(True):
            return function([_rows(_list(values[s])[i]).copy() for s, i in sources])

    return run


def _traceable(value: Any) -> Any:
    """An array that can be indexed with one that is traced, which one of NumPy cannot."""
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


def _trimmed(outs: Mapping[str, Any], expect: Mapping) -> dict[str, list]:
    """The outputs that `expect` names, as users see them."""
    return {s: [padding.trimmed(a) for a in _list(v)] for s, v in outs.items() if s in expect}


def _weights(outs: Mapping[str, list]) -> dict[str, list]:
    """A random weight for each element of each output; None for outputs that no gradient flows
    from.
    """
    rng = np.random.RandomState(7)
    return {
        s: [
            rng.uniform(0.5, 1.5, _rows(a).shape) if is_float(_rows(a).dtype) else None
            for a in values
        ]
        for s, values in outs.items()
    }


def _ragged_rows(value: Any) -> Any:
    return value.values if isinstance(value, Ragged) else value


def _front(array: Any, like: Any) -> Any:
    """As many rows of `array` as `like` has."""
    return array[: like.shape[0]] if like.ndim else array


def _wide(value: Any) -> Any:
    if isinstance(value, LoDTensor):
        return LoDTensor(_wide(value.value), value.lod())
    return value.astype(np.float64, order="C") if is_float(value.dtype) else value


def _numeric(loss: Callable[[Mapping], float], values: Mapping, slot: str, i: int) -> np.ndarray:
    """Central differences of `loss` in each element of one input."""
    array = _rows(_list(values[slot])[i])
    result = np.zeros_like(array)
    flat, out = array.reshape(-1), result.reshape(-1)
    for k in range(flat.size):
        kept = flat[k]
        step = EPS * max(1.0, abs(kept))
        flat[k] = kept + step
        up = loss(values)
        flat[k] = kept - step
        down = loss(values)
        flat[k] = kept
        out[k] = (up - down) / (2 * step)
    return result


def _padded(value: Any) -> Any:
    """A LoDTensor as `Ragged` with padding rows, and padding sequences below the first level."""
    if not isinstance(value, LoDTensor):
        return value
    lod = [np.asarray(level, np.int32) for level in value.lod()]
    need = padding.Size.of(lod)
    size = padding.Size(
        2 * need.rows + 3,
        need.numbers[:1] + tuple(n + 2 for n in need.numbers[1:]),
        tuple(n + 3 for n in need.longest),
    )
    return jax.tree.map(jnp.asarray, padding.fill(value.value, lod, size, False))


def _check_padding(
    op_type: str,
    wide: Mapping,
    attrs: Mapping,
    outs: Mapping[str, list],
    grad: Sequence[str],
    ragged: Collection[str],
    padded: bool,
) -> None:
    """In a larger bucket: the same rows, outputs and gradients; no gradient reaches a padding
    row.
    """
    grouped = {s: _each({s: v}, _one_level)[s] if s in ragged else v for s, v in wide.items()}
    definition, given, kwargs = _arguments(op_type, grouped, attrs)
    weights = _weights(outs)
    wanted = [s.name in grad for s in definition.ins]
    used = [s.name in weights for s in definition.outs]
    results = []

    @jax.jit
    def found_and_gradients(values: list) -> tuple[list, list]:
        found, pull = gradients.vjp(definition, values, kwargs, wanted, used)
        return found, pull(
            [_cotangents(o, weights.get(s.name)) for s, o in zip(definition.outs, found)]
        )

    with jax.enable_x64(True):
        for bucket in (_exact, _padded):
            values = [
                [bucket(v) for v in slot] if isinstance(slot, list) else bucket(slot)
                for slot in given
            ]
            if bucket is _padded and not padded:
                with pytest.raises(ragged_dispatch.NeedsExactRows):
                    ragged_dispatch.call(definition, values, kwargs)
                return
            results.append(found_and_gradients(values))
    (_, exact_grads), (found, padded_grads) = results
    for slot, out in zip(definition.outs, found):
        for have, target in zip(map(padding.trimmed, _list(out)), outs.get(slot.name, [])):
            if not ragged:
                assert _lod(have) == _lod(target), (
                    f"{op_type}.{slot.name} padded: lod {_lod(have)}, exact {_lod(target)}"
                )
            np.testing.assert_allclose(
                np.asarray(_rows(have)),
                np.asarray(_rows(target)),
                rtol=1e-6,
                atol=1e-9,
                err_msg=f"{op_type}.{slot.name} with padding rows",
            )
    for slot, small, large in zip(definition.ins, exact_grads, padded_grads):
        for a, b in zip(_list(small), _list(large)):
            if a is not None:
                a, b = np.asarray(_ragged_rows(a)), np.asarray(_ragged_rows(b))
                np.testing.assert_allclose(
                    _front(b, a),
                    a,
                    rtol=1e-6,
                    atol=1e-9,
                    err_msg=f"gradient of {op_type}.{slot.name} with padding rows",
                )
                assert not a.ndim or not b[len(a) :].any(), (
                    f"{op_type}.{slot.name}: padding rows have a gradient"
                )


def _one_level(array: np.ndarray) -> LoDTensor:
    """Dense rows as two sequences, with an empty one between them."""
    middle = len(array) // 2
    return LoDTensor(array, [[0, middle, middle, len(array)]])


def _cotangents(out: Any, weights: list | None) -> Any:
    """The weights as gradients of an output, zero in padding rows."""
    if weights is None:
        return None
    found = []
    for value, w in zip(_list(out), weights):
        if w is not None and isinstance(value, Ragged):
            w = np.concatenate([w, np.zeros((value.capacity - len(w), *w.shape[1:]))])
        found.append(w)
    return found if isinstance(out, list) else found[0]

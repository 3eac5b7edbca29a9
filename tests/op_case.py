"""`check`: one operator held against expected values, numeric gradients, inferred shapes, and itself without jit."""
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import jfluid as fluid
from jfluid.ir.types import is_float, var_type
from jfluid.ops import registry
from jfluid.ops.schema import normalise

EPS = 1e-6


def _build(op_type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any], outs: Mapping[str, int],
           unknown_rows: Collection[str] = ()) -> tuple[Any, dict, dict]:
    """A program of the one operator: (program, feeds, output slot -> names).

    `unknown_rows`: the input slots whose first dimension is declared unknown.
    """
    program = fluid.Program()
    block = program.global_block()
    feeds, in_names = {}, {}
    for slot, value in inputs.items():
        arrays = value if isinstance(value, list) else [value]
        in_names[slot] = []
        for i, array in enumerate(arrays):
            name = f"{slot}_{i}"
            shape = list(array.shape)
            if slot in unknown_rows and shape:
                shape[0] = -1
            block.create_var(name=name, shape=shape, dtype=var_type(array.dtype), is_data=True)
            feeds[name] = array
            in_names[slot].append(name)
    out_names = {slot: [f"{slot}_out_{i}" for i in range(n)] for slot, n in outs.items()}
    block.append_op(op_type, in_names, out_names, attrs)
    return program, feeds, out_names


def check(op_type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, *,
          expect: Mapping[str, Any], grad: Sequence[str] = (), rtol: float = 1e-5, atol: float = 1e-6,
          grad_rtol: float = 1e-5, infer: bool = True, rows: Collection[str] | None = None) -> dict[str, list[np.ndarray]]:
    """Run operator `op_type` through a program and hold it against `expect`.

    Args:
        inputs: slot -> array, or list of arrays for a slot of many.
        expect: output slot -> array (or list); outputs not named are not compared. A slot that maps to None is
            produced and has its inferred shape checked, but not its value.
        grad: input slots whose gradients are held against central differences in float64.
        infer: whether inferred shapes are checked (not for operators that run on the host).
        rows: input slots whose first dimension is a batch, and may be unknown when shapes are inferred (None: all).

    Returns the outputs by slot.
    """
    attrs = dict(attrs or {})
    counts = {s: len(v) if isinstance(v, list) else 1 for s, v in expect.items()}
    inputs = {s: [np.asarray(a) for a in v] if isinstance(v, list) else np.asarray(v) for s, v in inputs.items()}
    program, feeds, out_names = _build(op_type, inputs, attrs, counts)
    flat = [n for names in out_names.values() for n in names]
    exe = fluid.Executor(fluid.CPUPlace())
    values = dict(zip(flat, exe.run(program, feed=feeds, fetch_list=flat, scope=fluid.Scope())))
    got = {slot: [values[n] for n in names] for slot, names in out_names.items()}
    for slot, want in expect.items():
        for name, have, target in zip(out_names[slot], got[slot], want if isinstance(want, list) else [want]):
            var = program.global_block().var(name)
            if infer:
                assert var.shape == have.shape, f"{slot}: inferred {var.shape}, got {have.shape}"
                assert var.np_dtype == have.dtype, f"{slot}: inferred {var.np_dtype}, got {have.dtype}"
            if target is not None:
                target = np.asarray(target)
                assert have.shape == target.shape, f"{slot}: expected shape {target.shape}, got {have.shape}"
                assert target.dtype in (have.dtype, np.float64), f"{slot}: expected {target.dtype}, got {have.dtype}"
                np.testing.assert_allclose(have, target, rtol=rtol, atol=atol, err_msg=f"{op_type}.{slot}")
    _check_eager(op_type, inputs, attrs, got)
    if infer:
        _check_unknown_rows(op_type, inputs, attrs, counts, got, inputs if rows is None else rows)
    if grad:
        _check_gradient(op_type, inputs, attrs, expect, grad, grad_rtol)
    return got


def _call(op_type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The operator's function, not jitted, by slot."""
    definition = registry.get(op_type)
    kwargs = {n: normalise(v, definition.attrs[n].kind) for n, v in attrs.items() if n in definition.attrs}
    if definition.rng:
        kwargs["key"] = jax.random.key(0)
    outs = definition.fn(*[inputs.get(s.name, [] if s.many else None) for s in definition.ins], **kwargs)
    outs = outs if isinstance(outs, tuple) else (outs,)
    return {s.name: o for s, o in zip(definition.outs, outs) if o is not None}


def _check_eager(op_type: str, inputs: Mapping, attrs: Mapping, got: Mapping[str, list]) -> None:
    """Jitted and not jitted must agree (random operators: in shape and dtype)."""
    definition = registry.get(op_type)
    if definition.wants_ctx:
        return
    with jax.enable_x64(True):
        outs = _call(op_type, inputs, attrs)
    for slot, values in got.items():
        found = outs[slot] if isinstance(outs[slot], list) else [outs[slot]]
        for a, b in zip(values, found):
            assert a.shape == b.shape and a.dtype == b.dtype, f"{slot}: jitted {a.dtype}{a.shape}, else {b.dtype}{b.shape}"
            if not definition.rng:
                np.testing.assert_allclose(np.asarray(b, a.dtype), a, rtol=1e-4, atol=1e-5)


def _check_unknown_rows(op_type: str, inputs: Mapping, attrs: Mapping, counts: Mapping, got: Mapping[str, list],
                        rows: Collection[str]) -> None:
    """With an unknown first dimension each inferred dimension is the real one or -1."""
    program, _, out_names = _build(op_type, inputs, attrs, counts, rows)
    for slot, names in out_names.items():
        for name, have in zip(names, got[slot]):
            shape = program.global_block().var(name).shape
            assert len(shape) == have.ndim and all(i in (-1, r) for i, r in zip(shape, have.shape)), \
                f"{slot}: inferred {shape} with unknown rows, real {have.shape}"


def _check_gradient(op_type: str, inputs: Mapping, attrs: Mapping, expect: Mapping, slots: Sequence[str],
                    rtol: float) -> None:
    """Gradients of a weighted sum of the outputs, by gradient operators, against central differences in float64."""
    wide = {s: [_wide(a) for a in v] if isinstance(v, list) else _wide(v) for s, v in inputs.items()}
    rng = np.random.RandomState(7)
    with jax.enable_x64(True):
        outs = {s: v for s, v in _call(op_type, wide, attrs).items() if s in expect}
    weights = {s: [rng.uniform(0.5, 1.5, a.shape) if is_float(a.dtype) else None for a in (v if isinstance(v, list) else [v])]
               for s, v in outs.items()}

    def loss(values: Mapping) -> float:
        with jax.enable_x64(True):
            found = _call(op_type, values, attrs)
        return sum(float((np.asarray(a) * w).sum()) for s, ws in weights.items()
                   for a, w in zip(found[s] if isinstance(found[s], list) else [found[s]], ws) if w is not None)

    counts = {s: len(ws) for s, ws in weights.items()}
    program, feeds, out_names = _build(op_type, wide, attrs, counts)
    block = program.global_block()
    targets, seeds = [], []
    for slot, ws in weights.items():
        for name, w in zip(out_names[slot], ws):
            if w is not None:
                seed = block.create_var(name=f"{name}_seed", shape=w.shape, dtype="float64", is_data=True)
                feeds[seed.name] = w
                targets.append(block.var(name))
                seeds.append(seed)
    sources = [(s, i) for s in slots for i in range(len(wide[s]) if isinstance(wide[s], list) else 1)]
    grads = fluid.gradients(targets, [block.var(f"{s}_{i}") for s, i in sources], seeds)
    assert all(g is not None for g in grads), f"no gradient for some of {slots}"
    found = fluid.Executor(fluid.CPUPlace()).run(program, feed=feeds, fetch_list=grads, scope=fluid.Scope())
    for (slot, i), analytic in zip(sources, found):
        numeric = _numeric(loss, wide, slot, i)
        np.testing.assert_allclose(analytic, numeric, rtol=rtol, atol=1e-6, err_msg=f"gradient of {op_type}.{slot}")


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64, order="C") if is_float(array.dtype) else array


def _numeric(loss: Any, values: Mapping, slot: str, i: int) -> np.ndarray:
    """Central differences of `loss` in each element of one input."""
    array = values[slot][i] if isinstance(values[slot], list) else values[slot]
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

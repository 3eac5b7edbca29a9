"""`check`: one operator held against expected values, numeric gradients, inferred shapes, itself
without jit, and itself with padding rows.

XLA compiles a case with gradients once: the operator in float32 and, for the gradients and all numeric
differences, in float64. Cases with sequences have a program for each: the first must do without exact
rows, the second need not. NumPy interprets what runs once, cases without gradients and cases with padding
rows: `tests/compile/test_recorded_cases.py` holds NumPy against XLA's code. Without jit XLA compiles every
primitive by itself, so that only operators are run so that compute with static values, which they may do
in another way. The inference of shapes traces operators where 64 bits are allowed.
"""

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.runtime import padding
from jfluid.ir.types import is_float, var_type
from jfluid.lod_tensor import LoDTensor
from jfluid.ops import gradients, ragged_dispatch, registry
from jfluid.ops.ragged import Ragged
from jfluid.ops.schema import RegistrySchema, normalise
from tests.dynamic_shapes.interpreted import by_numpy, interpreted

EPS = 1e-6
WIDE = "_wide"  # ends the names of variables in float64


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
    feeds, in_names = _declare(program.global_block(), inputs, unknown_rows)
    out_names = {slot: [f"{slot}_out_{i}" for i in range(n)] for slot, n in outs.items()}
    program.global_block().append_op(op_type, in_names, out_names, attrs)
    return program, feeds, out_names


def _declare(
    block: Any, inputs: Mapping[str, Any], unknown_rows: Collection[str] = (), suffix: str = ""
) -> tuple[dict, dict]:
    """Variables for the inputs: (feeds, slot -> names)."""
    feeds, names = {}, {}
    for slot, value in inputs.items():
        names[slot] = [f"{slot}_{i}{suffix}" for i in range(len(_list(value)))]
        for name, given in zip(names[slot], _list(value)):
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
    return feeds, names


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
    block = program.global_block()
    declared = {slot: [block.var(n) for n in names] for slot, names in out_names.items()}
    flat = [n for names in out_names.values() for n in names]
    wide = _Wide(op_type, _each(inputs, _as_wide), attrs, declared, grad)
    together = bool(grad) and infer and wide.has_known_shapes and not _holds_lod({**inputs, **expect})
    if together:
        wide.append(program, {s: [np.zeros(v.shape, v.np_dtype) for v in vs] for s, vs in declared.items()})
    run = _runner(program, flat + wide.fetches, {**inputs, **expect}, padded)
    found = run(feeds | wide.feeds) if grad else interpreted(run, feeds)
    values = dict(zip(flat, found))
    got = {slot: [values[n] for n in names] for slot, names in out_names.items()}
    for slot, want in expect.items():
        for name, have, target in zip(out_names[slot], got[slot], _list(want)):
            if infer:
                unknown = _holds_lod(inputs) or bool(_lod(have))
                _check_inferred(slot, block.var(name), have, unknown)
            if target is not None:
                _compare(f"{op_type}.{slot}", have, target, rtol, atol)
    definition = registry.get(op_type)
    if (definition.fold or definition.host) and not definition.wants_ctx:
        _check_without_jit(op_type, inputs, attrs, got)
    if infer and (form := _form(op_type, inputs)) not in _inferred:
        _inferred.add(form)
        _check_unknown_rows(op_type, inputs, attrs, counts, got, inputs if rows is None else rows)
    exact, near = (inputs, got, {}), (rtol, atol)
    if together:
        exact = wide.inputs, *wide.check(lambda wider: run(feeds | wider)[len(flat) :], found[len(flat) :], grad_rtol)
    elif grad:
        wide.append(fluid.Program(), got)
        # A fed seed is padded on its own, perhaps to other rows than the output: the step may have to
        # be exact.
        run = _runner(wide.program, wide.fetches, {**inputs, **got}, False)
        exact = wide.inputs, *wide.check(run, run(wide.feeds), grad_rtol)
    if grad:
        near = (1e-6, 1e-9)
    if (ragged or _holds_lod(inputs)) and not definition.host:
        _check_padding(op_type, attrs, exact, near, ragged, padded, definition.counts and padded and not ragged)
    return got


_inferred: set[tuple] = set()  # forms whose shapes were inferred with unknown rows: two traces


def _form(op_type: str, inputs: Mapping[str, Any]) -> tuple:
    """The operator with its slots, and the ranks and types of the inputs: cases of one form are inferred alike."""
    return op_type, *((s, *((_rows(v).ndim, str(_rows(v).dtype)) for v in _list(given))) for s, given in inputs.items())


@contextlib.contextmanager
def not_inferred() -> Iterator[None]:
    """Operators are appended without inference of shapes, which traces each operator once or twice: for outputs that
    are declared, or whose declaration nothing reads.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RegistrySchema, "infer", lambda schema, op: None)
        yield


def _list(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def _each(inputs: Mapping[str, Any], function: Callable[[Any], Any]) -> dict[str, Any]:
    """`function` of every value of every slot."""
    return {s: [function(a) for a in v] if isinstance(v, list) else function(v) for s, v in inputs.items()}


def _rows(value: Any) -> Any:
    """The array of a value that may be a LoDTensor."""
    return value.value if isinstance(value, LoDTensor) else value


def _lod(value: Any) -> list:
    return value.lod() if isinstance(value, LoDTensor) else []


def _holds_lod(values: Mapping[str, Any]) -> bool:
    return any(isinstance(v, LoDTensor) for given in values.values() for v in _list(given))


def _runner(
    program: Any, fetches: list, values: Mapping[str, Any], padded: bool
) -> Callable[[Mapping[str, Any]], list]:
    """Gives the fetches of feeds: arrays; where one of `values` has a lod, LoDTensors for those
    that have one too.
    """
    exe, scope, lod = fluid.Executor(fluid.CPUPlace()), fluid.Scope(), _holds_lod(values)

    def run(feeds: Mapping[str, Any]) -> list:
        with warnings.catch_warnings():
            if not padded:
                warnings.filterwarnings("ignore", "this program is compiled anew", RuntimeWarning)
            found = exe.run(program, feed=feeds, fetch_list=fetches, scope=scope, return_numpy=not lod)
        return [v if _lod(v) else np.array(v) for v in found] if lod else found

    return run


def _check_inferred(slot: str, var: Any, have: Any, unknown: bool) -> None:
    """The inferred shape, dtype and number of levels against the real ones; `unknown`: a dimension
    may be -1.
    """
    shape, dtype = _rows(have).shape, _rows(have).dtype
    fits = len(var.shape) == len(shape) and all(i == r or (unknown and i == -1) for i, r in zip(var.shape, shape))
    assert fits, f"{slot}: inferred {var.shape}, got {shape}"
    assert var.np_dtype == dtype, f"{slot}: inferred {var.np_dtype}, got {dtype}"
    assert var.lod_level == len(_lod(have)), f"{slot}: inferred {var.lod_level} levels, got lod {_lod(have)}"


def _compare(what: str, have: Any, target: Any, rtol: float, atol: float) -> None:
    if isinstance(target, LoDTensor):
        assert _lod(have) == target.lod(), f"{what}: expected lod {target.lod()}, got {_lod(have)}"
    have, target = np.asarray(_rows(have)), np.asarray(_rows(target))
    assert have.shape == target.shape, f"{what}: expected shape {target.shape}, got {have.shape}"
    assert target.dtype in (have.dtype, np.float64), f"{what}: expected {target.dtype}, got {have.dtype}"
    np.testing.assert_allclose(have, target, rtol=rtol, atol=atol, err_msg=what)


def _arguments(op_type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, list, dict]:
    """The operator's definition, its inputs in the order of its slots, and its keywords."""
    definition = registry.get(op_type)
    kwargs = {n: normalise(v, definition.attrs[n].kind) for n, v in attrs.items() if n in definition.attrs}
    if definition.rng:
        kwargs["key"] = jax.random.key(0)
    return (
        definition,
        [inputs.get(s.name, [] if s.many else None) for s in definition.reads],
        kwargs,
    )


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


def _check_without_jit(op_type: str, inputs: Mapping, attrs: Mapping, got: Mapping[str, list]) -> None:
    """Where 64 bits are allowed the outputs have the same types and values (those of random
    operators: the same shapes).
    """
    with jax.enable_x64(True):
        outs = _call(op_type, inputs, attrs)
    for slot, values in got.items():
        for a, b in zip(values, _list(outs[slot])):
            b = padding.trimmed(b)
            assert _lod(a) == _lod(b), f"{slot}: jitted {_lod(a)}, else {_lod(b)}"
            a, b = _rows(a), _rows(b)
            assert a.shape == b.shape and a.dtype == b.dtype, (
                f"{slot}: jitted {a.dtype}{a.shape}, else {b.dtype}{b.shape}"
            )
            if not registry.get(op_type).rng:
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


class _Wide:
    """The operator in float64, and the gradients by gradient operators of a weighted sum of its outputs.

    Args:
        declared: the variables of the outputs in float32, by slot.
        grad: the slots of the inputs whose gradients are taken.
    """

    def __init__(
        self,
        op_type: str,
        inputs: Mapping[str, Any],
        attrs: Mapping[str, Any],
        declared: Mapping[str, list],
        grad: Sequence[str],
    ) -> None:
        self.inputs, self.feeds, self.fetches = inputs, {}, []
        self._op_type, self._attrs, self._declared = op_type, attrs, declared
        self._sources = [(s, i) for s in grad for i in range(len(_list(inputs[s])))]

    @property
    def has_known_shapes(self) -> bool:
        return not any(-1 in v.shape for vs in self._declared.values() for v in vs)

    def append(self, program: Any, like: Mapping[str, list]) -> None:
        """Append the operator and the gradient operators to a program. Outputs have the shapes and lods of `like`."""
        self.program, block, self._weights = program, program.global_block(), _weights(like)
        self.feeds, in_names = _declare(block, self.inputs, suffix=WIDE)
        out_names: dict[str, list[str]] = {s: [] for s in self._declared}
        for slot, variables in self._declared.items():
            for var in variables:
                dtype = var_type(np.dtype(np.float64)) if is_float(var.np_dtype) else var.dtype
                name = var.name + WIDE
                block.create_var(name=name, shape=var.shape, dtype=dtype, lod_level=var.lod_level, type=var.type)
                out_names[slot].append(name)
        with not_inferred():
            block.append_op(self._op_type, in_names, out_names, self._attrs)
        self.fetches = [name for names in out_names.values() for name in names]
        if self._sources:
            self.fetches += self._gradients(like, out_names)

    def _gradients(self, like: Mapping[str, list], out_names: Mapping[str, list[str]]) -> list[Any]:
        """Gradients of the weighted sum, added to the program; the weights are added to the feeds."""
        block, targets, seeds = self.program.global_block(), [], []
        for slot, ws in self._weights.items():
            for name, w, out in zip(out_names[slot], ws, like[slot]):
                if w is not None:
                    seed = block.create_var(
                        name=f"{name}_seed",
                        shape=block.var(name).shape,
                        dtype="float64",
                        lod_level=len(_lod(out)),
                        is_data=True,
                    )
                    self.feeds[seed.name] = LoDTensor(w, out.lod()) if _lod(out) else w
                    targets.append(block.var(name))
                    seeds.append(seed)
        grads = fluid.gradients(targets, [block.var(f"{s}_{i}{WIDE}") for s, i in self._sources], seeds)
        assert all(g is not None for g in grads), f"no gradient for some of {self._sources}"
        return list(grads)

    def check(
        self, run: Callable[[Mapping[str, Any]], list], found: list, rtol: float
    ) -> tuple[dict[str, list], dict[tuple[str, int], np.ndarray]]:
        """Hold gradients against central differences; return the outputs, as users see them, by slot, and the
        gradients, by slot and number.

        Args:
            run: gives the fetches of feeds.
            found: the fetches of the feeds.
        """
        values = iter(found)
        outs = {slot: [next(values) for _ in variables] for slot, variables in self._declared.items()}
        weights = [w for ws in self._weights.values() for w in ws]

        def loss() -> float:
            return sum(
                float((np.asarray(_rows(a)) * w).sum()) for a, w in zip(run(self.feeds), weights) if w is not None
            )

        gradients = {}
        for (slot, i), analytic in zip(self._sources, values):
            gradients[slot, i] = np.array(_rows(analytic))
            np.testing.assert_allclose(
                gradients[slot, i],
                _numeric(loss, _rows(self.feeds[f"{slot}_{i}{WIDE}"])),
                rtol=rtol,
                atol=1e-6,
                err_msg=f"gradient of {self._op_type}.{slot}",
            )
        return outs, gradients


def _weights(outs: Mapping[str, list]) -> dict[str, list]:
    """A random weight for each element of each output; None for outputs that no gradient flows
    from.
    """
    rng = np.random.RandomState(7)
    return {
        s: [rng.uniform(0.5, 1.5, _rows(a).shape) if is_float(_rows(a).dtype) else None for a in values]
        for s, values in outs.items()
    }


def _ragged_rows(value: Any) -> Any:
    return value.values if isinstance(value, Ragged) else value


def _front(array: Any, like: Any) -> Any:
    """As many rows of `array` as `like` has."""
    return array[: like.shape[0]] if like.ndim else array


def _as_wide(value: Any) -> Any:
    if isinstance(value, LoDTensor):
        return LoDTensor(_as_wide(value.value), value.lod())
    return value.astype(np.float64, order="C") if is_float(value.dtype) else value


def _numeric(loss: Callable[[], float], array: np.ndarray) -> np.ndarray:
    """Central differences of `loss` in each element of `array`, which it reads."""
    result = np.zeros_like(array)
    flat, out = array.reshape(-1), result.reshape(-1)
    for k in range(flat.size):
        kept = flat[k]
        step = EPS * max(1.0, abs(kept))
        flat[k] = kept + step
        up = loss()
        flat[k] = kept - step
        down = loss()
        flat[k] = kept
        out[k] = (up - down) / (2 * step)
    return result


def _padded(value: Any, numbers: Collection[int] = ()) -> Any:
    """A LoDTensor as `Ragged` with padding rows, and padding sequences below the first level.

    Args:
        numbers: numbers of sequences that are padded, too, in tensors with and without a LoD.
    """
    if not isinstance(value, LoDTensor):
        if not np.ndim(value) or len(value) not in numbers:
            return value
        need = padding.Size(len(value), (len(value),), ())
        return jax.tree.map(
            jnp.asarray, padding.fill(value, [], need._replace(rows=len(value) + 2, counted=True), False)
        )
    lod = [np.asarray(level, np.int32) for level in value.lod()]
    need = padding.Size.of(lod)
    counted = need.numbers[0] in numbers
    size = padding.Size(
        2 * need.rows + 3,
        (need.numbers[0] + 2 * counted, *[n + 2 for n in need.numbers[1:]]),
        tuple(n + 3 for n in need.longest),
        counted=counted,
    )
    return jax.tree.map(jnp.asarray, padding.fill(value.value, lod, size, False))


def _check_padding(
    op_type: str,
    attrs: Mapping,
    exact: tuple[Mapping, Mapping[str, list], Mapping[tuple[str, int], np.ndarray]],
    near: tuple[float, float],
    ragged: Collection[str],
    padded: bool,
    counted: bool,
) -> None:
    """Hold an operator in a larger bucket against the same rows: outputs and gradients are equal, and no gradient
    reaches a padding row.

    Args:
        exact: inputs, outputs and gradients without padding.
        near: the relative and the absolute tolerance.
        counted: whether the number of sequences is padded, too. `tests/ops/test_ragged_ops.py` pads rows alone.
    """
    inputs, outs, gradients_without = exact
    rtol, atol = near
    grouped = {s: _each({s: v}, _one_level)[s] if s in ragged else v for s, v in inputs.items()}
    definition, given, kwargs = _arguments(op_type, grouped, attrs)
    weights = _weights(outs)
    wanted = [s.name in {slot for slot, _ in gradients_without} for s in definition.reads]
    used = [s.name in weights for s in definition.outs]

    def found_and_gradients(values: list) -> tuple[list, list]:
        found, pull = gradients.vjp(definition, values, kwargs, wanted, used)
        return found, pull([_cotangents(o, weights.get(s.name)) for s, o in zip(definition.outs, found)])

    with jax.enable_x64(True):
        numbers = {len(v.lod()[0]) - 1 for v in jax.tree.leaves(given) if isinstance(v, LoDTensor)} if counted else ()
        values = [
            [_padded(v, numbers) for v in slot] if isinstance(slot, list) else _padded(slot, numbers) for slot in given
        ]
        if not padded:
            with pytest.raises(ragged_dispatch.NeedsExactRows):
                ragged_dispatch.call(definition, values, kwargs)
            return
        found, grads = by_numpy(found_and_gradients, values)
    for slot, out in zip(definition.outs, found):
        for have, target in zip(map(padding.trimmed, _list(out)), outs.get(slot.name, [])):
            if not ragged:
                assert _lod(have) == _lod(target), (
                    f"{op_type}.{slot.name} padded: lod {_lod(have)}, exact {_lod(target)}"
                )
            np.testing.assert_allclose(
                np.asarray(_rows(have)),
                np.asarray(_rows(target)),
                rtol=rtol,
                atol=atol,
                err_msg=f"{op_type}.{slot.name} with padding rows",
            )
    by_slot = {slot.name: _list(g) for slot, g in zip(definition.ins, grads)}
    for (slot, i), a in gradients_without.items():
        b = np.asarray(_ragged_rows(by_slot[slot][i]))
        np.testing.assert_allclose(
            _front(b, a),
            a,
            rtol=rtol,
            atol=atol,
            err_msg=f"gradient of {op_type}.{slot} with padding rows",
        )
        assert not a.ndim or not b[len(a) :].any(), f"{op_type}.{slot}: padding rows have a gradient"


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

"""LSTMs over sequences, and their gradients, by machine code of our own (`lstm_kernels.py`).

XLA runs a loop over time as a program of small products and elementwise operations, all of which
threads have to meet at, in every step. Here a thread takes some sequences through all steps.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfluid.compile import lstm_kernels, machine_code, vector_functions
from jfluid.compile.vector_functions import LANES, MOST_ROWS, PANEL
from jfluid.ops.ragged import Level

# Beyond, the weights of each step come from far caches, once for each group of sequences.
_WIDEST = 256
# Sequences are divided into so many groups where that leaves some to each: on any machine, since
# sums over the sequences of a group are added up.
_GROUPS, _FEWEST = 8, 2


@dataclass(frozen=True)
class _Loop:
    """What a loop over time is, beside its arrays.

    Attributes:
        acts: activations of gates, cell and candidate.
        stride: rows from a row to the next of its sequence.
    """

    backwards: bool
    acts: tuple[str, str, str]
    stride: int

    def geometry(self, batches: int, rows: int, number: int, panels: "_Panels", width: int) -> Any:
        group = min(number, MOST_ROWS, max(_FEWEST, -(-number // _GROUPS)))
        kinds = [vector_functions.KINDS.index(name or "identity") for name in self.acts]
        numbers = {
            "chunks": batches * -(-number // group),
            "memory": lstm_kernels.MEMORY * group * width + lstm_kernels.ALIGNED,
            "batches": batches,
            "rows": rows,
            "number": number,
            "width": width,
            "group": group,
            "stride": self.stride,
            "backwards": self.backwards,
            "pitch": panels.pitch,
            "panel": panels.panel,
            **dict(zip(("gate", "cell", "candidate"), kinds)),
        }
        return np.array([numbers[name] for name in lstm_kernels.GEOMETRY], np.int32)


@dataclass(frozen=True)
class _Panels:
    """A matrix as products want it: `PANEL` vectors of columns after the other, if it is so many.

    Attributes:
        pitch: numbers from a row of a panel to the next.
        panel: numbers from a panel to the next.
    """

    array: Array
    pitch: int
    panel: int

    @classmethod
    def of(cls, matrix: Array) -> "_Panels":
        (rows, columns), wide = matrix.shape, PANEL * LANES
        if columns % wide:
            return cls(matrix, columns, wide)
        return cls(matrix.reshape(rows, -1, wide).swapaxes(0, 1), wide, rows * wide)


def suits(x: Array, weight: Array, bias: Array, h0: Array, c0: Array) -> bool:
    """Return whether an LSTM should be computed here.

    Args:
        x: [rows, 4 width].
        weight: [width, 4 width].
        bias: [7 width].
        h0, c0: [number, width].
    """
    width = weight.shape[0]
    return (
        all(a.dtype == np.float32 for a in (x, weight, bias, h0, c0))
        and width % LANES == 0
        and 0 < width <= _WIDEST
        and min(x.shape[0], h0.shape[0]) > 0
        and machine_code.registered()
    )


def over_sequences(
    x: Array,
    level: Level,
    weight: Array,
    bias: Array,
    h0: Array,
    c0: Array,
    backwards: bool,
    acts: tuple[str, str, str],
) -> tuple[Array, Array]:
    """Return hidden states and cells, [rows, width], of rows that `level` groups; the arguments are
    those of `suits`, with the peepholes of input, forget and output behind the biases. Rows
    of padding are copies of some row.
    """
    return _over_places(_Loop(backwards, acts, 1), x, weight, bias, h0, c0, _places(level))


def _places(level: Level) -> Array:
    """What `lstm_kernels` wants to know of sequences."""
    order = jnp.argsort(-level.lengths)
    parts = [order, level.starts[order], level.lengths[order], level.offsets[-1:]]
    return jnp.concatenate([p.astype(jnp.int32) for p in parts])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _over_places(
    loop: _Loop, x: Array, weight: Array, bias: Array, h0: Array, c0: Array, places: Array
) -> tuple[Array, Array]:
    return _kept(loop, x, weight, bias, h0, c0, places)[0]


def _kept(
    loop: _Loop, x: Array, weight: Array, bias: Array, h0: Array, c0: Array, places: Array
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    hidden, cells, gates = _mapped(_forward, loop, 2)(weight, bias, x, h0, c0, places)
    return (hidden, cells), (weight, bias, h0, c0, places, hidden, cells, gates)


def _gradients(
    loop: _Loop, kept: tuple[Array, ...], grads: tuple[Array, Array]
) -> tuple[Array | None, ...]:
    weight, bias, h0, c0, places, hidden, cells, gates = kept
    grad_x, before, sums, grad_h0, grad_c0 = _mapped(_backward, loop, 2)(
        weight, bias, gates, cells, hidden, h0, c0, *grads, places
    )
    grad_weight = lax.dot_general(before, grad_x, (((0,), (0,)), ((), ())))
    return grad_x, grad_weight, jnp.sum(sums, 0), grad_h0, grad_c0, None


_over_places.defvjp(_kept, _gradients)


def _forward(
    loop: _Loop, weight: Array, bias: Array, x: Array, h0: Array, c0: Array, places: Array
) -> Sequence[Array]:
    """Hidden states, cells and gates of rows, or of batches of rows that share weights."""
    *batches, rows, _ = x.shape
    number, width = h0.shape[-2:]
    panels = _Panels.of(weight)
    geometry = loop.geometry(math.prod(batches), rows, number, panels, width)
    shapes = [(*batches, rows, n * width) for n in (1, 1, 4)]
    arrays = (x, panels.array, bias, h0, c0, places, geometry)
    return _call(lstm_kernels.FORWARD, shapes, *arrays)


def _backward(loop: _Loop, weight: Array, bias: Array, *others: Array) -> Sequence[Array]:
    """Gradients of x, hidden states before each row, sums of the bias's gradients, [groups, 7 width] of
    each batch, gradients of h0 and c0.
    """
    gates, cells, hidden, h0, c0, grad_hidden, grad_cells, places = others
    *batches, rows, _ = gates.shape
    number, width = h0.shape[-2:]
    panels = _Panels.of(weight.T)
    geometry = loop.geometry(math.prod(batches), rows, number, panels, width)
    groups = int(geometry[0]) // math.prod(batches)
    shapes = [(*batches, rows, n) for n in (4 * width, width)]
    shapes += [(groups, *batches, bias.size), h0.shape, c0.shape]
    arrays = (gates, cells, hidden, panels.array, bias, h0, c0, grad_hidden, grad_cells, places)
    grad_x, before, sums, *starts = _call(lstm_kernels.BACKWARD, shapes, *arrays, geometry)
    return [grad_x, before, jnp.moveaxis(sums, 0, -2), *starts]


def _call(name: str, shapes: Sequence[Sequence[int]], *arrays: Any) -> Sequence[Array]:
    results = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    found: Sequence[Array] = jax.ffi.ffi_call(name, results)(*arrays)
    return found


def _mapped(function: Callable[..., Sequence[Array]], loop: _Loop, shared: int) -> Any:
    """A function of one batch, which `jax.vmap` makes one call of for all batches.

    Args:
        shared: how many of the arguments, the first, batches share.
    """

    @jax.custom_batching.custom_vmap
    def one(*arrays: Array) -> list[Array]:
        return list(function(loop, *arrays))

    @one.def_vmap
    def all_(size: int, batched: Sequence[bool], *arrays: Array) -> tuple[Any, Any]:
        full = [
            a if own else jnp.broadcast_to(a, (size, *a.shape)) for a, own in zip(arrays, batched)
        ]
        if any(batched[:shared]):
            found = lax.map(lambda own: one(*own), full)
        else:
            found = list(function(loop, *arrays[:shared], *full[shared:]))
        return found, [True] * len(found)

    return one

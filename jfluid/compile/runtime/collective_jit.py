"""XLA programs across all processes that train together, each process with one device.

Each process keeps its whole state on its device. During the call the values of all processes
form one array, of which each process holds its part of the first dimension: nothing is copied.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jfluid import processes
from jfluid.compile.lowering.plan import Item
from jfluid.compile.runtime.executables import Executables, WaitedCall
from jfluid.compile.runtime.options import options
from jfluid.ir.block import reads_of, writes_of
from jfluid.ir.operator import Operator
from jfluid.ops import registry
from jfluid.ops.collective import AXIS
from jfluid.processes import collective_watch


def mesh_with(device: jax.Device) -> Mesh:
    """Return the mesh of one device of each process. All processes must call the function."""
    return Mesh(np.array(processes.all_devices([device])), (AXIS,))


class CollectiveJit(WaitedCall):
    """`jax.jit(function)` with collectives across all processes. Each process calls it with local arrays.

    Args:
        function: `(donated, kept, key)` -> a tree of arrays.
        device: the device of this process.
        mesh: the result of `mesh_with(device)`.
        kind: the kind of the calls, for `collective_watch`.
    """

    def __init__(
        self,
        function: Callable[[tuple[Any, ...], tuple[Any, ...], Any], Any],
        device: jax.Device,
        mesh: Mesh,
        kind: str = collective_watch.STEP,
    ):
        self._function, self._kind, self._mesh = function, kind, mesh
        self._home = jax.sharding.SingleDeviceSharding(device)
        self._divided = NamedSharding(self._mesh, PartitionSpec(AXIS))
        self._programs: dict[Any, Callable[..., Any]] = {}
        # the last call's results: (this process's array, the array of all)
        self._seen: dict[int, tuple[Any, jax.Array]] = {}

    def __call__(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        arguments = donated, kept, key
        scalars = tuple(tuple(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(a)) for a in arguments)
        if scalars not in self._programs:
            self._programs[scalars] = self._compiled(scalars)
        lifted = jax.tree.map(self._lifted, arguments)
        with collective_watch.call(self._kind) as watched:
            found = self._programs[scalars](lifted)
            watched.result = next(iter(jax.tree.leaves(found)), None)
        return found

    def _lifted(self, own: Any) -> jax.Array:
        """Return the global array that has the local array as its part."""
        seen = self._seen.get(id(own))
        if seen is not None and seen[0] is own:
            return seen[1]
        if not isinstance(own, jax.Array) or not own.committed or own.sharding != self._home:
            own = jax.device_put(own, self._home)
        own = own.reshape(1) if own.ndim == 0 else own
        shape = (own.shape[0] * self._mesh.size, *own.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self._divided, [own])

    def _own(self, whole: jax.Array, scalar: bool) -> jax.Array:
        """Return the local part of a result."""
        own = whole.addressable_data(0)
        if scalar:
            return own.reshape(())
        self._seen[id(own)] = own, whole
        return own

    def _compiled(self, scalars: tuple[tuple[bool, ...], ...]) -> Callable[..., Any]:
        """Return the program for arguments with scalars at given places."""
        results: list[bool] = []

        def part(*arguments: Any) -> Any:
            donated, kept, key = (_without_dimension(a, s) for a, s in zip(arguments, scalars))
            out = self._function(donated, kept, key)
            results[:] = [leaf.ndim == 0 for leaf in jax.tree.leaves(out)]
            return jax.tree.map(lambda leaf: leaf.reshape(1) if leaf.ndim == 0 else leaf, out)

        part.__name__ = part.__qualname__ = getattr(self._function, "__name__", "fluid")
        spec = PartitionSpec(AXIS)

        def jitted() -> Any:
            return jax.jit(
                jax.shard_map(part, mesh=self._mesh, in_specs=spec, out_specs=spec, check_vma=False),
                donate_argnums=(0,),
                compiler_options=options(self._mesh.devices.flat[0]),
            )

        mapped = Executables(jitted)

        def call(arguments: tuple[Any, ...]) -> Any:
            leaves, structure = jax.tree.flatten(mapped(*arguments))
            self._seen.clear()
            return jax.tree.unflatten(structure, [self._own(leaf, s) for leaf, s in zip(leaves, results, strict=True)])

        return call


def _without_dimension(tree: Any, scalars: Sequence[bool]) -> Any:
    """Return the tree with scalars in place of the scalars that got a dimension of 1."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(
        structure,
        [leaf.reshape(()) if s else leaf for leaf, s in zip(leaves, scalars, strict=True)],
    )


def fused(items: Sequence[Item]) -> list[Item]:
    """Return the operators with runs of in-place all-reduces (of gradients) fused, placed before their first use."""
    found: list[Item] = []
    waiting: list[Item] = []

    def flush() -> None:
        if len(waiting) < 2:
            found.extend(waiting)
        else:
            position, first, definition = waiting[0]
            names = [n for _, op, _ in waiting for n in op.input("X")]
            many = Operator(first.block, definition.fused, {"X": names}, {"Out": names}, callsite=False)
            found.append((position, many, registry.get(definition.fused)))
        waiting.clear()

    for item in items:
        _, op, definition = item
        names = reads_of(op) | writes_of(op)
        if any(names & set(other.input("X")) or definition.fused not in ("", kind.fused) for _, other, kind in waiting):
            flush()
        (waiting if definition.fused and op.input("X") == op.output("Out") else found).append(item)
    flush()
    return found

"""One XLA program of all processes that train together, each on one device with its own values.

A process keeps its state on its own device, whole. For the call the values of all are seen as one array, of which each
process holds its part of the first dimension: nothing is copied.
"""
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jfluid import processes
from jfluid.compile.plan import Item
from jfluid.ir.operator import Operator
from jfluid.ir.prune import reads_of, writes_of
from jfluid.ops import registry
from jfluid.ops.collective import AXIS


def together(function: Callable[[tuple, tuple, Any], Any], device: jax.Device) -> Callable[[tuple, tuple, Any], Any]:
    """`jax.jit(function)` whose collectives reach all processes; each must call it with arrays of its own.

    Args:
        function: `(donated, kept, key)` -> a tree of arrays. The key differs by process.
        device: this process's.
    """
    mesh = Mesh(np.array(processes.all_devices([device])), (AXIS,))
    divided = NamedSharding(mesh, PartitionSpec(AXIS))
    single = jax.sharding.SingleDeviceSharding(device)

    def lift(leaf: Any) -> jax.Array:
        leaf = jax.device_put(leaf, single)
        leaf = leaf.reshape(1) if leaf.ndim == 0 else leaf
        shape = (leaf.shape[0] * mesh.size, *leaf.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, divided, [leaf])

    def compiled(scalars: tuple[tuple[bool, ...], ...]) -> Callable:
        """The program for arguments of which some leaves are scalars."""
        results: list[bool] = []

        def part(*arguments: Any) -> Any:
            donated, kept, key = (_drop(a, s) for a, s in zip(arguments, scalars))
            if key is not None:
                own = jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), jax.lax.axis_index(AXIS))
                key = jax.random.key_data(own)
            out = function(donated, kept, key)
            results[:] = [leaf.ndim == 0 for leaf in jax.tree.leaves(out)]
            return jax.tree.map(lambda leaf: leaf.reshape(1) if leaf.ndim == 0 else leaf, out)

        part.__name__ = part.__qualname__ = getattr(function, "__name__", "fluid")
        spec = PartitionSpec(AXIS)
        mapped = jax.jit(jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False), donate_argnums=(0,))

        def call(arguments: tuple) -> Any:
            return _drop(jax.tree.map(lambda leaf: leaf.addressable_data(0), mapped(*arguments)), results)

        return call

    programs: dict[Any, Callable] = {}

    def run(donated: tuple, kept: tuple, key: Any) -> Any:
        arguments = donated, kept, key
        scalars = tuple(tuple(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(a)) for a in arguments)
        if scalars not in programs:
            programs[scalars] = compiled(scalars)
        return programs[scalars](jax.tree.map(lift, arguments))

    return run


def _drop(tree: Any, scalars: Any) -> Any:
    """The tree, with leaves that are scalars without the dimension that they were given."""
    leaves, structure = jax.tree.flatten(tree)
    return structure.unflatten([leaf.reshape(()) if s else leaf for leaf, s in zip(leaves, scalars, strict=True)])


def fused(items: Sequence[Item]) -> list[Item]:
    """The operators, with those that overwrite what they bring together (gradients) done at once, where they are needed."""
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


def needed() -> bool:
    """Whether there are other processes."""
    return processes.count() > 1

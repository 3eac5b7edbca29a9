"""Pipeline parallelism: a step in sections on several devices, through which parts of the batch go in turn.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2019.
Each section's operators are an XLA program on the section's device; calls do not wait, so that
devices work at the same time. Forward sections come first. The backward part of the last section is
one program with its forward part; all earlier sections recompute the values that their gradients need. Parameters
and optimizer state stay on their section's device; updates happen once, by the mean of the parts' gradients.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.compile.lowering.lower import pairs_of
from jfluid.compile.lowering.plan import Item, Plan, Segment, joined
from jfluid.compile.runtime import executable_cache
from jfluid.compile.runtime.options import options
from jfluid.compile.runtime.placement import Env, Function, OneDevice, placed
from jfluid.compile.runtime.step import CompiledSegment, Step, refuse_infinite
from jfluid.compile.runtime.step_state import StepState
from jfluid.ir.block import reads_of, writes_of
from jfluid.ir.operator import OpRole
from jfluid.ir.pipeline import PipelineOptions
from jfluid.ops import selected_rows
from jfluid.ops.ragged import Ragged
from jfluid.ops.selected_rows import SelectedRows
from jfluid.parallel.phases import gradients_of
from jfluid.places import CUDAPlace
from jfluid.scope import Scope

_UPDATES = OpRole.Optimize | OpRole.LRSched


def _role(item: Item) -> int:
    return int(item[1].attrs.get("op_role", 0))


def forward_stages(items: Sequence[Item], wanted: PipelineOptions) -> dict[int, int]:
    """Return the section of each forward operator, by its place in `items`.

    Raises ProgramError where an operator reads what a later section computes.
    """
    forward = [at for at, item in enumerate(items) if not _role(item) & (OpRole.Backward | _UPDATES)]
    found = _by_cuts(items, forward, wanted.cuts) if wanted.cuts else _by_devices(items, forward)
    last = max(found.values(), default=0)
    made_in: dict[str, int] = {}
    for at in forward:
        op = items[at][1]
        earliest = max((made_in.get(n, 0) for n in reads_of(op)), default=0)
        stage = found.setdefault(at, last if wanted.cuts else earliest)
        if stage < earliest:
            raise errors.ProgramError(
                f"operator {op.type} is in section {stage} of the pipeline, and reads what section "
                f"{earliest} computes: sections run one after the other\n  made at: {op.callsite}"
            )
        made_in.update(dict.fromkeys(writes_of(op), stage))
    return found


def _by_cuts(items: Sequence[Item], forward: Sequence[int], cuts: Sequence[Sequence[str]]) -> dict[int, int]:
    """Return the section of each operator that a cut needs and no earlier cut does."""
    found: dict[int, int] = {}
    for stage, cut in enumerate(cuts):
        needed = set(cut)
        for at in reversed(forward):
            op = items[at][1]
            if needed & writes_of(op):
                needed |= reads_of(op)
                found.setdefault(at, stage)
    return found


def _by_devices(items: Sequence[Item], forward: Sequence[int]) -> dict[int, int]:
    """Return the section of each operator that names a device, with devices in the order of their first use."""
    named = {at: d for at in forward if (d := items[at][1].attrs.get("op_device", ""))}
    order = list(dict.fromkeys(named.values()))
    return {at: order.index(device) for at, device in named.items()}


class Sections:
    """Operators of a plan by section.

    Attributes:
        plan: the plan with a segment for each section.
        stages: the section number of each segment.
        once, forward, middle, backward, updates: the segments, by when they run: before the parts
            of a batch; for each part; after all.
        gradients: gradients that are averaged over the parts.
        homes: names of the Scope -> the section where each is kept.
        differ: names of values that differ by part.
    """

    def __init__(self, planned: Plan, wanted: PipelineOptions):
        if any(segment.host for segment in planned.segments):
            raise errors.UnsupportedError(
                "PipelineOptimizer: the program holds operators that run on the host (print, "
                "py_func ...), which sections cannot"
            )
        items = [item for segment in planned.segments for item in segment.ops]
        self.number = 0
        self.differ = self._differing(items, planned)
        self.gradients = set(gradients_of(items)) & self.differ
        stages = self._all_stages(items, wanted)
        groups = self._grouped(items, stages)
        self._wire(planned, groups)

    def _differing(self, items: Sequence[Item], planned: Plan) -> set[str]:
        differ = {n for n in planned.feeds if not planned.block.vars[n].persistable}
        for item in items:
            op, definition = item[1], item[2]
            if not _role(item) & _UPDATES and (reads_of(op) & differ or definition.rng):
                differ |= writes_of(op)
        return differ

    def _all_stages(self, items: Sequence[Item], wanted: PipelineOptions) -> dict[int, int]:
        stages = forward_stages(items, wanted)
        self.number = max(stages.values(), default=0) + 1
        pairs, made_in = pairs_of(list(items)), dict[str, int]()
        for at, item in enumerate(items):
            op, role = item[1], _role(item)
            if role & OpRole.Backward and not role & _UPDATES:
                read = [made_in[n] for n in reads_of(op) if "@GRAD" in n and n in made_in]
                stages[at] = stages[pairs[at]] if at in pairs else min(read, default=stages.get(at, self.number - 1))
            elif role & _UPDATES:
                stages[at] = self._of_update(op, made_in)
            for name in writes_of(op) if at in stages else ():
                made_in[name] = stages[at]
            for name in reads_of(op):
                made_in.setdefault(name, stages[at])  # where the Scope's values are read first
        self.homes = made_in
        return stages

    @staticmethod
    def _of_update(op: Any, made_in: Mapping[str, int]) -> int:
        """Return the section of an update's parameter; any other operator is in the section of most inputs."""
        pair = op.attrs.get("op_role_var", ())
        if pair and pair[0] in made_in:
            return made_in[pair[0]]
        read = [made_in[n] for n in op.input_arg_names if n in made_in]
        return max(set(read), key=read.count) if read else 0

    def _grouped(self, items: Sequence[Item], stages: Mapping[int, int]) -> list[tuple[str, int, list[Item]]]:
        """(kind, section, operators) of each segment, in order."""
        once: list[Item] = []
        forward: list[list[Item]] = [[] for _ in range(self.number)]
        backward: list[list[Item]] = [[] for _ in range(self.number)]
        updates: list[tuple[int, list[Item]]] = []
        latest: dict[str, int] = {}  # name -> the update segment that touched it last
        for at, item in enumerate(items):
            op, role = item[1], _role(item)
            touched = reads_of(op) | writes_of(op)
            if role & _UPDATES:
                self._refuse_apart(op)
                first = max((latest.get(n, 0) for n in touched), default=0)
                of_stage = [i for i, (s, _) in enumerate(updates) if s == stages[at] and i >= first]
                if not of_stage:
                    updates.append((stages[at], []))
                    of_stage = [len(updates) - 1]
                updates[of_stage[0]][1].append(item)
                latest.update(dict.fromkeys(touched, of_stage[0]))
            elif not writes_of(op) & self.differ:
                once.append(item)
            else:
                (backward if role & OpRole.Backward else forward)[stages[at]].append(item)
        last = self.number - 1
        return [
            ("once", 0, once),
            *(("forward", s, forward[s]) for s in range(last)),
            ("middle", last, forward[last] + backward[last]),
            *(("backward", s, backward[s]) for s in reversed(range(last))),
            *(("update", s, group) for s, group in updates),
        ]

    def _refuse_apart(self, op: Any) -> None:
        strange = sorted(reads_of(op) & self.differ - self.gradients)
        if strange:
            raise errors.UnsupportedError(
                f"operator {op.type} updates by {strange[0]}, which each part of a batch has for "
                "itself: in a pipeline updates may read parameters, gradients and schedules"
                f"\n  made at: {op.callsite}"
            )

    def _wire(self, planned: Plan, groups: Sequence[tuple[str, int, list[Item]]]) -> None:
        present = [(kind, stage, ops) for kind, stage, ops in groups if ops]
        segments = [Segment(ops, False) for _, _, ops in present]
        self.plan = joined(planned.block, segments, planned.feeds, planned.fetches)
        self.stages = [stage for _, stage, _ in present]
        self.kinds = [kind for kind, _, _ in present]


class PipelineDevices(OneDevice):
    """Placement of a pipeline's sections on their devices."""

    pads = False

    def __init__(self, sections: Sections, devices: Sequence[jax.Device]):
        super().__init__(sections.plan, devices[0])
        self.sections = sections
        self.devices = [devices[s] for s in sections.stages]
        self._homes = {n: jax.sharding.SingleDeviceSharding(devices[s]) for n, s in sections.homes.items()}

    def home(self, name: str) -> jax.sharding.Sharding:
        return self._homes.get(name, self._home)

    def place(self, values: Env) -> dict[str, jax.Array]:
        return placed(values, {n: self.home(n) for n in values})

    def compiled(self, at: int, function: Function) -> Function:
        return jax.jit(function, donate_argnums=(0,), compiler_options=options(self.devices[at]))

    def entry(
        self, at: int, names: Sequence[Sequence[str]], beside: executable_cache.TraceResults
    ) -> executable_cache.DiskEntry | None:
        device, identity = self.devices[at], ("section", *map(list, names))
        return executable_cache.entry(self.plan, at, identity, [device], options(device), beside)

    def call(self, segment: Any, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        """Call a section's program on inputs copied to the section's device."""
        device = self.devices[segment.at]
        donated, kept = jax.device_put((donated, kept), device)
        return super().call(segment, donated, kept, key)


class PipelineStep(Step):
    """Step of a pipeline: parts of the batch run through forward and backward sections, then the updates."""

    placement: PipelineDevices

    def __init__(
        self,
        placement: PipelineDevices,
        micro_batches: int,
        place: Any,
        check_finite: bool,
        name: str,
        donate: bool,
    ):
        super().__init__(placement.plan, placement, place, check_finite, name, donate)
        self.whole = None
        self._most = micro_batches or placement.sections.number
        self._mean = jax.jit(_mean)

    def run_segments(self, env: dict[str, Any], scope: Scope, key: Any, state: StepState | None = None) -> None:
        """Run all sections on the values in `env`, and add their outputs to it."""
        sections, plan = self.placement.sections, self.plan
        parts = self._parts(env)
        runs: dict[str, list[CompiledSegment]] = {}
        for kind, segment in zip(sections.kinds, self.segments):
            assert isinstance(segment, CompiledSegment)  # sections refuse host operators
            runs.setdefault(kind, []).append(segment)
        for segment in runs.get("once", []):
            env.update(zip(segment.gives, self._call(segment, env, key)))
        local: list[dict[str, Any]] = [dict(part) for part in parts]
        totals: dict[str, dict[int, Any]] = {}
        ahead, back = runs.get("forward", []), runs.get("backward", [])
        for wave in (ahead + runs.get("middle", []), back):
            for tick in range(len(wave) + len(parts) - 1):
                for at, segment in enumerate(wave):
                    if 0 <= tick - at < len(parts):
                        self._part(segment, env, local, totals, tick - at, key)
        for name, values in totals.items():
            env[name] = self._mean([values[i] for i in sorted(values)])
        for segment in runs.get("update", []):
            env.update(zip(segment.gives, self._call(segment, env, key)))
        for name in plan.fetches:
            if name not in env or name in sections.differ - sections.gradients - set(plan.updated):
                var = plan.block.var_recursive(name)
                env[name] = _rejoined(var.shape, [p.get(name, env.get(name)) for p in local], self.placement.device)
        if state is not None:
            state.write(env, [n for s in plan.segments for n in s.gives])

    def _call(self, segment: CompiledSegment, values: Mapping[str, Any], key: Any) -> Any:
        donated = tuple([values[n] for n in segment.donated])
        kept = tuple([values.get(n) for n in segment.kept])
        gives, flags = self.placement.call(segment, donated, kept, key)
        if flags:
            refuse_infinite(segment, flags)
        return gives

    def _part(
        self,
        segment: CompiledSegment,
        env: dict[str, Any],
        local: list[dict[str, Any]],
        totals: dict[str, dict[int, Any]],
        part: int,
        key: Any,
    ) -> None:
        """Run a section for one part of the batch."""
        own = local[part]
        gives = self._call(segment, env | own, _folded(key, part))
        for name, value in zip(segment.gives, gives):
            if name in self.plan.updated:
                env[name] = value
            elif name in self.placement.sections.gradients:
                own[name] = value  # a later section may read it too
                totals.setdefault(name, {})[part] = value
            else:
                own[name] = value

    def _parts(self, env: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the feeds of each part of the batch.

        There are fewer parts than wanted if the wanted number does not divide the batch, and one if rows are in
        sequences.
        """
        block = self.plan.block
        fed = {n: env[n] for n in self.plan.feeds if not block.vars[n].persistable}
        if not fed or any(isinstance(v, Ragged) or not v.size for v in fed.values()):
            return [fed]
        rows = {v.shape[0] for v in fed.values()}
        count = max(c for c in range(1, self._most + 1) if all(n % c == 0 for n in rows) and c <= min(rows))

        def part(value: Any, number: int) -> Any:
            size = value.shape[0] // count
            return value[number * size : (number + 1) * size]

        return [{n: part(v, i) for n, v in fed.items()} for i in range(count)]


def _folded(key: Any, part: int) -> Any:
    """Return the random key of a part."""
    if key is None or not part:
        return key
    return np.array([int(key[0]) ^ (0x9E3779B9 * part & 0xFFFFFFFF), int(key[1])], np.uint32)


def _mean(values: list[Any]) -> Any:
    if isinstance(values[0], SelectedRows):
        return selected_rows.joined(values).map(lambda v: v / len(values))
    return sum(values[1:], values[0]) / jnp.asarray(len(values), values[0].dtype)


def _rejoined(shape: Sequence[int], values: list[Any], device: jax.Device) -> Any:
    """Return a fetch of all parts: rows in order, or the mean of floats, or the sum of integers."""
    if len(values) == 1 or any(v is None for v in values):
        return values[0]
    moved = jax.device_put(values, device)
    if shape and shape[0] == -1:
        return jnp.concatenate(moved)
    total = sum(moved[1:], moved[0])
    return total / len(moved) if jnp.issubdtype(total.dtype, jnp.inexact) else total


def placement_of(planned: Plan, wanted: PipelineOptions, place: Any) -> PipelineDevices:
    """Return the sections of a plan on their devices.

    The devices are those of the places; the default is GPUs of this host, or the CPU's devices in turn. Raises
    PlaceError and UnsupportedError.
    """
    sections = Sections(planned, wanted)
    if wanted.places and len(wanted.places) < sections.number:
        raise errors.PlaceError(f"place_list: {len(wanted.places)} places for {sections.number} sections")
    every = jax.local_devices(backend="cpu")
    places = wanted.places or [CUDAPlace(i) if isinstance(place, CUDAPlace) else None for i in range(sections.number)]
    devices = [p.device() if isinstance(p, CUDAPlace) else every[i % len(every)] for i, p in enumerate(places)]
    return PipelineDevices(sections, devices)

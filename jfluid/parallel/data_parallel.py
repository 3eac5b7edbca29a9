"""Data parallelism of a program: how it is rewritten, and how a batch is divided among its replicas."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jfluid import errors, flags, processes
from jfluid.compile.lowering.plan import Plan
from jfluid.compile.runtime import feeds
from jfluid.compile.runtime.executables import most_bytes
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.compile.runtime.placement import Placement
from jfluid.compile.runtime.step import Step
from jfluid.debugger import draw_block_graphviz
from jfluid.feeding.reader_feeds import ReaderFeeds
from jfluid.ir.operator import OpRole
from jfluid.ir.program import Program
from jfluid.lod_tensor import LoDTensor
from jfluid.ops.collective import AXIS
from jfluid.parallel import notices, phases, replica_feeds
from jfluid.parallel.devices import devices_of
from jfluid.parallel.joined_replicas import JoinedReplicas
from jfluid.parallel.replicas import Replicas
from jfluid.parallel.sharding import ReplicaSharding, dimension_of
from jfluid.places import CPUPlace

_MAX_STEPS = 32


class DataParallelProgram:
    """Program on the devices of places.

    Args:
        program: the program of one replica.
        build: a BuildStrategy.
        execution: an ExecutionStrategy.
        places: the devices; see `devices_of`.
        sums: gradients to be all-reduced besides the gradients that updates read.
    """

    def __init__(
        self,
        program: Program,
        build: Any,
        execution: Any,
        places: Sequence[Any] | None,
        sums: Sequence[str] = (),
    ):
        self._sums, self._others = list(sums), LruCache[DataParallelProgram]()
        self.program, self.build, self.execution, self.places = program, build, execution, places
        self.devices: list[jax.Device] = []  # of all processes
        self._own: list[jax.Device] = []  # of this process
        self.replicas = 0  # in this process
        self.steps = LruCache[Step](_MAX_STEPS, lambda step: step.bytes, most_bytes)
        self._rewritten: tuple[Any, Program] | None = None
        self._seeds: list[str] = []

    def start(self, on_gpus: bool) -> None:
        """Find the devices. Raises PlaceError."""
        if not self.devices:
            if self.build.num_trainers > 1:
                from jfluid.environment.process import RoleVariables

                endpoints = (
                    self.build.trainers_endpoints
                    or self.program._trainers_endpoints  # the argument of transpile
                    or processes.endpoints()
                    or RoleVariables.from_env().trainer_endpoints
                )
                if len(endpoints) != self.build.num_trainers:
                    raise errors.ProgramError(
                        f"num_trainers is {self.build.num_trainers}, and the trainers' endpoints are "
                        f"{list(endpoints)}: set BuildStrategy.trainers_endpoints, call "
                        "DistributeTranspiler.transpile(trainers=...), or start the script with jfluid-launch, "
                        "which sets PADDLE_TRAINER_ENDPOINTS"
                    )
                processes.join(endpoints, self.build.trainer_id)
            own = self._own = devices_of(self.places, on_gpus)
            notices.of_settings(self.execution, own[0].platform)
            self.replicas = len(own)
            self.devices = processes.all_devices(own) if self.build.num_trainers > 1 else own

    @property
    def repeats(self) -> int:
        """Number of times that `Executor.run` runs the program."""
        return int(self.execution.num_iteration_per_run)

    @property
    def alone(self) -> bool:
        """True if there is one replica, and it runs the program unchanged on one device."""
        build = self.build
        return (
            len(self.devices) == 1
            and build._passes.num_repeats == 1
            and not build.debug_graphviz_path
            and build.gradient_scale_strategy != build.GradientScaleStrategy.Customized
        )

    def other(self, program: Program, sums: Sequence[str] = ()) -> "DataParallelProgram":
        """Return a further program on the same devices, with the same settings.

        Args:
            sums: gradients of the program to be all-reduced.
        """
        found = self._others.get_or_make(
            (program.fingerprint, *sums),
            lambda: DataParallelProgram(program, self.build, self.execution, self.places, sums),
        )
        found._own, found.devices, found.replicas = self._own, self.devices, self.replicas
        found.program = program  # an equal program may have a different seed
        return found

    def for_feed(self, feed: Any) -> "DataParallelProgram":
        """Return this object, or the first replicas alone for a feed of fewer batches or rows than replicas.

        Only a program that infers runs on fewer replicas: no replica waits. The last batches of a test may be such
            feeds.
        """
        if isinstance(feed, (list, tuple)):
            count = len(feed)
        else:
            known = self.program.global_block().vars
            divided = [v for n, v in (feed or {}).items() if n in known and not known[n].persistable]
            count = min(map(replica_feeds.rows, divided), default=0)
        if not 0 < count < self.replicas or self.build.num_trainers > 1 or _trains(self.program):
            return self
        found = self._others.get_or_make(
            (count, self.program.fingerprint),
            lambda: DataParallelProgram(self.program, self.build, self.execution, None),
        )
        found._own = found.devices = self._own[:count]
        found.replicas, found.program = count, self.program
        return found

    def read(self, reader_feeds: ReaderFeeds, program: Program, feed: Any) -> tuple[Program, Any]:
        """Return the program without reader operators, and the feed.

        Each replica takes the next batch of the program's reader.
        """
        if not reader_feeds.reads(program):
            return program, feed
        if feed:
            raise errors.FeedError("feed: the program reads from a DataLoader or py_reader, which feeds its replicas")
        read = [reader_feeds.feed(program, None, device) for device in self._own]
        return read[0][0], [values for _, values in read]

    def parts(self, program: Program, feed: Any) -> list[dict[str, Any]]:
        """Return the checked feed of each replica of this process. Raises FeedError."""
        if isinstance(feed, (list, tuple)):
            if len(feed) != self.replicas:
                raise errors.FeedError(
                    f"feed: a list of {len(feed)} feeds for {self.replicas} replicas: give a feed for each replica, "
                    "or a single dict, which the replicas divide"
                )
            parts = [_on_host(feeds.checked(program, f)) for f in feed]
            if any(list(p) != list(parts[0]) for p in parts):
                raise errors.FeedError(f"feed: the replicas' feeds hold different names: {[sorted(p) for p in parts]}")
        else:
            block = program.global_block()
            whole = _on_host(feeds.checked(program, feed))
            parts = replica_feeds.shares(whole, self.replicas, {n for n in whole if block.vars[n].persistable})
        unfed = [n for n in self._seeds if n not in parts[0]]
        if unfed:
            raise errors.FeedError(
                f"feed {unfed[0]}: with GradientScaleStrategy.Customized the gradient of the loss is to be "
                f"fed, {self.replicas} numbers, one for each replica"
            )
        return parts

    def rewritten(self) -> Program:
        """Return the program that each replica runs."""
        if self._rewritten is None or self._rewritten[0] != self.program.identity:
            program, self._seeds = rewritten(
                self.program, self.build, len(self.devices) * self.build._passes.num_repeats
            )
            self._rewritten = self.program.identity, program
            if self.build.debug_graphviz_path:
                draw_block_graphviz(program.global_block(), path=self.build.debug_graphviz_path)
        return self._rewritten[1]

    def placement(self, planned: Plan) -> Placement:
        """Return the placement of a plan of the rewritten program."""
        repeats = self.build._passes.num_repeats
        if self.build.reduce_strategy == self.build.ReduceStrategy.Reduce and len(self.devices) > 1:
            _refuse_own_sums(planned)
        if self._in_one_memory and repeats == 1 and flags.get("FLAGS_cpu_replicas_joined"):
            # where other programs of the process have their values, too
            first, count = CPUPlace().device(), len(self.devices)
            joined = JoinedReplicas.of(planned, first, count, self._sums)
            if joined is not None:
                return joined
        sharding = ReplicaSharding(
            Mesh(np.array(self.devices), (AXIS,)),
            self._shares(planned),
            self.build.fuse_all_reduce_ops,
        )
        return Replicas(planned, sharding, repeats, self._sums)

    @property
    def _in_one_memory(self) -> bool:
        """True if replicas are CPU devices of this process."""
        return len(self.devices) == len(self._own) and self._own[0].platform == "cpu"

    def _shares(self, planned: Plan) -> dict[str, int]:
        """Return the divided dimension of gradients, and of optimizer state of the same shape, for Reduce."""
        if self.build.reduce_strategy != self.build.ReduceStrategy.Reduce or len(self.devices) == 1:
            return {}
        items = [item for segment in planned.segments for item in segment.ops]
        found: dict[str, int] = {}
        for grad, param in phases.gradients_of(items).items():
            table = planned.block.find_var_recursive(grad)
            sparse = table is not None and table.type.name == "SELECTED_ROWS"
            shape = tuple(planned.block.var_recursive(param).shape)
            dim = dimension_of(shape, len(self.devices), sparse)
            if dim is None:
                continue
            if not sparse:
                found[grad] = dim
            for name in _state_of(items, param, shape, planned):
                found[name] = dim
        return found


def _refuse_own_sums(planned: Plan) -> None:
    for segment in planned.segments:
        for item in segment.ops:
            if phases.summed_by(item):
                raise errors.UnsupportedError(
                    f"operator {item[1].type} sums gradients over the replicas by itself, and keeps "
                    "state for each: use ReduceStrategy.AllReduce"
                )


def _trains(program: Program) -> bool:
    """Return whether a program computes gradients or writes persistable variables, as statistics are."""
    return any(
        op.attrs.get("op_role", 0) & (OpRole.Backward | OpRole.Optimize)
        or any(v is not None and v.persistable for v in map(block.find_var_recursive, op.output_arg_names))
        for block in program.blocks
        for op in block.ops
    )


def _on_host(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return feeds as arrays; feeds with a lod stay LoDTensors."""
    return {n: v if not isinstance(v, LoDTensor) or v._lod else v.value for n, v in feeds.items()}


def _state_of(items: list[Any], param: str, shape: tuple[int, ...], planned: Plan) -> list[str]:
    """Optimizer state of the parameter's shape."""
    updates = [
        op for _, op, _ in items if op.attrs.get("op_role", 0) & OpRole.Optimize and param in op.output_arg_names
    ]
    names = {n for op in updates for n in op.output_arg_names} & set(planned.updated) - {param}
    return [n for n in sorted(names) if tuple(planned.block.var_recursive(n).shape) == shape]


def rewritten(program: Program, build: Any, shares: int) -> tuple[Program, list[str]]:
    """Return the program of a replica, and the gradients that are to be fed.

    The replica runs on one of `shares` parts of a batch. Gradients begin with the replica's share of the loss, or with
    fed gradients; batch norm spans replicas if the settings say so.
    """
    program = program.clone()
    block = program.global_block()
    seeds = [op for op in block.ops if op.attrs.get("op_role", 0) == OpRole.Backward | OpRole.Loss]
    fed: list[str] = []
    if build.gradient_scale_strategy == build.GradientScaleStrategy.CoeffNumDevice:
        for op in seeds:
            op.attrs["value"] = op.attrs["value"] / shares
    elif build.gradient_scale_strategy == build.GradientScaleStrategy.Customized:
        block.ops = [op for op in block.ops if op not in seeds]
        fed = [n for op in seeds for n in op.output_arg_names]
        for name in fed:
            block.var(name).is_data = True
    if build.sync_batch_norm:
        for op in (op for b in program.blocks for op in b.ops):
            if op.type in ("batch_norm", "batch_norm_grad"):
                op.type = f"sync_{op.type}"
    return program.verify("data parallelism"), fed

"""The engine compiles and runs programs on any placement. Everything that runs programs uses it."""

import functools
import hashlib
import secrets
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from jfluid import errors, flags, processes, record
from jfluid.caches import kept_files
from jfluid.compile.lowering.plan import plan
from jfluid.compile.runtime import feeds as feeding
from jfluid.compile.runtime import memory
from jfluid.compile.runtime.executables import most_bytes
from jfluid.compile.runtime.fast_path import FastPath, FastPaths
from jfluid.compile.runtime.fed_dtypes import computing_in, fed_dtypes
from jfluid.compile.runtime.feeds import Owned
from jfluid.compile.runtime.fetches import Fetched
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.compile.runtime.placement import of_device
from jfluid.compile.runtime.size_history import SizeHistories
from jfluid.compile.runtime.step import Step
from jfluid.feeding.reader_feeds import ReaderFeeds
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ops.collective import process_group
from jfluid.parallel.data_parallel import DataParallelProgram
from jfluid.parallel.pipeline import PipelineStep, placement_of
from jfluid.places import CUDAPlace
from jfluid.scope import Scope

__all__ = ["Engine", "Fetched", "HasEngine", "Owned", "Prepared", "Runner"]

_MAX_STEPS = 128  # of an engine; the least recently used goes first


@dataclass(slots=True)
class Prepared:
    """A program that is ready to run.

    Attributes:
        program: the program after pruning and without its reader operators.
        step: the compiled step.
        feeds: checked arrays by name; with data parallelism a list with a dict for each replica.
        divided: whether replicas have parts of the batch.
        repeats: how often a run of the program repeats the step (`num_iteration_per_run`).
        entered: True if the feeds are padded and placed for the step.
        retyped: the program computes in dtypes of its feed, which its variables do not declare.
    """

    program: Program
    step: Step
    feeds: Any
    divided: bool = False
    repeats: int = 1
    entered: bool = False
    retyped: bool = False

    def enter(self) -> None:
        """Stage the feeds of the step before the run."""
        if not self.entered:
            self.feeds, self.entered = self.step.placement.enter(self.feeds), True

    def fetched(self, values: Sequence[Any]) -> list[Fetched]:
        """Return the values of a run of the step, as fetches."""
        names, updated, parts = (
            self.step.plan.fetches,
            self.step.plan.updated,
            self.step.placement.parts,
        )
        return [Fetched(n, parts(n, v), self.divided, n in updated) for n, v in zip(names, values, strict=True)]


class Runner:
    """Runs programs that work together with other processes through parameter servers."""

    def run(
        self, feed: Any, fetches: list[str], scope: Scope, parallel: DataParallelProgram | None = None
    ) -> list[Fetched]:
        """Run the program on the devices of `parallel`, once or as often as its settings say.

        Raises UnsupportedError if there is nothing to divide among devices.
        """
        if parallel is not None:
            raise errors.UnsupportedError(
                "with_data_parallel: a server's program and its startup program have nothing to "
                "divide among devices: run the program itself"
            )
        return self.run_alone(feed, fetches, scope)

    def run_alone(self, feed: Any, fetches: list[str], scope: Scope) -> list[Fetched]:
        """Run the program once, on one device."""
        raise NotImplementedError

    def counts(self) -> AbstractContextManager[Callable[[], dict[str, int]]]:
        """Return a context that yields the servers' latest numbers, by name, for a display of progress."""
        return nullcontext(dict)

    def prefetch(self, batches: Iterable[Any], parallel: DataParallelProgram | None = None) -> Iterable[Any]:
        """Return the batches in order, while rows for the next ones are pulled from servers ahead of time."""
        return batches


class Engine:
    """Compiler and runner of programs; a program is compiled once for each combination of feed shapes.

    Args:
        place: its device runs programs that have no devices.
        donate: reuse the buffers of values that programs update: nobody reads the old values.
        runner: finds the Runner of a program that works with parameter servers; None for other
            programs.

    Attributes:
        says_goodbye: True if the user of the engine tells, by `close`, when it is done with parameter servers.
        fast_paths: steps that can run again without preparation.
    """

    says_goodbye = True

    def __init__(
        self,
        place: Any,
        donate: bool = True,
        runner: Callable[[Program, "Engine"], Runner | None] = lambda program, engine: None,
    ):
        self.place, self.donate = place, donate
        self.reader_feeds = ReaderFeeds()
        self._find_runner = runner
        self._runners = LruCache[Runner | None]()
        self._entropy = secrets.randbits(31) | 1
        self._steps = LruCache[Step](_MAX_STEPS, lambda step: step.bytes, most_bytes)
        self._pruned = LruCache[Program]()
        self._retyped = LruCache[Program | None]()
        self.fast_paths = FastPaths()
        kept_files.use()

    @functools.cached_property
    def device(self) -> jax.Device:
        """The device of programs. The first use starts JAX."""
        return self.place.device()

    def clear(self) -> None:
        """Forget all compiled steps, and give their memory back."""
        self._steps.clear()
        self._pruned.clear()
        self._retyped.clear()
        self.fast_paths.clear()

    def start(self, parallel: DataParallelProgram) -> None:
        """Find the devices of a program's replicas, once. Raises PlaceError."""
        if not parallel.devices:
            parallel.start(isinstance(self.place, CUDAPlace))

    def runner(self, program: Program, use_prune: bool = False) -> Runner | None:
        """Return the Runner of a program that works with parameter servers; None for other programs.

        Raises UnsupportedError for a program with servers that is to be pruned, UntrustedOperatorError for a program
        that was read and would act.
        """
        program.refuse_acting()
        found = self._runners.get_or_make(program.identity, lambda: self._find_runner(program, self))
        if use_prune and found is not None:
            raise errors.UnsupportedError(
                "use_prune: a program with parameter servers runs as a whole: prune "
                "the program before DistributeTranspiler rewrites it, or leave use_prune out"
            )
        return found

    def run(
        self,
        program: Program,
        feed: Any,
        fetches: list[str],
        scope: Scope,
        parallel: DataParallelProgram | None = None,
        sizes: SizeHistories | None = None,
    ) -> list[Fetched]:
        """Prepare and run a program once. Arguments are the arguments of `prepare`."""
        if (runner := self.runner(program)) is not None:
            return runner.run(feed, fetches, scope, parallel)
        prepared = self.prepare(program, feed, fetches, parallel, sizes=sizes)
        return prepared.fetched(self.execute(prepared, scope, prepared.repeats))

    def prepare(
        self,
        program: Program,
        feed: Any,
        fetches: list[str],
        parallel: DataParallelProgram | None = None,
        targets: Sequence[Any] | None = None,
        waits: bool = False,
        sizes: SizeHistories | None = None,
    ) -> Prepared:
        """Find, or compile, the step of a program for a feed.

        Args:
            feed: arrays by name; with `parallel` also a list with a feed for each replica. An
                `Owned` one is not copied.
            fetches: names.
            parallel: the program's data parallelism.
            targets: names and operators; operators that no target needs are left out.
            waits: True if the caller waits for the fetches before the feed changes.
            sizes: histories of padded sizes, for jobs whose results must be the same bits after a restart; the step
                then waits for each compilation.

            Raises the errors of `Executor.run` before the run.
        """
        program.refuse_acting()
        owned = isinstance(feed, Owned)
        pipeline = program._pipeline_opt if parallel is None and targets is None else None
        retyped = self._as_fed(program, feed)
        if retyped is not None:
            program, parallel = retyped, parallel and self._on_its_devices(parallel, retyped)
        program, feed, parallel = self._read(program, feed, parallel, targets)
        feeds: Any = feeding.checked(program, feed) if parallel is None else parallel.parts(program, feed)
        names = list(feeds if parallel is None else feeds[0])
        check_finite = flags.get("FLAGS_check_nan_inf")
        key: tuple[Any, ...] = (
            program.fingerprint,
            tuple(names),
            tuple(fetches),
            check_finite,
            flags.get("FLAGS_cpu_kernels"),
            self.donate,
            sizes is not None,
        )
        if pipeline is not None:
            key += pipeline, tuple(o.attrs.get("op_device") for o in program.global_block().ops)

        def compiled() -> Step:
            record.program(program)
            planned = plan(program, names, fetches)
            if pipeline is not None:
                sections = placement_of(planned, pipeline, self.place)
                return PipelineStep(
                    sections,
                    pipeline.micro_batches,
                    self.place,
                    check_finite,
                    "fluid_pipeline",
                    self.donate,
                )
            placement = of_device(planned, self.device) if parallel is None else parallel.placement(planned)
            placement.repeatable = sizes is not None
            count = 1 if parallel is None else len(parallel.devices)
            name = "fluid_" + hashlib.sha256(repr((key, count)).encode()).hexdigest()[:12]
            step = Step(placement.plan, placement, self.place, check_finite, name, self.donate)
            if sizes is not None:
                sizes.add(name, step)
            return step

        step = (self._steps if parallel is None else parallel.steps).get_or_make(key, compiled)
        if parallel is None and not owned and not (waits and fetches and len(step.segments) == 1):
            # XLA on the CPU reads a NumPy feed in place and asynchronously, and the user may change
            # it: it is copied.
            feeds = {n: feeding.own(v) for n, v in feeds.items()}
        repeats = 1 if parallel is None else parallel.repeats
        return Prepared(program, step, feeds, parallel is not None, repeats, retyped=retyped is not None)

    def execute(self, prepared: Prepared, scope: Scope, times: int = 1) -> list[Any]:
        """Run a prepared program once or several times; return the last fetches on their devices."""
        step, values = prepared.step, []
        try:
            for _ in range(times):
                values = step.run(
                    scope,
                    prepared.feeds,
                    self._key(prepared.program, scope, step) if step.plan.rng else None,
                    prepared.entered,
                )
        except (MemoryError, RuntimeError, ValueError) as error:
            if (lack := memory.named(error, prepared.program)) is not None:
                raise lack from error
            raise
        return values

    def keep_fast_path(
        self,
        program: Any,
        inner: Program,
        feed: Any,
        scope: Scope,
        fetch_list: Any,
        prepared: Prepared,
    ) -> None:
        """Keep the fast path of a prepared program that has run, unless its feeds must be prepared at each step.

        Args:
            program: the user's program: `inner`, or a CompiledProgram of `inner`.
        """
        parallel = getattr(program, "_parallel", None)
        runs = inner if parallel is None else parallel.rewritten()
        if prepared.program is not runs and not prepared.retyped:
            return  # readers feed it
        if parallel is not None and prepared.step.plan.rng:
            return  # the seed of the replicas' program is that of the user's when it is prepared
        own, step, ran = weakref.proxy(self), prepared.step, prepared.program
        found = FastPath.of(
            program,
            inner,
            scope,
            fetch_list,
            feed,
            step,
            None if parallel is None else prepared.fetched,
            lambda scope: own._key(ran, scope, step),
        )
        if found is not None:
            self.fast_paths.add(found, scope)

    def _as_fed(self, program: Program, feed: Any) -> Program | None:
        """Return the program that computes in the dtypes of its feed, or None for the program as it is."""
        first = feed[0] if isinstance(feed, (list, tuple)) and feed else feed
        dtypes = fed_dtypes(program, first)
        if not dtypes:
            return None
        key = program.identity, *sorted(dtypes.items())
        return self._retyped.get_or_make(key, lambda: computing_in(program, dtypes))

    def _on_its_devices(self, parallel: DataParallelProgram, program: Program) -> DataParallelProgram:
        """Return the data parallelism of a program on the devices of another program's replicas."""
        self.start(parallel)
        return parallel.other(program)

    def _read(
        self,
        program: Program,
        feed: Any,
        parallel: DataParallelProgram | None,
        targets: Sequence[Any] | None,
    ) -> tuple[Program, Any, DataParallelProgram | None]:
        """Return the program without reader operators and unneeded operators, its feed, and its data parallelism."""
        if parallel is not None:
            self.start(parallel)
            parallel = parallel.for_feed(feed)
            if targets is not None:
                first = feed[0] if isinstance(feed, (list, tuple)) and feed else feed
                parallel = parallel.other(self._prune(program, feeding.named(first), targets))
            return *parallel.read(self.reader_feeds, parallel.rewritten(), feed), parallel
        if "device" not in vars(self):  # before JAX starts
            if (group := process_group(program)) is not None:
                processes.join(*group)
            else:
                processes.join_job()
        if isinstance(feed, (list, tuple)) and len(feed) == 1:
            feed = feed[0]  # the form that a DataLoader with one place yields
        program, feed = self.reader_feeds.feed(program, feed, self.device)
        return program if targets is None else self._prune(program, feed or {}, targets), feed, None

    def _key(self, program: Program, scope: Scope, step: Step) -> np.ndarray:
        """Return the step's random key, from the program's seed and the count of runs in this scope.

        A program that reads nothing (a startup program) draws the same numbers each time if it has
        a seed.
        """
        seed = program.random_seed
        anew = seed and step.plan.starts_anew
        count = 0 if anew else scope.steps.number(program.fingerprint)
        return np.array([(seed or self._entropy) & 0xFFFFFFFF, count & 0xFFFFFFFF], np.uint32)

    def _prune(self, program: Program, feed: Mapping[str, Any], targets: Sequence[Any]) -> Program:
        key = (
            program.identity,
            tuple(sorted(feed)),
            tuple(t.idx if isinstance(t, Operator) else t for t in targets),
        )
        return self._pruned.get_or_make(key, lambda: program._prune_with_input(list(feed), targets))


class HasEngine(Protocol):
    """An object with an engine, such as an Executor."""

    engine: Engine

"""The Executor: Fluid's interface for running programs against a Scope."""

from collections.abc import Mapping, Sequence
from typing import Any

from jfluid import distributed, errors, record
from jfluid.compile.runtime import memory
from jfluid.compile.runtime.fetches import names_of
from jfluid.compiler import resolved
from jfluid.engine import Engine
from jfluid.fetch_handler import FetchHandler
from jfluid.ir.operator import OpRole
from jfluid.ir.program import default_main_program
from jfluid.places import Place, place_to_run
from jfluid.record.phases import PHASES
from jfluid.scope import Scope, global_scope, scope_guard

__all__ = ["Executor", "FetchHandler", "global_scope", "scope_guard"]


class Executor:
    """Runner of programs on one device. XLA compiles each program once per shapes of the feeds.

    Args:
        place: `CPUPlace()`, `CUDAPlace(i)`; by default the first GPU that JAX sees, else the CPU.

    Attributes:
        engine: compiles and runs the programs.

    Raises PlaceError for a device that the machine does not have.
    """

    def __init__(self, place: Place | None = None):
        self.place = place_to_run(place)
        self.engine = Engine(self.place, runner=distributed.runner)
        self._closed = False
        record.current()  # so that the first step counts

    def close(self) -> None:
        """Leave a job's parameter servers and forget all steps: nothing can be run afterwards."""
        if not self._closed:
            distributed.leave(self.engine)
        self._closed = True
        self.engine.clear()

    def run(
        self,
        program: Any = None,
        feed: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        fetch_list: Sequence[Any] | None = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = False,
        return_merged: bool = True,
        use_prune: bool = False,
    ) -> list[Any]:
        """Run a program once; returns a list with the value of each fetch.

        Args:
            program: a Program or CompiledProgram; the default main program when None.
            feed: arrays or LoDTensors by name, of the dtypes of the variables. Data parallelism
                divides a dict among the replicas by rows (or sequences); a list has a dict for each replica.
                A program that reads from a reader takes the next batch of the reader instead. A program
                of `CompiledProgram._with_inference_optimize` takes PaddleTensors.
            fetch_list: variables or names whose values to return.
            feed_var_name, fetch_var_name, use_program_cache: no effect: there are no holder
                variables, and compiled programs are always kept.
            scope: where parameters live; the global scope when None.
            return_numpy: return NumPy arrays; an array of one element converts to a number as
                with earlier NumPy (see FetchedArray). Otherwise return LoDTensors that stay on the
                device.
            return_merged: join the values of replicas row by row; otherwise each fetch is a list of
                the replicas' values. A single device has one value of each fetch.
            use_prune: leave out operators that no fetch needs, updates of parameters included.

        Raises:
            FeedError, FetchError: a name, rank, shape or dtype is wrong, or a feed is missing.
            EOFException: the reader of the program has no more batches.
            ReaderError: the reader failed (its error is the cause), or was not started.
            UninitializedError: the startup program was not run in this scope.
            UnsupportedOpError: operators of the program are not registered; all are listed.
            OpError: an operator failed; the scope is as it was before.
            OutOfMemoryError: it takes more memory than there is.
        """
        if self._closed:
            raise errors.JFluidError("this Executor was closed: make a new one")
        program = default_main_program() if program is None else program
        scope = global_scope() if scope is None else scope
        if (predictor := getattr(program, "_predictor", None)) is not None:
            outputs: list[Any] = predictor.run(feed)
            return outputs
        if not PHASES.on:
            return self._run(program, feed, fetch_list, scope, return_numpy, return_merged, use_prune)
        begin, is_step = PHASES.begin(), False
        try:
            values = self._run(program, feed, fetch_list, scope, return_numpy, return_merged, use_prune)
            is_step = bool(feed or fetch_list)
        finally:
            PHASES.end("compute", begin, is_step)
        return values

    def _run(
        self,
        program: Any,
        feed: Any,
        fetch_list: Sequence[Any] | None,
        scope: Scope,
        return_numpy: bool,
        return_merged: bool,
        use_prune: bool,
    ) -> list[Any]:
        """Run a program that belongs to no predictor; the arguments are the arguments of `run`."""
        try:
            if return_numpy and not use_prune:
                path = self.engine.fast_paths.find(program, fetch_list, scope)
                if path is not None:
                    values = path.run(program, feed, fetch_list, scope, return_merged)
                    if values is not None:
                        return values
            given, parallel = resolved(program)
            names, targets = names_of(fetch_list)
            if (runner := self.engine.runner(given, use_prune)) is not None:
                found = runner.run(feed, names, scope, parallel)
            else:
                prepared = self.engine.prepare(
                    given, feed, names, parallel, targets if use_prune else None, return_numpy
                )
                found = prepared.fetched(self.engine.execute(prepared, scope, prepared.repeats))
                if return_numpy and not use_prune and prepared.repeats == 1:
                    self.engine.keep_fast_path(program, given, feed, scope, fetch_list, prepared)
            return [f.numpy(return_merged) if return_numpy else f.tensor(return_merged) for f in found]
        except (MemoryError, RuntimeError, ValueError) as error:
            if (lack := memory.named(error, resolved(program)[0])) is not None:
                raise lack from error
            raise

    def _prune_program(self, program: Any, feed: Any = None, fetch_list: Any = None, optimize_ops: Any = None) -> Any:
        """Return the program pruned to the operators that fetches and updates need.

        A CompiledProgram is changed in place.

        Args:
            feed: a dict or a list of dicts; its names are fed.
            fetch_list: Variables or names.
            optimize_ops: the operators of updates; none stands for all of the program.

        Raises TypeError for anything else than a Program or CompiledProgram.
        """
        origin, _ = resolved(program)
        feeds = feed if isinstance(feed, (list, tuple)) else [feed or {}]
        updates = optimize_ops or [
            op for block in origin.blocks for op in block.ops if op.attrs.get("op_role", 0) & OpRole.Optimize
        ]
        names = {name for each in feeds for name in each}
        pruned = origin._prune_with_input(names, [*(fetch_list or ()), *updates])
        if origin is program:
            return pruned
        program._program = pruned
        if program._parallel is not None:
            program._parallel.program = pruned
        return program

    def train_from_dataset(
        self,
        program: Any = None,
        dataset: Any = None,
        scope: Scope | None = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Sequence[Any] | None = None,
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
    ) -> None:
        """Run a program once for each batch of a dataset, while threads read the next ones.

        One worker trains, independent of `thread`. Results equal the results of Fluid with one thread.
        Fluid's workers update the same parameters without waiting (Hogwild). That was not faster
        than one worker with steps on all processors (docs/performance.md).

        Args:
            program: a Program or CompiledProgram; the default main program when None.
            dataset: made by `DatasetFactory().create_dataset`.
            scope: where parameters live; the global scope when None.
            thread: number of threads that read the files of a QueueDataset ahead; 0 for the number
                given to `dataset.set_thread`. One thread makes the batches of an InMemoryDataset.
            debug: print the time of the epoch, and how much of it went by waiting for data.
            fetch_list, fetch_info: variables to print, and a text in front of each; their names
                when None.
            print_period: steps between two prints.
            fetch_handler: a FetchHandler.

        Raises DataError for a wrong file, line or pipe command, after the steps before it, and the errors
        of `run`.
        """
        from jfluid.dataset.training import Printed, run_dataset  # it takes numba

        program = default_main_program() if program is None else program
        scope = global_scope() if scope is None else scope
        printed = Printed(fetch_list, fetch_info, print_period, debug)
        given = resolved(program)
        try:
            run_dataset(self.engine, *given, dataset, scope, thread, printed, fetch_handler)
        except (MemoryError, RuntimeError, ValueError) as error:
            if (lack := memory.named(error, given[0])) is not None:
                raise lack from error
            raise

    infer_from_dataset = train_from_dataset
    """`train_from_dataset`, of a program that does not train, such as `program.clone(for_test=True)`.
    As in Fluid the program is run as it is: optimizers that it holds do update parameters."""

"""The Executor: Fluid's interface for running programs against a Scope."""

from collections.abc import Mapping, Sequence
from typing import Any

from jfluid import distributed, errors
from jfluid.compile import fetches as fetching
from jfluid.compile.step import Repeat
from jfluid.compiler import resolved
from jfluid.engine import Engine
from jfluid.fetch_handler import FetchHandler
from jfluid.ir.program import default_main_program
from jfluid.ir.variable import Variable
from jfluid.places import CPUPlace, CUDAPlace, Place, is_compiled_with_cuda
from jfluid.scope import Scope, global_scope, scope_guard

__all__ = ["Executor", "FetchHandler", "global_scope", "scope_guard"]


class Executor:
    """Runs programs on one device; each program is compiled by XLA, once per shapes of its feeds.

    Args:
        place: `CPUPlace()`, `CUDAPlace(i)`; by default the first GPU that JAX sees, else the CPU.

    Attributes:
        engine: what compiles and runs the programs.

    Raises PlaceError for a device that the machine does not have.
    """

    def __init__(self, place: Place | None = None):
        self.place = (
            place
            if place is not None
            else (CUDAPlace(0) if is_compiled_with_cuda() else CPUPlace())
        )
        if not hasattr(self.place, "device"):
            raise errors.PlaceError(
                f"place: expected CPUPlace() or CUDAPlace(i), found {self.place!r}"
            )
        if not isinstance(self.place, CPUPlace):
            self.place.device()  # an absent GPU is an error here
        self.engine = Engine(self.place, runner=distributed.runner)
        self._closed = False
        self._again: Repeat | None = None  # the last step

    def close(self) -> None:
        """Forget all compiled steps, and leave the parameter servers of a job. The Executor cannot
        run any more.
        """
        if not self._closed:
            distributed.leave(self.engine)
        self._closed = True
        self._again = None
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
        """Run a program once.

        Args:
            program: a Program or CompiledProgram; the default main program when None.
            feed: arrays (or LoDTensors) by name; with data parallelism they are divided among the
                replicas by rows (or sequences), or a list holds a dict for each. Dtypes must be
                those of the variables. A program that reads from a DataLoader with iterable=False,
                or from a py_reader, takes the next batch from there.
            fetch_list: variables or names whose values to return.
            feed_var_name, fetch_var_name: names of the holder variables in Fluid; there are none
                here, so no effect.
            scope: where parameters live; the global scope when None.
            return_numpy: return NumPy arrays, of which those of one element convert to numbers as
                they did with earlier NumPy (see FetchedArray); else LoDTensors that stay on the
                device.
            use_program_cache: no effect: compiled programs are always kept.
            return_merged: of a program with data parallelism, join what replicas give row by row;
                else each fetch is a list of the replicas' values. A single device has one value of
                each fetch.
            use_prune: leave out what the fetches do not need, updates of parameters included.

        Returns:
            One value per fetch.

        Raises:
            FeedError, FetchError: a name, rank, shape or dtype is wrong, or a feed is missing.
            EOFException: the reader of the program has no more batches.
            ReaderError: the reader of the program failed (its error is the cause), or was not
                started.
            UninitializedError: the startup program was not run in this scope.
            UnsupportedOpError: operators of the program are not registered; all are listed.
            OpError: an operator failed; the scope is as it was before.
        """
        if self._closed:
            raise errors.JFluidError("this Executor was closed: make a new one")
        program = default_main_program() if program is None else program
        scope = global_scope() if scope is None else scope
        if self._again is not None and return_numpy and not use_prune:
            values = self._again.run(program, feed, fetch_list, scope)
            if values is not None:
                return [
                    fetching.to_numpy(v.name if isinstance(v, Variable) else v, value)
                    for v, value in zip(fetch_list or (), values)
                ]
        given, parallel = resolved(program)
        names, targets = fetching.names_of(fetch_list)
        if (runner := self.engine.runner(given)) is not None:
            if use_prune:
                raise errors.UnsupportedError(
                    "use_prune: what a program asks of parameter servers is done as a whole: prune "
                    "the program before DistributeTranspiler rewrites it, or leave use_prune out"
                )
            found = runner.run(feed, names, scope, parallel)
        else:
            prepared = self.engine.prepare(
                given, feed, names, parallel, targets if use_prune else None, return_numpy
            )
            found = prepared.fetched(
                self.engine.execute(
                    prepared, scope, parallel.repeats if parallel is not None else 1
                )
            )
            if (
                return_numpy
                and prepared.program is program
                and Repeat.possible(prepared.step, prepared.feeds, fetch_list)
            ):
                self._again = Repeat(
                    program, scope, fetch_list or (), prepared.feeds, prepared.step
                )
        return [f.numpy(return_merged) if return_numpy else f.tensor(return_merged) for f in found]

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

        Steps follow one another: a program trains as it would with one of Fluid's threads.

        Args:
            program: a Program or CompiledProgram; the default main program when None.
            dataset: what `DatasetFactory().create_dataset` makes.
            scope: where parameters live; the global scope when None.
            thread: threads that read a QueueDataset; 0 for as many as `dataset.set_thread` says.
            debug: print the time of the epoch, and how much of it went by waiting for data.
            fetch_list: variables to print.
            fetch_info: a text in front of each; their names when None.
            print_period: steps between two prints.
            fetch_handler: a FetchHandler.

        Raises:
            DataError: a file, a line or a pipe command is wrong; the steps before have been done.
            What `run` raises.
        """
        from jfluid.dataset.training import run_dataset  # it takes numba

        fetching.names_of(fetch_list)
        given, parallel = resolved(default_main_program() if program is None else program)
        run_dataset(
            self.engine,
            given,
            parallel,
            dataset,
            global_scope() if scope is None else scope,
            thread,
            debug,
            fetch_list or [],
            fetch_info or [],
            print_period,
            fetch_handler,
        )

    def infer_from_dataset(
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
        """`train_from_dataset` of a program that does not train, such as
        `program.clone(for_test=True)`. As in Fluid the program is run as it is: optimizers that it
        holds do update parameters."""
        self.train_from_dataset(
            program,
            dataset,
            scope,
            thread,
            debug,
            fetch_list,
            fetch_info,
            print_period,
            fetch_handler,
        )

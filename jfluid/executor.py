"""The Executor: runs programs against a Scope."""
import functools
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jfluid import distributed, errors, flags, processes
from jfluid.compile.buckets import trimmed
from jfluid.compile.plan import plan
from jfluid.compile.recent import Recent
from jfluid.compile.step import Repeat, Step
from jfluid.feeding.placing import Placed, ready
from jfluid.feeding.readings import Readings
from jfluid.fetch_handler import FetchHandler
from jfluid.fetched_array import fetched as fetched_array
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program, default_main_program
from jfluid.ir.variable import Variable
from jfluid.lod_tensor import LoDTensor, LoDTensorArray, SelectedRows
from jfluid.ops.collective import meeting
from jfluid.parallel.devices import prepare_cpus
from jfluid.parallel.feeding import fetched
from jfluid.parallel.program import DataParallel
from jfluid.places import CPUPlace, CUDAPlace, Place, cpu_number, is_compiled_with_cuda
from jfluid.scope import Scope, global_scope, scope_guard

__all__ = ["Executor", "FetchHandler", "global_scope", "scope_guard"]

_MAX_STEPS = 128  # compiled steps an Executor keeps; the least recently used goes first


class Executor:
    """Runs programs on one device; each program is compiled by XLA, once per shapes of its feeds.

    Args:
        place: `CPUPlace()`, `CUDAPlace(i)`; by default the first GPU that JAX sees, else the CPU.

    Raises PlaceError for a device that the machine does not have.
    """

    def __init__(self, place: Place | None = None):
        self.place = place if place is not None else (CUDAPlace(0) if is_compiled_with_cuda() else CPUPlace())
        if not hasattr(self.place, "device"):
            raise errors.PlaceError(f"place: expected CPUPlace() or CUDAPlace(i), found {self.place!r}")
        if not isinstance(self.place, CPUPlace):
            self.place.device()  # an absent GPU is an error here
        self._entropy = secrets.randbits(31) | 1
        self._steps = Recent[Step](_MAX_STEPS)
        self._pruned = Recent[Program]()
        self._readings = Readings()
        self._runners = Recent[distributed.Runner | None]()  # of programs that parameter servers take part in
        self._closed = False
        self._again: Repeat | None = None  # the last step
        _use_persistent_cache()

    @functools.cached_property
    def _device(self) -> jax.Device:
        """Where programs run. JAX starts here, at the first run: the CPU gets as many devices as CPU_NUM says by then."""
        prepare_cpus(cpu_number())
        return self.place.device()

    def close(self) -> None:
        """Forget all compiled steps, and say goodbye to the parameter servers of a job. The Executor cannot run any more."""
        if not self._closed:
            distributed.leave(self)
        self._closed = True
        self._steps.clear()
        self._again = None
        self._pruned.clear()

    def run(self, program: Any = None, feed: Mapping[str, Any] | None = None, fetch_list: Sequence[Any] | None = None,
            feed_var_name: str = "feed", fetch_var_name: str = "fetch", scope: Scope | None = None,
            return_numpy: bool = True, use_program_cache: bool = False, return_merged: bool = True,
            use_prune: bool = False) -> list[Any]:
        """Run a program once.

        Args:
            program: a Program or CompiledProgram; the default main program when None.
            feed: arrays (or LoDTensors) by name; with data parallelism they are divided among the replicas by rows (or
                sequences), or a list holds a dict for each. Dtypes must be those of the variables. A program that reads from a
                DataLoader with iterable=False, or from a py_reader, takes the next batch from there.
            fetch_list: variables or names whose values to return.
            feed_var_name, fetch_var_name: names of the holder variables in Fluid; there are none here, so no effect.
            scope: where parameters live; the global scope when None.
            return_numpy: return NumPy arrays, of which those of one element convert to numbers as they did with earlier NumPy
                (see FetchedArray); else LoDTensors that stay on the device.
            use_program_cache: no effect: compiled programs are always kept.
            return_merged: of a program with data parallelism, join what replicas give row by row; else each fetch is a
                list of the replicas' values. A single device has one value of each fetch.
            use_prune: leave out what the fetches do not need, updates of parameters included.

        Returns:
            One value per fetch.

        Raises:
            FeedError, FetchError: a name, rank, shape or dtype is wrong, or a feed is missing.
            EOFException: the reader of the program has no more batches.
            ReaderError: the reader of the program failed (its error is the cause), or was not started.
            UninitializedError: the startup program was not run in this scope.
            UnsupportedOpError: operators of the program are not registered; all are listed.
            OpError: an operator failed; the scope is as it was before.
        """
        return self._run(program, feed, fetch_list, scope, return_numpy, return_merged, prune=use_prune)

    def _run(self, program: Any, feed: Any, fetch_list: Sequence[Any] | None, scope: Scope | None, numpy: bool,
             merged: bool = True, prune: bool = False, owned: bool = False, donate: bool = True) -> list[Any]:
        """`run`.

        Args:
            owned: nobody writes to the feeds any more, so that they need no copy.
            donate: nobody reads the old values of what the program updates, so that their buffers may be used again.
        """
        if self._closed:
            raise errors.JFluidError("this Executor was closed: make a new one")
        again = self._again
        if again is not None and numpy and not prune:
            values = again.run(default_main_program() if program is None else program, feed, fetch_list,
                               global_scope() if scope is None else scope)
            if values is not None:
                return [_numpy(v.name if isinstance(v, Variable) else v, value) for v, value in zip(fetch_list, values)]
        parallel = getattr(program, "_parallel", None)
        if parallel is not None:
            return self._run_replicas(parallel, feed, fetch_list, scope, numpy, merged, prune, owned)
        program = _resolve(program)
        runner = self._runner(program)
        if runner is not None:
            return self._run_with_servers(runner, feed, fetch_list, scope, numpy, prune, owned)
        if "_device" not in vars(self) and (group := meeting(program)) is not None:
            processes.join(*group)  # before JAX starts
        if isinstance(feed, (list, tuple)) and len(feed) == 1:
            feed = feed[0]  # what a DataLoader with one place gives
        given, (program, feed) = program, self._readings.feed(program, feed, self._device)
        scope = global_scope() if scope is None else scope
        fetches, targets = _fetch_names(fetch_list)
        if prune:
            program = self._prune(program, feed or {}, targets)
        feeds = _check_feeds(program, feed)
        if not program.global_block().ops and not fetches:
            return []
        check_finite = flags.get("FLAGS_check_nan_inf")
        key = (program.fingerprint, tuple(feeds), tuple(fetches), check_finite, donate)

        def compiled() -> Step:
            name = "fluid_" + hashlib.sha256(repr(key).encode()).hexdigest()[:12]
            return Step(plan(program, list(feeds), fetches), self._device, self.place, check_finite, name, donate)
        step = self._steps.of(key, compiled)
        if not owned and not (numpy and fetches and len(step.segments) == 1):
            # XLA on the CPU reads a NumPy feed where it lies, and nothing below waits for it: the user may write to it.
            feeds = {n: _own(v) for n, v in feeds.items()}
        feeds = ready(feeds, self._device, step._buckets.exact)
        values = step.run(scope, feeds, self._key(program, scope, step) if step.plan.rng else None)
        if numpy and donate and program is given and Repeat.possible(step, feeds, fetch_list):
            self._again = Repeat(program, scope, fetch_list, feeds, step)
        if numpy:
            return [_numpy(n, v) for n, v in zip(fetches, values)]
        return [_tensor(v, n in step.plan.updated) for n, v in zip(fetches, values)]

    _checked = staticmethod(lambda program, feed: _check_feeds(program, feed))

    def _runner(self, program: Program) -> Any:
        """What runs a program that parameter servers take part in; None for others."""
        return self._runners.of(program.identity, lambda: distributed.runner(program, self))

    def _ahead(self, program: Any, batches: Iterable[Any]) -> Iterable[Any]:
        """The batches, to be run one after the other: with parameter servers what the next ones need comes meanwhile."""
        parallel = getattr(program, "_parallel", None)
        if parallel is not None:
            self._start(parallel)
        runner = self._runner(_resolve(program) if parallel is None else parallel.program)
        return batches if runner is None else runner.ahead(batches, parallel)

    def _counts(self, program: Any) -> AbstractContextManager[Callable[[], dict[str, int]]]:
        """What a display of progress shows of parameter servers, while it is entered."""
        parallel = getattr(program, "_parallel", None)
        runner = self._runner(_resolve(program) if parallel is None else parallel.program)
        return nullcontext(dict) if runner is None else runner.counts()

    def _run_with_servers(self, runner: Any, feed: Any, fetch_list: Sequence[Any] | None, scope: Scope | None,
                          numpy: bool, prune: bool, owned: bool) -> list[Any]:
        if prune:
            raise errors.UnsupportedError("use_prune: what a program asks of parameter servers is done as a whole: prune the "
                                          "program before DistributeTranspiler rewrites it, or leave use_prune out")
        fetches, _ = _fetch_names(fetch_list)
        values = runner.run(feed, fetches, global_scope() if scope is None else scope, owned)
        return [_numpy(n, v) for n, v in zip(fetches, values)] if numpy else values

    def _run_replicas(self, parallel: DataParallel, feed: Any, fetch_list: Sequence[Any] | None, scope: Scope | None,
                      numpy: bool, merged: bool, prune: bool, owned: bool) -> list[Any]:
        if prune:
            raise errors.UnsupportedError("use_prune: a program with data parallelism is run as a whole: prune it before "
                                          "(program.clone(for_test=True)), or leave use_prune out")
        if flags.get("FLAGS_check_nan_inf"):
            raise errors.UnsupportedError("FLAGS_check_nan_inf: replicas are not checked: run the program itself on one "
                                          "device to find the operator, or turn the flag off")
        self._start(parallel)
        fetches, _ = _fetch_names(fetch_list)
        runner = self._runner(parallel.program)
        if runner is not None:
            found = runner.run_replicas(parallel, feed, fetches, global_scope() if scope is None else scope, owned)
            return [fetched(v, merged, numpy, n) for n, v in zip(fetches, found)]
        return parallel.run(self, feed, fetches, global_scope() if scope is None else scope, numpy, merged, _check_feeds)

    def _start(self, parallel: DataParallel) -> None:
        """Find the devices of a program's replicas."""
        prepare_cpus(cpu_number())
        parallel.start(isinstance(self.place, CUDAPlace))

    def _key(self, program: Program, scope: Scope, step: Any) -> np.ndarray:
        """The step's random key: the program's seed, and how often the program ran in this scope.

        A program that reads nothing (a startup program) draws the same numbers each time if it has a seed.
        """
        seed = program.random_seed
        count = scope.steps.get(program.fingerprint, 0)
        if not (seed and step.starts_anew):
            scope.steps[program.fingerprint] = count + 1
        else:
            count = 0
        return np.array([(seed or self._entropy) & 0xFFFFFFFF, count & 0xFFFFFFFF], np.uint32)

    def _prune(self, program: Program, feed: Mapping[str, Any], targets: Sequence[Any]) -> Program:
        key = (program.identity, tuple(sorted(feed)), tuple(t.idx if isinstance(t, Operator) else t for t in targets))
        return self._pruned.of(key, lambda: program._prune_with_input(list(feed), targets))

    def train_from_dataset(self, program: Any = None, dataset: Any = None, scope: Scope | None = None, thread: int = 0,
                           debug: bool = False, fetch_list: Sequence[Any] | None = None,
                           fetch_info: Sequence[str] | None = None, print_period: int = 100,
                           fetch_handler: FetchHandler | None = None) -> None:
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
        from jfluid.dataset.training import run_dataset
        run_dataset(self, program, dataset, scope, thread, debug, fetch_list or [], fetch_info or [], print_period,
                    fetch_handler)

    def infer_from_dataset(self, program: Any = None, dataset: Any = None, scope: Scope | None = None, thread: int = 0,
                           debug: bool = False, fetch_list: Sequence[Any] | None = None,
                           fetch_info: Sequence[str] | None = None, print_period: int = 100,
                           fetch_handler: FetchHandler | None = None) -> None:
        """`train_from_dataset` of a program that does not train, such as `program.clone(for_test=True)`. As in Fluid the
        program is run as it is: optimizers that it holds do update parameters."""
        self.train_from_dataset(program, dataset, scope, thread, debug, fetch_list, fetch_info, print_period, fetch_handler)


def _own(value: Any) -> Any:
    if isinstance(value, Placed):
        return value
    if isinstance(value, LoDTensor):
        return LoDTensor(_own(value._value), value._lod)
    return np.array(value) if isinstance(value, np.ndarray) else value


def _numpy(name: str, value: Any) -> np.ndarray | list[np.ndarray]:
    if isinstance(value, (jax.Array, np.ndarray)):
        return fetched_array(value)
    value = trimmed(value)
    if isinstance(value, SelectedRows):
        return fetched_array(value)
    if isinstance(value, LoDTensorArray):
        return [_numpy(name, v) for v in value]
    if not isinstance(value, LoDTensor) or value.lod():
        what = f"rows in sequences, lod {value.lod()}" if isinstance(value, LoDTensor) else f"a {type(value).__name__}"
        raise errors.FetchError(f"fetch {name}: it holds {what}, which a NumPy array cannot tell: "
                                "fetch with return_numpy=False, and read .lod() and np.array() of the result")
    return fetched_array(value)


def _tensor(value: Any, updated: bool) -> Any:
    """A LoDTensor (or an array of them) for users. What the next step overwrites is copied."""
    value = trimmed(value)
    if isinstance(value, LoDTensorArray):
        return LoDTensorArray(_tensor(v, updated) for v in value)
    if isinstance(value, (LoDTensor, SelectedRows)):
        return value
    return LoDTensor(np.array(value) if updated else value)


def _resolve(program: Any) -> Program:
    """The Program to run, of what users give."""
    if program is None:
        return default_main_program()
    if isinstance(program, Program):
        return program
    inner = getattr(program, "_single_program", None)
    if inner is None:
        raise TypeError(f"program: expected a Program or a CompiledProgram, found {type(program).__name__}")
    return inner()


def _fetch_names(fetch_list: Any) -> tuple[list[str], list[Any]]:
    """Names to fetch, and everything to keep when pruning (names, and operators that `minimize` returned)."""
    if fetch_list is None:
        return [], []
    if isinstance(fetch_list, (Variable, str)):
        fetch_list = [fetch_list]
    if not isinstance(fetch_list, (list, tuple)):
        raise errors.FetchError(f"fetch_list: expected a list of Variables or names, found {type(fetch_list).__name__}")
    names, targets = [], []
    for item in fetch_list:
        if isinstance(item, (Variable, str)):
            names.append(item if isinstance(item, str) else item.name)
            targets.append(names[-1])
        elif isinstance(item, (list, tuple)):
            targets += [t for t in _flatten(item) if isinstance(t, Operator)]
        else:
            raise errors.FetchError(f"fetch_list: expected Variables or names, found {type(item).__name__}: {item!r}")
    return names, targets


def _flatten(items: Any) -> list:
    return [x for i in items for x in (_flatten(i) if isinstance(i, (list, tuple)) else [i])]


def _check_feeds(program: Program, feed: Any) -> dict[str, Any]:
    """The feeds as arrays, each held against its variable."""
    if not feed:
        return {}
    if not isinstance(feed, Mapping):
        raise errors.FeedError(f"feed: expected a dict from names to arrays, found {type(feed).__name__}; a list of feeds, "
                               "one per device, needs with_data_parallel")
    block = program.global_block()
    checked = {}
    for name, value in feed.items():
        name = name.name if isinstance(name, Variable) else name
        var = block.vars.get(name)
        if var is None:
            raise errors.FeedError(f"feed {name}: the program has no such variable" + errors.close_to(str(name), block.vars))
        checked[name] = _check_feed(var, value)
    return checked


def _check_ragged(var: Variable, tensor: LoDTensor) -> LoDTensor:
    if not tensor.has_valid_recursive_sequence_lengths():
        raise errors.FeedError(f"feed {var.name}: the lod {tensor.lod()} does not describe its {len(tensor)} rows")
    if tensor._value.shape[0] >= 2**31:
        raise errors.FeedError(f"feed {var.name}: {len(tensor)} rows; at most 2**31 - 1 can be fed with a lod")
    return LoDTensor(_check_array(var, tensor._value), tensor._lod)


def _check_feed(var: Variable, value: Any) -> Any:
    if isinstance(value, Placed) and value.placed() is not None:
        _check_array(var, value._value)
        return value
    if isinstance(value, LoDTensor):
        if value._lod:
            return _check_ragged(var, value)
        value = np.asarray(value)
    elif not isinstance(value, (np.ndarray, jax.Array)):
        try:
            value = np.asarray(value, var.np_dtype)
        except (TypeError, ValueError) as e:
            raise errors.FeedError(f"feed {var.name}: expected an array of {var.np_dtype}, found "
                                   f"{type(value).__name__}: {e}") from None
    return _check_array(var, value)


def _check_array(var: Variable, value: Any) -> Any:
    if value.dtype != var.np_dtype:
        raise errors.FeedError(f"feed {var.name}: expected dtype {var.np_dtype}, found {value.dtype}; "
                               f'convert it with .astype("{var.np_dtype}")')
    if var._shape is not None and len(var._shape) != value.ndim:
        raise errors.FeedError(f"feed {var.name}: expected rank {len(var._shape)} (shape {list(var._shape)}), "
                               f"found shape {list(value.shape)}")
    if var.need_check_feed and any(w not in (-1, g) for w, g in zip(var._shape or (), value.shape)):
        raise errors.FeedError(f"feed {var.name}: expected shape {list(var.shape)} (-1 is any), found {list(value.shape)}")
    return value


def _use_persistent_cache() -> None:
    """Keep compiled programs on disk, unless the user has set JAX's cache or FLAGS_compilation_cache_dir is empty.

    JAX keys its entries by jaxlib's version, the host's CPU and the program.
    """
    directory = flags.get("FLAGS_compilation_cache_dir")
    if not directory or jax.config.jax_compilation_cache_dir:
        return
    path = Path(os.path.expanduser(directory))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a home that cannot be written: compile each time
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)

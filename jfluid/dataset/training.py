"""Running a program over all batches of a dataset."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.compile.runtime.fetches import names_of
from jfluid.dataset.datasets import DatasetBase
from jfluid.engine import Engine, Owned, Runner
from jfluid.fetch_handler import FetchHandler, Watch
from jfluid.ir.program import Program
from jfluid.lod_tensor import LoDTensor
from jfluid.parallel.data_parallel import DataParallelProgram
from jfluid.progress import Progress
from jfluid.record.phases import PHASES
from jfluid.scope import Scope


class Printed:
    """Values to print while a program runs over a dataset.

    Args:
        fetch_list: variables or names whose values to print.
        fetch_info: a text in front of each; their names when None.
        period: steps between two prints.
        time: print the time of the epoch at its end.

    Raises FetchError for anything else in `fetch_list`, and for a different number of texts; DataError
    for a period below 1.
    """

    def __init__(
        self,
        fetch_list: Sequence[Any] | None,
        fetch_info: Sequence[str] | None,
        period: int,
        time: bool,
    ):
        if period < 1:
            raise errors.DataError(f"print_period: expected 1 or more, found {period}")
        self.fetches, _ = names_of(fetch_list)
        self.texts = list(fetch_info or ()) or self.fetches
        if len(self.texts) != len(self.fetches):
            raise errors.FetchError(
                f"fetch_info: expected {len(self.fetches)} texts, one for each fetch, found {len(self.texts)}"
            )
        self.period, self.time = period, time


def run_dataset(
    engine: Engine,
    program: Program,
    parallel: DataParallelProgram | None,
    dataset: Any,
    scope: Scope,
    thread: int,
    printed: Printed,
    fetch_handler: FetchHandler | None,
) -> None:
    """Run `program` once for each batch. See `Executor.train_from_dataset`."""
    if not isinstance(dataset, DatasetBase):
        raise errors.DataError(
            f"dataset: expected a dataset of DatasetFactory().create_dataset, found {type(dataset).__name__}"
        )
    if thread < 0:
        raise errors.DataError(f"thread: expected 0 or more, found {thread}")
    waited, begin, step, rows = 0.0, time.perf_counter(), 0, 0
    if parallel is not None:
        engine.start(parallel)
    runner = engine.runner(program) or Runner()
    with (
        Watch(fetch_handler) as watch,
        runner.counts() as counts,
        dataset._batches(thread) as batches,
        Progress(dataset._steps(), "step") as progress,
    ):
        fetches = [*printed.fetches, *names_of(watch.fetches)[0]]
        source = iter(runner.prefetch(batches, parallel))
        while True:
            asked = time.perf_counter()
            try:
                with PHASES.phase("reader"):
                    batch = next(source, None)
            except Exception as error:
                error.add_note(f"{step} steps of this epoch were done before")
                raise
            waited += time.perf_counter() - asked
            if batch is None:
                break
            step, examples = step + 1, _examples(getattr(batch, "batch", batch))
            rows += examples
            fed = Owned(batch) if isinstance(batch, Mapping) else batch
            with PHASES.phase("compute"):
                found = [f.tensor() for f in engine.run(program, fed, fetches, scope, parallel)]
            PHASES.step()
            watch.show(found[len(printed.fetches) :])
            if printed.fetches and step % printed.period == 0:
                texts = [f"{n}: {_text(np.array(v))}" for n, v in zip(printed.texts, found)]
                print(f"step {step}  " + "  ".join(texts), flush=True)
            progress.step(
                examples=examples,
                **{n: v for n, v in zip(printed.texts, found) if _is_number(v)},
                **counts(),
            )
    if printed.time:
        _print_times(step, rows, time.perf_counter() - begin, waited)


def _print_times(steps: int, rows: int, seconds: float, waited: float) -> None:
    share = 100 * waited / max(seconds, 1e-9)
    print(
        f"{steps} steps, {rows} examples in {seconds:.3f} s; waited for data {waited:.3f} s ({share:.1f}%)", flush=True
    )


def _examples(batch: Mapping[str, Any]) -> int:
    value = next(iter(batch.values()))
    lod = value.lod() if hasattr(value, "lod") else None
    return len(lod[0]) - 1 if lod else len(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, LoDTensor) and math.prod(value.shape()) == 1


def _text(value: Any) -> str:
    return f"{value.item():.6g}" if value.size == 1 else np.array2string(value, precision=6, threshold=20)

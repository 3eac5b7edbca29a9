"""Running a program over all batches of a dataset."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.dataset.datasets import DatasetBase
from jfluid.engine import Engine, Owned, Runner
from jfluid.fetch_handler import FetchHandler, Watch
from jfluid.ir.program import Program
from jfluid.lod_tensor import LoDTensor
from jfluid.parallel.data_parallel import DataParallel
from jfluid.progress import Progress
from jfluid.scope import Scope


def run_dataset(
    engine: Engine,
    program: Program,
    parallel: DataParallel | None,
    dataset: Any,
    scope: Scope,
    thread: int,
    debug: bool,
    fetch_list: Sequence[Any],
    fetch_info: Sequence[str],
    print_period: int,
    fetch_handler: FetchHandler | None,
) -> None:
    """Run `program` once for each batch. See `Executor.train_from_dataset`."""
    if not isinstance(dataset, DatasetBase):
        raise errors.DataError(
            f"dataset: expected what DatasetFactory().create_dataset makes, found {type(dataset).__name__}"
        )
    if thread < 0 or print_period < 1:
        raise errors.DataError(
            f"thread: expected 0 or more, found {thread}; print_period: 1 or more, found {print_period}"
        )
    names = list(fetch_info) or [getattr(f, "name", str(f)) for f in fetch_list]
    if len(names) != len(fetch_list):
        raise errors.FetchError(
            f"fetch_info: expected {len(fetch_list)} texts, one for each fetch, found {len(names)}"
        )
    waited, begin, step, rows = 0.0, time.perf_counter(), 0, 0
    if parallel is not None:
        engine.start(parallel)
    runner = engine.runner(program) or Runner()
    with (
        Watch(fetch_handler) as watch,
        runner.counts() as counts,
        dataset._batches(thread) as batches,
        Progress(description="step") as progress,
    ):
        fetches = [f if isinstance(f, str) else f.name for f in (*fetch_list, *watch.fetches)]
        source = iter(runner.prefetch(batches, parallel))
        while True:
            asked = time.perf_counter()
            try:
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
            found = [f.tensor() for f in engine.run(program, fed, fetches, scope, parallel)]
            watch.show(found[len(fetch_list) :])
            if fetch_list and step % print_period == 0:
                texts = [f"{n}: {_text(np.array(v))}" for n, v in zip(names, found)]
                print(f"step {step}  " + "  ".join(texts), flush=True)
            progress.step(
                examples=examples,
                **{n: v for n, v in zip(names, found) if _is_number(v)},
                **counts(),
            )
    if debug:
        seconds = time.perf_counter() - begin
        print(
            f"{step} steps, {rows} examples in {seconds:.3f} s; waited for data {waited:.3f} s "
            f"({100 * waited / max(seconds, 1e-9):.1f}%)",
            flush=True,
        )


def _examples(batch: Mapping[str, Any]) -> int:
    value = next(iter(batch.values()))
    lod = value.lod() if hasattr(value, "lod") else None
    return len(lod[0]) - 1 if lod else len(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, LoDTensor) and math.prod(value.shape()) == 1


def _text(value: Any) -> str:
    return (
        f"{value.item():.6g}"
        if value.size == 1
        else np.array2string(value, precision=6, threshold=20)
    )

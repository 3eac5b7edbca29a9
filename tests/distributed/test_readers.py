"""Trainers of parameter servers that read from datasets and loaders, against those that are fed."""
import functools

import numpy as np
import pytest

import jfluid as fluid
from tests.distributed.job import SLOTS, click_model, clicks, parameters, trainer_of
from tests.distributed.test_replicas import assert_same, in_replicas

MODEL = functools.partial(click_model, functools.partial(fluid.optimizer.Adam, 0.02), True)
STEPS = 6


def as_rows(feed):
    """A batch as a list of examples."""
    offsets = {n: v.lod()[0] for n, v in feed.items() if isinstance(v, fluid.LoDTensor)}
    arrays = {n: np.array(v) for n, v in feed.items()}
    return [{n: arrays[n][offsets[n][i]:offsets[n][i + 1]] if n in offsets else a[i] for n, a in arrays.items()}
            for i in range(len(arrays["label"]))]


@pytest.fixture(scope="module")
def fed():
    """The losses and the state of a trainer that is fed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JFLUID_PS_TOKEN", "0123456789-token-of-the-tests")
        with fluid.program_guard(fluid.Program(), fluid.Program()), trainer_of(MODEL) as (executor, program, (loss, *_)):
            losses = [np.mean(executor.run(program, feed=clicks(step), fetch_list=[loss])[0]) for step in range(STEPS)]
            return losses, parameters(program)


@pytest.mark.parametrize("replicas", [None, 1, 2])
def test_dataset(replicas, fed, tmp_path):
    path = tmp_path / "part-0"
    path.write_text("".join(" ".join(f"{r[n].size} " + " ".join(map(repr, r[n].reshape(-1).tolist()))
                                     for n in ("dense", *(f"slot{i}" for i in range(SLOTS)), "label")) + "\n"
                            for step in range(STEPS) for r in as_rows(clicks(step))))
    with trainer_of(MODEL) as (executor, program, (loss, _, data, _)):
        dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
        dataset.set_use_var(data)
        dataset.set_batch_size(8)
        dataset.set_filelist([str(path)])
        run = program if replicas is None else in_replicas(program, loss, replicas)
        executor.train_from_dataset(run, dataset, fetch_list=[loss], print_period=1)
        assert_same(([0.0], parameters(program)), ([0.0], fed[1]))


@pytest.mark.parametrize("replicas", [None, 1, 2])
def test_loader(replicas, fed):
    with trainer_of(functools.partial(MODEL, read=True)) as (executor, program, (loss, _, data, loader)):
        names = [v.name for v in data]
        size = 8 // (replicas or 1)

        def examples():
            for step in range(STEPS):
                rows = as_rows(clicks(step))
                for begin in range(0, 8, size):
                    yield [tuple(r[n] for n in names) for r in rows[begin:begin + size]]
        loader.set_sample_list_generator(examples, places=[fluid.CPUPlace()])
        run = program if replicas is None else in_replicas(program, loss, replicas)
        losses = []
        loader.start()
        try:
            while True:
                losses.append(np.mean(executor.run(run, fetch_list=[loss])[0]))
        except fluid.core.EOFException:
            loader.reset()
        assert_same((losses, parameters(program)), fed)

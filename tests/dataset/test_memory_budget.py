"""The memory of a dataset's records has a bound, which loading and shuffling keep."""

import os
import random
import re
import threading

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.dataset import memory_budget
from jfluid.host import heap
from tests.dataset.test_exchange import Fleet
from tests.ports import free_endpoints

LINES = 2000
REFUSED = (
    r"InMemoryDataset\.{}: the records and their copies .* bytes of memory, and may take {:,} \(FLAGS_dataset_max_bytes"
)


@pytest.fixture
def limit():
    def set_limit(size):
        fluid.set_flags({memory_budget.FLAG: size})

    yield set_limit
    set_limit(0)


def made(folder, tags=0, start=0):
    """A dataset of ids (ragged) and dense, of one file; its records take less than 100 bytes
    each.
    """
    ids, dense = (
        fluid.data("ids", [None, 1], "int64", lod_level=1),
        fluid.data("dense", [None, 2], "float32"),
    )
    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    dataset.set_use_var([ids, dense])
    dataset.set_batch_size(100)
    path = folder / f"{start}.txt"
    path.write_text(
        "".join(f"{f'1 tag{i // 2} ' * tags}2 {i + 1} {i + 2} 2 0.5 1.5\n" for i in range(start, start + LINES))
    )
    dataset.set_filelist([str(path)])
    return dataset


def fed(dataset):
    """The ids of each record, in the order in which they are fed."""
    with dataset._batches() as batches:
        parts = [(batch["ids"].lod()[0], np.array(batch["ids"])[:, 0]) for batch in batches]
    return [values[a:b].tolist() for offsets, values in parts for a, b in zip(offsets, offsets[1:])]


def test_files_that_do_not_fit_are_refused_and_fewer_are_read(tmp_path, limit):
    dataset = made(tmp_path)
    limit(50_000)
    with pytest.raises(errors.DataError, match=REFUSED.format("load_into_memory", 50_000) + ".*QueueDataset"):
        dataset.load_into_memory()
    assert dataset.get_memory_data_size() == 0
    with pytest.raises(errors.DataError, match="no records in memory"):
        dataset.local_shuffle()
    limit(1_000_000)
    dataset.load_into_memory()
    assert dataset.get_memory_data_size() == LINES
    limit(0)
    dataset.load_into_memory()
    assert len(fed(dataset)) == LINES


@pytest.mark.parametrize("what", ["local_shuffle", "global_shuffle", "slots_shuffle"])
def test_a_shuffle_that_does_not_fit_leaves_the_records_as_they_are(tmp_path, limit, what):
    dataset = made(tmp_path)
    dataset.load_into_memory()
    dataset.set_fea_eval(100, True)
    before, held = fed(dataset), dataset._records.nbytes
    shuffles = {
        "local_shuffle": dataset.local_shuffle,
        "global_shuffle": dataset.global_shuffle,
        "slots_shuffle": lambda: dataset.slots_shuffle(["ids"]),
    }
    limit(held + 100)
    with pytest.raises(errors.DataError, match=REFUSED.format(what, held + 100)):
        shuffles[what]()
    assert fed(dataset) == before
    limit(4 * held)
    random.seed(1)
    shuffles[what]()
    after = fed(dataset)
    assert after != before and (what == "slots_shuffle" or sorted(after) == sorted(before))


def test_merging_counts_its_copy(tmp_path, limit):
    dataset = made(tmp_path, tags=1)
    dataset.set_merge_by_lineid(2)
    dataset.load_into_memory()
    limit(dataset._records.nbytes + 8 * LINES)
    with pytest.raises(errors.DataError, match="global_shuffle"):
        dataset.global_shuffle()
    assert dataset.get_memory_data_size() == LINES
    limit(0)
    dataset.global_shuffle()
    assert dataset.get_memory_data_size() == LINES // 2


@pytest.mark.parametrize(
    "factor, named",
    [(1.2, "of memory, and may take"), (2.5, "records were not exchanged.*may take")],
)
def test_trainers_that_send_more_than_fits_are_refused(tmp_path, limit, monkeypatch, factor, named):
    """First what is sent has no room, then what comes."""
    monkeypatch.setenv("JFLUID_JOB_TOKEN", "a-secret-of-the-tests")
    datasets, endpoints, failures = (
        [made(tmp_path, start=i * LINES) for i in range(2)],
        free_endpoints(2),
        [],
    )
    for dataset in datasets:
        dataset.load_into_memory()

    def shuffle(i):
        try:
            datasets[i].global_shuffle(Fleet(i, endpoints))
        except errors.DataError as error:
            failures.append(str(error))

    def both():
        threads = [threading.Thread(target=shuffle, args=[i]) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()

    limit(int(factor * datasets[0]._records.nbytes))
    if factor < 2:
        shuffle(0)
    else:
        both()
    assert failures and any(re.search(named, f) for f in failures), failures
    assert [d.get_memory_data_size() for d in datasets] == [LINES, LINES]
    limit(0)
    failures.clear()
    both()
    assert not failures and sum(d.get_memory_data_size() for d in datasets) == 2 * LINES


def test_the_default_is_a_part_of_the_memory_that_there_is(tmp_path, monkeypatch):
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(heap, "_LIMITS", ())
    assert memory_budget.most_bytes() == whole * 3 // 4
    (tmp_path / "small").write_text("4000000\n")
    (tmp_path / "none").write_text("max\n")
    monkeypatch.setattr(
        heap,
        "_LIMITS",
        (str(tmp_path / "absent"), str(tmp_path / "none"), str(tmp_path / "small")),
    )
    assert heap.memory_bytes() == 4_000_000

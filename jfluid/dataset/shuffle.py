"""Rearranging records in memory: slots from other records, records of one id into one."""

import random
from typing import Any

import numpy as np

from jfluid.caches.compiled_kernels import kernel
from jfluid.dataset.multislot import Records


def generator() -> np.random.Generator:
    """Return a random generator that follows Python's `random.seed`, as `fluid.io.shuffle` does."""
    return np.random.default_rng(random.getrandbits(64))


def taken(records: Records, order: Any) -> Records:
    """Return the records at the positions `order`."""
    starts = np.zeros(len(order) + 1, np.int64)
    np.cumsum(records.starts[order + 1] - records.starts[order], out=starts[1:])
    values = np.empty(starts[-1], np.int64)
    _take(records.values, records.starts, order, starts, values)
    return Records(values, records.counts[order], starts, None if records.tags is None else records.tags[order])


@kernel()
def _take(values, starts, order, to, out):
    for i in range(len(order)):
        out[to[i] : to[i + 1]] = values[starts[order[i]] : starts[order[i] + 1]]


def with_slots_of(records: Records, chosen: Any, donors: Any) -> Records:
    """Return each record with the slots in `chosen` (bool [slots]) of the record at `donors` (int64 [n])."""
    counts = np.where(chosen, records.counts[donors], records.counts)
    starts = np.zeros(len(records) + 1, np.int64)
    np.cumsum(counts.sum(1, dtype=np.int64), out=starts[1:])
    values = np.empty(starts[-1], np.int64)
    _mix(records.values, records.counts, records.starts, chosen, donors, values)
    return Records(values, counts, starts, records.tags)


@kernel()
def _mix(values, counts, starts, chosen, donors, out):
    to = 0
    for record in range(len(counts)):
        donor = donors[record]
        mine, other = starts[record], starts[donor]
        for slot in range(len(chosen)):
            at, count = (other, counts[donor, slot]) if chosen[slot] else (mine, counts[record, slot])
            for i in range(count):
                out[to + i] = values[at + i]
            to += count
            mine += counts[record, slot]
            other += counts[donor, slot]


def merged_by_tag(records: Records, dense: Any, size: int) -> tuple[Records, int]:
    """Merge the records of each id: concatenate ragged slots, take dense slots from the first record.

    `dense` is bool [slots]. Ids without exactly `size` records are left out (0: none is). Returns the records, in the
    order of the first occurrence of the ids, and the number of dropped records.

    Ids with a different number of records than `size` are left out (0: none is). Returns the records,
    in the order in which the ids first occur, and how many were left out.
    """
    _, first, group, number = np.unique(records.tags, return_index=True, return_inverse=True, return_counts=True)
    by_first = np.argsort(first)
    rank = np.empty_like(by_first)
    rank[by_first] = np.arange(len(by_first))
    group, number, first = rank[group], number[by_first], first[by_first]
    kept = (number == size) | (size == 0)
    flat = np.argsort(group, kind="stable")
    flat = flat[kept[group[flat]]]
    ends = np.concatenate([[0], np.cumsum(number[kept])])
    ids = np.flatnonzero(kept)
    counts = np.zeros((len(ids), records.counts.shape[1]), np.int32)
    values = np.empty(int((records.starts[flat + 1] - records.starts[flat]).sum()), np.int64)
    starts = np.zeros(len(ids) + 1, np.int64)
    offsets = records.starts[:-1, None] + np.cumsum(records.counts, 1) - records.counts
    _merge(records.values, records.counts, offsets, flat, ends, dense, counts, starts, values)
    found = Records(values[: starts[-1]], counts, starts, records.tags[first[ids]])
    return found, len(records) - len(flat)


@kernel()
def _merge(values, counts, offsets, order, ends, dense, out_counts, out_starts, out):
    to = 0
    for group in range(len(ends) - 1):
        for slot in range(counts.shape[1]):
            for member in range(ends[group], ends[group] + 1 if dense[slot] else ends[group + 1]):
                record = order[member]
                count = counts[record, slot]
                for i in range(count):
                    out[to + i] = values[offsets[record, slot] + i]
                to += count
                out_counts[group, slot] += count
        out_starts[group + 1] = to

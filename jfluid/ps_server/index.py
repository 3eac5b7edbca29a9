"""The index of a shard: from an id to its row.

Open addressing with 32-bit entries: 0 for empty, else row + 1 in the low `row_bits` and bits of the
id's hash above them, which avoid most reads of the heads of wrong rows. Ids are stored in the heads
only (see kernels).

Each kernel that changes an index leaves it, the number of rows (`count` int64 [1]) and the rows
themselves consistent: after an exception in Python between two calls (no memory, Ctrl-C) every row
is complete or absent.
"""

import numpy as np

from jfluid.ps_server.kernels import AHEAD, SHOWS_MASK, body_of, hash_of, head_of, kernel, prefetch
from jfluid.ps_server.row_initializers import fill


@kernel
def _home(hash_, shard_bits, capacity):
    """Return the place at which the search for an id begins: the 32 bits below the shard's, scaled to the capacity."""
    return np.int64((((hash_ << np.uint64(shard_bits)) >> np.uint64(32)) * np.uint64(capacity)) >> np.uint64(32))


@kernel
def _tag(hash_, row_bits):
    return np.uint32(hash_ << np.uint64(row_bits))


@kernel
def _prefetch_head(index, row_bits, shard_bits, heads, page_bits, hash_):
    """Prefetch the head of the first row that looks like that of an id with this hash."""
    row_mask = np.uint32((1 << row_bits) - 1)
    tag = _tag(hash_, row_bits)
    at = _home(hash_, shard_bits, len(index))
    while at < len(index) and index[at] != 0:
        if index[at] & ~row_mask == tag:
            row = np.int64(index[at] & row_mask) - 1
            prefetch(heads[row >> page_bits] + ((row & ((1 << page_bits) - 1)) << 4))
            return
        at += 1


@kernel
def locate(
    index,
    row_bits,
    shard_bits,
    heads,
    bodies,
    page_bits,
    stride,
    count,
    limit,
    ids,
    order,
    rows,
    secret,
    initializer,
    slots,
    step,
):
    """Write the row of ids[order[i]] to rows[i]; an id without a row gets a new row, up to `limit` rows.

    New rows are numbered from count[0] on. They get the values of `initializer` (width, seed, kind, first,
    second: see row_initializers.fill), slots[g] in group g of their slots, and `step` as the step of their
    last touch. Returns how many ids were done. With limit -1 unknown ids get row -1.
    """
    capacity = len(index)
    row_mask = np.uint32((1 << row_bits) - 1)
    start = index.ctypes.data
    width, seed, kind, first, second = initializer
    for i in range(len(order)):
        if i + 2 * AHEAD < len(order):
            prefetch(start + 4 * _home(hash_of(ids[order[i + 2 * AHEAD]], secret), shard_bits, capacity))
        if i + AHEAD < len(order):
            _prefetch_head(index, row_bits, shard_bits, heads, page_bits, hash_of(ids[order[i + AHEAD]], secret))
        id_ = ids[order[i]]
        hash_ = hash_of(id_, secret)
        tag = _tag(hash_, row_bits)
        at = _home(hash_, shard_bits, capacity)
        row = np.int64(-1)
        while index[at] != 0:
            if index[at] & ~row_mask == tag:
                row = np.int64(index[at] & row_mask) - 1
                if head_of(heads, page_bits, row)[0] == id_:
                    break
                row = np.int64(-1)
            at += 1
            if at == capacity:
                at = 0
        if row < 0 and limit >= 0:
            row = count[0]
            if row == limit:
                return i
            head = head_of(heads, page_bits, row)
            head[0] = id_
            head[1] = np.int64(step) << 32
            body = body_of(bodies, page_bits, stride, row)
            fill(body[:width], seed, id_, kind, first, second)
            for group in range(len(slots)):
                body[(group + 1) * width : (group + 2) * width] = slots[group]
            count[0] = row + 1
            index[at] = tag | np.uint32(row + 1)
        rows[i] = row
    return len(order)


@kernel
def leads_to(heads, page_bits, count, ids, order, rows):
    """Return True if rows[i] is the row of ids[order[i]] for every i, and there are `count` rows."""
    for i in range(len(order)):
        if i + AHEAD < len(order):
            ahead = rows[i + AHEAD]
            if 0 <= ahead < count:
                prefetch(heads[ahead >> page_bits] + ((ahead & ((1 << page_bits) - 1)) << 4))
        row = rows[i]
        if row < 0 or row >= count or head_of(heads, page_bits, row)[0] != ids[order[i]]:
            return False
    return True


@kernel
def rebuild(index, row_bits, shard_bits, heads, page_bits, count, secret):
    """Fill an empty index with the rows 0 ... count - 1."""
    capacity = len(index)
    for row in range(count):
        hash_ = hash_of(head_of(heads, page_bits, row)[0], secret)
        at = _home(hash_, shard_bits, capacity)
        while index[at] != 0:
            at += 1
            if at == capacity:
                at = 0
        index[at] = _tag(hash_, row_bits) | np.uint32(row + 1)


@kernel
def expire(index, row_bits, shard_bits, heads, bodies, page_bits, stride, count, oldest, secret):
    """Drop the rows with a step below `oldest`, and compact the rest at the front."""
    kept = 0
    for row in range(count[0]):
        head = head_of(heads, page_bits, row)
        if (head[1] >> 32) & SHOWS_MASK < oldest:
            continue
        if kept < row:
            head_of(heads, page_bits, kept)[:] = head
            body_of(bodies, page_bits, stride, kept)[:] = body_of(bodies, page_bits, stride, row)
        kept += 1
    if kept < count[0]:
        count[0] = kept
        index[:] = 0
        rebuild(index, row_bits, shard_bits, heads, page_bits, kept, secret)

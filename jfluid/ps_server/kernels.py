"""Compiled loops over the pages of a shard, and the hashes of ids that choose their server and shard.

A shard keeps a row in two places, both in pages of 2**page_bits rows that never move: a head of 16
bytes (id, times shown, step of the last touch) and a body of `stride` float32 (the values, then the
optimizer's slots). Kernels get the addresses of the pages, so that a table grows without copying a
row. `index` finds the row of an id.
"""

import os

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from jfluid.caches import compiled_kernels

kernel = compiled_kernels.kernel(error_model="numpy")

HEAD = np.dtype([("id", "<i8"), ("shows", "<u4"), ("step", "<u4")])
SHOWS_MASK = np.int64(0xFFFFFFFF)
# State that shards share with their table (int64 [3, shards]): the number of rows; how many rows
# there is memory for; how many rows pending calls may still add.
COUNT, LIMIT, HELD = range(3)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# How many ids ahead of the current one to prefetch.
AHEAD = 8
_OWNERS = np.uint64(0xD1B54A32D192ED03)
# The secret keys of this process's hash of ids, so that nobody can choose ids that collide. They
# are passed to kernels as arguments, since the machine code of kernels is stored on disk, and to
# nothing else.
SECRET = (np.uint64(int.from_bytes(os.urandom(8))), np.uint64(int.from_bytes(os.urandom(8))))


@intrinsic
def _int64_at(typing_context, address):
    """Return the pointer to the int64 at an address."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.intp_t.as_pointer())

    return types.CPointer(types.int64)(types.int64), generate


@intrinsic
def _float32_at(typing_context, address):
    """Return the pointer to the float32 at an address."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.float32).as_pointer())

    return types.CPointer(types.float32)(types.int64), generate


@intrinsic
def prefetch(typing_context, address):
    """Ask the processor to fetch the cache line at an address, which need not be valid."""

    def generate(context, builder, signature, arguments):
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, number, number, number]), "llvm.prefetch.p0i8"
        )
        builder.call(function, [builder.inttoptr(arguments[0], byte), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@kernel
def head_of(heads, page_bits, row):
    """[id, shows | step << 32] of a row, as a view."""
    at = heads[row >> page_bits] + ((row & ((1 << page_bits) - 1)) << 4)
    return carray(_int64_at(at), 2)


@kernel
def floats_at(address, count):
    """[count] float32 at an address, as a view."""
    return carray(_float32_at(address), count)


@kernel
def _address(bodies, page_bits, stride, row):
    return bodies[row >> page_bits] + (row & ((1 << page_bits) - 1)) * stride * 4


@kernel
def body_of(bodies, page_bits, stride, row):
    """[stride] float32: the values and slots of a row, as a view."""
    return carray(_float32_at(_address(bodies, page_bits, stride, row)), stride)


@kernel
def prefetch_body(bodies, page_bits, stride, row, width):
    """Prefetch the first `width` numbers of a row's body."""
    at = _address(bodies, page_bits, stride, row)
    for line in range(0, 4 * width, 64):
        prefetch(at + line)


# ---- hashing -------------------------------------------------------------------------------------


@kernel
def mix(z):
    """Map 64 bits one to one, such that every output bit depends on all input bits (the finalizer of SplitMix64)."""
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@kernel
def hash_of(id_, secret):
    """Return the hash of an id under two keys.

    With one `mix` ids of a known difference would collide under every key.
    """
    return mix(mix(np.uint64(id_) ^ secret[0]) + secret[1])


@kernel
def shards_of(ids, shard_bits, secret):
    """Return the shard of each id by the top bits of the hash, int32 [n]."""
    out = np.empty(len(ids), np.int32)
    for i in range(len(ids)):
        out[i] = (hash_of(ids[i], secret) >> np.uint64(1)) >> np.uint64(63 - shard_bits)
    return out


@kernel
def owners_of(ids, servers):
    """Return the server of each id by a hash without a secret, int32 [n].

    Trainers, servers and snapshots have to agree on the hash.
    """
    out = np.empty(len(ids), np.int32)
    for i in range(len(ids)):
        out[i] = ((mix(np.uint64(ids[i]) ^ _OWNERS) >> np.uint64(32)) * np.uint64(servers)) >> np.uint64(32)
    return out


@kernel
def partition(groups, count):
    """(order, starts): the positions of group g, ascending, are order[starts[g]:starts[g + 1]]."""
    starts = np.zeros(count + 1, np.int64)
    for g in groups:
        starts[g + 1] += 1
    for g in range(count):
        starts[g + 1] += starts[g]
    at = starts[:-1].copy()
    order = np.empty(len(groups), np.int64)
    for i in range(len(groups)):
        order[at[groups[i]]] = i
        at[groups[i]] += 1
    return order, starts


def distinct(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (ids, inverse): each id once, in the order of first appearance, and the index of every input id, int32."""
    once, inverse = _distinct(ids, SECRET)
    return once, inverse


@kernel
def _distinct(ids, secret):
    capacity = 16
    while capacity < 2 * len(ids):
        capacity *= 2
    seen = np.zeros(capacity, np.int32)
    out = np.empty(len(ids), np.int64)
    inverse = np.empty(len(ids), np.int32)
    count = 0
    for i in range(len(ids)):
        at = np.int64(hash_of(ids[i], secret) & np.uint64(capacity - 1))
        while seen[at] != 0 and out[seen[at] - 1] != ids[i]:
            at = (at + 1) & (capacity - 1)
        if seen[at] == 0:
            out[count] = ids[i]
            count += 1
            seen[at] = count
        inverse[i] = seen[at] - 1
    return out[:count].copy(), inverse


@kernel
def summed(values, inverse, count):
    """Return the rows of `values` [n, width], summed by `inverse`: float32 [count, width]."""
    out = np.zeros((count, values.shape[1]), np.float32)
    for i in range(len(inverse)):
        total, row = out[inverse[i]], values[i]  # with these the compiler adds in vectors
        for j in range(len(row)):
            total[j] += row[j]
    return out


# ---- reservations --------------------------------------------------------------------------------


@kernel
def hold(state, starts, more):
    """Reserve `more` rows in each shard, one for each id; return True if all shards have room."""
    fits = True
    for i in range(len(more)):
        more[i] = starts[i + 1] - starts[i]
        fits = fits and state[COUNT, i] + state[HELD, i] + more[i] <= state[LIMIT, i]
    if fits:
        for i in range(len(more)):
            state[HELD, i] += more[i]
    return fits


@kernel
def release(state, more):
    """Release the rows that `hold` reserved."""
    for i in range(len(more)):
        state[HELD, i] -= more[i]


# ---- rows ----------------------------------------------------------------------------------------


@kernel
def touch(heads, page_bits, rows, order, counts, step):
    """Add counts[order[i]] (without counts, nothing) to the shows of row i, and move its step up to `step`."""
    for i in range(len(rows)):
        if rows[i] < 0:
            continue
        head = head_of(heads, page_bits, rows[i])
        shows, last = head[1] & SHOWS_MASK, (head[1] >> 32) & SHOWS_MASK
        if len(counts) > 0:
            shows = min(shows + np.int64(counts[order[i]]), SHOWS_MASK)
        head[1] = shows | (max(last, np.int64(step)) << 32)


@kernel
def gather(bodies, page_bits, stride, width, rows, order, out):
    """out[order[i]] = the values of row i; rows of -1 are left out."""
    for i in range(len(rows)):
        if i + AHEAD < len(rows) and rows[i + AHEAD] >= 0:
            prefetch_body(bodies, page_bits, stride, rows[i + AHEAD], width)
        if rows[i] >= 0:
            body = body_of(bodies, page_bits, stride, rows[i])
            target = order[i]
            for j in range(width):
                out[target, j] = body[j]


@kernel
def change_values(bodies, page_bits, stride, width, rows, order, values, replace):
    """Add values[order[i]] to the values of row i, or replace the row's values; rows of -1 are left out."""
    for i in range(len(rows)):
        if rows[i] >= 0:
            body = body_of(bodies, page_bits, stride, rows[i])
            source = order[i]
            for j in range(width):
                body[j] = values[source, j] if replace else body[j] + values[source, j]


@kernel
def addresses_of(bodies, page_bits, stride, rows, order, out):
    """out[order[i]] = the address of the body of row i; rows of -1 are left out."""
    for i in range(len(rows)):
        if rows[i] >= 0:
            out[order[i]] = _address(bodies, page_bits, stride, rows[i])


@kernel
def read_at(addresses, begin, out):
    """out[i] = the numbers from `begin` on of the body at addresses[i]."""
    width = out.shape[1]
    for i in range(len(addresses)):
        if i + AHEAD < len(addresses):
            for line in range(0, 4 * width, 64):
                prefetch(addresses[i + AHEAD] + 4 * begin + line)
        numbers = carray(_float32_at(addresses[i] + 4 * begin), width)
        for j in range(width):
            out[i, j] = numbers[j]


@kernel
def write_at(addresses, begin, values):
    """Overwrite the numbers from `begin` on of the body at addresses[i] by values[i]."""
    width = values.shape[1]
    for i in range(len(addresses)):
        numbers = carray(_float32_at(addresses[i] + 4 * begin), width)
        for j in range(width):
            numbers[j] = values[i, j]


@kernel
def read_rows(heads, bodies, page_bits, stride, rows, out_heads, out_bodies):
    """Copy whole rows out: heads as int64 [n, 2], bodies as float32 [n, stride]."""
    for i in range(len(rows)):
        out_heads[i, :] = head_of(heads, page_bits, rows[i])
        out_bodies[i, :] = body_of(bodies, page_bits, stride, rows[i])


@kernel
def write_rows(heads, bodies, page_bits, stride, rows, in_heads, in_bodies):
    """Copy in whole rows that read_rows copied out."""
    for i in range(len(rows)):
        head_of(heads, page_bits, rows[i])[:] = in_heads[i]
        body_of(bodies, page_bits, stride, rows[i])[:] = in_bodies[i]

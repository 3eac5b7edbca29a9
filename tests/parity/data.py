"""Batches for models on sequences: ids and labels. Lengths differ from batch to batch, and one
sequence is empty.
"""


def sequences(fluid, rng, lengths, vocabulary=30):
    """A LoDTensor of ids in sequences of the given lengths."""
    ids = rng.randint(0, vocabulary, (int(sum(lengths)), 1)).astype("int64")
    return fluid.create_lod_tensor(ids, [[int(n) for n in lengths]], fluid.CPUPlace())


def with_an_empty(rng, most, batch):
    """Lengths from 1 to most, but one of them 0."""
    lengths = rng.randint(1, most + 1, batch)
    lengths[rng.randint(batch)] = 0
    return lengths


def labels(rng, batch, classes):
    return rng.randint(0, classes, (batch, 1)).astype("int64")

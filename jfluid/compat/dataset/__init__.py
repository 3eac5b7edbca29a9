"""Readers of the data sets of Fluid's guides: Fluid's `paddle.dataset`.

They read the original files in `~/.cache/paddle/dataset` (`common.DATA_HOME`), which are downloaded
where there is a network; without one the error says which file to put where.
"""

from jfluid.compat.dataset import (
    cifar,
    common,
    conll05,
    flowers,
    image,
    imdb,
    imikolov,
    mnist,
    movielens,
    mq2007,
    sentiment,
    uci_housing,
    voc2012,
    wmt14,
    wmt16,
)

__all__ = [
    "cifar",
    "common",
    "conll05",
    "flowers",
    "image",
    "imdb",
    "imikolov",
    "mnist",
    "movielens",
    "mq2007",
    "sentiment",
    "uci_housing",
    "voc2012",
    "wmt14",
    "wmt16",
]

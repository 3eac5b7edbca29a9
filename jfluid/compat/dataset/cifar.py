"""CIFAR-10 and CIFAR-100, small colour images: Fluid's `paddle.dataset.cifar`.

A sample is (pixels, label): float32 [3072] in [0, 1], all reds, then greens, then blues, row by
row; and an int in [0, 9] or [0, 99].
"""

from collections.abc import Iterator

import numpy as np

from jfluid.compat.dataset import archives, common
from jfluid.errors import DataError
from jfluid.files import unpickling

__all__ = ["test10", "test100", "train10", "train100"]

URL_PREFIX = "https://dataset.bj.bcebos.com/cifar/"
CIFAR10_URL = URL_PREFIX + "cifar-10-python.tar.gz"
CIFAR10_MD5 = "c58f30108f718f92721af3b95e74349a"
CIFAR100_URL = URL_PREFIX + "cifar-100-python.tar.gz"
CIFAR100_MD5 = "eb9058c3a382ffc7106e4002c42a8d85"


def reader_creator(filename: str, sub_name: str, cycle: bool = False) -> common.Reader:
    """Return a reader of the members of an archive with `sub_name` in their names; with `cycle` without end.

    Raises DataError, when it is read, for a damaged archive, and for members that are no batches of
    CIFAR. Pickles are read without trust: they cannot call anything.
    """

    def reader() -> Iterator[tuple[np.ndarray, int]]:
        while True:
            found = False
            with archives.open_tar(filename) as archive:
                for entry in archive:
                    if sub_name in entry.name and entry.isfile():
                        found = True
                        data = archives.member(archive, entry).read()
                        yield from _samples(data, f"{filename}, {entry.name}")
            if not found:
                raise DataError(f"{filename}: no member's name holds {sub_name!r}")
            if not cycle:
                return

    return reader


def _samples(data: bytes, where: str) -> Iterator[tuple[np.ndarray, int]]:
    try:
        batch = unpickling.load(data)
    except unpickling.RefusedPickle as e:
        raise DataError(f"{where}: no pickled batch: {e}") from None
    images = batch.get("data") if isinstance(batch, dict) else None
    labels = batch.get("labels", batch.get("fine_labels")) if isinstance(batch, dict) else None
    if not isinstance(images, np.ndarray) or not isinstance(labels, list):
        raise DataError(f"{where}: expected a dict of data and labels (or fine_labels)")
    if images.ndim != 2 or len(images) != len(labels):
        raise DataError(f"{where}: {len(labels)} labels for data of shape {list(images.shape)}")
    for image, label in zip(images, labels):
        yield (image / 255.0).astype(np.float32), int(label)


def train100() -> common.Reader:
    """Return a reader of the training samples of CIFAR-100, with their fine labels."""
    return reader_creator(_cifar100(), "train")


def test100() -> common.Reader:
    """Return a reader of the test samples of CIFAR-100, with their fine labels."""
    return reader_creator(_cifar100(), "test")


def train10(cycle: bool = False) -> common.Reader:
    """Return a reader of the training samples of CIFAR-10, again and again with `cycle`."""
    return reader_creator(_cifar10(), "data_batch", cycle)


def test10(cycle: bool = False) -> common.Reader:
    """Return a reader of the test samples of CIFAR-10, again and again with `cycle`."""
    return reader_creator(_cifar10(), "test_batch", cycle)


def fetch() -> None:
    """Download all files."""
    _cifar10()
    _cifar100()


def _cifar10() -> str:
    return common.download(CIFAR10_URL, "cifar", CIFAR10_MD5)


def _cifar100() -> str:
    return common.download(CIFAR100_URL, "cifar", CIFAR100_MD5)

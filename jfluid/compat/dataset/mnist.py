"""MNIST, handwritten digits: Fluid's `paddle.dataset.mnist`.

A sample is (pixels, label): float32 [784] in [-1, 1] row by row, and an int in [0, 9].
"""

import gzip
import math
import struct
from collections.abc import Iterator

import numpy as np

from jfluid.compat.dataset import archives, common
from jfluid.errors import DataError

__all__ = ["test", "train"]

URL_PREFIX = "https://dataset.bj.bcebos.com/mnist/"
TEST_IMAGE_URL = URL_PREFIX + "t10k-images-idx3-ubyte.gz"
TEST_IMAGE_MD5 = "9fb629c4189551a2d022fa330f9573f3"
TEST_LABEL_URL = URL_PREFIX + "t10k-labels-idx1-ubyte.gz"
TEST_LABEL_MD5 = "ec29112dd5afa0611ce80d1b7f02629c"
TRAIN_IMAGE_URL = URL_PREFIX + "train-images-idx3-ubyte.gz"
TRAIN_IMAGE_MD5 = "f68b3c2dcbeaaa9fbdd348bbdeb94873"
TRAIN_LABEL_URL = URL_PREFIX + "train-labels-idx1-ubyte.gz"
TRAIN_LABEL_MD5 = "d53e105ee54ea40749a09fcbcd1e9432"


def reader_creator(image_filename: str, label_filename: str, buffer_size: int) -> common.Reader:
    """Return a reader of two gzipped IDX files, which converts `buffer_size` images at a time.

    Raises DataError, when it is read, for files that are damaged or do not belong together.
    """

    def reader() -> Iterator[tuple[np.ndarray, int]]:
        images, labels = _idx(image_filename, 3), _idx(label_filename, 1)
        if len(images) != len(labels):
            raise DataError(
                f"{image_filename} has {len(images)} images, {label_filename} has {len(labels)} "
                "labels: the two files do not belong together"
            )
        for begin in range(0, len(labels), buffer_size):
            some = images[begin : begin + buffer_size]
            pixels = some.reshape(len(some), -1).astype("float32") / 255.0 * 2.0 - 1.0
            yield from zip(pixels, labels[begin : begin + buffer_size].tolist())

    return reader


def _idx(path: str, rank: int) -> np.ndarray:
    """Return the bytes of a gzipped IDX file: a magic number with type and rank, the dimensions, the values."""
    with archives.reading(path), gzip.open(path) as file:
        data = file.read()
    magic, header = 0x800 + rank, 4 + 4 * rank
    if len(data) < header or int.from_bytes(data[:4], "big") != magic:
        raise DataError(f"{path}: no IDX file of bytes in {rank} dimensions (magic number {magic})")
    shape = struct.unpack_from(f">{rank}I", data, 4)
    if len(data) - header != math.prod(shape):
        raise DataError(f"{path}: says that it holds {list(shape)} bytes, and holds {len(data) - header}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def train() -> common.Reader:
    """Return a reader of the 60000 training samples."""
    return reader_creator(*_train_files(), 100)


def test() -> common.Reader:
    """Return a reader of the 10000 test samples."""
    return reader_creator(*_test_files(), 100)


def fetch() -> None:
    """Download all files."""
    _train_files()
    _test_files()


def _train_files() -> tuple[str, str]:
    return (
        common.download(TRAIN_IMAGE_URL, "mnist", TRAIN_IMAGE_MD5),
        common.download(TRAIN_LABEL_URL, "mnist", TRAIN_LABEL_MD5),
    )


def _test_files() -> tuple[str, str]:
    return (
        common.download(TEST_IMAGE_URL, "mnist", TEST_IMAGE_MD5),
        common.download(TEST_LABEL_URL, "mnist", TEST_LABEL_MD5),
    )

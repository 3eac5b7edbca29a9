"""Flowers of 102 categories: Fluid's `paddle.dataset.flowers`.

A sample is (pixels, label): float32 [150528], the image's shorter edge resized to 256, a square of
224 cut out, less the mean [103.94, 116.78, 123.68] of blue, green and red, channel by channel; and
an int in [0, 101]. What the authors call the test set is the larger one, and is used for training.

M-E. Nilsback, A. Zisserman: Automated flower classification over a large number of classes. Indian
Conference on Computer Vision, Graphics and Image Processing, 2008.
"""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jfluid.compat.dataset import archives, common
from jfluid.compat.dataset.image import batch_images_from_tar, load_image_bytes, simple_transform
from jfluid.errors import DataError, DependencyError
from jfluid.feeding.reader import map_readers, xmap_readers
from jfluid.files import unpickling

__all__ = ["test", "train", "valid"]

DATA_URL = "http://paddlemodels.bj.bcebos.com/flowers/102flowers.tgz"
LABEL_URL = "http://paddlemodels.bj.bcebos.com/flowers/imagelabels.mat"
SETID_URL = "http://paddlemodels.bj.bcebos.com/flowers/setid.mat"
DATA_MD5 = "52808999861908f626f3c1f4e79d11fa"
LABEL_MD5 = "e0620be6f572b9609742df49c70aed4d"
SETID_MD5 = "a5357ecc9cb78c4bef273ce3793fc85c"
TRAIN_FLAG = "tstid"
TEST_FLAG = "trnid"
VALID_FLAG = "valid"

_MEAN = [103.94, 116.78, 123.68]

Mapper = Callable[[tuple[bytes, int]], Any]


def default_mapper(is_train: bool, sample: tuple[bytes, int]) -> tuple[np.ndarray, int]:
    """Return a sample from the bytes of an image and its label."""
    image = simple_transform(load_image_bytes(sample[0]), 256, 224, is_train, mean=_MEAN)
    return image.flatten().astype("float32"), sample[1]


train_mapper = functools.partial(default_mapper, True)
test_mapper = functools.partial(default_mapper, False)


def reader_creator(
    data_file: str,
    label_file: str,
    setid_file: str,
    dataset_name: str,
    mapper: Mapper,
    buffered_size: int = 1024,
    use_xmap: bool = True,
    cycle: bool = False,
) -> common.Reader:
    """Return a reader of `mapper((bytes of an image, label))` for one set: tstid, trnid or valid.

    Images come in the archive's order. With `use_xmap` up to four threads map the images, which come in order of
    completion; with `cycle` the reader has no end.

    The images are first copied to files beside the archive (`image.batch_images_from_tar`). Raises
    DataError for damaged files, and where they do not belong together.
    """
    labels, numbers = _matrix(label_file, "labels"), _matrix(setid_file, dataset_name)
    if len(numbers) and not 1 <= numbers.min() <= numbers.max() <= len(labels):
        raise DataError(f"{setid_file}: numbers of images that {label_file} has no labels for")
    label_of = {f"jpg/image_{number:05d}.jpg": int(labels[number - 1]) for number in numbers}
    listing = batch_images_from_tar(data_file, dataset_name, label_of)

    def reader() -> Iterator[tuple[bytes, int]]:
        while True:
            with open(listing, encoding="utf-8") as paths:
                for path in paths:
                    yield from _batch(path.strip())
            if not cycle:
                return

    if use_xmap:
        return xmap_readers(mapper, reader, min(4, os.cpu_count() or 1), buffered_size)
    return map_readers(mapper, reader)


def _matrix(path: str, name: str) -> np.ndarray:
    """Return the numbers of a row vector in a MATLAB file."""
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError:
        raise DependencyError("paddle.dataset.flowers", "scipy", "datasets") from None
    with archives.reading(path):
        try:
            found = loadmat(path)[name]
        except (KeyError, MatReadError, NotImplementedError, OSError, TypeError, ValueError) as e:
            raise DataError(f"{path}: no MATLAB file with a matrix {name!r} ({e})") from None
    return np.asarray(found).astype(np.int64).reshape(-1)


def _batch(path: str) -> Iterator[tuple[bytes, int]]:
    with open(path, "rb") as file:
        data = file.read()
    try:
        batch = unpickling.load(data)
        pairs = list(zip(batch["data"], batch["label"], strict=True))
    except (unpickling.RefusedPickle, KeyError, TypeError, ValueError) as e:
        raise DataError(f"{path}: no batch of images ({e}); delete its folder") from None
    for image, label in pairs:
        yield image.encode("latin1") if isinstance(image, str) else image, int(label) - 1


def _reader(flag: str, mapper: Mapper, buffered_size: int, use_xmap: bool, cycle: bool) -> common.Reader:
    return reader_creator(*_files(), flag, mapper, buffered_size, use_xmap, cycle)


def _files() -> tuple[str, str, str]:
    return (
        common.download(DATA_URL, "flowers", DATA_MD5),
        common.download(LABEL_URL, "flowers", LABEL_MD5),
        common.download(SETID_URL, "flowers", SETID_MD5),
    )


def train(
    mapper: Mapper = train_mapper,
    buffered_size: int = 1024,
    use_xmap: bool = True,
    cycle: bool = False,
) -> common.Reader:
    """Return a reader of the training samples: random squares, mirrored half of the time.

    `buffered_size` samples are made ahead by threads with `use_xmap`; `cycle` goes on without end.
    """
    return _reader(TRAIN_FLAG, mapper, buffered_size, use_xmap, cycle)


def test(
    mapper: Mapper = test_mapper,
    buffered_size: int = 1024,
    use_xmap: bool = True,
    cycle: bool = False,
) -> common.Reader:
    """Return a reader of the test samples: the middle of each image."""
    return _reader(TEST_FLAG, mapper, buffered_size, use_xmap, cycle)


def valid(mapper: Mapper = test_mapper, buffered_size: int = 1024, use_xmap: bool = True) -> common.Reader:
    """Return a reader of the validation samples: the middle of each image."""
    return _reader(VALID_FLAG, mapper, buffered_size, use_xmap, False)


def fetch() -> None:
    """Download all files."""
    _files()

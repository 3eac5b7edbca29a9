"""Pictures with a class for each pixel, PASCAL VOC 2012: Fluid's `paddle.dataset.voc2012`.

A sample is (picture, classes): uint8 [height, width, 3] in red, green, blue, and uint8
[height, width]: 0 for background, 1 to 20 for objects, 255 for their borders.
"""

import io
from collections.abc import Iterator

import numpy as np

from jfluid.compat.dataset import archives, common
from jfluid.compat.images import pillow
from jfluid.errors import DataError

__all__ = ["test", "train", "val"]

VOC_URL = "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar"
VOC_MD5 = "6cd6e144f989b92b3379bac3b3de84fd"
SET_FILE = "VOCdevkit/VOC2012/ImageSets/Segmentation/{}.txt"
DATA_FILE = "VOCdevkit/VOC2012/JPEGImages/{}.jpg"
LABEL_FILE = "VOCdevkit/VOC2012/SegmentationClass/{}.png"
CACHE_DIR = "voc2012"


def reader_creator(filename: str, sub_name: str) -> common.Reader:
    """Return a reader of the pictures that the list `sub_name` of the archive names.

    Raises DataError, when it is read, for a damaged archive, and for pictures that are missing or none.
    """

    def reader() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        with archives.open_tar(filename) as archive:

            def image(name: str) -> np.ndarray:
                data = archives.member(archive, name).read()
                try:
                    with pillow().open(io.BytesIO(data)) as opened:
                        return np.array(opened)
                except (OSError, SyntaxError, ValueError) as e:
                    raise DataError(f"{filename}, {name}: no image ({e})") from None

            names = archives.member(archive, SET_FILE.format(sub_name))
            for name in archives.text_lines(names, filename):
                yield image(DATA_FILE.format(name)), image(LABEL_FILE.format(name))

    return reader


def _path() -> str:
    return common.download(VOC_URL, CACHE_DIR, VOC_MD5)


def train() -> common.Reader:
    """Return a reader of all 2913 pictures, including the pictures of `test` and `val`."""
    return reader_creator(_path(), "trainval")


def test() -> common.Reader:
    """Return a reader of the 1464 pictures that the authors give for training."""
    return reader_creator(_path(), "train")


def val() -> common.Reader:
    """Return a reader of the 1449 pictures that the authors give for validation."""
    return reader_creator(_path(), "val")


def fetch() -> None:
    """Download all files."""
    _path()

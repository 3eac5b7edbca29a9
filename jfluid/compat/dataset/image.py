"""Loading, resizing and cropping images: Fluid's `paddle.dataset.image`.

Images are arrays, uint8 [height, width, 3] in the order blue, green, red (as OpenCV has it), or
[height, width] in grey. Networks take [channels, height, width]: `to_chw`.

Files are decoded by Pillow; OpenCV is not needed. What OpenCV's decoding and cubic interpolation
give, this gives to within one grey level.
"""

import io
import os
import pickle
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfluid.compat.dataset import archives
from jfluid.compat.images import pillow
from jfluid.errors import DataError
from jfluid.files.storage import atomic_write

__all__ = [
    "batch_images_from_tar",
    "center_crop",
    "left_right_flip",
    "load_and_transform",
    "load_image",
    "load_image_bytes",
    "random_crop",
    "resize_short",
    "simple_transform",
    "to_chw",
]


def batch_images_from_tar(
    data_file: str, dataset_name: str, img2label: Mapping[str, Any], num_per_batch: int = 1024
) -> str:
    """Pickle the labelled images of an archive, `num_per_batch` to a file.

    Returns the path of a file with the paths of the pickles, one a line.

    They lie in `data_file`_batch/`dataset_name`; where that is, it is taken as it is. A pickle is a
    dict of `label` and `data` (bytes of encoded images). Raises DataError for a damaged archive;
    then nothing is left.
    """
    folder = f"{data_file}_batch"
    target, listing = os.path.join(folder, dataset_name), f"{folder}/{dataset_name}.txt"
    if os.path.exists(target) and os.path.exists(listing):
        return listing
    os.makedirs(folder, exist_ok=True)
    building = tempfile.mkdtemp(prefix=f".{dataset_name}.", dir=folder)
    try:
        names = _write_batches(data_file, building, img2label, num_per_batch)
        shutil.rmtree(target, ignore_errors=True)  # one without a listing was never completed
        os.rename(building, target)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    with atomic_write(listing) as file:
        file.writelines(f"{os.path.abspath(os.path.join(target, n))}\n".encode() for n in names)
    return listing


def _write_batches(data_file: str, folder: str, img2label: Mapping[str, Any], num_per_batch: int) -> list[str]:
    """Return the names of the files that were written."""
    names: list[str] = []
    batch: dict[str, list[Any]] = {"label": [], "data": []}

    def write() -> None:
        names.append(f"batch_{len(names)}")
        with open(os.path.join(folder, names[-1]), "wb") as file:
            pickle.dump(batch, file, protocol=2)

    with archives.open_tar(data_file) as archive:
        for entry in archive:
            if entry.name in img2label:
                batch["data"].append(archives.member(archive, entry).read())
                batch["label"].append(int(img2label[entry.name]))
                if len(batch["data"]) == num_per_batch:
                    write()
                    batch = {"label": [], "data": []}
    if batch["data"]:
        write()
    return names


def load_image_bytes(bytes: bytes, is_color: bool = True) -> np.ndarray:
    """Return the image of an encoded file's bytes, in colour or in grey.

    Raises DataError for bytes that are no image, DependencyError without Pillow.
    """
    return _decode(bytes, is_color, f"{len(bytes)} bytes")


def load_image(file: str | os.PathLike[str], is_color: bool = True) -> np.ndarray:
    """Return the image of a file, in colour or in grey.

    Raises DataError for a file that is no image, DependencyError without Pillow.
    """
    with open(file, "rb") as opened:
        return _decode(opened.read(), is_color, os.fspath(file))


def _decode(data: bytes, is_color: bool, where: str) -> np.ndarray:
    image_library = pillow()
    from PIL import ImageOps

    try:
        with image_library.open(io.BytesIO(data)) as image:
            if image.format == "JPEG" and not is_color:
                image.draft("L", image.size)  # decodes the brightness alone
            turned = ImageOps.exif_transpose(image)
            if turned.mode.startswith("I;16"):
                turned = image_library.fromarray((np.asarray(turned) >> 8).astype(np.uint8))
            if turned.mode == "L":
                grey = np.asarray(turned)
                return grey[:, :, None].repeat(3, axis=2) if is_color else grey
            pixels = np.asarray(turned.convert("RGB"))[:, :, ::-1]
    except (OSError, SyntaxError, ValueError, image_library.DecompressionBombError) as e:
        raise DataError(f"{where}: no image that can be read ({e})") from None
    return np.ascontiguousarray(pixels) if is_color else _grey(pixels)


def _grey(pixels: np.ndarray) -> np.ndarray:
    """ITU-R BT.601 brightness, in OpenCV's fixed point."""
    weights = np.array([1868, 9617, 4899])  # blue, green, red; of 2 ** 14
    return np.asarray((pixels @ weights + (1 << 13)) >> 14, np.uint8)


def resize_short(im: np.ndarray, size: int) -> np.ndarray:
    """Return the image with its shorter edge of `size` pixels, its proportions kept, by cubic interpolation."""
    height, width = im.shape[:2]
    if height > width:
        return _resized(im, size * height // width, size)
    return _resized(im, size, size * width // height)


def _resized(im: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the image resized by cubic convolution (a = -0.75) along both axes, as OpenCV's INTER_CUBIC.

    Edges are repeated, and nothing is smoothed before shrinking. uint8 images use OpenCV's weights of 11 bits.
    """
    weights, places = zip(*(_cubic(old, new) for old, new in zip(im.shape[:2], (height, width))))
    if im.dtype == np.uint8:
        weights = tuple(np.round(w * 2048) / 2048 for w in weights)
    rows = sum(im[:, places[1][:, k]] * _along(weights[1][:, k], 1, im.ndim) for k in range(4))
    found = sum(np.asarray(rows)[places[0][:, k]] * _along(weights[0][:, k], 0, im.ndim) for k in range(4))
    if np.issubdtype(im.dtype, np.integer):
        limits = np.iinfo(im.dtype)
        found = np.clip(np.round(found), limits.min, limits.max)
    return np.array(found, im.dtype)


def _along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return values.reshape([-1 if i == axis else 1 for i in range(rank)])


def _cubic(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights and places [new, 4] of the pixels that each new one is made of."""
    a = -0.75
    center = (np.arange(new) + 0.5) * (old / new) - 0.5
    first = np.floor(center)
    x = (center - first).astype(np.float32)
    near = [((a + 2) * t - (a + 3)) * t * t + 1 for t in (x, 1 - x)]
    far = ((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a
    weights = np.stack([far, *near, 1 - far - near[0] - near[1]], axis=1).astype(np.float64)
    places = np.clip(first[:, None].astype(int) + np.arange(-1, 3), 0, old - 1)
    return weights, places


def to_chw(im: np.ndarray, order: Sequence[int] = (2, 0, 1)) -> np.ndarray:
    """Return the image with permuted axes; by default the channels come first.

    Raises ValueError where the image has a different number of axes.
    """
    if im.ndim != len(order):
        raise ValueError(f"an image of shape {list(im.shape)} has no axes {list(order)}")
    return im.transpose(order)


def center_crop(im: np.ndarray, size: int, is_color: bool = True) -> np.ndarray:
    """Return the square of `size` pixels in the middle. Raises ValueError for a smaller image."""
    return _square(im, size, (im.shape[0] - size) // 2, (im.shape[1] - size) // 2)


def random_crop(im: np.ndarray, size: int, is_color: bool = True) -> np.ndarray:
    """Return a square of `size` pixels, its row and then its column drawn by NumPy's global generator.

    Raises ValueError for a smaller image.
    """
    _check_crop(im, size)
    row = np.random.randint(0, im.shape[0] - size + 1)  # noqa: NPY002  # which users seed
    column = np.random.randint(0, im.shape[1] - size + 1)  # noqa: NPY002
    return _square(im, size, row, column)


def _check_crop(im: np.ndarray, size: int) -> None:
    if not 0 < size <= min(im.shape[:2]):
        raise ValueError(f"an image of shape {list(im.shape)} has no square of {size} pixels")


def _square(im: np.ndarray, size: int, row: int, column: int) -> np.ndarray:
    _check_crop(im, size)
    return im[row : row + size, column : column + size]


def left_right_flip(im: np.ndarray, is_color: bool = True) -> np.ndarray:
    """Return the image as a mirror shows it."""
    return im[:, ::-1]


def simple_transform(
    im: np.ndarray,
    resize_size: int,
    crop_size: int,
    is_train: bool,
    is_color: bool = True,
    mean: np.ndarray | Sequence[float] | None = None,
) -> np.ndarray:
    """Return the image as networks take it: float32 [3, crop_size, crop_size], or without channels in grey.

    The shorter edge is resized to `resize_size`; then a square is cut out: for training a random
    one, mirrored half of the time, else the middle. `mean` is subtracted: one value a channel, or an
    array of the image's rank. Raises ValueError for other ranks.
    """
    im = resize_short(im, resize_size)
    if is_train:
        im = random_crop(im, crop_size, is_color)
        if np.random.randint(2) == 0:  # noqa: NPY002
            im = left_right_flip(im, is_color)
    else:
        im = center_crop(im, crop_size, is_color)
    im = (to_chw(im) if im.ndim == 3 else im).astype("float32")
    if mean is None:
        return im
    subtracted = np.array(mean, np.float32)
    if subtracted.ndim == 1:
        return im - (subtracted[:, None, None] if is_color else subtracted)
    if subtracted.ndim != im.ndim:
        raise ValueError(f"mean of shape {list(subtracted.shape)} fits no image of shape {list(im.shape)}")
    return im - subtracted


def load_and_transform(
    filename: str | os.PathLike[str],
    resize_size: int,
    crop_size: int,
    is_train: bool,
    is_color: bool = True,
    mean: np.ndarray | Sequence[float] | None = None,
) -> np.ndarray:
    """`load_image`, then `simple_transform`."""
    return simple_transform(load_image(filename, is_color), resize_size, crop_size, is_train, is_color, mean)

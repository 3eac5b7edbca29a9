"""Images [channels, height, width] for networks: Fluid's `paddle.utils.image_util`."""

import io
import os
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jfluid.compat.dataset.common import load_samples
from jfluid.compat.images import pillow
from jfluid.errors import DataError

__all__ = [
    "ImageTransformer",
    "crop_img",
    "decode_jpeg",
    "flip",
    "load_image",
    "load_meta",
    "oversample",
    "preprocess_img",
    "resize_image",
]


def resize_image(img: Any, target_size: int) -> Any:
    """Return a Pillow image with its shorter edge of `target_size` pixels, its proportions kept."""
    scale = target_size / min(img.size)
    size = (round(img.size[0] * scale), round(img.size[1] * scale))
    return img.resize(size, pillow().Resampling.LANCZOS)


def flip(im: np.ndarray) -> np.ndarray:
    """Return the image, [K, H, W] or [H, W], as a mirror shows it."""
    return im[..., ::-1]


def crop_img(im: np.ndarray, inner_size: int, color: bool = True, test: bool = True) -> np.ndarray:
    """Return a square of `inner_size` pixels of an image, [3, H, W] or, without `color`, [H, W]: float64.

    A smaller image lies in the middle of zeros. For a `test` it is the middle, else a random square,
    mirrored half of the time, drawn by NumPy's global generator.
    """
    height, width = (max(inner_size, edge) for edge in im.shape[-2:])
    padded = np.zeros((3, height, width) if color else (height, width))
    top, left = (height - im.shape[-2]) // 2, (width - im.shape[-1]) // 2
    padded[..., top : top + im.shape[-2], left : left + im.shape[-1]] = im
    if test:
        top, left = (height - inner_size) // 2, (width - inner_size) // 2
    else:
        top = np.random.randint(0, height - inner_size + 1)  # noqa: NPY002  # which users seed
        left = np.random.randint(0, width - inner_size + 1)  # noqa: NPY002
    square = padded[..., top : top + inner_size, left : left + inner_size]
    if not test and np.random.randint(2) == 0:  # noqa: NPY002
        square = flip(square)
    return square


def decode_jpeg(jpeg_string: bytes) -> np.ndarray:
    """Return the image of a JPEG file's bytes: uint8 [3, H, W] in red, green, blue, or [H, W] in grey.

    Raises DataError for bytes that are none.
    """
    return _channels_first(np.array(_opened(io.BytesIO(jpeg_string), f"{len(jpeg_string)} bytes")))


def _channels_first(pixels: np.ndarray) -> np.ndarray:
    return pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels


def _opened(file: Any, where: str) -> Any:
    try:
        image = pillow().open(file)
        image.load()
    except FileNotFoundError:
        raise
    except (OSError, SyntaxError, ValueError) as e:
        raise DataError(f"{where}: no image that can be read ({e})") from None
    return image


def preprocess_img(im: np.ndarray, img_mean: Any, crop_size: int, is_train: bool, color: bool = True) -> np.ndarray:
    """Return a square of an image (see `crop_img`) less its mean, as one vector."""
    square = crop_img(im.astype("float32"), crop_size, color, test=not is_train)
    return np.asarray(square - img_mean).flatten()


def load_meta(meta_path: str | os.PathLike[str], mean_img_size: int, crop_size: int, color: bool = True) -> np.ndarray:
    """Return the middle of the mean image, float32, from a file of `preprocess_img`.

    The mean image stands as `data_mean` in an .npz file.

    Raises DataError for a different number of pixels than `mean_img_size` says.
    """
    channels = 3 if color else 1
    with open(meta_path, "rb") as file:
        try:
            mean = load_samples(file)["data_mean"]
        except pickle.UnpicklingError:
            file.seek(0)
            mean = np.load(file)["data_mean"]
    if mean.size != channels * mean_img_size**2:
        raise DataError(
            f"{os.fspath(meta_path)}: data_mean has {mean.size} numbers, expected "
            f"{channels} x {mean_img_size} x {mean_img_size}"
        )
    border = (mean_img_size - crop_size) // 2
    image: np.ndarray = mean.reshape(channels, mean_img_size, mean_img_size).astype("float32")
    middle = image[:, border : border + crop_size, border : border + crop_size]
    return middle if color else middle[0]


def load_image(img_path: str | os.PathLike[str], is_color: bool = True) -> Any:
    """Return the Pillow image of a file, as it is stored, or in grey without `is_color`.

    Raises DataError for a file that is no image.
    """
    image = _opened(img_path, os.fspath(img_path))
    return image if is_color else image.convert("L")


def oversample(img: Iterable[np.ndarray], crop_dims: Sequence[int]) -> np.ndarray:
    """Ten squares of each image [H, W, K]: four corners, the middle, and the mirror image of each.

    Returns float32 [10 * images, *crop_dims, K].
    """
    height, width = crop_dims
    squares = []
    for image in img:
        bottom, right = image.shape[0] - height, image.shape[1] - width
        corners = [(top, left) for top in (0, bottom) for left in (0, right)]
        middle = (int((image.shape[0] - height) / 2), int((image.shape[1] - width) / 2))
        crops = [image[top : top + height, left : left + width] for top, left in [*corners, middle]]
        squares += [*crops, *(crop[:, ::-1] for crop in crops)]
    return np.array(squares, np.float32)


class ImageTransformer:
    """Transposes an image, orders its channels, and subtracts a mean.

    Args:
        transpose: the order of the axes; for a colour image three.
        channel_swap: the order of the channels; for a colour image three.
        mean: one value a channel, or an array of the image's shape.
        is_color: whether images have channels.

    Raises ValueError for an order of a different length, or a mean of a different rank.
    """

    def __init__(
        self,
        transpose: Sequence[int] | None = None,
        channel_swap: Sequence[int] | None = None,
        mean: np.ndarray | None = None,
        is_color: bool = True,
    ):
        self.is_color = is_color
        self.set_transpose(transpose)
        self.set_channel_swap(channel_swap)
        self.set_mean(mean)

    def set_transpose(self, order: Sequence[int] | None) -> None:
        self.transpose = self._order(order)

    def set_channel_swap(self, order: Sequence[int] | None) -> None:
        self.channel_swap = self._order(order)

    def _order(self, order: Sequence[int] | None) -> Sequence[int] | None:
        if order is not None and self.is_color and len(order) != 3:
            raise ValueError(f"a colour image has three axes and channels, found {list(order)}")
        return order

    def set_mean(self, mean: np.ndarray | None) -> None:
        if mean is not None and mean.ndim == 1:
            mean = mean[:, np.newaxis, np.newaxis]
        elif mean is not None and self.is_color and mean.ndim != 3:
            raise ValueError(f"the mean of colour images has one or three axes, found {mean.ndim}")
        self.mean = mean

    def transformer(self, data: np.ndarray) -> np.ndarray:
        """Return the transformed image."""
        if self.transpose is not None:
            data = data.transpose(self.transpose)
        if self.channel_swap is not None:
            data = data[list(self.channel_swap), :, :]
        return data if self.mean is None else data - self.mean

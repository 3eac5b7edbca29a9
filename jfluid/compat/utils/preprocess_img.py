"""Batches of images with labels: Fluid's `paddle.utils.preprocess_img`."""

import io
import os
import random
from typing import Any

import numpy as np

from jfluid.compat.utils import preprocess_util
from jfluid.compat.utils.image_util import crop_img, load_image, resize_image
from jfluid.errors import DataError

__all__ = ["DiskImage", "ImageClassificationDatasetCreater", "resize_image"]


class DiskImage:
    """An image of a file, its shorter edge resized to `target_size`; it is read when it is used."""

    def __init__(self, path: str, target_size: int):
        self.path = path
        self.target_size = target_size
        self.img: Any = None

    def read_image(self) -> None:
        """Read and resize it. Raises DataError for a file that is no image."""
        if self.img is None:
            self.img = resize_image(load_image(self.path), self.target_size)

    def convert_to_array(self) -> np.ndarray:
        """Return uint8 [channels, height, width], or [height, width] in grey."""
        self.read_image()
        pixels = np.array(self.img)
        return pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels

    def convert_to_paddle_format(self) -> bytes:
        """Return the bytes of a JPEG file of it."""
        self.read_image()
        file = io.BytesIO()
        self.img.save(file, "jpeg")
        return file.getvalue()


class ImageClassificationDatasetCreater(preprocess_util.DatasetCreater):
    """Makes batches of images: each folder in the folders train and test is a label.

    With `from_list` train and test are files instead: a path and a label in each line. The mean
    image, without colours unless `color`, goes into a file of its own.
    """

    def __init__(self, data_path: str, target_size: int, color: bool = True):
        super().__init__(data_path)
        self.target_size = target_size
        self.color = color
        self.keys = ["images", "labels"]

    def create_meta_file(self, data: preprocess_util.Dataset) -> None:
        """Write the mean of all images, int32 pixels in one vector, with the sizes and labels."""
        squares = (crop_img(image.convert_to_array(), self.target_size, self.color) for image, _ in data.data)
        mean = sum(squares) / len(data.data)
        preprocess_util.save_file(
            {
                "data_mean": np.asarray(mean).astype("int32").flatten(),
                "image_size": self.target_size,
                "mean_image_size": self.target_size,
                "num_classes": self.num_classes,
                "color": self.color,
            },
            os.path.join(self.data_path, self.batch_dir_name, self.meta_filename),
        )

    def create_dataset_from_list(self, path: str) -> tuple[preprocess_util.Dataset, dict[str, int]]:
        """Return the images of a file of paths and labels, numbered in order of appearance.

        Raises DataError with the number of a line that is none.
        """
        labels: dict[str, int] = {}
        data = []
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if len(fields := line.split()) != 2:
                    raise DataError(f"{path}, line {number}: expected a path and a label")
                label = labels.setdefault(fields[1], len(labels))
                data.append(self._item(fields[0], label, fields[1]))
        return preprocess_util.Dataset(data, self.keys), labels

    def create_dataset_from_dir(self, path: str) -> tuple[preprocess_util.Dataset, dict[str, int]]:
        """Return the images in the folders of a folder, shuffled."""
        labels = preprocess_util.get_label_set_from_dir(path)
        data = [
            self._item(image, label, name)
            for name, label in labels.items()
            for image in preprocess_util.list_images(os.path.join(path, name))
        ]
        random.shuffle(data)
        return preprocess_util.Dataset(data, self.keys), labels

    def _item(self, path: str, label: int, name: str) -> tuple[DiskImage, preprocess_util.Label]:
        return DiskImage(path, self.target_size), preprocess_util.Label(label, name)

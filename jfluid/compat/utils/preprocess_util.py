"""Batches of a data set in pickle files: Fluid's `paddle.utils.preprocess_util`."""

import math
import os
import pickle
import random
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from jfluid.errors import DataError
from jfluid.files.storage import atomic_write

__all__ = [
    "DataBatcher",
    "Dataset",
    "DatasetCreater",
    "Label",
    "exclude_pattern",
    "get_label_set_from_dir",
    "list_dirs",
    "list_files",
    "list_images",
    "save_file",
    "save_list",
]


def save_file(data: Any, filename: str | os.PathLike[str]) -> None:
    """Pickle an object to a file, whole or not at all."""
    with atomic_write(filename) as file:
        pickle.dump(data, file, protocol=pickle.HIGHEST_PROTOCOL)


def save_list(l: Iterable[str], outfile: str | os.PathLike[str]) -> None:  # noqa: E741  # Fluid's
    """Write lines to a file, whole or not at all."""
    with atomic_write(outfile) as file:
        file.write("\n".join(l).encode())


def exclude_pattern(f: str) -> bool:
    """Return whether a name is that of a hidden file or of a backup."""
    return f.startswith(".") or f.endswith("~")


def list_dirs(path: str) -> list[str]:
    """Return the paths of the folders in a folder, sorted, without hidden ones."""
    return _listed(path, os.path.isdir)


def list_files(path: str) -> list[str]:
    """Return the paths of the files in a folder, sorted, without hidden ones and backups."""
    return _listed(path, os.path.isfile)


def _listed(path: str, wanted: Any) -> list[str]:
    names = (name for name in sorted(os.listdir(path)) if not exclude_pattern(name))
    return [found for name in names if wanted(found := os.path.join(path, name))]


def list_images(path: str, exts: Collection[str] = frozenset(("bmp", "jpeg", "jpg", "png"))) -> list[str]:
    """Return the paths of the files in a folder with an ending of `exts`, sorted."""
    return [found for found in list_files(path) if os.path.splitext(found)[1][1:] in exts]


def get_label_set_from_dir(path: str) -> dict[str, int]:
    """Return numbers of labels: the names of the folders in a folder, sorted."""
    return {os.path.basename(found): number for number, found in enumerate(list_dirs(path))}


class Label:
    """A label: its number and its name."""

    def __init__(self, label: int, name: str):
        self.label = label
        self.name = name

    def convert_to_paddle_format(self) -> int:
        """Return the number."""
        return int(self.label)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Label) and self.label == other.label

    def __hash__(self) -> int:
        return hash(self.label)


class Dataset:
    """Items, each a tuple of slots, such as an image and a `Label`; `keys` names the slots."""

    def __init__(self, data: list[Any], keys: Sequence[str]):
        self.data = data
        self.keys = keys

    def check_valid(self) -> None:
        """Raise DataError unless the number of slots of each item equals the number of names."""
        for number, item in enumerate(self.data):
            if len(item) != len(self.keys):
                raise DataError(f"item {number} has {len(item)} slots, expected {list(self.keys)}")

    def permute(self, key_id: int | None, num_per_batch: int) -> None:
        """Shuffle the items; with the number of a slot as in `permute_by_key`."""
        if key_id is None:
            self.uniform_permute()
        else:
            self.permute_by_key(key_id, num_per_batch)

    def uniform_permute(self) -> None:
        """Shuffle the items."""
        random.shuffle(self.data)

    def permute_by_key(self, key_id: int, num_per_batch: int) -> None:
        """Shuffle the items, then balance the labels within batches of `num_per_batch`.

        Each batch has equally many items of each label (in slot `key_id`), as long as the items last.

        Raises ValueError where a batch would have less than two items of a label.
        """
        items: dict[Any, list[Any]] = {}
        for item in self.data:
            items.setdefault(item[key_id].label, []).append(item)
        if not items:
            return
        share = math.ceil(num_per_batch / len(items))
        if share < 2:
            raise ValueError(f"batches of {num_per_batch} items are too small for {len(items)} labels")
        for of_label in items.values():
            random.shuffle(of_label)
        longest = max(map(len, items.values()))
        self.data = [
            item
            for begin in range(0, longest, share)
            for of_label in items.values()
            for item in of_label[begin : begin + share]
        ]


class DataBatcher:
    """Writes batches of training and of test items. Raises ValueError where their slots differ."""

    def __init__(self, train_data: Dataset, test_data: Dataset, label_set: dict[str, int]):
        if train_data.keys != test_data.keys:
            raise ValueError(f"slots {train_data.keys} and {test_data.keys} differ")
        self.train_data = train_data
        self.test_data = test_data
        self.label_set = label_set
        self.num_per_batch = 5000

    def create_batches_and_list(
        self, output_path: str, train_list_name: str, test_list_name: str, label_set_name: str
    ) -> None:
        """Write all batches, lists of their files, and the numbers of the labels to a folder."""
        names = [
            self.create_batches(data, output_path, prefix, self.num_per_batch)
            for data, prefix in ((self.train_data, "train_"), (self.test_data, "test_"))
        ]
        save_file(self.label_set, os.path.join(output_path, label_set_name))
        for found, listing in zip(names, (train_list_name, test_list_name)):
            save_list(found, os.path.join(output_path, listing))

    def create_batches(
        self, data: Dataset, output_path: str, prefix: str = "", num_data_per_batch: int = 5000
    ) -> list[str]:
        """Write the batches of a data set, each a dict of lists by slot, and return their paths."""
        data.check_valid()
        names: list[str] = []
        for begin in range(0, len(data.data), num_data_per_batch):
            name = os.path.join(output_path, f"{prefix}batch_{len(names):03d}")
            items = data.data[begin : begin + num_data_per_batch]
            batch = {
                key: [item[slot].convert_to_paddle_format() for item in items] for slot, key in enumerate(data.keys)
            }
            save_file(batch, name)
            names.append(name)
        return names


class DatasetCreater:
    """Makes batches of the items in the folders train and test of `data_path`, in its folder batches.

    Subclasses say what an item is: `keys`, `create_dataset_from_dir`, `create_dataset_from_list` (with
    `from_list`) and `create_meta_file`.

    Batches that are there stay, unless `overwrite` is set.
    """

    keys: Sequence[str]
    num_classes: int

    def __init__(self, data_path: str):
        self.data_path = data_path
        self.train_dir_name = "train"
        self.test_dir_name = "test"
        self.batch_dir_name = "batches"
        self.num_per_batch = 50000
        self.meta_filename = "batches.meta"
        self.train_list_name = "train.list"
        self.test_list_name = "test.list"
        self.label_set_name = "labels.pkl"
        self.output_path = os.path.join(self.data_path, self.batch_dir_name)
        self.overwrite = False
        self.permutate_key = "labels"
        self.from_list = False

    def create_meta_file(self, data: Dataset) -> None:
        """Write statistics of all training items."""
        raise NotImplementedError(f"{type(self).__name__} must define create_meta_file")

    def create_dataset(self, path: str) -> tuple[Dataset, dict[str, int]]:
        """Return the items of a folder, or of a list with `from_list`, and the numbers of their labels."""
        if self.from_list:
            return self.create_dataset_from_list(path)
        return self.create_dataset_from_dir(path)

    def create_dataset_from_list(self, path: str) -> tuple[Dataset, dict[str, int]]:
        raise NotImplementedError(f"{type(self).__name__} must define create_dataset_from_list")

    def create_dataset_from_dir(self, path: str) -> tuple[Dataset, dict[str, int]]:
        raise NotImplementedError(f"{type(self).__name__} must define create_dataset_from_dir")

    def create_batches(self) -> str:
        """Write the batches with their lists and statistics, and return their folder.

        Raises DataError where training and test items have different labels.
        """
        out_path = os.path.join(self.data_path, self.batch_dir_name)
        os.makedirs(out_path, exist_ok=True)
        if not self.overwrite and os.path.exists(os.path.join(out_path, self.train_list_name)):
            return out_path
        train, labels = self.create_dataset(os.path.join(self.data_path, self.train_dir_name))
        test, test_labels = self.create_dataset(os.path.join(self.data_path, self.test_dir_name))
        if labels != test_labels:
            raise DataError(f"{self.data_path}: labels {sorted(labels)} for training, {sorted(test_labels)} for tests")
        train.permute(self.keys.index(self.permutate_key), self.num_per_batch)
        self.num_classes = len(labels)
        self.create_meta_file(train)
        batcher = DataBatcher(train, test, labels)
        batcher.num_per_batch = self.num_per_batch
        batcher.create_batches_and_list(out_path, self.train_list_name, self.test_list_name, self.label_set_name)
        return out_path

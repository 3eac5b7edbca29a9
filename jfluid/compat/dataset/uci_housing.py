"""Prices of houses near Boston: Fluid's `paddle.dataset.uci_housing`.

A sample is (features, price): float64 [13], of each feature the distance from its mean divided by
its range, and float64 [1].
"""

import functools
import os
from collections.abc import Iterator

import numpy as np

from jfluid.compat.dataset import archives, common
from jfluid.errors import DataError

__all__ = ["test", "train"]

URL = "http://paddlemodels.bj.bcebos.com/uci_housing/housing.data"
MD5 = "d4accdce7a25600298819f8e28e8d593"
FLUID_URL_MODEL = "https://github.com/PaddlePaddle/book/raw/develop/01.fit_a_line/fluid/fit_a_line.fluid.tar"
FLUID_MD5_MODEL = "6e6dd637ccd5993961f68bfbde46090b"

feature_names = [
    "CRIM",
    "ZN",
    "INDUS",
    "CHAS",
    "NOX",
    "RM",
    "AGE",
    "DIS",
    "RAD",
    "TAX",
    "PTRATIO",
    "B",
    "LSTAT",
]


def feature_range(maximums: np.ndarray, minimums: np.ndarray) -> None:
    """Draw the range of each feature into image/ranges.png. Needs matplotlib.

    Fluid does so whenever the data is loaded; here only a script's own call does.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6))
    axes = figure.add_subplot()
    axes.bar(np.arange(len(maximums)), maximums - minimums, color="r", align="center")
    axes.set_title("feature scale")
    axes.set_xticks(np.arange(len(maximums)), feature_names[: len(maximums)])
    axes.set_xlim(-1, len(maximums))
    os.makedirs("image", exist_ok=True)
    figure.savefig("image/ranges.png", dpi=48)


@functools.lru_cache(maxsize=4)
def load_data(filename: str, feature_num: int = 14, ratio: float = 0.8) -> tuple[np.ndarray, np.ndarray]:
    """Return the normalized rows of a file of numbers: (training rows, test rows).

    Both are float64 [rows, feature_num]; the first share `ratio` is for training. Raises DataError for text that is no
    such table.

    `ratio` of them, the first, are for training. Raises DataError for text that is no such table.
    """
    with archives.reading(filename), open(filename, encoding="ascii") as file:
        words = file.read().split()
    try:
        values = np.array(words, np.float64)
    except ValueError as e:
        raise DataError(f"{filename}: not only numbers: {e}") from None
    if not len(values) or len(values) % feature_num:
        raise DataError(f"{filename}: {len(values)} numbers are no rows of {feature_num}")
    rows = values.reshape(-1, feature_num)
    features = rows[:, :-1]
    features[:] = (features - features.sum(axis=0) / len(rows)) / np.ptp(features, axis=0)
    offset = int(len(rows) * ratio)
    return rows[:offset], rows[offset:]


def _reader(rows: np.ndarray) -> common.Reader:
    def reader() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for row in rows:
            yield row[:-1], row[-1:]

    return reader


def _data() -> tuple[np.ndarray, np.ndarray]:
    return load_data(common.download(URL, "uci_housing", MD5))


def train() -> common.Reader:
    """Return a reader of the first 80 % of the samples."""
    return _reader(_data()[0])


def test() -> common.Reader:
    """Return a reader of the last 20 % of the samples."""
    return _reader(_data()[1])


def fluid_model() -> str:
    """Return the folder, a new temporary one, of a trained model."""
    return archives.unpack(common.download(FLUID_URL_MODEL, "uci_housing", FLUID_MD5_MODEL, "fit_a_line.fluid.tar"))


def predict_reader() -> tuple[np.ndarray]:
    """Return one sample without its price, as a tuple."""
    return (_data()[1][0][:-1],)


def fetch() -> None:
    """Download all files."""
    common.download(URL, "uci_housing", MD5)

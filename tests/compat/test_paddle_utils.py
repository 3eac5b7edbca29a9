"""`paddle.utils`: curves, squares of images, batches of labelled images."""

import pickle
import re

import numpy as np
import pytest
from PIL import Image

from jfluid import errors
from jfluid.compat import utils
from jfluid.compat.utils import image_util, plotcurve, preprocess_img, preprocess_util
from tests.parity import dataset_files


def is_picture(path):
    with Image.open(path) as picture:
        return picture.size > (100, 100) and len(np.unique(picture.convert("L"))) > 10


# ---- curves --------------------------------------------------------------------------------------


@pytest.fixture
def matplotlib(monkeypatch):
    """Draws into files, whatever screen there is."""
    monkeypatch.setenv("MPLBACKEND", "agg")


def test_curves_are_drawn_into_a_file(matplotlib, tmp_path):
    ploter = utils.Ploter("train cost", "test cost")
    for step in range(3):
        ploter.append("train cost", step, np.array([1.0 / (step + 1)], np.float32))  # as fetched
    ploter.plot(tmp_path / "cost.png")
    assert is_picture(tmp_path / "cost.png")
    ploter.reset()
    assert ploter.__plot_data__["train cost"].step == []
    with pytest.raises(ValueError, match="no curve has the title 'cost'; there are 'train cost', "):
        ploter.append("cost", 0, 1.0)


def test_nothing_is_drawn_where_that_is_switched_off(monkeypatch, tmp_path):
    monkeypatch.setenv("DISABLE_PLOT", "True")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    ploter = utils.Ploter("cost")
    ploter.append("cost", 0, 1.0)
    ploter.plot(tmp_path / "cost.png")
    assert not (tmp_path / "cost.png").exists()
    monkeypatch.setenv("DISABLE_PLOT", "False")
    with pytest.raises(errors.DependencyError, match=re.escape("pip install 'jfluid[datasets]', or")):
        utils.Ploter("cost")


def test_without_a_path_curves_need_a_notebook(matplotlib, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "IPython", None)
    ploter = utils.Ploter("cost")
    with pytest.raises(errors.DependencyError, match="needs IPython; install it, or give a path"):
        ploter.plot()


def test_curves_of_a_log(matplotlib, tmp_path, capsys):
    log = tmp_path / "paddle.INFO"
    lines = [f"I04 Trainer.cpp] Pass={n} Batch=7 AvgCost=0.{9 - n} Eval: error=1e-0{n + 1}" for n in range(3)]
    log.write_text("\n".join([*lines, "Test samples=10 AvgCost=0.5 Eval: error=0.25", "other"]))
    plotcurve.main(["-i", str(log), "-o", str(tmp_path / "a.png"), "AvgCost", "error"])
    assert is_picture(tmp_path / "a.png")
    plotcurve.main(["-i", str(log), "-o", str(tmp_path / "b.png"), "cost"])
    assert "No data to plot: no line has Pass, cost" in capsys.readouterr().err
    assert not (tmp_path / "b.png").exists()


# ---- images --------------------------------------------------------------------------------------


def test_squares_of_images():
    image = np.arange(3 * 5 * 7).reshape(3, 5, 7)
    middle = image_util.crop_img(image, 3)
    assert np.array_equal(middle, image[:, 1:4, 2:5]) and middle.dtype == np.float64
    padded = image_util.crop_img(image[0], 9, color=False)
    assert np.array_equal(padded[2:7, 1:8], image[0]) and padded.sum() == image[0].sum()
    np.random.seed(3)  # noqa: NPY002
    top, left = np.random.randint(0, 3), np.random.randint(0, 5)  # noqa: NPY002
    mirrored = np.random.randint(2) == 0  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    expected = image[:, top : top + 3, left : left + 3]
    found = image_util.crop_img(image, 3, test=False)
    assert np.array_equal(found, expected[:, :, ::-1] if mirrored else expected)
    vector = image_util.preprocess_img(image, 1.0, 3, is_train=False)
    assert np.array_equal(vector, middle.reshape(-1) - 1)


def test_ten_squares_of_an_image():
    image = np.arange(4 * 6 * 3).reshape(4, 6, 3)
    squares = image_util.oversample([image], (2, 2))
    assert squares.shape == (10, 2, 2, 3) and squares.dtype == np.float32
    corners = [image[:2, :2], image[:2, 4:], image[2:, :2], image[2:, 4:], image[1:3, 2:4]]
    assert np.array_equal(squares, corners + [corner[:, ::-1] for corner in corners])


def test_transforming_images():
    image = np.arange(2.0 * 4 * 3).reshape(2, 4, 3)
    to_bgr = image_util.ImageTransformer((2, 0, 1), (2, 1, 0), np.array([1.0, 2.0, 3.0]))
    expected = image.transpose(2, 0, 1)[::-1] - np.array([1, 2, 3])[:, None, None]
    assert np.array_equal(to_bgr.transformer(image), expected)
    with pytest.raises(ValueError, match=r"three axes and channels, found \[1, 0\]"):
        image_util.ImageTransformer((1, 0))
    with pytest.raises(ValueError, match="the mean of colour images has one or three axes, found 2"):
        image_util.ImageTransformer(mean=np.zeros((2, 2)))


def test_decoding_images(tmp_path):
    assert image_util.decode_jpeg(dataset_files.jpeg(0)).shape == (3, 30, 44)
    assert image_util.decode_jpeg(dataset_files.jpeg(1)).shape == (30, 44)
    (tmp_path / "some.jpg").write_bytes(dataset_files.jpeg(2))
    picture = image_util.load_image(tmp_path / "some.jpg")
    assert image_util.resize_image(picture, 15).size == (15, 22)
    assert image_util.load_image(tmp_path / "some.jpg", is_color=False).mode == "L"
    with pytest.raises(errors.DataError, match="5 bytes: no image that can be read"):
        image_util.decode_jpeg(b"bytes")


# ---- batches of images ---------------------------------------------------------------------------


@pytest.fixture
def labelled(tmp_path):
    """Folders of images: in each set one more of b than of a."""
    for part in ("train", "test"):
        for label, count in (("a", 2), ("b", 3)):
            folder = tmp_path / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number}.jpg").write_bytes(dataset_files.jpeg(2 * (number % 2)))
            (folder / "notes.txt").touch()
            (folder / ".hidden.jpg").touch()
    return tmp_path


def test_batches_of_labelled_images(labelled):
    creater = preprocess_img.ImageClassificationDatasetCreater(str(labelled), 16)
    creater.num_per_batch = 4
    folder = labelled / "batches"
    assert creater.create_batches() == str(folder)
    paths = (folder / "train.list").read_text().splitlines()
    batches = [pickle.loads((folder / path).read_bytes()) for path in paths]
    labels = [label for batch in batches for label in batch["labels"]]
    assert [len(batch["labels"]) for batch in batches] == [4, 1] and sorted(labels) == [
        0,
        0,
        1,
        1,
        1,
    ]
    assert sorted(labels[:4]) == [0, 0, 1, 1]  # as many of each as there are
    assert image_util.decode_jpeg(batches[0]["images"][0]).shape[0] == 3
    assert pickle.loads((folder / "labels.pkl").read_bytes()) == {"a": 0, "b": 1}
    mean = image_util.load_meta(folder / "batches.meta", 16, 10)
    assert mean.shape == (3, 10, 10) and 50 < mean.mean() < 200
    np.savez(folder / "mean.npz", data_mean=np.arange(256))
    grey = image_util.load_meta(folder / "mean.npz", 16, 2, color=False)
    assert grey.tolist() == [[7 * 16 + 7, 7 * 16 + 8], [8 * 16 + 7, 8 * 16 + 8]]
    with pytest.raises(errors.DataError, match="data_mean has 768 numbers, expected 3 x 8 x 8"):
        image_util.load_meta(folder / "batches.meta", 8, 4)
    written = (folder / "train.list").stat().st_mtime_ns
    creater.create_batches()
    assert (folder / "train.list").stat().st_mtime_ns == written


def test_batches_of_listed_images(labelled):
    creater = preprocess_img.ImageClassificationDatasetCreater(str(labelled), 16, color=False)
    listing = labelled / "list"
    listing.write_text(f"{labelled}/train/a/0.jpg dog\n{labelled}/train/b/1.jpg cat\n")
    data, labels = creater.create_dataset_from_list(str(listing))
    assert labels == {"dog": 0, "cat": 1} and [item[1].label for item in data.data] == [0, 1]
    listing.write_text("some.jpg\n")
    with pytest.raises(errors.DataError, match="list, line 1: expected a path and a label"):
        creater.create_dataset_from_list(str(listing))


def test_sets_with_different_labels(labelled):
    (labelled / "test" / "c").mkdir()
    creater = preprocess_img.ImageClassificationDatasetCreater(str(labelled), 16)
    with pytest.raises(errors.DataError, match=r"labels \['a', 'b'\] for training, \['a', 'b', 'c'\]"):
        creater.create_batches()
    small = preprocess_util.Dataset([(preprocess_util.Label(n, "n"),) for n in range(3)], ["labels"])
    with pytest.raises(ValueError, match="batches of 3 items are too small for 3 labels"):
        small.permute(0, 3)

"""What `paddle.dataset` yields, against the real Fluid's readers over the same files in the original
formats (tests/golden/dataset_readers.json).
"""

import json
from pathlib import Path

import pytest

import jfluid.compat.dataset as package
from jfluid.compat.dataset import common
from tests.parity import dataset_files, dataset_readers

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "dataset_readers.json").read_text())


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("datasets")
    dataset_files.make(str(folder))
    return folder


@pytest.fixture
def placed(home, monkeypatch):
    """The tiny files are where the original ones belong, whatever their MD5."""

    def path_of(url, module_name, md5sum, save_name=None):
        path = home / module_name / (save_name or url.split("/")[-1])
        assert path.is_file(), f"made by no function of dataset_files: {path}"
        return str(path)

    monkeypatch.setattr(common, "DATA_HOME", str(home))
    monkeypatch.setattr(common, "download", path_of)


def close(found, want, atol):
    """`found` is `want`, numbers of arrays to `atol`."""
    if isinstance(want, dict) and "shape" in want:
        numbers = [k for k in ("values", "some") if k in want]
        assert {k: found[k] for k in ("dtype", "shape")} == {k: want[k] for k in ("dtype", "shape")}
        for key in numbers:
            assert found[key] == pytest.approx(want[key], rel=1e-6, abs=atol)
        if "mean" in want:
            assert found["mean"] == pytest.approx(want["mean"], rel=1e-6, abs=atol / 10)
    elif isinstance(want, dict):
        assert list(found) == list(want)
        for key in want:
            close(found[key], want[key], atol)
    elif isinstance(want, list):
        assert len(found) == len(want)
        for one, other in zip(found, want):
            close(one, other, atol)
    else:
        assert type(found) is type(want) and found == want


@pytest.mark.parametrize("build", dataset_readers.MODULES, ids=lambda b: b.__name__)
def test_readers_yield_what_fluids_yield(placed, build):
    # images: within one grey level of OpenCV's
    close(
        build(package),
        GOLDEN[build.__name__],
        1.01 if build.__name__ in ("flowers", "image") else 1e-12,
    )

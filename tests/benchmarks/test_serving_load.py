"""The models and engines of `benchmarks/serving.py --load`."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid.exports.model import LoadedModel
from jfluid.exports.sequences import Sequences

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import serving_load

SCRIPT = Path(serving_load.__file__)
pytestmark = pytest.mark.usefixtures("interpreted_module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("models")
    serving_load.save_models(str(found))
    return found


@pytest.mark.parametrize("name", serving_load.DENSE + serving_load.SEQUENCES)
def test_the_predictor_gives_what_the_model_gives(folder, name):
    feed = serving_load.feeds_of(name, 3)[1]
    (found,) = serving_load.predictor(fluid)(str(folder / name))(feed)
    (expected,) = LoadedModel(str(folder / name)).run(
        {name: rows if lengths is None else Sequences.of_lengths(rows, [lengths]) for name, rows, lengths in feed}
    )
    assert found.shape == expected.shape and np.allclose(found, expected, atol=1e-5)


@pytest.mark.process
def test_an_engine_answers_lines(folder):
    words = [sys.executable, str(SCRIPT), "--work", "jfluid", str(folder)]
    ended = subprocess.run(words, input="mlp 2 0.01\n", capture_output=True, text=True, timeout=600)
    answer = json.loads(ended.stdout.splitlines()[-1])
    assert answer["ms"] > 0 and abs(sum(answer["first"]) - 1) < 1e-4

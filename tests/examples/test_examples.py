"""The examples in small, run by their job files, and what they are made of."""

import importlib
import random
import re

import numpy as np
import pytest

from tests.example_runs import ROOT, run_example
from tests.launch_case import launched


@pytest.fixture(autouse=True)
def root(monkeypatch):
    """Job files name scripts as seen from there."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def example(monkeypatch):
    """Imports a module of examples/."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module


def printed(result, pattern):
    """What the groups of `pattern` match in the output of an example."""
    found = re.search(pattern, result.stdout)
    assert found, f"{pattern!r} is not in:\n{result.stdout}\n{result.stderr}"
    return found.groups()


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG")


# ---- digits ----


@pytest.mark.process
def test_recognize_digits(tmp_path):
    result = run_example("recognize_digits", tmp_path, epochs=20)
    assert result.returncode == 0, result.stdout + result.stderr
    assert float(*printed(result, r"test accuracy: ([\d.]+)% of 360 digits")) >= 97
    assert re.search(r"train 440/440 .* examples/s  loss ", result.stderr)
    assert "reloaded with the same predictions" in result.stdout
    assert is_picture(tmp_path / "digits.png")
    assert (tmp_path / "model" / "__model__").stat().st_size > 1000
    assert "test accuracy" in (tmp_path / "log" / "workerlog.0").read_text()


@pytest.mark.process
@pytest.mark.nightly  # the click model's script fails by the same comparison before each change
def test_recognize_digits_fails_below_the_accuracy_it_wants(tmp_path):
    result = run_example("recognize_digits", tmp_path, epochs=1, minimum_accuracy=1.0)
    assert result.returncode == 1
    assert "the test accuracy is below 100%" in result.stderr


# ---- clicks ----

CLICKS = {
    "lines": 10240,
    "test_lines": 2048,
    "files": 2,
    "rows": 5001,
    "epochs": 2,
    "learning_rate": "1e-2",
}


@pytest.mark.process
def test_ctr_dnn_in_one_process_fails_below_the_auc_it_wants(tmp_path):
    result = run_example("ctr_dnn_local", tmp_path, **CLICKS, text="multislot", dataset="queue", largest_gap=0)
    auc, best, gap = map(float, printed(result, r"test AUC: ([\d.]+); best reachable: ([\d.]+); gap: (-?[\d.]+)"))
    assert auc > 0.65 and 0.75 < best < 0.85
    assert gap == pytest.approx(best - auc, abs=2e-4)
    assert (
        len(
            re.findall(
                r"^epoch .*: test AUC 0\.\d+, at best 0\.\d+; [\d,]+ lines/s$",
                result.stdout,
                re.MULTILINE,
            )
        )
        == 4
    )
    assert len(re.findall(r"^ +[01] +0\.\d+ +0\.\d+$", result.stdout, re.MULTILINE)) == 10
    assert is_picture(tmp_path / "ctr_dnn.png")
    assert (tmp_path / "model" / "__model__").is_file()
    assert result.returncode == 1
    assert "the test AUC is more than 0.0 below the best reachable one" in result.stderr


@pytest.mark.process
@pytest.mark.nightly  # tests/examples/test_demo.py runs the script before each change
def test_ctr_dnn_with_a_whole_table_in_another_strategy(tmp_path):
    result = run_example(
        "ctr_dnn",
        tmp_path,
        # of half as many lines a model reaches 0.691 to 0.721, as the trainers happen to take turns
        **CLICKS | {"lines": 20480},
        strategy="geo",
        push_every=4,
        is_distributed="false",
        largest_gap=0.093,  # 0.03 more than there is of so few lines
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert float(*printed(result, r"test AUC: ([\d.]+)")) > 0.698
    assert "; 5,001 rows in the tables" in result.stdout


def test_files_of_clicks_are_the_same_whoever_makes_them(example, tmp_path):
    criteo_data = example("criteo_data")
    model = criteo_data.ClickModel(3)
    parts = [criteo_data.clicks_of(model, f"train-{number}.txt", 1000, 3) for number in range(3)]
    assert [len(part.labels) for part in parts] == [333, 333, 334]
    again = criteo_data.clicks_of(criteo_data.ClickModel(3), tmp_path / "train-1.txt", 1000, 3)
    assert list(again.lines()) == list(parts[1].lines()) and list(again.lines()) != list(parts[0].lines())
    assert list(criteo_data.clicks_of(model, "test-1.txt", 1000, 3).lines()) != list(again.lines())
    criteo_data.write(tmp_path / "data" / "train-1.txt", again)
    assert (tmp_path / "data" / "train-1.txt").read_text().splitlines() == list(again.lines())


def test_the_area_is_the_chance_that_a_click_is_ranked_above(example):
    draw = np.random.default_rng(0)
    labels, scores = draw.integers(0, 2, 300), draw.random(300).round(1)  # with ties
    clicked, other = scores[labels == 1][:, None], scores[labels == 0]
    expected = (clicked > other).mean() + (clicked == other).mean() / 2
    criteo_data = example("criteo_data")
    assert criteo_data.area_under_curve(labels, scores) == pytest.approx(expected)
    with pytest.raises(ValueError, match="lines with and without a click"):
        criteo_data.area_under_curve(np.ones(3), scores[:3])


def test_clicks_follow_the_probabilities_and_the_seed(example):
    criteo_data = example("criteo_data")
    clicks = criteo_data.ClickModel(3).draw(20000, np.random.default_rng(4))
    assert clicks.labels.mean() == pytest.approx(criteo_data.CLICK_RATE, abs=0.02)
    order = np.argsort(clicks.probabilities)
    for part in np.split(order, 10):
        assert clicks.labels[part].mean() == pytest.approx(clicks.probabilities[part].mean(), abs=0.04)
    again = criteo_data.ClickModel(3).draw(20000, np.random.default_rng(4))
    assert list(again.lines()) == list(clicks.lines())
    fields = [line.split("\t") for line in list(clicks.lines())[:500]]
    assert {len(f) for f in fields} == {40}
    assert all(re.fullmatch(r"[01]", f[0]) for f in fields)
    assert all(re.fullmatch(r"\d*", count) for f in fields for count in f[1:14])
    assert all(re.fullmatch(r"([0-9a-f]{8})?", category) for f in fields for category in f[14:])
    assert any(count == "" for f in fields for count in f[1:14])


def test_slots_of_a_line(example):
    slots = example("criteo_slots")
    line = "\t".join(["1", "", "0", "7", *["3"] * 10, "05db9164", *[""] * 25])
    found = dict(slots.CriteoSlots(1001).sample(line + "\n"))
    np.testing.assert_allclose(found["dense"], np.log1p([0, 0, 7] + [3] * 10) / 4, atol=1e-5)
    assert found["click"] == [1]
    ids = [found[name][0] for name in slots.CATEGORIES]
    assert all(1 <= number <= 1000 for number in ids)
    assert len(set(ids)) > 20  # an id is of a category and its text
    assert dict(slots.CriteoSlots(1001).sample(line))["C1"] == found["C1"]
    with pytest.raises(ValueError, match="expected 40 fields separated by tabs, found 39"):
        slots.CriteoSlots(1001).sample(line[:-1])
    with pytest.raises(ValueError, match="rows: expected at least 2, found 1"):
        slots.CriteoSlots(1)


# ---- words ----


@pytest.mark.process
@pytest.mark.partly_optimised
@pytest.mark.parametrize("loss", ["nce", pytest.param("hsigmoid", marks=pytest.mark.nightly)])
def test_word2vec(tmp_path, loss):
    few = {
        "epochs": 1,
        "width": 32,
        "frequent": 2e-4,
        "words": "[day, encode]",
        "minimum_pairs": 0.4,
    }
    result = run_example("word2vec", tmp_path, **few, loss=loss)
    assert result.returncode == 0, result.stdout + result.stderr
    found, known = map(int, printed(result, r"pairs that are neighbours: (\d+) of (\d+)"))
    assert known > 30 and found >= 0.4 * known  # by chance a pair in a hundred
    (near_day,) = printed(result, r"day: (.*)")
    assert {"month", "year", "week", "weekday", "hour"} & set(near_day.split())
    (near_encode,) = printed(result, r"encode: (.*)")
    assert {"decode", "encoded", "codec"} & set(near_encode.split())
    assert is_picture(tmp_path / "words.png")
    saved = np.load(tmp_path / "vectors.npz")
    assert saved["vectors"].shape == (len(saved["words"]), 32)


def test_word2vec_names_unknown_words(example, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["word2vec.py", "--words", "day", "qwertyuiop", "--output_dir", str(tmp_path)])
    with pytest.raises(SystemExit, match="--words: the corpus does not hold qwertyuiop 20 times"):
        example("word2vec").main()


def test_words_of_names(example):
    source = r'''
    def readHTTPHeader(self, max_size):  # a comment's words
        """No word of this."""
        return self.parse(b'no', r"\\" "word") or _URL2path
    '''
    assert example("word2vec").words_of(source) == "read http header self max size self parse url path".split()


# ---- reviews ----


@pytest.mark.process
def test_sentiment(tmp_path):
    few = {
        "reviews": 1600,
        "test_reviews": 400,
        "clauses": 1,
        "levels": 2,
        "width": 16,
        "epochs": 6,
        "learning_rate": 0.01,
        "minimum_accuracy": 0.9,
    }
    result = run_example("sentiment", tmp_path, **few)
    assert result.returncode == 0, result.stdout + result.stderr
    pattern = r"stacked LSTM: test accuracy ([\d.]+)%; bag of words: test accuracy ([\d.]+)%"
    lstm, bag = map(float, printed(result, pattern))
    assert lstm >= max(90, bag)  # these few short reviews are easy for both
    assert re.search(r"stacked LSTM 150/150 .* examples/s  loss .* accuracy", result.stderr)
    assert is_picture(tmp_path / "sentiment.png")


def test_labels_of_reviews_follow_their_clauses(example):
    sentiment = example("sentiment")
    chance = sentiment.random.Random(5)
    blame, praise = map(set, sentiment.ADJECTIVES)
    assert not blame & praise
    # the words in front of a praising adjective, by what the clause says
    openings = {True: set(), False: set()}
    for _ in range(400):
        text, positive = sentiment.clause(chance)
        *words, adjective = text.split()
        assert adjective in blame | praise
        kept = [w for w in words if w not in {*sentiment.SUBJECTS, *sentiment.ADVERBS}]
        openings[positive == (adjective in praise)].add(" ".join(kept))
    assert len(openings[True]) == len(sentiment.STRAIGHT) and len(openings[False]) == len(sentiment.TURNED)
    assert not openings[True] & openings[False]
    texts, labels = zip(*(sentiment.review(chance, 5) for _ in range(400)))
    assert 0.4 < np.mean(labels) < 0.6 and len(set(texts)) > 390


# ---- shapes ----


@pytest.mark.process
@pytest.mark.nightly  # tests/parity trains such a network (test_ssd.py) before each change
def test_detection(tmp_path):
    few = {"images": 480, "test_images": 48, "epochs": 4, "minimum_precision": 0.1}
    result = run_example("detection", tmp_path, **few)
    assert result.returncode == 0, result.stdout + result.stderr
    precision, pictures = printed(result, r"mean average precision: ([\d.]+) on (\d+) test")
    assert float(precision) >= 0.1 and pictures == "48"
    assert re.search(r"train 60/60 .* examples/s  loss ", result.stderr)
    assert is_picture(tmp_path / "detection.png")


def test_boxes_of_drawn_objects_hold_their_pixels(example):
    detection = example("detection")
    for shape in (1, 2, 3):
        rows, columns = np.nonzero(detection.inside(shape, (10.2, 20.4, 30.2, 40.4)))
        assert 10 <= columns.min() <= 11 and 29 <= columns.max() <= 30
        assert 20 <= rows.min() <= 22 and 39 <= rows.max() <= 40
        share = len(rows) / 400
        assert share == pytest.approx({1: np.pi / 4, 2: 1, 3: 0.5}[shape], abs=0.05)
    image, boxes, labels = detection.picture(np.random.RandomState(3))
    assert image.shape == (3, 64, 64) and image.dtype == "float32"
    assert len(boxes) == len(labels) >= 1 and (boxes[:, :2] < boxes[:, 2:]).all()
    assert boxes.min() > 0 and boxes.max() < 1


@pytest.mark.process
def test_ocr(tmp_path):
    few = {"images": 640, "test_images": 32, "epochs": 1, "maximum_error": 2}
    result = run_example("ocr", tmp_path, **few)
    assert result.returncode == 0, result.stdout + result.stderr
    printed(result, r"error rate: ([\d.]+) of the digits, [\d.]+ of 32 test lines")
    (loss,) = re.findall(r"train 20/20 .* examples/s  loss ([\d.]+)", result.stderr)[-1:]
    assert float(loss) < 20  # it begins above 50
    assert is_picture(tmp_path / "ocr.png")


def test_drawn_digits_stand_one_after_the_other(example):
    ocr = example("ocr")
    image, digits = ocr.line(np.random.RandomState(3))
    assert image.shape == (1, 16, 80) and image.dtype == "float32"
    assert 2 <= len(digits) <= 5 and digits.shape[1] == 1 and digits.dtype == "int32"
    # every glyph has ink in each of its rows, and no two are alike
    assert all(glyph.any(1).all() for glyph in ocr.GLYPHS)
    assert len({glyph.tobytes() for glyph in ocr.GLYPHS}) == 10


@pytest.mark.process
def test_collective_digits(tmp_path):
    values = "--set=args.epochs=8", f"--set=log_dir={tmp_path}"
    result = launched("configs/collective_digits.yaml", *values, forks=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (accuracy,) = map(float, printed(result, r"2 processes, test accuracy ([\d.]+)"))
    assert accuracy >= 0.95


# ---- imperative mode ----


@pytest.mark.process
@pytest.mark.partly_optimised
@pytest.mark.nightly  # tests/parity/test_dygraph.py trains such a network before each change
def test_gan_digits(tmp_path):
    few = {"epochs": 5, "reader_epochs": 6, "minimum_share": 0.3}
    result = run_example("gan_digits", tmp_path, **few)
    assert result.returncode == 0, result.stdout + result.stderr
    pattern = r"reads ([\d.]+)% of real digits[\s\S]*reads ([\d.]+)% of the drawings as meant"
    real, drawn = map(float, printed(result, pattern))
    assert real >= 85 and drawn >= 30
    assert is_picture(tmp_path / "gan_digits.png")
    assert (tmp_path / "generator.pdparams").stat().st_size > 1000


@pytest.mark.process
def test_tagger(tmp_path):
    result = run_example("tagger", tmp_path, epochs=2, width=16, minimum_f1=0.7)
    assert result.returncode == 0, result.stdout + result.stderr
    tagger, baseline = map(float, printed(result, r"F1 of names: ([\d.]+); .* tag: ([\d.]+)"))
    assert tagger > baseline + 0.2
    assert is_picture(tmp_path / "tagger.png")
    assert (tmp_path / "tagger.pdparams").stat().st_size > 1000


def test_names_that_the_tagger_is_scored_by(example):
    tagger = example("tagger")
    none, begins, goes_on, place = 0, 1, 2, 3
    assert tagger.TAGS[begins] == "person begins" and tagger.TAGS[place] == "place begins"
    tags = [begins, goes_on, begins, none, goes_on, place]
    assert tagger.names_in(tags) == {("person", 0, 2), ("person", 2, 3), ("place", 5, 6)}
    assert tagger.f1([[begins, goes_on, begins, none, none, none]], [(None, tags)]) == 0.8
    chance = random.Random(0)
    for words, numbers in (tagger.sentence(chance) for _ in range(50)):
        assert len(words) == len(numbers) <= tagger.PLACES
        for word, number in zip(words, numbers, strict=True):
            kind = tagger.TAGS[number].split()[0]
            known = tagger.FIRST.get(kind, []) + tagger.LAST.get(kind, []) + tagger.MIDDLE
            assert (word in known) == (number > 0), (word, kind)

"""NLTK's reviews of films: Fluid's `paddle.dataset.sentiment`.

A sample is (ids, label): a list of the words' numbers, and 0 for a negative, 1 for a positive
review; the two kinds take turns. As in Fluid `train()` and `test()` give the samples themselves,
not a function that does. The archive is read as NLTK reads it, which is not needed.
"""

import re
from collections import Counter
from collections.abc import Iterator

from jfluid.compat.dataset import archives, common
from jfluid.errors import DataError

__all__ = ["get_word_dict", "test", "train"]

URL = "https://corpora.bj.bcebos.com/movie_reviews%2Fmovie_reviews.zip"
MD5 = "155de2b77c6834dd8eea7cbe88e93acb"
NUM_TRAINING_INSTANCES = 1600
NUM_TOTAL_INSTANCES = 2000

Sample = tuple[list[int], int]

# NLTK's WordPunctTokenizer: runs of letters and digits, and runs of other signs.
_TOKEN = re.compile(r"\w+|[^\w\s]+")


def _archive() -> str:
    return common.download(URL, "corpora", MD5, "movie_reviews.zip")


def _reviews() -> dict[str, list[str]]:
    """Return the words of each review by its name (neg/..., pos/...), sorted."""
    path, reviews = _archive(), {}
    with archives.open_zip(path) as archive:
        for name in sorted(archive.namelist()):
            if found := re.fullmatch(r"movie_reviews/((neg|pos)/[^/]+\.txt)", name):
                text = archives.zip_member(archive, name).read().decode("ascii")
                reviews[found[1]] = _TOKEN.findall(text)
    if not reviews:
        raise DataError(f"{path}: no reviews movie_reviews/neg/*.txt and movie_reviews/pos/*.txt")
    return reviews


def get_word_dict() -> list[tuple[str, int]]:
    """Return all words with their numbers, the commonest first; equally common words in order of appearance."""
    return _ranked(_reviews())


def _ranked(reviews: dict[str, list[str]]) -> list[tuple[str, int]]:
    counts = Counter(word for words in reviews.values() for word in words)
    return [(word, number) for number, (word, _) in enumerate(counts.most_common())]


def sort_files() -> list[str]:
    """Return the names of the reviews, negative and positive in turn."""
    return _in_turn(list(_reviews()))


def _in_turn(names: list[str]) -> list[str]:
    negative = [name for name in names if name.startswith("neg/")]
    positive = [name for name in names if name.startswith("pos/")]
    return [name for pair in zip(negative, positive) for name in pair]


def load_sentiment_data() -> list[Sample]:
    """Return all samples.

    Raises DataError for a word in capitals that stands nowhere in small letters.
    """
    reviews = _reviews()
    numbers = dict(_ranked(reviews))
    try:
        return [
            ([numbers[word.lower()] for word in reviews[name]], int(name.startswith("pos/")))
            for name in _in_turn(list(reviews))
        ]
    except KeyError as e:
        raise DataError(f"{_archive()}: no number for the word {e}, for it is in capitals") from None


def reader_creator(data: list[Sample]) -> Iterator[Sample]:
    """Return the samples of a list, one by one."""
    yield from data


def train() -> Iterator[Sample]:
    """Return the first 1600 samples."""
    return reader_creator(load_sentiment_data()[:NUM_TRAINING_INSTANCES])


def test() -> Iterator[Sample]:
    """Return the samples after the first 1600."""
    return reader_creator(load_sentiment_data()[NUM_TRAINING_INSTANCES:])


def fetch() -> None:
    """Download all files."""
    _archive()

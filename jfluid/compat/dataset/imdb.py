"""Reviews of films, positive or negative: Fluid's `paddle.dataset.imdb`.

A sample is (ids, label): a list of the words' numbers, and 0 for a positive, 1 for a negative
review. Words are bytes, in lower case without punctuation; only `<unk>` is a str, as with Fluid on
Python 3.
"""

import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping

from jfluid.compat.dataset import archives, common
from jfluid.errors import DataError

__all__ = ["build_dict", "test", "train"]

URL = "https://dataset.bj.bcebos.com/imdb%2FaclImdb_v1.tar.gz"
MD5 = "7c2ac02c03563afcf9b574c7e56c153a"

WordDict = Mapping[bytes | str, int]
_PUNCTUATION = string.punctuation.encode()


def tokenize(pattern: re.Pattern[str]) -> Iterator[list[bytes]]:
    """Return the words of each review with a matching name, in the archive's order."""
    path = common.download(URL, "imdb", MD5)
    with archives.open_tar(path) as archive:
        for entry in archive:
            if pattern.match(entry.name) and entry.isfile():
                text = archives.member(archive, entry).read()
                yield text.translate(None, _PUNCTUATION).lower().split()


def build_dict(pattern: re.Pattern[str], cutoff: int) -> dict[bytes | str, int]:
    """Return numbers of the words that occur in the matching reviews more than `cutoff` times.

    The commonest word is 0, equally common words are in alphabetical order, `<unk>` is the last.
    """
    counts = Counter(word for review in tokenize(pattern) for word in review)
    common_words = sorted((-n, word) for word, n in counts.items() if n > cutoff)
    words: dict[bytes | str, int] = {word: i for i, (_, word) in enumerate(common_words)}
    words["<unk>"] = len(words)
    return words


def reader_creator(pos_pattern: re.Pattern[str], neg_pattern: re.Pattern[str], word_idx: WordDict) -> common.Reader:
    """Return a reader of the reviews of both kinds, which are read into memory at once.

    Raises DataError for a dictionary without `<unk>`.
    """
    unknown = unknown_of(word_idx)
    samples = [
        ([word_idx.get(word, unknown) for word in review], label)
        for label, pattern in enumerate((pos_pattern, neg_pattern))
        for review in tokenize(pattern)
    ]
    return lambda: iter(samples)


def unknown_of(word_idx: WordDict) -> int:
    """Return the number that a dictionary has for words that are not in it."""
    if "<unk>" not in word_idx:
        raise DataError("the dictionary has no number for '<unk>'; make it with word_dict()")
    return word_idx["<unk>"]


def train(word_idx: WordDict) -> common.Reader:
    """Return a reader of the training reviews: all positive ones, then all negative ones."""
    return reader_creator(
        re.compile(r"aclImdb/train/pos/.*\.txt$"),
        re.compile(r"aclImdb/train/neg/.*\.txt$"),
        word_idx,
    )


def test(word_idx: WordDict) -> common.Reader:
    """Return a reader of the test reviews: all positive ones, then all negative ones."""
    return reader_creator(re.compile(r"aclImdb/test/pos/.*\.txt$"), re.compile(r"aclImdb/test/neg/.*\.txt$"), word_idx)


def word_dict() -> dict[bytes | str, int]:
    """Return numbers of the words that stand in all reviews more than 150 times."""
    return build_dict(re.compile(r"aclImdb/((train)|(test))/((pos)|(neg))/.*\.txt$"), 150)


def fetch() -> None:
    """Download all files."""
    common.download(URL, "imdb", MD5)

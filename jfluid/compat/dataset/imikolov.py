"""Text of the Penn Treebank for language models: Fluid's `paddle.dataset.imikolov`.

A sample is a tuple of n numbers of words (NGRAM), or (words, the words that follow them), two lists
(SEQ). Words are bytes; only `<s>`, `<e>` and `<unk>` are strs. So the corpus's own `<unk>` is a
word of its own, as with Fluid on Python 3, where models have their numbers from.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from jfluid.compat.dataset import archives, common
from jfluid.compat.dataset.imdb import WordDict, unknown_of

__all__ = ["build_dict", "test", "train"]

URL = "https://dataset.bj.bcebos.com/imikolov%2Fsimple-examples.tgz"
MD5 = "30177ea32e27c525793142b6bf2c8e2d"

_TRAIN = "./simple-examples/data/ptb.train.txt"
_TEST = "./simple-examples/data/ptb.valid.txt"


class DataType:
    """Kinds of samples."""

    NGRAM = 1
    SEQ = 2


def word_count(f: Iterable[bytes], word_freq: dict[bytes | str, int] | None = None) -> dict[bytes | str, int]:
    """Return how often each word stands in lines; each line has one `<s>` and one `<e>` more.

    Adds to `word_freq` where one is given, and returns it.
    """
    counts = defaultdict(int) if word_freq is None else word_freq
    for line in f:
        words: list[bytes | str] = [*line.split(), "<s>", "<e>"]
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    return counts


def build_dict(min_word_freq: int = 50) -> dict[bytes | str, int]:
    """Return numbers of the words that occur in training and test text more than `min_word_freq` times.

    The commonest word is 0, equally common words are in alphabetical order, `<unk>` is the last.
    """
    with archives.open_tar(common.download(URL, "imikolov", MD5)) as archive:
        counts = word_count(archives.member(archive, _TEST), word_count(archives.member(archive, _TRAIN)))
    counts.pop("<unk>", None)  # it gets the last number
    ranked = sorted(
        (-n, word if isinstance(word, bytes) else word.encode(), word)
        for word, n in counts.items()
        if n > min_word_freq
    )
    words = {word: i for i, (_, _, word) in enumerate(ranked)}
    words["<unk>"] = len(words)
    return words


def reader_creator(filename: str, word_idx: WordDict, n: int, data_type: int) -> common.Reader:
    """Return a reader of a member of the archive.

    Raises ValueError for a `data_type` that is none, and for an `n` below 1 of NGRAM.
    """
    if data_type not in (DataType.NGRAM, DataType.SEQ):
        raise ValueError(
            f"data_type must be DataType.NGRAM ({DataType.NGRAM}) or DataType.SEQ ({DataType.SEQ}), found {data_type!r}"
        )
    if data_type == DataType.NGRAM and n < 1:
        raise ValueError(f"an n-gram has at least one word, found n = {n!r}")
    unknown = unknown_of(word_idx)
    samples = _ngrams if data_type == DataType.NGRAM else _sequences

    def reader() -> Iterator[Any]:
        with archives.open_tar(common.download(URL, "imikolov", MD5)) as archive:
            for line in archives.member(archive, filename):
                words: list[bytes | str] = ["<s>", *line.split(), "<e>"]
                yield from samples([word_idx.get(word, unknown) for word in words], n)

    return reader


def _ngrams(ids: list[int], n: int) -> Iterator[tuple[int, ...]]:
    for end in range(n, len(ids) + 1):
        yield tuple(ids[end - n : end])


def _sequences(ids: list[int], n: int) -> Iterator[tuple[list[int], list[int]]]:
    if n <= 0 or len(ids) - 1 <= n:
        yield ids[:-1], ids[1:]


def train(word_idx: WordDict, n: int, data_type: int = DataType.NGRAM) -> common.Reader:
    """Return a reader of the training text: n-grams, or sequences of at most `n` words.

    Sequences have any length for an `n` of 0 and below.
    """
    return reader_creator(_TRAIN, word_idx, n, data_type)


def test(word_idx: WordDict, n: int, data_type: int = DataType.NGRAM) -> common.Reader:
    """Return as `train`, of the validation text."""
    return reader_creator(_TEST, word_idx, n, data_type)


def fetch() -> None:
    """Download all files."""
    common.download(URL, "imikolov", MD5)

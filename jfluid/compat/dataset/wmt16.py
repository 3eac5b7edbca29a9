"""English and German descriptions of pictures, Multi30K of WMT 2016: Fluid's `paddle.dataset.wmt16`.

A sample is three lists of numbers: the source sentence between `<s>` and `<e>`, the target sentence
after `<s>`, and the target sentence before `<e>`. 0 is `<s>`, 1 `<e>`, 2 `<unk>`. Dictionaries are
made of the training pairs, and kept beside the archive as Fluid keeps them.

D. Elliott, S. Frank, K. Sima'an, L. Specia: Multi30K: Multilingual English-German Image
Descriptions. 5th Workshop on Vision and Language, 2016, pages 70-74.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from jfluid.compat.dataset import archives, common
from jfluid.files.storage import atomic_write

__all__ = ["fetch", "get_dict", "test", "train", "validation"]

DATA_URL = "http://paddlemodels.bj.bcebos.com/wmt/wmt16.tar.gz"
DATA_MD5 = "0c38be43600334966403524a40dcd81e"

TOTAL_EN_WORDS = 11250
TOTAL_DE_WORDS = 19220

START_MARK = "<s>"
END_MARK = "<e>"
UNK_MARK = "<unk>"


def _pairs(tar_file: str, name: str) -> Iterator[list[str]]:
    """[English, German] of each line of a member that has both."""
    with archives.open_tar(tar_file) as archive:
        lines = archives.text_lines(archives.member(archive, name), f"{tar_file}, {name}")
        for line in lines:
            pair = line.split("\t")
            if len(pair) == 2:
                yield pair


def _other(lang: str) -> str:
    return "de" if lang == "en" else "en"


def _bounded(lang: str, dict_size: int) -> int:
    """Return the size of a dictionary, at most the number of the language's words.

    Raises ValueError for another language, and for a size without room for the three marks.
    """
    if lang not in ("en", "de"):
        raise ValueError(f"the language must be 'en' or 'de', found {lang!r}")
    if dict_size < 3:
        raise ValueError(
            f"a dictionary has at least {START_MARK}, {END_MARK} and {UNK_MARK}, found the size {dict_size!r}"
        )
    return min(dict_size, TOTAL_EN_WORDS if lang == "en" else TOTAL_DE_WORDS)


def _dictionary(lang: str, size: int) -> list[str]:
    """Return the words by number: three marks, then words by frequency and order of appearance.

    A dictionary file with enough words is read instead.

    They are read from their file where it has as many.
    """
    path = os.path.join(common.DATA_HOME, "wmt16", f"{lang}_{size}.dict")
    if os.path.exists(path):
        with archives.reading(path), open(path, "rb") as file:
            words = list(archives.text_lines(file, path))
        if len(words) == size:
            return words
    column = ("en", "de").index(lang)
    counts = Counter(word for pair in _pairs(_path(), "wmt16/train") for word in pair[column].split())
    words = [START_MARK, END_MARK, UNK_MARK]
    words += [word for word, _ in counts.most_common(size - len(words))]
    with atomic_write(path) as file:
        file.writelines(f"{word}\n".encode() for word in words)
    return words


def reader_creator(
    tar_file: str, file_name: str, src_dict_size: int, trg_dict_size: int, src_lang: str
) -> common.Reader:
    """Return a reader of a member of the archive: pairs of sentences with a tab between; other lines are left out.

    Raises DataError, when it is read, for damage.
    """

    def reader() -> Iterator[tuple[list[int], list[int], list[int]]]:
        source_words = {w: i for i, w in enumerate(_dictionary(src_lang, src_dict_size))}
        target_words = {w: i for i, w in enumerate(_dictionary(_other(src_lang), trg_dict_size))}
        start, end, unknown = (source_words[mark] for mark in (START_MARK, END_MARK, UNK_MARK))
        for pair in _pairs(tar_file, file_name):
            source, target = pair if src_lang == "en" else reversed(pair)
            numbers = [target_words.get(word, unknown) for word in target.split()]
            yield (
                [start, *(source_words.get(word, unknown) for word in source.split()), end],
                [start, *numbers],
                [*numbers, end],
            )

    return reader


def _path() -> str:
    return common.download(DATA_URL, "wmt16", DATA_MD5, "wmt16.tar.gz")


def _reader(name: str, src_dict_size: int, trg_dict_size: int, src_lang: str) -> common.Reader:
    source = _bounded(src_lang, src_dict_size)
    target = _bounded(_other(src_lang), trg_dict_size)
    return reader_creator(_path(), f"wmt16/{name}", source, target, src_lang)


def train(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> common.Reader:
    """Return a reader of the training pairs, from `src_lang` ("en" or "de") to the other language.

    Sizes of dictionaries include the three marks, and are at most all words of a language.
    """
    return _reader("train", src_dict_size, trg_dict_size, src_lang)


def test(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> common.Reader:
    """Return as `train`, of the test pairs."""
    return _reader("test", src_dict_size, trg_dict_size, src_lang)


def validation(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> common.Reader:
    """Return as `train`, of the validation pairs."""
    return _reader("val", src_dict_size, trg_dict_size, src_lang)


def get_dict(lang: str, dict_size: int, reverse: bool = False) -> dict[Any, Any]:
    """Return numbers by words of "en" or "de"; with `reverse` words by numbers."""
    words = _dictionary(lang, _bounded(lang, dict_size))
    return dict(enumerate(words)) if reverse else {word: i for i, word in enumerate(words)}


def fetch() -> None:
    """Download all files."""
    _path()

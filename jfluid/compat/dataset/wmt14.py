"""French and English sentences, a small part of WMT 2014: Fluid's `paddle.dataset.wmt14`.

A sample is three lists of numbers: the source sentence between `<s>` and `<e>`, the target sentence
after `<s>`, and the target sentence before `<e>`. 0 is `<s>`, 1 `<e>`, 2 an unknown word.
"""

import itertools
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any

from jfluid.compat.dataset import archives, common
from jfluid.errors import DataError

__all__ = ["get_dict", "test", "train"]

URL_DEV_TEST = "http://www-lium.univ-lemans.fr/~schwenk/cslm_joint_paper/data/dev+test.tgz"
MD5_DEV_TEST = "7d7897317ddd8ba0ae5c5fa7248d3ff5"
URL_TRAIN = "http://paddlemodels.bj.bcebos.com/wmt/wmt14.tgz"
MD5_TRAIN = "0791583d57d5beb693b9414c5b36798c"
URL_MODEL = "http://paddlemodels.bj.bcebos.com/wmt%2Fwmt14.tgz"
MD5_MODEL = "0cb4a5366189b6acba876491c8724fa3"

START = "<s>"
END = "<e>"
UNK = "<unk>"
UNK_IDX = 2

_LONGEST = 80  # words; pairs with a longer sentence are left out


def _dictionary(archive: tarfile.TarFile, ending: str, size: int) -> dict[str, int]:
    """Return the first words of the only member with this ending."""
    found = [entry for entry in archive if entry.name.endswith(ending)]
    if len(found) != 1:
        raise DataError(f"{archive.name!s}: {len(found)} members end in {ending}, expected one")
    file = archives.member(archive, found[0])
    lines = archives.text_lines(file, f"{archive.name!s}, {found[0].name}")
    return {word: number for number, word in enumerate(itertools.islice(lines, size))}


def _dictionaries(archive: tarfile.TarFile, size: int) -> tuple[dict[str, int], dict[str, int]]:
    return _dictionary(archive, "src.dict", size), _dictionary(archive, "trg.dict", size)


def reader_creator(tar_file: str, file_name: str, dict_size: int) -> common.Reader:
    """Return a reader of pairs of sentences, with a tab between, of the members that end in `file_name`.

    Lines that are none are left out, and so are pairs with a sentence of more than 80 words.

    Raises DataError, when it is read, for damage, and for dictionaries without `<s>` and `<e>`.
    """

    def reader() -> Iterator[tuple[list[int], list[int], list[int]]]:
        with archives.open_tar(tar_file) as archive:
            source_words, target_words = _dictionaries(archive, dict_size)
            if not {START, END} <= set(target_words):
                raise DataError(f"{tar_file}: the first {dict_size} words have no {START} and {END}")
            for entry in archive:
                if not entry.name.endswith(file_name):
                    continue
                where = f"{tar_file}, {entry.name}"
                for line in archives.text_lines(archives.member(archive, entry), where):
                    pair = line.split("\t")
                    if len(pair) != 2:
                        continue
                    source = _numbers(source_words, f"{START} {pair[0]} {END}")
                    target = _numbers(target_words, pair[1])
                    if max(len(source), len(target)) <= _LONGEST:
                        start, end = target_words[START], target_words[END]
                        yield source, [start, *target], [*target, end]

    return reader


def _numbers(dictionary: Mapping[str, int], sentence: str) -> list[int]:
    return [dictionary.get(word, UNK_IDX) for word in sentence.split()]


def _path() -> str:
    return common.download(URL_TRAIN, "wmt14", MD5_TRAIN)


def train(dict_size: int) -> common.Reader:
    """Return a reader of the training pairs, with the `dict_size` commonest words of each language."""
    return reader_creator(_path(), "train/train", dict_size)


def test(dict_size: int) -> common.Reader:
    """Return a reader of the test pairs."""
    return reader_creator(_path(), "test/test", dict_size)


def gen(dict_size: int) -> common.Reader:
    """Return a reader of the pairs to generate translations for."""
    return reader_creator(_path(), "gen/gen", dict_size)


def get_dict(dict_size: int, reverse: bool = True) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Words of the source and the target language by their numbers; with `reverse=False` numbers by their words."""
    with archives.open_tar(_path()) as archive:
        source, target = _dictionaries(archive, dict_size)
    if not reverse:
        return source, target
    return {v: k for k, v in source.items()}, {v: k for k, v in target.items()}


def fetch() -> None:
    """Download all files."""
    _path()
    common.download(URL_MODEL, "wmt14", MD5_MODEL)

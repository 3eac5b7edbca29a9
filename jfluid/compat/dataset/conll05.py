"""Semantic roles in the test set of CoNLL 2005: Fluid's `paddle.dataset.conll05`.

A sample is nine lists, each as long as the sentence: numbers of its words; of the words two and one
before the verb, the verb, and one and two after it, repeated; of the predicate, repeated; 1 where a
word is one of those five, else 0; numbers of the labels. `test` is what there is to train on: the
training set is not free.
"""

import gzip
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from jfluid.compat.dataset import archives, common
from jfluid.errors import DataError

__all__ = ["get_dict", "get_embedding", "test"]

DATA_URL = "http://paddlemodels.bj.bcebos.com/conll05st/conll05st-tests.tar.gz"
DATA_MD5 = "387719152ae52d60422c016e92a742fc"
WORDDICT_URL = "http://paddlemodels.bj.bcebos.com/conll05st%2FwordDict.txt"
WORDDICT_MD5 = "ea7fb7d4c75cc6254716f0177a506baa"
VERBDICT_URL = "http://paddlemodels.bj.bcebos.com/conll05st%2FverbDict.txt"
VERBDICT_MD5 = "0d2977293bbb6cbefab5b0f97db1e77c"
TRGDICT_URL = "http://paddlemodels.bj.bcebos.com/conll05st%2FtargetDict.txt"
TRGDICT_MD5 = "d8c7f03ceb5fc2e5a0fa7503a4353751"
EMB_URL = "http://paddlemodels.bj.bcebos.com/conll05st%2Femb"
EMB_MD5 = "bf436eb0faa1f6f9103017f8be57cdb7"

UNK_IDX = 0

Sentence = tuple[list[str], str, list[str]]
"""The words, the predicate, and the labels (B-, I- and O) of one of its propositions."""


def _lines(filename: str) -> Iterator[str]:
    with archives.reading(filename), open(filename, "rb") as file:
        yield from archives.text_lines(file, filename)


def load_label_dict(filename: str) -> dict[str, int]:
    """Return numbers of labels: B- and I- of each tag of a file of labels, then O.

    Tags are in the order of their first line. In Fluid the order changes from run to run.
    """
    tags = dict.fromkeys(line[2:] for line in _lines(filename) if line.startswith(("B-", "I-")))
    labels = [prefix + tag for tag in tags for prefix in ("B-", "I-")]
    return {label: number for number, label in enumerate([*labels, "O"])}


def load_dict(filename: str) -> dict[str, int]:
    """Return numbers of words: the lines of a file, from 0."""
    return {line: number for number, line in enumerate(_lines(filename))}


def corpus_reader(data_path: str, words_name: str, props_name: str) -> Callable[[], Iterator[Sentence]]:
    """Return a reader of the propositions of a corpus.

    The archive has a gzipped file with a word in each line, and a gzipped file with columns of roles. Empty lines end
    sentences.

    Raises DataError, when it is read, for damage and for columns that are none.
    """

    def reader() -> Iterator[Sentence]:
        with (
            archives.open_tar(data_path) as archive,
            gzip.open(archives.member(archive, words_name)) as words_file,
            gzip.open(archives.member(archive, props_name)) as props_file,
        ):
            words: list[str] = []
            rows: list[list[str]] = []
            columns = archives.text_lines(props_file, f"{data_path}, {props_name}")
            texts = archives.text_lines(words_file, f"{data_path}, {words_name}")
            # a last sentence may lack its empty line
            for word, row in itertools.zip_longest(texts, columns, fillvalue=""):
                if row:
                    words.append(word)
                    rows.append(row.split())
                else:
                    yield from _propositions(words, rows, data_path)
                    words, rows = [], []
            yield from _propositions(words, rows, data_path)

    return reader


def _propositions(words: list[str], rows: list[list[str]], where: str) -> Iterator[Sentence]:
    """Return a proposition for each column of roles; the first column holds the predicates."""
    if len({len(row) for row in rows}) > 1:
        raise DataError(f"{where}: columns of different length near {' '.join(words)[:80]!r}")
    predicates, *columns = zip(*rows) if rows else [()]
    verbs = [verb for verb in predicates if verb != "-"]
    if len(verbs) < len(columns):
        raise DataError(f"{where}: fewer verbs than columns near {' '.join(words)[:80]!r}")
    for verb, column in zip(verbs, columns):
        yield words, verb, _labels(column, where)


def _labels(column: Sequence[str], where: str) -> list[str]:
    """Return the labels of words from brackets: (A0* ... *) is B-A0 ... I-A0, and * outside of brackets O."""
    tag, inside = "O", False
    labels = []
    for role in column:
        if role == "*":
            labels.append(f"I-{tag}" if inside else "O")
        elif role == "*)":
            labels.append(f"I-{tag}")
            inside = False
        elif "(" in role:
            tag = role[1 : role.find("*")]
            labels.append(f"B-{tag}")
            inside = ")" not in role
        else:
            raise DataError(f"{where}: unexpected role {role!r}")
    return labels


def reader_creator(
    corpus_reader: Callable[[], Iterator[Sentence]],
    word_dict: Mapping[str, int],
    predicate_dict: Mapping[str, int],
    label_dict: Mapping[str, int],
) -> common.Reader:
    """Return a reader of samples (see above) of a corpus.

    Words that are not in `word_dict` are number 0. Raises DataError, when it is read, for a sentence
    without a verb, and for predicates and labels that have no number.
    """

    def reader() -> Iterator[tuple[list[int], ...]]:
        for words, predicate, labels in corpus_reader():
            unknown = {predicate} - predicate_dict.keys() or set(labels) - label_dict.keys()
            if unknown or "B-V" not in labels:
                raise DataError(
                    f"{f'unknown: {sorted(unknown)}' if unknown else 'no label B-V'}, in the "
                    f"sentence {' '.join(words)[:80]!r}"
                )
            verb = labels.index("B-V")
            length = len(words)
            around = range(verb - 2, verb + 3)
            numbers = [word_dict.get(word, UNK_IDX) for word in words]
            context = [
                numbers[i] if 0 <= i < length else word_dict.get("bos" if i < 0 else "eos", UNK_IDX) for i in around
            ]
            yield (
                list(numbers),
                *([number] * length for number in context),
                [predicate_dict[predicate]] * length,
                [int(i in around) for i in range(length)],
                [label_dict[label] for label in labels],
            )

    return reader


def get_dict() -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return numbers of words, of verbs, and of labels."""
    return (
        load_dict(common.download(WORDDICT_URL, "conll05st", WORDDICT_MD5)),
        load_dict(common.download(VERBDICT_URL, "conll05st", VERBDICT_MD5)),
        load_label_dict(common.download(TRGDICT_URL, "conll05st", TRGDICT_MD5)),
    )


def get_embedding() -> str:
    """Return the path of the trained embedding of the words: 16 bytes, then float32 [words, 32]."""
    return common.download(EMB_URL, "conll05st", EMB_MD5)


def test() -> common.Reader:
    """Return a reader of the test set."""
    dictionaries = get_dict()
    corpus = corpus_reader(
        common.download(DATA_URL, "conll05st", DATA_MD5),
        words_name="conll05st-release/test.wsj/words/test.wsj.words.gz",
        props_name="conll05st-release/test.wsj/props/test.wsj.props.gz",
    )
    return reader_creator(corpus, *dictionaries)


def fetch() -> None:
    """Download all files."""
    for url, md5 in (
        (WORDDICT_URL, WORDDICT_MD5),
        (VERBDICT_URL, VERBDICT_MD5),
        (TRGDICT_URL, TRGDICT_MD5),
        (EMB_URL, EMB_MD5),
        (DATA_URL, DATA_MD5),
    ):
        common.download(url, "conll05st", md5)

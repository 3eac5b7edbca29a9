"""Documents ranked for queries, LETOR's MQ2007: Fluid's `paddle.dataset.mq2007`.

`train()` and `test()` give the samples themselves, not a function that does: `format` says which.

- "pairwise": ([1], features of the better document, features of the other), float64 [46] each
- "listwise": the relevances, int64 [documents, 1], and features, float64 [documents, 46], of a query
- "pointwise": (relevance, features) of the most relevant document of each query
- "plain_txt": (number of the query, relevance, features) of the same

Queries without a relevant document are left out.
"""

import functools
import os
import random
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jfluid.compat.dataset import archives, common
from jfluid.errors import DataError, DependencyError

__all__ = ["Query", "QueryList", "test", "train"]

URL = "http://www.bigdatalab.ac.cn/benchmark/upload/download_source/7b6dbbe2-842c-11e4-a536-bcaec51b9163_MQ2007.rar"
MD5 = "7be1640ae95c6408dab0ae7207bdc706"

_FEATURES = 46


class Query:
    """A document of a query: its relevance (0 to 2), its features, and a description."""

    def __init__(
        self,
        query_id: int = -1,
        relevance_score: int = -1,
        feature_vector: list[float] | None = None,
        description: str = "",
    ):
        self.query_id = query_id
        self.relevance_score = relevance_score
        self.feature_vector = [] if feature_vector is None else feature_vector
        self.description = description

    def __str__(self) -> str:
        features = " ".join(map(str, self.feature_vector))
        return f"{self.relevance_score} {self.query_id} {features}"

    def _parse_(self, text: str, fill_missing: float = -1) -> "Query":
        """Take the values of a line `relevance qid:query 1:value ... 46:value #description`.

        Raises ValueError for another line.
        """
        line, _, description = text.partition("#")
        relevance, query, *features = line.split() or [""]
        if len(features) != _FEATURES:
            raise ValueError(f"{len(features)} features, expected {_FEATURES}")
        values = [feature.split(":")[1] for feature in features]
        self.feature_vector = [fill_missing if v == "NULL" else float(v) for v in values]
        self.relevance_score, self.query_id = int(relevance), int(query.split(":")[1])
        self.description = description.strip()
        return self


class QueryList:
    """Documents of one query. Raises ValueError for documents of several queries."""

    def __init__(self, querylist: Iterable[Query] | None = None):
        self.query_id = -1
        self.querylist: list[Query] = []
        for query in querylist or ():
            self._add_query(query)

    def __iter__(self) -> Iterator[Query]:
        return iter(self.querylist)

    def __len__(self) -> int:
        return len(self.querylist)

    def __getitem__(self, i: int) -> Query:
        return self.querylist[i]

    def _correct_ranking_(self) -> None:
        self.querylist.sort(key=lambda query: query.relevance_score, reverse=True)

    def _add_query(self, query: Query) -> None:
        if self.query_id not in (-1, query.query_id):
            raise ValueError(f"queries {self.query_id} and {query.query_id} in one list")
        self.query_id = query.query_id
        self.querylist.append(query)


def _ranked(querylist: QueryList | Iterable[Query]) -> QueryList:
    """Return the list, sorted in place, the most relevant document first."""
    found = querylist if isinstance(querylist, QueryList) else QueryList(querylist)
    found._correct_ranking_()
    return found


def gen_plain_txt(querylist: QueryList) -> Iterator[tuple[int, int, np.ndarray]]:
    """Return (number of the query, relevance, features) of each document, the most relevant first."""
    ranked = _ranked(querylist)
    for query in ranked:
        yield ranked.query_id, query.relevance_score, np.array(query.feature_vector)


def gen_point(querylist: QueryList) -> Iterator[tuple[int, np.ndarray]]:
    """Return (relevance, features) of each document, the most relevant first."""
    for query in _ranked(querylist):
        yield query.relevance_score, np.array(query.feature_vector)


def gen_pair(querylist: QueryList, partial_order: str = "full") -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return ([1], features, features of a less relevant document) for pairs of documents.

    "full" takes all pairs of the partial order, "neighbour" adjacent documents.
    """
    if partial_order not in ("full", "neighbour"):
        raise ValueError(f"partial_order must be 'full' or 'neighbour', found {partial_order!r}")
    ranked = list(_ranked(querylist))
    for i, better in enumerate(ranked):
        others = ranked[i + 1 :] if partial_order == "full" else ranked[i + 1 : i + 2]
        for other in others:
            if better.relevance_score > other.relevance_score:
                yield (
                    np.array([1]),
                    np.array(better.feature_vector),
                    np.array(other.feature_vector),
                )


def gen_list(querylist: QueryList) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return the relevances [documents, 1] and features [documents, 46], the most relevant first; once."""
    ranked = _ranked(querylist)
    yield (
        np.array([[query.relevance_score] for query in ranked]),
        np.array([query.feature_vector for query in ranked]),
    )


def query_filter(querylists: Iterable[QueryList]) -> list[QueryList]:
    """Return the queries that have a relevant document."""
    return [querylist for querylist in querylists if sum(query.relevance_score for query in querylist) != 0]


def load_from_text(filepath: str, shuffle: bool = False, fill_missing: float = -1) -> list[QueryList]:
    """Return the queries of a file below the folder of the data set.

    `fill_missing` takes the place of values that are NULL. With `shuffle` the queries are shuffled
    by Python's `random`. Raises DataError with the number of a line that is none.
    """
    path = _unpacked(filepath)
    querylists: list[QueryList] = []
    with archives.reading(path), open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                query = Query()._parse_(line, fill_missing)
            except (ValueError, IndexError) as e:
                raise DataError(f"{path}, line {number}: {e}") from None
            if not querylists or querylists[-1].query_id != query.query_id:
                querylists.append(QueryList())
            querylists[-1]._add_query(query)
    if shuffle:
        random.shuffle(querylists)
    return querylists


def _unpacked(filepath: str) -> str:
    """Return the path of a file of the archive, which is unpacked unless the file is there."""
    path = os.path.join(common.DATA_HOME, "MQ2007", filepath)
    if os.path.isfile(path):
        return path
    archive_path = fetch()
    folder = os.path.dirname(archive_path)
    help_text = f"or unpack {archive_path} yourself into {folder}"
    try:
        import rarfile
    except ImportError:
        raise DependencyError("paddle.dataset.mq2007", "rarfile", "datasets", help_text) from None
    try:
        with archives.reading(archive_path), rarfile.RarFile(archive_path) as archive:
            _extract(archive, folder)
    except rarfile.RarCannotExec:
        raise DependencyError("paddle.dataset.mq2007", "the command unrar, unar, 7z or bsdtar", "", help_text) from None
    except rarfile.Error as e:
        raise DataError(f"{archive_path}: damaged or no RAR archive ({e})") from None
    if not os.path.isfile(path):
        raise DataError(f"{archive_path}: holds no {filepath}; it is a different archive")
    return path


def _extract(archive: Any, folder: str) -> None:
    """Unpack an archive into a folder. Existing files stay, and new files are complete."""
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as building:
        if outside := [n for n in archive.namelist() if not archives.is_inside(building, n)]:
            raise DataError(f"{archive.filename}: {outside[0]} leads out of the archive's folder")
        archive.extractall(building)
        for name in os.listdir(building):
            if not os.path.exists(os.path.join(folder, name)):
                os.rename(os.path.join(building, name), os.path.join(folder, name))


def __reader__(
    filepath: str, format: str = "pairwise", shuffle: bool = False, fill_missing: float = -1
) -> Iterator[Any]:
    if format not in _FORMATS:
        raise ValueError(f"format must be one of {', '.join(_FORMATS)}, found {format!r}")
    for querylist in query_filter(load_from_text(filepath, shuffle, fill_missing)):
        samples = _FORMATS[format](querylist)
        if format == "pairwise":
            yield from samples
        else:
            yield next(samples)


_FORMATS: dict[str, Any] = {
    "pairwise": gen_pair,
    "listwise": gen_list,
    "pointwise": gen_point,
    "plain_txt": gen_plain_txt,
}

train = functools.partial(__reader__, filepath="MQ2007/MQ2007/Fold1/train.txt")
test = functools.partial(__reader__, filepath="MQ2007/MQ2007/Fold1/test.txt")


def fetch() -> str:
    """Download the archive, and return its path."""
    return common.download(URL, "MQ2007", MD5)

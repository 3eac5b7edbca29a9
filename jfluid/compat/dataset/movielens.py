"""MovieLens 1M, ratings of films: Fluid's `paddle.dataset.movielens`.

A sample is [user, gender, age, job, film, categories, title words, [rating]]: numbers, the
categories and title words lists of them, the rating a float in [-3, 5]: stars * 2 - 5. Categories
and title words are numbered in the order of their letters; in Fluid their numbers change from run
to run.
"""

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from jfluid.compat.dataset import archives, common
from jfluid.errors import DataError

__all__ = [
    "age_table",
    "get_movie_title_dict",
    "max_job_id",
    "max_movie_id",
    "max_user_id",
    "movie_categories",
    "movie_info",
    "test",
    "train",
    "user_info",
]

age_table = [1, 18, 25, 35, 45, 50, 56]

URL = "https://dataset.bj.bcebos.com/movielens%2Fml-1m.zip"
MD5 = "c4d9eecfca2ab87c1945afe126590906"


class MovieInfo:
    """Film: the number, the names of the categories, the title without the year."""

    def __init__(self, index: str | int, categories: list[str], title: str):
        self.index = int(index)
        self.categories = categories
        self.title = title

    def value(self) -> list[Any]:
        """Return [number, numbers of the categories, numbers of the words of the title]."""
        categories, words = movie_categories(), get_movie_title_dict()
        return [
            self.index,
            [categories[name] for name in self.categories],
            [words[word.lower()] for word in self.title.split()],
        ]

    def __repr__(self) -> str:
        return f"<MovieInfo id({self.index}), title({self.title}), categories({self.categories})>"


class UserInfo:
    """A user: number, whether male, age as an index of `age_table`, number of the job."""

    def __init__(self, index: str | int, gender: str, age: str | int, job_id: str | int):
        self.index = int(index)
        self.is_male = gender == "M"
        self.age = age_table.index(int(age))
        self.job_id = int(job_id)

    def value(self) -> list[int]:
        """Return [number, 0 for a man and 1 for a woman, age, job]."""
        return [self.index, 0 if self.is_male else 1, self.age, self.job_id]

    def __repr__(self) -> str:
        gender = "M" if self.is_male else "F"
        return f"<UserInfo id({self.index}), gender({gender}), age({age_table[self.age]}), job({self.job_id})>"


class _Info(NamedTuple):
    """Films and users of the archive."""

    movies: dict[int, MovieInfo]
    users: dict[int, UserInfo]
    title_words: dict[str, int]
    categories: dict[str, int]


def _info() -> _Info:
    return _read_info(common.download(URL, "movielens", MD5))


@functools.lru_cache(maxsize=1)
def _read_info(path: str) -> _Info:
    movies, users = {}, {}
    for number, title, categories in _rows(path, "ml-1m/movies.dat", 3, str):
        found = re.fullmatch(r"(.*)\(\d+\)", title)
        if not found:
            raise DataError(f"{path}, ml-1m/movies.dat: the title {title!r} ends in no year")
        movies[int(number)] = MovieInfo(number, categories.split("|"), found[1])
    for number, gender, age, job, _ in _rows(path, "ml-1m/users.dat", 5, str):
        if int(age) not in age_table:
            raise DataError(f"{path}, ml-1m/users.dat: {age} is none of the ages {age_table}")
        users[int(number)] = UserInfo(number, gender, age, job)
    words = {word.lower() for movie in movies.values() for word in movie.title.split()}
    categories_found = {name for movie in movies.values() for name in movie.categories}
    return _Info(movies, users, _numbered(words), _numbered(categories_found))


def _numbered(names: set[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(sorted(names))}


def _rows(path: str, name: str, width: int, convert: Callable[[str], Any]) -> Iterator[list[Any]]:
    """Yield the rows of a file of the archive; double colons separate the fields.

    Raises DataError for a row with a wrong number of fields, or without a number first.
    """
    with archives.open_zip(path) as archive, archives.zip_member(archive, name) as file:
        for line in archives.text_lines(file, f"{path}, {name}", "latin1"):
            fields = line.split("::")
            if len(fields) != width or not fields[0].isdecimal():
                raise DataError(f"{path}, {name}: expected {width} fields, a number first, found {line[:80]!r}")
            yield [convert(field) for field in fields]


def _reader(is_test: bool, rand_seed: int = 0, test_ratio: float = 0.1) -> common.Reader:
    """Return a reader of the ratings that a generator of this seed draws for training, or for tests.

    The numbers are those that NumPy's global generator gives in Fluid; here it stays as it is.
    """

    def reader() -> Iterator[list[Any]]:
        path = common.download(URL, "movielens", MD5)
        info = _read_info(path)
        draws = np.random.RandomState(rand_seed)
        for user, movie, stars, _ in _rows(path, "ml-1m/ratings.dat", 4, float):
            if (draws.random_sample() < test_ratio) != is_test:
                continue
            if user not in info.users or movie not in info.movies:
                raise DataError(f"{path}: a rating of film {movie:.0f} by user {user:.0f}, unknown")
            sample = [*info.users[user].value(), *info.movies[movie].value()]
            yield [*sample, [stars * 2 - 5.0]]

    return reader


def train(rand_seed: int = 0, test_ratio: float = 0.1) -> common.Reader:
    """Return a reader of the ratings outside of `test`."""
    return _reader(False, rand_seed, test_ratio)


def test(rand_seed: int = 0, test_ratio: float = 0.1) -> common.Reader:
    """Return a reader of a random share of the ratings, the same for the same seed."""
    return _reader(True, rand_seed, test_ratio)


def get_movie_title_dict() -> dict[str, int]:
    """Return numbers of the words of titles, in lower case."""
    return _info().title_words


def movie_categories() -> dict[str, int]:
    """Return numbers of the categories."""
    return _info().categories


def user_info() -> dict[int, UserInfo]:
    """Users by number."""
    return _info().users


def movie_info() -> dict[int, MovieInfo]:
    """Films by number."""
    return _info().movies


def max_movie_id() -> int:
    """Return the highest number of a film."""
    return max(movie_info())


def max_user_id() -> int:
    """Return the highest number of a user."""
    return max(user_info())


def max_job_id() -> int:
    """Return the highest number of a job."""
    return max(user.job_id for user in user_info().values())


def fetch() -> None:
    """Download all files."""
    common.download(URL, "movielens", MD5)

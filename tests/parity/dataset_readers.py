"""What the readers of `paddle.dataset` yield for the files of `dataset_files`: one function for each
module, which takes the package `paddle.dataset`, the real one's or this project's.

Runs on Python 3.7 too, beside the real Fluid.
"""

import itertools
import os
import re

import numpy as np

from tests.parity.dataset_files import IMAGES

_WHOLE = 40  # an array with more elements is told by some of them, and their sum


def plain(value):
    """A value as JSON can hold it, with the types that matter."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        flat = array.astype(float).reshape(-1)
        known = {"dtype": str(array.dtype), "shape": list(array.shape)}
        if flat.size <= _WHOLE:
            return dict(known, values=flat.tolist())
        return dict(known, some=flat[:: flat.size // 20].tolist(), mean=flat.mean())
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin1")}
    if isinstance(value, dict):
        pairs = [[plain(k), plain(v)] for k, v in value.items()]
        return {"dict": sorted(pairs, key=lambda pair: repr(pair[1]))}
    if isinstance(value, tuple):
        return {"tuple": [plain(item) for item in value]}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def first(samples, count=4):
    """How many samples there are, and the first few."""
    found = list(samples)
    return {"count": len(found), "samples": [plain(sample) for sample in found[:count]]}


def mnist(d):
    return [first(d.mnist.train()()), first(d.mnist.test()())]


def cifar(d):
    twice = itertools.islice(d.cifar.train10(cycle=True)(), 9)
    readers = (d.cifar.train10, d.cifar.test10, d.cifar.train100, d.cifar.test100)
    return [first(reader()(), 6) for reader in readers] + [[label for _, label in twice]]


def uci_housing(d):
    module = d.uci_housing
    return [first(module.train()(), 8), first(module.test()()), plain(module.predict_reader())]


def imdb(d):
    words = d.imdb.build_dict(re.compile(r"aclImdb/train/.*/.*\.txt$"), 4)
    return [plain(words), first(d.imdb.train(words)()), first(d.imdb.test(words)())]


def imikolov(d):
    module = d.imikolov
    words = module.build_dict(3)
    sequence = module.DataType.SEQ
    return [
        plain(words),
        first(module.train(words, 3)()),
        first(module.test(words, 2)()),
        first(module.train(words, -1, sequence)()),
        first(module.test(words, 6, sequence)()),
    ]


def movielens(d):
    """With names in the place of the numbers of categories and words, which the real one draws."""
    module = d.movielens
    name_of = {v: k for k, v in module.movie_categories().items()}
    word_of = {v: k for k, v in module.get_movie_title_dict().items()}

    def named(sample):
        return sample[:5] + [[name_of[n] for n in sample[5]], [word_of[n] for n in sample[6]]] + [sample[7]]

    return [
        sorted(name_of) == list(range(len(name_of))) and sorted(name_of.values()),
        sorted(word_of) == list(range(len(word_of))) and sorted(word_of.values()),
        first(map(named, module.train()()), 40),
        first(map(named, module.test()()), 40),
        [module.max_movie_id(), module.max_user_id(), module.max_job_id()],
        [str(module.movie_info()[73]), str(module.user_info()[2])],
    ]


def conll05(d):
    """With labels in the place of their numbers, which the real one draws."""
    words, verbs, labels = d.conll05.get_dict()
    label_of = {v: k for k, v in labels.items()}
    samples = [s[:8] + ([label_of[n] for n in s[8]],) for s in d.conll05.test()()]
    return [plain(words), plain(verbs), sorted(labels), first(samples, 9)]


def sentiment(d):
    return [
        [list(pair) for pair in d.sentiment.get_word_dict()],
        first(d.sentiment.train(), 6),
        first(d.sentiment.test()),
    ]


def wmt14(d):
    module = d.wmt14
    readers = [first(reader(6)()) for reader in (module.train, module.test, module.gen)]
    return readers + [plain(list(module.get_dict(6))), plain(list(module.get_dict(4, False)))]


def wmt16(d):
    module = d.wmt16
    return [
        first(module.train(8, 7)()),
        first(module.test(8, 7)()),
        first(module.validation(7, 8, "de")()),
        plain(module.get_dict("en", 8)),
        plain(module.get_dict("de", 7, reverse=True)),
    ]


def flowers(d):
    module = d.flowers
    labels = sorted(label for _, label in module.train(mapper=lambda sample: sample)())
    return [
        first(sorted(module.test()(), key=lambda sample: sample[1])),
        first(module.valid(use_xmap=False)()),
        labels,
    ]


def image(d):
    module = d.image
    paths = [os.path.join(IMAGES, "%d.jpg" % n) for n in range(3)]
    pixels = np.random.RandomState(10).randint(0, 256, (31, 47, 3)).astype(np.uint8)
    loaded = [module.load_image(path, color) for path in paths for color in (True, False)]
    resized = [
        module.resize_short(pixels, 12),
        module.resize_short(pixels.transpose(1, 0, 2).copy(), 50),
        module.resize_short(pixels[:, :, 0].copy(), 40),
    ]
    transformed = [
        module.load_and_transform(paths[0], 32, 24, False, mean=[103.94, 116.78, 123.68]),
        module.load_and_transform(paths[1], 16, 16, False, is_color=False),
    ]
    np.random.seed(11)  # noqa: NPY002
    transformed.append(module.simple_transform(pixels, 31, 20, True))
    return [plain(array) for array in loaded + resized + transformed]


def mq2007(d):
    train = d.mq2007.train
    formats = ("pairwise", "listwise", "pointwise", "plain_txt")
    return [first(train(format=name), 9) for name in formats] + [first(d.mq2007.test())]


MODULES = (
    mnist,
    cifar,
    uci_housing,
    imdb,
    imikolov,
    movielens,
    conll05,
    sentiment,
    wmt14,
    wmt16,
    flowers,
    image,
    mq2007,
)

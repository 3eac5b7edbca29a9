"""Tiny files in the original formats of Fluid's data sets, as `make` puts them below a folder.

Runs on Python 3.7 too, beside the real Fluid.
"""

import gzip
import io
import os
import random
import struct
import tarfile
import zipfile
import zlib

import numpy as np

IMAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "images")


def make(folder):
    """Write the files of all data sets below `folder`, which stands for DATA_HOME."""
    for writer in (
        _mnist,
        _cifar,
        _uci_housing,
        _imdb,
        _imikolov,
        _movielens,
        _conll05,
        _sentiment,
        _wmt14,
        _wmt16,
        _flowers,
        _voc2012,
        _mq2007,
    ):
        writer(folder)


def jpeg(number):
    """The bytes of one of three small pictures: colours, grey, colours."""
    with open(os.path.join(IMAGES, "%d.jpg" % number), "rb") as file:
        return file.read()


def _place(folder, *parts):
    path = os.path.join(folder, *parts)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def write_tar(path, members, mode="w:gz"):
    """A tar archive of (name, bytes)."""
    with tarfile.open(path, mode) as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def _write_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members:
            archive.writestr(name, text.encode("latin1"))


def write_idx(path, array):
    """A gzipped IDX file of bytes."""
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(">I%dI" % array.ndim, 0x800 + array.ndim, *array.shape))
        file.write(array.astype(np.uint8).tobytes())


def _mnist(folder):
    numbers = np.random.RandomState(1)
    for part, count in (("train", 200), ("t10k", 100)):
        images = numbers.randint(0, 256, (count, 2, 3))
        write_idx(_place(folder, "mnist", part + "-images-idx3-ubyte.gz"), images)
        labels = numbers.randint(0, 10, count)
        write_idx(_place(folder, "mnist", part + "-labels-idx1-ubyte.gz"), labels)


# ---- pickles of Python 2, as CIFAR has them ------------------------------------------------------


def _short(text):
    return b"U" + bytes([len(text)]) + text.encode("latin1")


def python2_batch(images, **values):
    """A pickle of {"data": uint8 images, ...}, with texts and lists of small numbers beside it."""
    contents = images.astype(np.uint8).tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85q\x04U\x01b\x87Rq\x05"
        + b"(K\x01"
        + b"".join(b"M" + struct.pack("<H", n) for n in images.shape)
        + b"\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN"
        + b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<i", len(contents))
        + contents
        + b"tb"
    )
    pickled = b"\x80\x02}q\x01(" + _short("data") + array
    for name, value in values.items():
        pickled += _short(name)
        if isinstance(value, str):
            pickled += _short(value)
        else:
            pickled += b"](" + b"".join(b"K" + bytes([n]) for n in value) + b"e"
    return pickled + b"u."


def _cifar(folder):
    numbers = np.random.RandomState(2)

    def batch(name, **labels):
        pickled = python2_batch(numbers.randint(0, 256, (3, 3072)), batch_label=name, **labels)
        return pickled

    write_tar(
        _place(folder, "cifar", "cifar-10-python.tar.gz"),
        [
            ("cifar-10-batches-py/data_batch_4", batch("4 of 5", labels=[3, 1, 9])),
            ("cifar-10-batches-py/readme.html", b"<html/>"),
            ("cifar-10-batches-py/test_batch", batch("1 of 1", labels=[0, 5, 5])),
            ("cifar-10-batches-py/data_batch_1", batch("1 of 5", labels=[7, 2, 4])),
        ],
    )
    write_tar(
        _place(folder, "cifar", "cifar-100-python.tar.gz"),
        [
            ("cifar-100-python/meta", b""),
            ("cifar-100-python/test", batch("t", fine_labels=[99, 0, 1], coarse_labels=[1, 2, 3])),
            ("cifar-100-python/train", batch("t", fine_labels=[9, 8, 7], coarse_labels=[4, 5, 6])),
        ],
    )


def _uci_housing(folder):
    rows = np.random.RandomState(3).uniform(0, 400, (10, 14))
    with open(_place(folder, "uci_housing", "housing.data"), "w") as file:
        for row in rows:
            file.write(" %s\n" % "  ".join("%.4f" % value for value in row))


def _words(draw, count):
    return " ".join(draw.choice(_WORDS) for _ in range(count))


_WORDS = "a the film was good bad long short the the of and it <br /> plot's end".split(" ")


def _imdb(folder):
    draw = random.Random(4)
    members = []
    for part in ("test", "train"):
        for kind in ("neg", "pos"):
            for number in range(3):
                text = "%s, Really! %s...\n" % (_words(draw, 70), _words(draw, 40))
                members.append(("aclImdb/%s/%s/%d_7.txt" % (part, kind, number), text.encode()))
        members.append(("aclImdb/%s/urls_pos.txt" % part, b"http://"))
    write_tar(_place(folder, "imdb", "imdb%2FaclImdb_v1.tar.gz"), members)


def _imikolov(folder):
    draw = random.Random(5)

    def text(lines):
        endings = (" <unk> n", "")
        return "".join(" %s%s \n" % (_words(draw, 2 + n % 5), endings[n % 2]) for n in range(lines)).encode()

    members = [
        ("./simple-examples/data/ptb.test.txt", b"not read \n"),
        ("./simple-examples/data/ptb.train.txt", text(60)),
        ("./simple-examples/data/ptb.valid.txt", text(9)),
    ]
    write_tar(_place(folder, "imikolov", "imikolov%2Fsimple-examples.tgz"), members)


def _movielens(folder):
    draw = random.Random(6)
    users = "".join(
        "%d::%s::%d::%d::48067\n" % (n, draw.choice("MF"), draw.choice([1, 18, 25, 35, 45, 50, 56]), draw.randrange(21))
        for n in range(1, 6)
    )
    movies = (
        "1::Toy Story (1995)::Animation|Children's|Comedy\n"
        "3::Grumpier Old Men (1995)::Comedy|Romance\n"
        "73::Mis\xe9rables, Les (Story) (1995)::Drama\n"
    )
    ratings = "".join(
        "%d::%d::%d::978300760\n" % (draw.randint(1, 5), draw.choice([1, 3, 73]), draw.randint(1, 5)) for _ in range(30)
    )
    _write_zip(
        _place(folder, "movielens", "movielens%2Fml-1m.zip"),
        [
            ("ml-1m/movies.dat", movies),
            ("ml-1m/ratings.dat", ratings),
            ("ml-1m/README", ""),
            ("ml-1m/users.dat", users),
        ],
    )


_SENTENCES = """The - (A0* * *
cat - *) * *
sat sit (V*) * *
and - * * *
then - (AM-TMP*) * *
slept sleep * (V*) *
was be * * (V*)

Go go (V*)
on - (A1*)

Nobody -
spoke -

Rates - (A1*)
rose rise (V*)
sharply - (AM-MNR*)

"""


def _conll05(folder):
    lines = [line.split() for line in _SENTENCES.split("\n")[:-1]]
    words = "".join("%s\n" % (line[0] if line else "") for line in lines)
    props = "".join("%s\n" % "   ".join(line[1:]) for line in lines)
    release = "conll05st-release/test.wsj/%s/test.wsj.%s.gz"
    write_tar(
        _place(folder, "conll05st", "conll05st-tests.tar.gz"),
        [
            (release % ("words", "words"), gzip.compress(words.encode())),
            (release % ("props", "props"), gzip.compress(props.encode())),
        ],
    )
    for name, text in (
        ("wordDict", "<unk>\nbos\neos\nThe\ncat\nsat\nthen\nslept\nGo\nrose\n"),
        ("verbDict", "sit\nsleep\nbe\ngo\nrise\n"),
        ("targetDict", "B-A0\nI-A0\nB-V\nI-V\nB-AM-TMP\nB-A1\nI-A1\nB-AM-MNR\nI-AM-MNR\nO\n"),
    ):
        with open(_place(folder, "conll05st", "conll05st%%2F%s.txt" % name), "w") as file:
            file.write(text)
    with open(_place(folder, "conll05st", "conll05st%2Femb"), "wb") as file:
        file.write(bytes(16))


def _sentiment(folder):
    draw = random.Random(7)
    members = [("movie_reviews/README", "no review")]
    for kind in ("pos", "neg"):
        for number in (2, 0, 1):
            text = "%s , \" don't \" -- it's ( 1/2 )\n%s . \n" % (_words(draw, 8), _words(draw, 5))
            members.append(("movie_reviews/%s/cv%03d_1.txt" % (kind, number), text))
    _write_zip(_place(folder, "corpora", "movie_reviews.zip"), members)


def _wmt14(folder):
    long_pair = "%s\t%s" % ("le " * 80, "the")
    pairs = "le chat\tthe cat\nun \xe9t\xe9 long\ta long summer\nno tab\n%s\n" % long_pair
    write_tar(
        _place(folder, "wmt14", "wmt14.tgz"),
        [
            ("wmt14/src.dict", "<s>\n<e>\n<unk>\nle\nchat\n\xe9t\xe9\nlong\n".encode("utf-8")),
            ("wmt14/trg.dict", b"<s>\n<e>\n<unk>\nthe\nsummer\ncat\na\n"),
            ("wmt14/train/train", pairs.encode("utf-8")),
            ("wmt14/test/test", "chat le\tcat the the\n".encode("utf-8")),
            ("wmt14/gen/gen", "long\tlong\n".encode("utf-8")),
        ],
    )


def _wmt16(folder):
    train = (
        "a man rides .\tein mann f\xe4hrt .\na dog , a man .\tein hund , ein mann .\n"
        "no tab\na girl sits\tein m\xe4dchen sitzt\n"
    )
    write_tar(
        _place(folder, "wmt16", "wmt16.tar.gz"),
        [
            ("wmt16/train", train.encode("utf-8")),
            ("wmt16/val", "a boy sits\tein junge sitzt\n".encode("utf-8")),
            ("wmt16/test", "a dog rides\tein hund f\xe4hrt\n".encode("utf-8")),
        ],
    )


def _flowers(folder):
    from scipy.io import savemat

    write_tar(
        _place(folder, "flowers", "102flowers.tgz"),
        [("jpg/image_%05d.jpg" % (n + 1), jpeg((n + 1) % 3)) for n in (3, 0, 2, 1)],
    )
    savemat(_place(folder, "flowers", "imagelabels.mat"), {"labels": np.array([[77, 1, 102, 5]], "u1")})
    savemat(
        _place(folder, "flowers", "setid.mat"),
        {
            "tstid": np.array([[1, 4]], "u2"),
            "trnid": np.array([[3, 2]], "u2"),
            "valid": np.array([[2]], "u2"),
        },
    )


def _voc2012(folder):
    from PIL import Image

    classes = Image.fromarray(np.random.RandomState(8).randint(0, 21, (5, 6)).astype(np.uint8), "P")
    classes.putpalette(list(range(256)) * 3)
    label = io.BytesIO()
    classes.save(label, "png")
    root = "VOCdevkit/VOC2012/"
    names = {"trainval": "2007_000032\n2007_000039\n", "train": "2007_000039\n"}
    names["val"] = "2007_000032\n"
    members = [(root + "ImageSets/Segmentation/%s.txt" % part, text.encode()) for part, text in sorted(names.items())]
    for name, number in (("2007_000032", 0), ("2007_000039", 2)):
        members.append((root + "JPEGImages/%s.jpg" % name, jpeg(number)))
        members.append((root + "SegmentationClass/%s.png" % name, label.getvalue()))
    write_tar(_place(folder, "voc2012", "VOCtrainval_11-May-2012.tar"), members, "w")


def write_rar(path, members):
    """A RAR archive (version 3) of (name, bytes), stored."""

    def block(kind, flags, body, contents=b""):
        header = struct.pack("<BHH", kind, flags, 7 + len(body)) + body
        return struct.pack("<H", zlib.crc32(header) & 0xFFFF) + header + contents

    with open(path, "wb") as file:
        file.write(b"Rar!\x1a\x07\x00" + block(0x73, 0, bytes(6)))
        for name, data in members:
            sizes = struct.pack("<IIB", len(data), len(data), 3)
            crc = struct.pack("<I", zlib.crc32(data) & 0xFFFFFFFF)
            encoded = name.encode()
            rest = struct.pack("<IBBHI", 0x21000000, 20, 0x30, len(encoded), 0o100644)
            file.write(block(0x74, 0x8000, sizes + crc + rest + encoded, data))
        file.write(block(0x7B, 0x4000, b""))


def _mq2007(folder):
    draw = random.Random(9)

    def rows(queries):
        for query, relevances in queries:
            for number, relevance in enumerate(relevances):
                features = ["%d:%.6f" % (n, draw.random()) for n in range(1, 47)]
                yield "%d qid:%d %s #docid = GX%03d inc = 1\n" % (
                    relevance,
                    query,
                    " ".join(features),
                    number,
                )

    train = "".join(rows([(10, [0, 2, 1, 0]), (18, [0, 0]), (11, [1, 0])]))
    test = "".join(rows([(20, [0, 1])]))
    write_rar(
        _place(folder, "MQ2007", "7b6dbbe2-842c-11e4-a536-bcaec51b9163_MQ2007.rar"),
        [
            ("MQ2007/MQ2007/Fold1/train.txt", train.encode()),
            ("MQ2007/MQ2007/Fold1/test.txt", test.encode()),
        ],
    )

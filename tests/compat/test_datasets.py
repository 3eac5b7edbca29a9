"""Files of data sets: downloads, damage, archives that would write elsewhere; and files of samples."""

import hashlib
import http.server
import importlib
import json
import os
import pickle
import re
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest

import jfluid.compat.dataset as package
from jfluid.compat import text
from jfluid.compat.dataset import archives, common, conll05, image, mnist, mq2007, uci_housing
from jfluid.errors import DataError, DownloadError, UnsupportedError
from tests import forked
from tests.parity import dataset_files

GONE = "http://127.0.0.1:9/data/some.tgz"  # nothing listens on the discard port
MD5 = hashlib.md5(b"contents").hexdigest()


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "DATA_HOME", str(tmp_path))
    monkeypatch.setattr(common, "_TIMEOUT_S", 20)
    return tmp_path


@pytest.fixture
def served(monkeypatch):
    """A web server: what it answers with, by path (bytes, and the length that it claims)."""
    answers = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            data, length = answers[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield answers, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


# ---- downloads -----------------------------------------------------------------------------------


def test_a_file_that_is_there_is_taken(home):
    (home / "set").mkdir()
    (home / "set" / "some.tgz").write_bytes(b"contents")
    (home / "set" / "other").write_bytes(b"contents")
    assert common.download(GONE, "set", MD5) == str(home / "set" / "some.tgz")
    assert common.download(GONE, "set", MD5.upper(), "other") == str(home / "set" / "other")


def test_without_a_network_the_error_says_which_file_to_put_where(home, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    path = home / "set" / "some.tgz"
    with pytest.raises(DownloadError) as raised:
        common.download(GONE, "set", MD5)
    message = str(raised.value)
    assert f"{path} is missing" in message
    assert all(f"{part}" in message for part in (f"from  {GONE}", f"as    {path}", f"md5   {MD5}"))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"half of con")
    wrong = hashlib.md5(b"half of con").hexdigest()
    with pytest.raises(DownloadError, match=f"has md5 {wrong}: it is incomplete or another file"):
        common.download(GONE, "set", MD5)
    assert path.read_bytes() == b"half of con"


def test_a_download_takes_the_place_of_a_damaged_file(home, served, capsys):
    answers, address = served
    answers["/data/some.tgz"] = (b"contents", 8)
    (home / "set").mkdir()
    (home / "set" / "some.tgz").write_bytes(b"damaged")
    path = common.download(f"{address}/data/some.tgz", "set", MD5)
    assert Path(path).read_bytes() == b"contents"
    assert "downloading some.tgz" in capsys.readouterr().err


@pytest.mark.parametrize(("data", "length"), [(b"conten", 8), (b"contenxt", 8)], ids=["cut off", "another file"])
def test_a_bad_download_leaves_nothing(home, served, data, length):
    answers, address = served
    answers["/some.tgz"] = (data, length)
    with pytest.raises(DownloadError, match=f"received {len(data)} of 8 bytes, of md5 "):
        common.download(f"{address}/some.tgz", "set", MD5)
    assert list((home / "set").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((GONE, "set", ""), "md5sum must have 32 hexadecimal digits"),
        ((GONE, "set", None), "md5sum must have 32 hexadecimal digits"),
        (("http://127.0.0.1/", "set", MD5), "does not end in a file's name"),
        (("http://127.0.0.1/..", "set", MD5), "does not end in a file's name"),
    ],
)
def test_arguments_that_name_no_file(home, arguments, message):
    with pytest.raises(ValueError, match=message):
        common.download(*arguments)


def test_only_the_web_is_downloaded_from(home, tmp_path):
    (tmp_path / "some").write_bytes(b"contents")
    with pytest.raises(DownloadError, match="expected a URL of http or https, found"):
        common.download(f"file://{tmp_path}/some", "set", MD5)


def test_a_folder_in_the_place_of_a_file(home):
    (home / "set" / "some.tgz").mkdir(parents=True)
    with pytest.raises(DownloadError, match="cannot be read .* move it away"):
        common.download(GONE, "set", MD5)


def test_fetch_asks_for_every_file(monkeypatch):
    """Each has a URL and an MD5, and lies where the reader asks for it."""
    asked = {}

    def note(url, module_name, md5sum, save_name=None):
        assert re.fullmatch("https?://.*", url) and re.fullmatch("[0-9a-f]{32}", md5sum)
        asked[f"{module_name}/{save_name or url.split('/')[-1]}"] = md5sum
        return "path"

    monkeypatch.setattr(common, "download", note)
    common.fetch_all()
    assert len(asked) == 24 and len(set(asked.values())) == 24
    modules = {m for m in package.__all__ if hasattr(importlib.import_module(f"jfluid.compat.dataset.{m}"), "fetch")}
    assert set(common._MODULES) == modules


# ---- damage --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("datasets")
    dataset_files.make(str(folder))
    return folder


# The file of each module that is cut off, and what reads it.
READERS = {
    "mnist/t10k-images-idx3-ubyte.gz": lambda d: d.mnist.test()(),
    "cifar/cifar-10-python.tar.gz": lambda d: d.cifar.train10()(),
    "uci_housing/housing.data": lambda d: d.uci_housing.train()(),
    "imdb/imdb%2FaclImdb_v1.tar.gz": lambda d: d.imdb.word_dict(),
    "imikolov/imikolov%2Fsimple-examples.tgz": lambda d: d.imikolov.build_dict(),
    "movielens/movielens%2Fml-1m.zip": lambda d: d.movielens.train()(),
    "conll05st/conll05st-tests.tar.gz": lambda d: d.conll05.test()(),
    "corpora/movie_reviews.zip": lambda d: d.sentiment.train(),
    "wmt14/wmt14.tgz": lambda d: d.wmt14.train(6)(),
    "wmt16/wmt16.tar.gz": lambda d: d.wmt16.train(6, 6)(),
    "flowers/102flowers.tgz": lambda d: d.flowers.train()(),
    "flowers/setid.mat": lambda d: d.flowers.test()(),
    "voc2012/VOCtrainval_11-May-2012.tar": lambda d: d.voc2012.val()(),
    "MQ2007/7b6dbbe2-842c-11e4-a536-bcaec51b9163_MQ2007.rar": lambda d: d.mq2007.train(),
}


@pytest.mark.parametrize("damage", ["cut off", "empty", "garbage", "a folder"])
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_named(files, tmp_path, monkeypatch, name, damage):
    whole = (files / name).read_bytes()
    # a text of numbers that ends early has other rows; nothing else tells
    cut = whole[: -100 if name.endswith(".data") else len(whole) // 2]
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    if damage == "a folder":
        path.mkdir()
    else:
        path.write_bytes({"cut off": cut, "empty": b"", "garbage": bytes(range(256)) * 8}[damage])

    def path_of(url, module_name, md5sum, save_name=None):
        own = tmp_path / module_name / (save_name or url.split("/")[-1])
        return str(own if own == path else files / module_name / own.name)

    monkeypatch.setattr(common, "DATA_HOME", str(tmp_path))
    monkeypatch.setattr(common, "download", path_of)
    with pytest.raises(DataError, match=re.escape(str(path))):
        list(READERS[name](package))
    # nothing is half unpacked
    left = {found.name for found in path.parent.rglob("*")} - {path.name}
    assert left <= {"102flowers.tgz_batch"}


def test_images_and_labels_that_do_not_belong_together(tmp_path):
    images, labels = tmp_path / "images", tmp_path / "labels"
    dataset_files.write_idx(images, np.zeros((3, 2, 2)))
    dataset_files.write_idx(labels, np.zeros(4))
    with pytest.raises(DataError, match="has 3 images, .* has 4 labels"):
        next(mnist.reader_creator(str(images), str(labels), 100)())
    with pytest.raises(DataError, match="no IDX file of bytes in 1 dimensions"):
        next(mnist.reader_creator(str(images), str(images), 100)())


def test_a_member_that_is_missing_or_a_link_is_named(tmp_path):
    path = tmp_path / "some.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("circle")
        link.type, link.linkname = tarfile.SYMTYPE, "circle"
        archive.addfile(link)
    with archives.open_tar(str(path)) as archive:
        with pytest.raises(DataError, match="some.tar: holds no words; it is a different archive"):
            archives.member(archive, "words")
        with pytest.raises(DataError, match="some.tar: circle is no file"):
            archives.member(archive, "circle")


def test_a_pickle_in_an_archive_calls_nothing(tmp_path):
    path, planted = tmp_path / "cifar.tar.gz", tmp_path / "planted"
    call = b"cposix\nsystem\n(S'touch %s'\ntR." % str(planted).encode()
    for pickled in (call, b"\x80\x02" + call, pickle.dumps({"data": 1, "labels": 2}, 2)):
        dataset_files.write_tar(path, [("data_batch_1", pickled)])
        with pytest.raises(DataError, match="cifar.tar.gz, data_batch_1: "):
            next(package.cifar.reader_creator(str(path), "data_batch")())
    assert not planted.exists()


# ---- archives that are unpacked ------------------------------------------------------------------


def _member(name, kind=tarfile.REGTYPE, target=""):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


@pytest.mark.parametrize(
    "entry",
    [
        _member("../evil"),
        _member("/tmp/jfluid-evil/../../evil/../../../etc/evil"),
        _member("out", tarfile.SYMTYPE, "../../../etc"),
        _member("device", tarfile.CHRTYPE),
    ],
    ids=["up", "absolute", "link", "device"],
)
def test_a_model_is_not_unpacked_outside_of_its_folder(tmp_path, monkeypatch, entry):
    path = tmp_path / "model.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(_member("fc_0.w_0"))
        archive.addfile(entry)
    (tmp_path / "target").mkdir()
    monkeypatch.setattr(archives.tempfile, "tempdir", str(tmp_path / "target"))
    monkeypatch.setattr(common, "download", lambda *_: str(path))
    with pytest.raises(DataError, match="model.tar: not unpacked, for it is not safe"):
        uci_housing.fluid_model()
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["model.tar", "target"]


def test_a_model_is_unpacked(tmp_path, monkeypatch):
    dataset_files.write_tar(tmp_path / "model.tar", [("fc_0.w_0", b"values")], "w")
    monkeypatch.setattr(archives.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(common, "download", lambda *_: str(tmp_path / "model.tar"))
    assert Path(uci_housing.fluid_model(), "fc_0.w_0").read_bytes() == b"values"


def test_a_rar_archive_is_not_unpacked_outside_of_its_folder(home, monkeypatch):
    (home / "MQ2007").mkdir()
    path = home / "MQ2007" / "some.rar"
    dataset_files.write_rar(path, [("MQ2007/a", b"a"), ("../../evil", b"evil")])
    monkeypatch.setattr(common, "download", lambda *_: str(path))
    with pytest.raises(DataError, match="leads out of the archive's folder"):
        next(mq2007.train())
    assert sorted(p.name for p in home.rglob("*")) == ["MQ2007", "some.rar"]


def test_queries_are_read_from_files_that_are_there(home):
    """Whoever has no tool for RAR archives unpacks it by hand."""
    path = home / "MQ2007" / "MQ2007" / "MQ2007" / "Fold1" / "train.txt"
    path.parent.mkdir(parents=True)
    values = " ".join(f"{n}:NULL" for n in range(1, 47))
    path.write_text(f"2 qid:7 {values} #docid = GX0\n1 qid:7 {values} #docid = GX1\n")
    [(label, better, other)] = mq2007.train(fill_missing=-5)
    assert label.tolist() == [1] and better.tolist() == other.tolist() == [-5.0] * 46
    path.write_text(path.read_text() + "1 qid:7 1:0.5\n")
    with pytest.raises(DataError, match="train.txt, line 3: 1 features, expected 46"):
        next(mq2007.train())
    with pytest.raises(ValueError, match="format must be one of pairwise, listwise, "):
        next(mq2007.train(format="pair"))


# ---- readers that the real Fluid cannot be asked about -------------------------------------------


def test_voc2012(files, monkeypatch):
    """The real one fails on Python 3: it puts a `b'...'` into the names of files."""
    from PIL import Image

    monkeypatch.setattr(common, "download", lambda url, name, *_: str(files / name / url.split("/")[-1]))
    [(picture, classes)] = package.voc2012.val()()
    expected = np.array(Image.open(f"{dataset_files.IMAGES}/0.jpg"))
    assert picture.dtype == classes.dtype == np.uint8
    assert np.array_equal(picture, expected)
    assert np.array_equal(classes, np.random.RandomState(8).randint(0, 21, (5, 6)))
    assert len(list(package.voc2012.train()())) == 2


def test_ratings_do_not_touch_numpys_generator(files, monkeypatch):
    monkeypatch.setattr(common, "download", lambda url, name, *_: str(files / name / url.split("/")[-1]))
    np.random.seed(5)  # noqa: NPY002
    expected = np.random.RandomState(5).random_sample()
    train, test = package.movielens.train()(), package.movielens.test()()
    pairs = [sample for both in zip(train, test) for sample in both]  # in turn
    assert pairs and np.random.random_sample() == expected  # noqa: NPY002


def test_labels_have_numbers_in_the_order_of_their_file(files):
    path = files / "conll05st" / "conll05st%2FtargetDict.txt"
    assert list(conll05.load_label_dict(str(path)))[:4] == ["B-A0", "I-A0", "B-V", "I-V"]
    assert conll05.load_label_dict(str(path))["O"] == 10


def test_a_word_of_another_encoding_is_named(tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(DataError, match="words.txt, line 3: no utf-8 text"):
        conll05.load_dict(str(path))


def test_images_in_batches(files, tmp_path):
    path = tmp_path / "flowers.tgz"
    path.write_bytes((files / "flowers" / "102flowers.tgz").read_bytes())
    labels = {f"jpg/image_{n:05d}.jpg": n for n in (1, 2, 4)}
    listing = image.batch_images_from_tar(str(path), "some", labels, num_per_batch=2)
    batches = [pickle.loads(Path(line).read_bytes()) for line in Path(listing).read_text().splitlines()]
    assert [batch["label"] for batch in batches] == [[4, 1], [2]]
    assert batches[1]["data"] == [dataset_files.jpeg(2)]
    assert image.batch_images_from_tar(str(path), "some", {}) == listing  # taken as it is


@pytest.mark.parametrize("data", [b"", b"no image", dataset_files.jpeg(0)[:300]])
def test_what_is_no_image(tmp_path, data):
    path = tmp_path / "some.jpg"
    path.write_bytes(data)
    with pytest.raises(DataError, match="some.jpg: no image that can be read"):
        image.load_image(path)
    with pytest.raises(DataError, match=f"{len(data)} bytes: no image that can be read"):
        image.load_image_bytes(data)
    with pytest.raises(ValueError, match=r"an image of shape \[3, 4, 3\] has no square of 5 pixels"):
        image.center_crop(np.zeros((3, 4, 3)), 5)


@pytest.mark.process
def test_a_script_of_fluids_book_finds_its_data(files, tmp_path):
    """As it was written for Fluid, but for the MD5 of a file that is not the original one."""
    source = files / "uci_housing" / "housing.data"
    (tmp_path / ".cache/paddle/dataset/uci_housing").mkdir(parents=True)
    (tmp_path / ".cache/paddle/dataset/uci_housing/housing.data").write_bytes(source.read_bytes())
    script = tmp_path / "fit_a_line.py"
    script.write_text(f"""
import random
import paddle
import paddle.fluid as fluid
random.seed(1)
fluid.default_startup_program().random_seed = 1
paddle.dataset.uci_housing.MD5 = "{common.md5file(source)}"
reader = paddle.batch(paddle.reader.shuffle(paddle.dataset.uci_housing.train(), buf_size=500), batch_size=4)
x = fluid.layers.data(name="x", shape=[13], dtype="float32")
y = fluid.layers.data(name="y", shape=[1], dtype="float32")
cost = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, 1), y))
fluid.optimizer.SGD(learning_rate=0.01).minimize(cost)
exe = fluid.Executor(fluid.CPUPlace())
feeder = fluid.DataFeeder(place=fluid.CPUPlace(), feed_list=[x, y])
exe.run(fluid.default_startup_program())
losses = [float(exe.run(feed=feeder.feed(batch), fetch_list=[cost])[0]) for _ in range(50) for batch in reader()]
print(len(losses), sum(losses[-2:]) < sum(losses[:2]) / 2)
try:
    paddle.dataset.mnist.train()
except RuntimeError as e:
    print(e)
""")
    result = forked.jfluid(
        ["run", script], tmp_path, os.environ | {"HOME": str(tmp_path), "FLAGS_interpret_first_steps": "1"}
    )
    assert result.stdout.startswith("100 True\n"), result.stdout + result.stderr
    assert f"{tmp_path}/.cache/paddle/dataset/mnist/train-images-idx3-ubyte.gz" in result.stdout
    assert mnist.TRAIN_IMAGE_URL in result.stdout and mnist.TRAIN_IMAGE_MD5 in result.stdout
    assert not (tmp_path / "image").exists()


# ---- files of samples ----------------------------------------------------------------------------


def test_samples_are_split_and_read_by_several_trainers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    samples = [(np.full(2, n, np.float32), n, [n, "word"]) for n in range(8)]
    common.split(lambda: iter(samples), 3, suffix="part-%02d.pickle")
    sizes = [len(pickle.loads(p.read_bytes())) for p in sorted(tmp_path.iterdir())]
    assert sizes == [4, 3, 1]  # the first has one more, as in Fluid
    shares = [[n for _, n, _ in common.cluster_files_reader("part-*.pickle", 2, trainer)()] for trainer in (0, 1)]
    assert shares == [[0, 1, 2, 3, 7], [4, 5, 6]]
    read = next(iter(common.cluster_files_reader("part-*.pickle", 1, 0, pickle.load)()))
    assert read[0].dtype == np.float32 and read[2] == [0, "word"]


def test_samples_as_text(tmp_path):
    common.split(lambda: iter(range(5)), 2, f"{tmp_path}/%d.json", dumper=json.dump)
    read = common.cluster_files_reader(f"{tmp_path}/*.json", 1, 0, loader=json.load)
    assert list(read()) == [0, 1, 2, 3, 4]


def test_files_of_samples_call_nothing(tmp_path):
    (tmp_path / "0.pickle").write_bytes(b"cposix\nsystem\n(S'true'\ntR.")
    with pytest.raises(pickle.UnpicklingError, match="names posix.system"):
        list(common.cluster_files_reader(f"{tmp_path}/*", 1, 0)())


def test_arguments_of_files_of_samples():
    with pytest.raises(ValueError, match="line_count must be at least 1, found 0"):
        common.split(lambda: iter(()), 0)
    with pytest.raises(ValueError, match="suffix must hold one %d"):
        common.split(lambda: iter(()), 1, "same.pickle")
    with pytest.raises(ValueError, match=r"trainer_id must be in \[0, 2\), found 2"):
        common.cluster_files_reader("*", 2, 2)
    with pytest.raises(FileNotFoundError, match="no file matches '/nowhere/"):
        next(iter(common.cluster_files_reader("/nowhere/*", 1, 0)()))
    with pytest.raises(UnsupportedError, match="RecordIO"):
        common.convert("folder", None, 10, "name")


# ---- paddle.compat -------------------------------------------------------------------------------


def test_texts_and_bytes():
    assert text.to_text(b"\xc3\xa9") == "é" and text.to_bytes("é", "latin1") == b"\xe9"
    assert text.to_text([b"a", "b", 1.5, None]) == ["a", "b", 1.5, None]
    assert text.to_text({b"a": b"b"}) == {"a": "b"} and text.to_bytes({"a", b"b"}) == {b"a", b"b"}
    words, kept = [b"a", b"b"], {b"c", "d"}
    assert text.to_text(words, inplace=True) is words == ["a", "b"]
    assert text.to_text(kept, inplace=True) is kept and kept == {"c", "d"}
    with pytest.raises(TypeError, match="expected bytes or a str, found int: 3"):
        text.to_text(3)


def test_numbers_as_in_python_2():
    assert [text.round(x) for x in (0.5, 1.5, -2.5, 0.0)] == [1.0, 2.0, -3.0, 0.0]
    assert text.round(1.005, 1) == 1.0 and text.round(2.25, 1) == 2.3
    assert text.floor_division(7, -2) == -4 and text.get_exception_message(KeyError("a")) == "'a'"

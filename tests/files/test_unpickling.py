"""Pickles of arrays: those of all picklers are read, and none takes more time or memory than its
size explains.
"""

import collections
import io
import pickle
import time

import numpy as np
import pytest

from jfluid import errors
from jfluid.files import unpickling
from jfluid.files.pickled import load_arrays, save_arrays
from tests.hostile_pickles import HEAD, hostile
from tests.measured import call_within

Ordered = collections.OrderedDict
HOSTILE = hostile(30_000)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_take_little_time_and_memory(name, tmp_path):
    data = HOSTILE[name]
    (tmp_path / "p").write_bytes(data)

    def refuse():
        with pytest.raises(errors.FileFormatError) as caught:
            load_arrays(tmp_path / "p")
        assert str(caught.value).startswith(str(tmp_path / "p")) and len(str(caught.value)) < 1000

    call_within(refuse, peak=max(700_000, 10 * len(data) + 50_000), seconds=20)


@pytest.mark.parametrize(
    "target",
    [
        "_codecs\nencode",
        "numpy.core.multiarray\nscalar",
        "numpy.core.multiarray\n_reconstruct",
        "numpy\ndtype",
        "numpy\nndarray",
        "collections\nOrderedDict",
    ],
)
@pytest.mark.parametrize("state", [b"}U\x08__name__U\x01xs", b"N}U\x04callK\x01s\x86", b"}U\x01xK\x01s"])
def test_a_pickle_changes_nothing_of_the_process(target, state, tmp_path):
    (tmp_path / "p").write_bytes(HEAD + b"c" + target.encode() + b"\n" + state + b"b.")
    with pytest.raises(errors.FileFormatError, match="expected a PendingArray on the stack"):
        load_arrays(tmp_path / "p")
    save_arrays(tmp_path / "good", {"a": np.ones(2)})
    assert load_arrays(tmp_path / "good")["a"].tolist() == [1, 1]


VALUES = {
    "arrays": {
        "a": np.arange(6.0).reshape(2, 3),
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "none": np.zeros((0, 3)),
        "big": np.arange(3, dtype=">i4"),
        "half": np.ones(2, "float16"),
        "one": np.array(2.5),
        "flags": np.array([True, False]),
    },
    "numbers": {
        "a": np.float32(2.5),
        "b": np.bool_(True),
        "c": 2**62,
        "d": -1,
        "e": 2.5,
        "f": None,
        "g": True,
        "h": 300,
        "i": 70000,
    },
    "texts": {"a": "x" * 1000, "b": "ä€\U0001f600", "c": b"\0\xff" * 200, "d": ""},
    "containers": {
        "a": [np.zeros(2), (1, None), {"b": [1.5, ()]}],
        "b": Ordered(x="y", z=np.ones(1)),
        "c": (1,),
        "d": (1, 2, 3, 4),
    },
}
SHARED = np.arange(3)
VALUES["shared"] = {
    "a": SHARED,
    "b": SHARED,
    "c": [SHARED, SHARED],
    "d": VALUES["texts"],
    "e": VALUES["texts"],
}


def same(a, b):
    if isinstance(a, (dict, list, tuple)):
        pairs = zip(a.values(), b.values()) if isinstance(a, dict) else zip(a, b)
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in pairs)
    return np.array_equal(a, b) and type(a) is type(b)


# NumPy pickles arrays in protocol 5 by other functions, which neither Fluid nor Paddle uses.
@pytest.mark.parametrize(
    ("name", "protocol"),
    [(n, p) for n in VALUES for p in (2, 3, 4)] + [("numbers", 5), ("texts", 5)],
)
@pytest.mark.parametrize("pickler", [pickle.Pickler, pickle._Pickler])
def test_what_picklers_write_is_read(pickler, name, protocol, tmp_path):
    with open(tmp_path / "p", "wb") as file:
        pickler(file, protocol).dump(VALUES[name])
    found = load_arrays(tmp_path / "p")
    assert same(found, VALUES[name])
    for value in found.values():
        assert not isinstance(value, np.ndarray) or (
            value.flags.writeable and value.flags.owndata and value.dtype.isnative
        )


def test_what_python_2_writes_is_read():
    """OrderedDict by its pairs, texts as bytes, numbers behind 1."""
    data = HEAD + b"}q\x01U\x01aq\x02ccollections\nOrderedDict\nq\x03]q\x04]q\x05(U\x01bq\x06K\x05ea\x85q\x07Rq\x08s."
    assert unpickling.load(data) == {"a": Ordered(b=5)}


def test_many_arrays_are_no_bomb():
    many = {f"fc_{i}.w_0_beta1_pow_acc_0": np.ones(1, "float32") for i in range(4500)}
    for protocol in (2, 4):
        data = pickle.dumps(many, protocol)
        assert len(data) > 1 << 18 and len(unpickling.load(data)) == 4500


def test_time_grows_with_size():
    """Sixteen times the arrays: sixteen times the instructions, and no more than that in time (as
    CPU time, generously).
    """

    def seconds(count):
        out = io.BytesIO()
        pickle.Pickler(out, 2).dump({str(i): np.ones(1) for i in range(count)})
        best = []
        for _ in range(3):
            started = time.thread_time()
            unpickling.load(out.getvalue())
            best.append(time.thread_time() - started)
        return min(best)

    assert seconds(1600) < 16 * 4 * seconds(100)

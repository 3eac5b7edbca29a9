"""Pickles of arrays (.pdparams, .pdopt)."""

import pickle
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jfluid import errors
from jfluid.files import unpickling
from jfluid.files.pickled import load_arrays
from tests.fuzz.harness import Refusal, fuzzed, grows_linearly, mutated, reads_or_refuses
from tests.hostile_pickles import BEGIN, hostile

VALUES = {
    "fc_0.w_0": np.arange(6, dtype="float32").reshape(2, 3),
    "b": np.zeros((0, 4)),
    "s": np.float32(1),
    "f": np.asfortranarray(np.ones((2, 2))),
    "n": [1, (2.5, None, True)],
    "o": OrderedDict(x=b"\xff\0", y="é" * 9),
}
SEEDS = [pickle.dumps(VALUES, protocol) for protocol in (2, 3, 4)] + [pickle._dumps(VALUES, 2)]
CODES = bytes(sorted(unpickling._INSTRUCTIONS)) + b".I0QPiolV\x81\x85\x92\x96\x97\x98"


@st.composite
def programs(draw):
    """Instructions one after the other, with arguments that may fit."""
    data = bytearray(BEGIN if draw(st.booleans()) else b"\x80\x02")
    for _ in range(draw(st.integers(1, 60))):
        code = draw(st.sampled_from(CODES))
        data.append(code)
        instruction = unpickling._INSTRUCTIONS.get(code)
        if instruction is None:
            continue
        if code == ord("c"):
            data += b"%s\n%s\n" % draw(
                st.sampled_from(
                    [(m.encode(), n.encode()) for m, n in unpickling._NAMES]
                    + [(b"os", b"system"), (b"builtins", b"eval")]
                )
            )
        elif instruction.layout is not None:
            content = draw(st.binary(max_size=12)) if instruction.sized else b""
            largest = 2 ** (8 * instruction.layout.size - 1) - 1
            number = (
                len(content)
                if instruction.sized and draw(st.integers(0, 9))
                else draw(st.sampled_from([0, 1, 2, 3, 5, 100, largest]))
            )
            data += instruction.layout.pack(number) + content
    return bytes(data + b"s." * draw(st.booleans()) + b".")


@fuzzed(120)
@given(st.one_of(mutated(SEEDS), programs(), mutated(list(hostile(200).values()))))
def test_bytes(data):
    found = reads_or_refuses(unpickling.load, data, unpickling.RefusedPickle)
    if not isinstance(found, Refusal):
        str(found)


@pytest.mark.parametrize("name", hostile(10))
def test_seeds(name, tmp_path):
    data = hostile(20_000)[name]
    (tmp_path / "p.pdparams").write_bytes(data)
    found = reads_or_refuses(load_arrays, tmp_path / "p.pdparams", errors.FileFormatError, len(data))
    assert not isinstance(found, Refusal) or "p.pdparams" in str(found.error)


ATOMS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=9),
    st.binary(max_size=9),
    st.none(),
    st.booleans(),
)
TREES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.tuples(inner, inner)),
    max_leaves=12,
)


@fuzzed(40)
@given(st.dictionaries(st.text(max_size=8), TREES, max_size=6), st.sampled_from([2, 3, 4]))
@example({"a": [-0.0, 2**63 - 1, -(2**63)]}, 2)
def test_what_is_no_bomb_is_read(value, protocol):
    assert repr(unpickling.load(pickle.dumps(value, protocol))) == repr(value)


@pytest.mark.parametrize(
    "name",
    [
        "empty lists",
        "shared lists",
        "one text, encoded again and again",
        "nested tuples",
        "marks",
        "remembered and used",
        "small numbers",
    ],
)
def test_time(name):
    grows_linearly(unpickling.load, lambda size: hostile(size)[name], 3000, unpickling.RefusedPickle)


def test_time_of_arrays():
    def many(size):
        return pickle.dumps({str(i): np.ones(1) for i in range(size)}, 2)

    grows_linearly(unpickling.load, many, 60, unpickling.RefusedPickle)

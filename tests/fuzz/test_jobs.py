"""Job files."""

import pytest
from hypothesis import example, given

from jfluid.job import JobError, read_job
from tests.fuzz.harness import Refusal, fuzzed, grows_linearly, mutated, reads_or_refuses

SEEDS = [
    b"""name: a
mode: ps
script: s.py
args: {epochs: 10, lr: 1e-3, sizes: [1, 2]}
env: {A: 2}
servers: 2
trainers: ["h:1", "h:2"]
snapshots: {folder: /x, every_s: 6.5}
restarts: {servers: 1}
stall_timeout: 5
""",
    b"script: s.py\nargs: [1, 'x', \"y\\n\", ~, 0x1F]\nmode: collective\ngpus: [0, 1]\n",
    b"script: s.py\nargs:\n- |\n  text\n- >-\n  x\n",
]
# PyYAML notes of each word where it stands, and keeps it in several forms: some hundred times its
# size.
FACTOR, FLOOR = 600, 2_000_000


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("fuzz"))
        with open("s.py", "w"):
            pass
        yield


def read(data):
    with open("j.yaml", "wb") as file:
        file.write(data)
    job = read_job("j.yaml")
    job.command()
    return job


@fuzzed(100)
@given(mutated(SEEDS))
@example(b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n")
@example(b"script: s.py\nargs: {n: 0x" + b"f" * 5000 + b"}\n")
@example(b"script: s.py\nargs: " + b"[" * 3000)
@example(b"script: s.py\nargs: " + b"{a: " * 3000)
@example(b"- " * 3000)
@example(b"? " * 3000)
@example(b"script: s.py\nscript: s.py\n")
@example(b"script: " + b"s" * 5000 + b"\n")
@example(b"\xef\xbb\xbfscript: s.py\n")
@example(b"script: !!python/object/apply:os.system [true]\n")
def test_files(data):
    found = reads_or_refuses(read, data, JobError, floor=FLOOR, factor=FACTOR)
    assert not isinstance(found, Refusal) or "j.yaml" in str(found.error)


@pytest.mark.parametrize("text", [b"- a\n", b"a, ", b"[", b"'", b"# \n", b"a: 1\n", b"\n ", b"&a "])
def test_time(text):
    grows_linearly(read, lambda size: text * size, 40, JobError)

"""The memory of a step is there for the next one."""

import ctypes
import platform
import resource
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

from jfluid.distributed.wire.connections import TrainerConnection
from jfluid.host import heap
from jfluid.ps_server import client


@pytest.fixture
def given(monkeypatch):
    """The options that the allocator is given."""
    options = {}
    library = types.SimpleNamespace(mallopt=options.__setitem__)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    for name in heap._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return options


def test_steps_keep_larger_blocks_than_messages(given):
    heap.keep_for_messages()
    messages = dict(given)
    heap.keep_for_steps()
    assert messages == {-3: 4 << 20, -1: 64 << 20}
    assert given == {-3: 1 << 30, -1: 1 << 30, -8: 1}


def test_what_a_user_has_chosen_stays(given, monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    heap.keep_for_steps()
    assert given == {}


def test_another_c_library_is_left_alone(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    heap.keep_for_steps()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: types.SimpleNamespace())
    heap.keep_for_messages()
    heap.give_back()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the options are glibc's")
def test_a_freed_block_is_taken_again_without_page_faults(monkeypatch):
    for name in heap._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    heap.keep_for_steps()

    def faults():
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        np.empty(48 << 20, np.uint8).fill(1)
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    # 12288 pages each time if the block went back to the system.
    assert min(faults() for _ in range(5)) < 1000


BETWEEN = """
import resource
import numpy as np
from jfluid.host import heap

def resident():
    page = resource.getpagesize()
    with open("/proc/self/pagemap", "rb") as file:
        file.seek((address // page + 16) * 8)
        return bool(int.from_bytes(file.read(8), "little") >> 63)

heap.keep_for_steps()
blocks = [np.ones(1 << 20, np.uint8) for _ in range(64)]
address = blocks[31].ctypes.data
del blocks[:-1]  # the last one keeps the heap as long as it is
print(resident())
heap.give_back()
print(resident())
"""


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the options are glibc's")
def test_what_is_free_between_blocks_goes_back_to_the_system(monkeypatch):
    for name in heap._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    # Another process: the threads of other tests could take the free pages.
    found = subprocess.run([sys.executable, "-c", BETWEEN], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "False"]


# Resident KiB of the code of XLA's library before and after, and whether XLA still compiles.
CODE = """
import jax
from jfluid.host import heap

def resident():
    found, inside = 0, False
    for line in open("/proc/self/smaps"):
        words = line.split()
        if not words[0].endswith(":"):
            inside = words[1] == "r-xp" and words[-1].endswith("/libjax_common.so")
        elif inside and words[0] == "Rss:":
            found += int(words[1])
    return found

jax.jit(lambda x: x @ x + 1)(jax.numpy.ones((4, 4)))
before = resident()
heap.give_back_code()
print(before, resident())
assert jax.jit(lambda x: x @ x + 2)(jax.numpy.ones((4, 4)))[0, 0] == 6
"""


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells the resident pages")
def test_the_code_of_compilers_leaves_the_resident_memory_and_runs_again():
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    before, after = map(int, found.stdout.split())
    assert after < before // 2


def test_code_that_a_debugger_has_changed_stays(monkeypatch, tmp_path):
    maps = tmp_path / "smaps"
    lines = []
    places = [
        ("1000-3000 r-xp 00000000 08:01 5 /lib/libjax_common.so", 0),
        ("3000-4000 r--p 00000000 08:01 5 /lib/libjax_common.so", 0),
        ("5000-6000 r-xp 00000000 08:01 6 /lib/libllvmlite.so", 4),
        ("6000-7000 r-xp 00000000 08:01 7 /lib/libc.so.6", 0),
        ("8000-9000 rw-p 00000000 00:00 0", 0),
    ]
    for place, private in places:
        lines += [place, "Rss:  4 kB", f"Anonymous:  {private} kB", "VmFlags: rd ex mr"]
    maps.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(heap, "_SMAPS", str(maps))
    assert heap._code_of_compilers() == [(0x1000, 0x2000)]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the options are glibc's")
def test_free_memory_goes_back_while_a_compilation_runs(monkeypatch):
    given, trimmed = [], threading.Event()
    library = types.SimpleNamespace(malloc_trim=lambda pad: given.append(pad) or trimmed.set())
    monkeypatch.setattr(heap, "_allocator", lambda: library)
    monkeypatch.setattr(heap, "_BETWEEN", 0.001)
    with heap.kept_small():
        assert trimmed.wait(60)
    assert set(given) == {0}
    assert "jfluid-trim" not in {thread.name for thread in threading.enumerate()}


def test_a_compilation_without_a_return_of_memory_still_runs(monkeypatch):
    monkeypatch.setattr(heap, "_allocator", types.SimpleNamespace)  # another C library
    with heap.kept_small():
        assert "jfluid-trim" not in {thread.name for thread in threading.enumerate()}


BESIDE = """
import ctypes
import time
from jfluid.host import heap

library = ctypes.CDLL("libc.so.6")
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
heap.keep_for_steps()
small = library.malloc(64)

def is_of_heap():
    return abs(library.malloc(8 << 20) - small) < 1 << 30

print(is_of_heap())
with heap.kept_small():
    print(is_of_heap())  # a short compilation changes nothing
    deadline = time.monotonic() + 60
    while is_of_heap() and time.monotonic() < deadline:
        time.sleep(0.1)
    print(is_of_heap())
print(is_of_heap(), heap.keeps_blocks())
"""


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's heap")
def test_large_arrays_beside_a_compilation_are_no_part_of_the_heap():
    found = subprocess.run([sys.executable, "-c", BESIDE], capture_output=True, text=True, check=True)
    assert found.stdout == "True\nTrue\nFalse\nTrue True\n"


# What a program does before its steps, and True if the heap of the steps may then be of huge pages.
BEFORE = {
    "": True,
    "import resource; resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, -1))": False,
    "import os; os.environ['MALLOC_ARENA_MAX'] = '1'": False,
}
# Forks a process for each argument. Each prints True if the heap that a small block is taken from may be of huge pages.
_ADVISED = """
import ctypes, os, sys
from jfluid.host import heap
from jfluid.distributed.wire.connections import TrainerConnection
from jfluid.ps_server import client

def advised():
    heap.keep_for_steps()
    heap.give_back()
    block = (ctypes.c_char * (4 << 20))()
    address, inside = ctypes.addressof(block) + (2 << 20), False
    for line in open("/proc/self/smaps"):
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            start, end = (int(n, 16) for n in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            return "hg" in rest

for before in sys.argv[1:]:
    if not os.fork():
        exec(before)
        print(advised(), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.process
@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not Path("/sys/kernel/mm/transparent_hugepage").exists(),
    reason="the heap is glibc's, and huge pages Linux's",
)
def test_the_heap_of_steps_is_of_huge_pages_unless_addresses_are_limited_or_a_user_has_chosen(monkeypatch):
    for name in heap._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _ADVISED, *BEFORE], capture_output=True, text=True)
    assert done.stdout.split() == [str(advised) for advised in BEFORE.values()], done.stderr


def test_a_trainer_has_its_steps_heap_before_its_client_starts_threads(monkeypatch):
    order = []
    monkeypatch.setenv("JFLUID_JOB_TOKEN", "0123456789-token-of-the-tests")
    monkeypatch.setattr(heap, "keep_for_steps", lambda: order.append("heap"))
    monkeypatch.setattr(client, "Client", lambda *_, **__: order.append("client"))
    TrainerConnection(["127.0.0.1:1"], 0)
    assert order == ["heap", "client"]


APART = """
import ctypes
from jfluid.host import heap

library = ctypes.CDLL("libc.so.6")
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
heap.keep_for_steps()
if {apart}:
    heap.set_apart()
block = library.malloc(300 << 20)
library.malloc(64)  # between the block and the end of the heap
library.free(block)
small = library.malloc(5 << 20)
print(block <= small < block + (300 << 20))
"""


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's heap")
@pytest.mark.parametrize("apart", [False, True])
def test_what_comes_between_steps_leaves_their_block_whole(apart):
    script = APART.format(apart=apart)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == f"{not apart}\n"


FREE = """
import ctypes
from jfluid.host import heap

library = ctypes.CDLL("libc.so.6")
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
size = 300 << 20
print(heap.keeps_blocks())
heap.keep_for_steps()
print(heap.keeps_blocks())
before = heap.used_bytes()
block = library.malloc(size)
library.malloc(64)  # between the block and the end of the heap
library.memset(block, 1, size)
print(heap.used_bytes() - before >= size, heap.holds_free(size))
library.free(block)
print(heap.used_bytes() - before < size, heap.holds_free(size), heap.holds_free(size + (1 << 20)))
heap.give_back()
print(heap.holds_free(size))
"""


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's heap")
def test_the_heap_tells_whether_a_block_would_be_new_memory(monkeypatch):
    for name in heap._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    found = subprocess.run([sys.executable, "-c", FREE], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "True", "True", "False", "True", "True", "False", "False"]

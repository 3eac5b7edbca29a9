"""Pickles of a few bytes that stand for much, or for what no file of arrays needs."""

import struct

HEAD = b"\x80\x02"
BEGIN = HEAD + b"}X\x01\x00\x00\x00a"  # a dict, and its key "a"; after a value follows b"s."
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
U1, F4 = (b"cnumpy\ndtype\nU\x02" + name + b"K\x00K\x01\x87R\x89" for name in (b"u1", b"f4"))


def _tenfold(begin: bytes, end: bytes) -> bytes:
    """Containers within containers: each holds ten times the one before it."""
    return b"".join(
        begin + b"".join(b"h" + bytes([i]) for _ in range(10)) + end + b"q" + bytes([i + 1]) for i in range(9)
    )


LISTS = b"(]q\x00" + _tenfold(b"](", b"e") + b"t"
TUPLES = b"()q\x00" + _tenfold(b"(", b"t") + b"t"


def _sized(code: bytes, content: bytes) -> bytes:
    return code + struct.pack("<I", len(content)) + content


def hostile(size: int) -> dict[str, bytes]:
    """Pickles by name; those that repeat something do it `size` times."""
    text = b"x" * (size // 10)
    return {
        "lists of lists": BEGIN + LISTS + b"s.",
        "lists of lists, popped": BEGIN + b"]q\x00" + _tenfold(b"0](", b"e") + b"s.",
        "tuples of tuples": BEGIN + TUPLES + b"s.",
        "a key of tuples": BEGIN + b"}" + TUPLES + b"K\x01ss.",
        "a dtype of lists": BEGIN + b"cnumpy\ndtype\n" + LISTS + b"\x85Rs.",
        "an encoding of lists": BEGIN + b"c_codecs\nencode\nU\x01a" + LISTS + b"\x86Rs.",
        "remembered as 2**27": HEAD + b"}r\xff\xff\xff\x07.",
        "number 2**27": HEAD + b"}j\xff\xff\xff\x07.",
        "empty lists": BEGIN + b"(" + b"]" * size + b"ts.",
        "empty dicts": BEGIN + b"(" + b"}" * size + b"ts.",
        "marks": BEGIN + b"(" * size + b"t" * size + b"s.",
        "nested tuples": BEGIN + b"N" + b"\x85" * size + b"s.",
        "nested lists": BEGIN + b"]" * size + b"a" * (size - 1) + b"s.",
        "small numbers": BEGIN + b"(" + b"M\x00\x01" * size + b"ts.",
        "remembered and used": b"\x80\x04}" + b"\x94" * size + b"h\x01.",
        "shared lists": BEGIN
        + b"("
        + b"".join(b"]r" + struct.pack("<I", i) + b"j" + struct.pack("<I", i) for i in range(size // 10))
        + b"ts.",
        "one text, ordered again and again": BEGIN
        + b"ccollections\nOrderedDict\nq\x00]("
        + b"".join(b"K" + bytes([i]) + b"K\x01\x86" for i in range(200))
        + b"e\x85q\x010("
        + b"h\x00h\x01R" * (size // 20)
        + b"ts.",
        "pairs, ordered again and again": BEGIN
        + b"(ccollections\nOrderedDict\nq\x00]("
        + b"".join(b"K" + bytes([i]) + b"K\x01\x86" for i in range(200))
        + b"e\x85q\x01"
        + b"h\x00h\x01R" * (size // 20)
        + b"ts.",
        "one text, encoded again and again": BEGIN
        + b"(c_codecs\nencode\nq\x00"
        + _sized(b"X", text)
        + b"\x85q\x01"
        + b"h\x00h\x01R" * (size // 5)
        + b"ts.",
        "one text, in many arrays": BEGIN
        + b"("
        + ARRAY
        + b"(K\x01J"
        + struct.pack("<i", len(text))
        + b"\x85"
        + U1
        + _sized(b"B", text)
        + b"tq\x01b"
        + (ARRAY + b"h\x01b") * (size // 50)
        + b"ts.",
        "truncated": HEAD + b"B\xff\xff\xff\x7f",
        "truncated by 2**63": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.",
        "a negative length": HEAD + b"T\xff\xff\xff\xff.",
        "a large number": BEGIN + _sized(b"\x8b", b"\x7f" * size) + b"s.",
        "a dict in itself": HEAD + b"}q\x00X\x01\x00\x00\x00ah\x00s.",
        "a list in itself": BEGIN + b"]q\x00h\x00as.",
        "no contents": BEGIN + ARRAY + b"s.",
        "impossible dimensions": BEGIN
        + ARRAY
        + b"(K\x01K\x00"
        + b"\x8a\x08"
        + b"\0" * 7
        + b"\x40"
        + b"\x8a\x08"
        + b"\0" * 7
        + b"\x40\x87"
        + F4
        + b"C\x00tbs.",
        "too many dimensions": BEGIN + ARRAY + b"(K\x01(" + b"K\x01" * 100 + b"t" + U1 + b"C\x01xtbs.",
        "a damaged text": BEGIN + b"X\x02\x00\x00\x00\xff\xffs.",
        "an instruction of protocol 0": HEAD + b"I" + b"1" * size + b"\n.",
        "protocol 9": b"\x80\x09}.",
        "a list as a dict": HEAD + b"]K\x00K\x01s.",
        "a dict as a list": HEAD + b"}K\x01a.",
        "a mark in the middle": HEAD + b"}(K\x01s.",
        "nothing": HEAD + b".",
        "two": HEAD + b"}}.",
        "a function": BEGIN + b"cposix\nsystem\nU\x04true\x85Rs.",
    }

"""Programs to and from ProgramDesc bytes, held against files that the real Fluid wrote."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.ir import framework_pb2 as pb
from jfluid.ir.block import Block
from jfluid.ir.types import VarType
from tests.measured import call_within

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "golden" / "models"
FILES = ["separate/__model__", "combined/model", "state/net.pdmodel", "control_flow.program"]


def explicit(data: bytes) -> pb.ProgramDesc:
    """The message with fields at their defaults set: Fluid's own writers set them now and then."""
    desc = pb.ProgramDesc.FromString(data)
    for block in desc.blocks:
        block.forward_block_idx = block.forward_block_idx
        for var in block.vars:
            var.persistable, var.need_check_feed = var.persistable, var.need_check_feed
            for holder in ("lod_tensor", "tensor_array"):
                if var.type.HasField(holder):
                    getattr(var.type, holder).lod_level = getattr(var.type, holder).lod_level
        for op in block.ops:
            op.is_target = op.is_target
    return desc


@pytest.mark.parametrize("name", FILES)
def test_a_program_of_fluid_is_written_back_as_it_was_read(name):
    data = (MODELS / name).read_bytes()
    program = fluid.Program.parse_from_string(data)
    written = program.serialize_to_string()
    assert explicit(written) == explicit(data)
    assert fluid.Program.parse_from_string(written).serialize_to_string() == written
    assert program.clone().serialize_to_string() == written


def test_what_is_read_is_what_fluid_had():
    program = fluid.Program.parse_from_string((MODELS / "control_flow.program").read_bytes())
    block = program.global_block()
    assert [b.parent_idx for b in program.blocks] == [-1, 0, 1, 1]
    words, weight = block.var("words"), block.var("embedding_0.w_0")
    assert (words.shape, words.dtype, words.lod_level, words.persistable) == (
        (-1, 1),
        VarType.INT64,
        2,
        False,
    )
    assert (weight.shape, weight.persistable) == ((50, 4), True)
    assert block.var("embedding_0.w_0@GRAD").type == VarType.SELECTED_ROWS
    assert block.var("array_0.out").type == VarType.LOD_TENSOR_ARRAY
    loop = next(op for op in block.ops if op.type == "while")
    assert isinstance(loop.attrs["sub_block"], Block) and loop.attrs["sub_block"] is program.block(1)
    assert loop.attr_type("sub_block") == "BLOCK"
    values = next(op for op in block.ops if op.type == "assign_value")
    assert values.attrs["fp32_values"] == (0.0, 1.0, 2.0, 3.0, 4.0, 5.0) and values.attrs["shape"] == (2, 3)
    assert block.var("reader_reader").type == VarType.READER


def test_every_kind_of_attribute_survives():
    desc = pb.ProgramDesc()
    desc.blocks.add(idx=0, parent_idx=-1)
    desc.blocks.add(idx=1, parent_idx=0)
    desc.blocks.add(idx=2, parent_idx=0)
    op = desc.blocks[0].ops.add(type="unheard_of")
    for kind, value in {
        "i": -3,
        "f": 0.5,
        "s": "text",
        "b": True,
        "l": 2**40,
        "block_idx": 1,
        "ints": [1, -2],
        "floats": [0.25],
        "strings": ["a", "b"],
        "bools": [True, False],
        "longs": [2**40],
        "blocks_idx": [1, 2],
    }.items():
        attr = op.attrs.add(name=kind)
        attr.type = {
            "i": pb.INT,
            "f": pb.FLOAT,
            "s": pb.STRING,
            "b": pb.BOOLEAN,
            "l": pb.LONG,
            "block_idx": pb.BLOCK,
            "ints": pb.INTS,
            "floats": pb.FLOATS,
            "strings": pb.STRINGS,
            "bools": pb.BOOLEANS,
            "longs": pb.LONGS,
            "blocks_idx": pb.BLOCKS,
        }[kind]
        if isinstance(value, list):
            getattr(attr, kind).extend(value)
        else:
            setattr(attr, kind, value)
    op.attrs.add(name="empty", type=pb.LONGS)
    program = fluid.Program.parse_from_string(desc.SerializeToString())
    attrs = program.global_block().ops[0].attrs
    assert attrs["ints"] == (1, -2) and attrs["l"] == 2**40 and attrs["empty"] == ()
    assert attrs["block_idx"] is program.block(1) and attrs["blocks_idx"] == (
        program.block(1),
        program.block(2),
    )
    again = pb.ProgramDesc.FromString(program.serialize_to_string())
    assert again.blocks[0].ops == desc.blocks[0].ops


def test_programs_made_here_carry_their_defaults_and_the_release():
    block = fluid.default_main_program().global_block()
    block.create_var(name="x", shape=[-1, 4], dtype="float32", need_check_feed=True)
    block.append_op("scale", {"X": "x"}, {"Out": "y"}, {"scale": 2.0})
    desc = pb.ProgramDesc.FromString(fluid.default_main_program().serialize_to_string())
    attrs = {a.name: a for a in desc.blocks[0].ops[0].attrs}
    assert attrs["scale"].f == 2.0 and attrs["bias_after_scale"].b is True and attrs["op_role"].i == 0
    assert attrs["op_callstack"].strings[-1].strip().startswith("File")
    assert desc.version.version == 1008005 and desc.blocks[0].vars[0].need_check_feed
    block.ops[0].attrs["scale"] = "two"
    with pytest.raises(
        errors.AttributeTypeError, match="operator scale, attribute scale: 'two' cannot be stored as FLOAT"
    ):
        fluid.default_main_program().serialize_to_string()


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda d: d.ClearField("blocks"), "no blocks"),
        (
            lambda d: setattr(d.blocks[0].ops[0], "type", ""),
            "operator 0 of block 0 of the program has no type",
        ),
        (lambda d: setattr(d.blocks[1], "idx", 5), "block 1 of the program calls itself 5"),
        (lambda d: setattr(d.blocks[1], "parent_idx", 2), "block 1 of the program names block 2"),
        (
            lambda d: setattr(d.blocks[2], "forward_block_idx", 9),
            "block 2 of the program names block 9",
        ),
        (lambda d: d.blocks[0].vars.append(d.blocks[0].vars[0]), "twice"),
        (
            lambda d: next(v for v in d.blocks[0].vars if v.name == "words").type.lod_tensor.tensor.dims.append(-7),
            "variable words has an impossible shape",
        ),
        (
            lambda d: setattr(
                next(a for op in d.blocks[0].ops for a in op.attrs if a.type == pb.BLOCK),
                "block_idx",
                99,
            ),
            "operator while of block 0 names block 99",
        ),
    ],
)
def test_messages_that_contradict_themselves_are_refused(change, text):
    desc = pb.ProgramDesc.FromString((MODELS / "control_flow.program").read_bytes())
    change(desc)
    with pytest.raises(errors.FileFormatError, match=text):
        fluid.Program.parse_from_string(desc.SerializeToString())


def described(fill):
    """The bytes of a program whose global block `fill` has filled."""
    desc = pb.ProgramDesc()
    fill(desc.blocks.add(idx=0, parent_idx=-1), desc)
    return desc.SerializeToString()


@pytest.mark.parametrize(
    "fill",
    [
        lambda block, desc: block.ops.add(type="NAME"),
        lambda block, desc: block.ops.add(type="r").inputs.add(parameter="NAME"),
        lambda block, desc: block.ops.add(type="r").outputs.add(parameter="Out", arguments=["NAME"]),
        lambda block, desc: block.ops.add(type="r").attrs.add(name="NAME", type=pb.INT),
        lambda block, desc: block.ops.add(type="r").attrs.add(name="a", type=pb.STRING, s="NAME"),
        lambda block, desc: block.ops.add(type="r").attrs.add(name="a", type=pb.STRINGS, strings=["b", "NAME"]),
        lambda block, desc: setattr(block.vars.add(name="NAME").type, "type", pb.VarType.RAW),
    ],
)
def test_names_that_are_no_text_are_refused(fill):
    assert fluid.Program.parse_from_string(described(fill)).num_blocks == 1
    with pytest.raises(errors.FileFormatError, match=r"a name or text of the program is no UTF-8: b'\\xff\\xfeME'"):
        fluid.Program.parse_from_string(described(fill).replace(b"NAME", b"\xff\xfeME"))


def test_where_an_operator_was_made_may_have_any_name():
    """Folders of Python 2 were called as their users liked."""
    data = described(
        lambda block, desc: block.ops.add(type="r").attrs.add(name="op_callstack", type=pb.STRINGS, strings=["NAME"])
    )
    program = fluid.Program.parse_from_string(data.replace(b"NAME", b"\xd6\xd0\xce\xc4"))
    assert program.global_block().ops[0].attrs["op_callstack"] == (r"\xd6\xd0\xce\xc4",)
    assert fluid.Program.parse_from_string(program.serialize_to_string()).num_blocks == 1


def test_blocks_lie_in_few_others_and_many_names_cost_no_more_than_few():
    def nested(depth, names=0):
        def fill(block, desc):
            for i in range(1, depth):
                block = desc.blocks.add(idx=i, parent_idx=i - 1)
            block.ops.add(type="relu").outputs.add(parameter="Out", arguments=["none"] * names)

        return described(fill)

    assert fluid.Program.parse_from_string(nested(60, 3000)).num_blocks == 60
    with pytest.raises(errors.FileFormatError, match="block 65 of the program is nested in more than 64 blocks"):
        fluid.Program.parse_from_string(nested(100, 30_000))


@pytest.mark.parametrize(
    "name",
    [
        "blocks",
        "variables",
        "operators",
        "slots",
        "attributes",
        "texts",
        "in a reader",
        "versions",
        "unknown",
        "compatible",
    ],
)
def test_many_small_parts_are_refused_before_they_are_made(name):
    """Two bytes of a file, hundreds of memory."""
    count = 100_000

    def part(number, data):
        size, length = len(data), bytearray()
        while size > 127:
            length.append(size & 127 | 128)
            size >>= 7
        return bytes([number << 3 | 2, *length, size]) + data

    def block(data):
        return part(1, b"\x08\x00\x10" + b"\xff" * 9 + b"\x01" + data)

    def attribute(data):
        return block(part(4, b"\x1a\x01r" + part(4, b"\x0a\x01a\x10\x05" + data)))

    data = {
        "blocks": part(1, b"") * count,
        "variables": block(part(3, b"") * count),
        "operators": block(part(4, b"") * count),
        "slots": block(part(4, b"\x1a\x01r" + part(1, b"") * count)),
        "attributes": block(part(4, b"\x1a\x01r" + part(4, b"") * count)),
        "texts": attribute(part(8, b"") * count),
        "in a reader": block(part(3, b"\x0a\x01a" + part(2, b"\x08\x0f" + part(5, part(1, b"") * count)))),
        "versions": part(4, b"") * count,
        "unknown": b"\x78\x01" * count,
        "compatible": part(3, part(1, b"") * count),
    }[name]

    def refuse():
        with pytest.raises(errors.FileFormatError, match="the program would take more than|more than 1000 parts"):
            fluid.Program.parse_from_string(data)

    call_within(refuse, peak=10 * len(data) + 500_000)


def test_bytes_that_are_no_program_are_refused():
    data = (MODELS / "combined" / "model").read_bytes()
    bad = [
        b"\x00" * 10,
        b"not a program",
        b"\xff" * 40,
        data[:-3],
        data[5:],
        data.replace(b"conv2d", b"\xff\xfe\xfdv2d"),
    ]
    for case in [*bad, *(data[:n] for n in range(1, len(data), 97))]:
        with pytest.raises(errors.FileFormatError):
            fluid.Program.parse_from_string(case)


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
def test_generating_the_messages_and_their_stubs_again_changes_nothing():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gen_proto.py", "--check"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr

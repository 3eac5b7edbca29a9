"""Programs: ProgramDesc messages of files (__model__, .pdmodel)."""

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import jfluid as fluid
from jfluid import errors
from jfluid.compile.lowering.plan import plan
from jfluid.files.saved_model import columns
from jfluid.ir import framework_pb2 as pb
from jfluid.ir.program import Program
from tests.fuzz import hostile_programs
from tests.fuzz.harness import Refusal, fuzzed, grows_linearly, mutated, reads_or_refuses

MODELS = Path(__file__).parents[1] / "golden" / "models"
SEEDS = [(MODELS / name).read_bytes() for name in ("separate/__model__", "state/net.pdmodel", "control_flow.program")]
NAMES = st.sampled_from(["a", "b", "", "X", "Out", "x" * 5000, "../w", "\0", "é", "op_callstack", "sub_block"])
NUMBERS = st.sampled_from([0, 1, 2, -1, -2, 2**31 - 1, -(2**31), 7])
LONGS = st.sampled_from([0, 1, -1, -2, 2**63 - 1, -(2**63), 2**40])
KINDS = st.sampled_from(sorted(pb.AttrType.values()))
TYPES = st.sampled_from(sorted(pb.VarType.Type.values()))


@st.composite
def programs(draw):
    """Messages whose fields fit the format, and may contradict each other."""
    desc = pb.ProgramDesc()
    for i in range(draw(st.integers(0, 4))):
        block = desc.blocks.add(
            idx=i if draw(st.integers(0, 9)) else draw(NUMBERS),
            parent_idx=(i - 1 if draw(st.integers(0, 9)) else draw(NUMBERS)),
        )
        for _ in range(draw(st.integers(0, 3))):
            var = block.vars.add(name=draw(NAMES), persistable=draw(st.booleans()))
            var.type.type = draw(TYPES)
            if draw(st.booleans()):
                var.type.lod_tensor.tensor.data_type = draw(TYPES)
                var.type.lod_tensor.tensor.dims.extend(draw(st.lists(LONGS, max_size=4)))
                var.type.lod_tensor.lod_level = draw(NUMBERS)
        for _ in range(draw(st.integers(0, 3))):
            op = block.ops.add(type=draw(NAMES))
            for slots in (op.inputs, op.outputs):
                for _ in range(draw(st.integers(0, 2))):
                    slots.add(parameter=draw(NAMES), arguments=draw(st.lists(NAMES, max_size=3)))
            for _ in range(draw(st.integers(0, 3))):
                op.attrs.add(
                    name=draw(NAMES),
                    type=draw(KINDS),
                    i=draw(NUMBERS),
                    f=draw(st.floats(width=32)),
                    s=draw(NAMES),
                    ints=draw(st.lists(NUMBERS, max_size=3)),
                    strings=draw(st.lists(NAMES, max_size=2)),
                    l=draw(LONGS),
                    block_idx=draw(NUMBERS),
                    blocks_idx=draw(st.lists(NUMBERS, max_size=2)),
                )
    return desc.SerializeToString()


def read_and_write(data):
    program = reads_or_refuses(Program.parse_from_string, data, errors.FileFormatError)
    if isinstance(program, Refusal):
        return
    try:
        written = program.serialize_to_string()
        program.to_string(False)
        assert Program.parse_from_string(written).serialize_to_string() == written
    except errors.JFluidError:
        pass  # what was read may be no program that can be written
    assert program.fingerprint and program.clone().num_blocks == program.num_blocks


@fuzzed(100)
@given(mutated(SEEDS))
@example(SEEDS[0].replace(b"conv2d", b"\xff\xfe\xfdv2d"))
@example(b"")
def test_files(data):
    read_and_write(data)


@fuzzed(100)
@given(programs())
def test_messages(data):
    read_and_write(data)


@fuzzed(50)
@given(st.data())
def test_damaged_messages(data):
    read_and_write(data.draw(mutated([data.draw(programs()) + b"\0"])))


@pytest.mark.parametrize("repeated", ["operators", "variables", "attributes", "whole numbers", "names"])
def test_time(repeated):
    def family(size):
        desc = pb.ProgramDesc()
        block = desc.blocks.add(idx=0, parent_idx=-1)
        if repeated == "operators":
            for _ in range(size // 20):
                block.ops.add(type="scale" * 60).outputs.add(parameter="Out", arguments=["none" * 50])
        elif repeated == "variables":
            for i in range(size // 20):
                block.vars.add(name=f"variable {i}" * 12).type.type = pb.VarType.RAW
        elif repeated == "attributes":
            attrs = block.ops.add(type="scale").attrs
            for i in range(size // 20):
                attrs.add(name=f"attribute {i}" * 5, type=pb.INT, i=i)
        elif repeated == "whole numbers":
            block.ops.add(type="scale").attrs.add(name="a", type=pb.INTS, ints=range(1000, 1000 + size))
        else:
            block.ops.add(type="scale").outputs.add(
                parameter="Out", arguments=[f"name {i}" * 4 for i in range(size // 10)]
            )
        return desc.SerializeToString()

    grows_linearly(Program.parse_from_string, family, 2000, errors.FileFormatError)


ALTERED = st.sampled_from(hostile_programs.ROLES).flatmap(
    lambda role: st.tuples(
        st.just(role),
        st.sampled_from(hostile_programs.attributes(role)),
        st.sampled_from(sorted(hostile_programs.VALUES)),
    )
)


def used(data):
    """Do with a program of others what is done with programs; only named errors come of it."""
    program = Program.parse_from_string(data)
    program.to_string(True, True)
    assert program.fingerprint and columns(program.clone())
    for use in (
        program.verify,
        lambda: program.clone(for_test=True),
        lambda: program._prune(["y"]),
    ):
        with contextlib.suppress(errors.JFluidError):
            use()
    return Program.parse_from_string(data)


@pytest.mark.parametrize("role", hostile_programs.ROLES)
def test_attributes_of_any_kind(role):
    values = sorted(hostile_programs.VALUES)
    for i, attribute in enumerate(hostile_programs.attributes(role)):
        for value in values[i % 3 :: 3]:
            with contextlib.suppress(errors.JFluidError):
                plan(used(hostile_programs.program(role, attribute, value)), ["x"], ["y"])


@fuzzed(40)
@given(ALTERED)
@example(("feed", "col", "text '1'"))
@example(("while", "sub_block", "int 1"))
@example(("gaussian_random", "shape", "text 'max'"))
@example(("fill_constant", "shape", f"longs {[2**63 - 1, -(2**63)]!r}"))
def test_runs_of_altered_programs(altered):
    data, shown = hostile_programs.program(*altered), io.StringIO()
    feed = {"x": np.ones((2, 4), np.float32)}
    with fluid.scope_guard(fluid.Scope()), contextlib.redirect_stdout(shown):
        try:
            fluid.Executor(fluid.CPUPlace()).run(used(data), feed, ["y"])
        except errors.JFluidError as error:
            shown.write(str(error))
    assert not {"\x1b", "\u202e"} & set(shown.getvalue())


@pytest.mark.parametrize("field, number", [("lod_level", -5), ("lod_level", 2**31 - 1), ("kind", 7)])
def test_variables_that_no_tensor_is(field, number):
    desc = pb.ProgramDesc()
    var = desc.blocks.add(idx=0, parent_idx=-1).vars.add(name="x")
    var.type.type = pb.VarType.LOD_TENSOR
    var.type.lod_tensor.tensor.data_type = number if field == "kind" else pb.VarType.FP32
    if field == "lod_level":
        var.type.lod_tensor.lod_level = number
    with pytest.raises(errors.FileFormatError, match="expected a type of numbers, and at most 64 levels"):
        Program.parse_from_string(desc.SerializeToString())

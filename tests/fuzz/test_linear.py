"""Time of what is done with programs and scripts of others grows as they do, and what cannot is bounded.

Growth is measured in calls of Python functions, which a busy machine does not change.
"""

import ast
import gc
import sys
from collections.abc import Callable

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.compile.lowering.expansion import Expansion
from jfluid.compile.lowering.lower import pairs_of
from jfluid.compile.lowering.plan import live_ops, plan
from jfluid.doctor import examine, python2
from jfluid.ir import framework_pb2 as pb
from jfluid.ir import nesting, printer, svg
from jfluid.ir.program import Program
from jfluid.ir.schema import MOST_GRADIENTS
from jfluid.ops import registry

layers = fluid.layers
PADDED = "n" * 150  # a program takes at most ten times its bytes


def calls(function: Callable[[], object]) -> int:
    """How many functions of Python are called."""
    count = 0

    def seen(frame, event, argument):
        nonlocal count
        count += event == "call"

    gc.disable()
    sys.setprofile(seen)
    try:
        function()
    except errors.JFluidError:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def grows_linearly(work: Callable[[int], Callable[[], object]], size: int) -> None:
    """Four times as much takes at most six times as many calls."""
    small, large = work(size), work(4 * size)
    calls(small)  # what is done once
    assert calls(large) <= 6 * calls(small) + 1000


def operator(block, type_, ins, outs):
    op = block.ops.add(type=type_)
    for slots, named in ((op.inputs, ins), (op.outputs, outs)):
        for slot, names in named.items():
            slots.add(parameter=slot, arguments=names)
    op.attrs.add(name="op_namescope", type=pb.STRING, s=PADDED)
    return op


def described(blocks: int = 1):
    desc = pb.ProgramDesc()
    for i in range(blocks):
        desc.blocks.add(idx=i, parent_idx=-1 if i == 0 else 0)
    for name in ("x", "y"):
        var = desc.blocks[0].vars.add(name=name)
        var.type.type = pb.VarType.LOD_TENSOR
        var.type.lod_tensor.tensor.data_type = pb.VarType.FP32
        var.type.lod_tensor.tensor.dims.extend([-1, 4])
    return desc


def conditional(block, number):
    op = operator(block, "conditional_block", {"Input": ["x"], "Cond": ["c"]}, {"Out": ["y"]})
    op.attrs.add(name="sub_block", type=pb.BLOCK, block_idx=number)
    op.attrs.add(name="is_scalar_condition", type=pb.BOOLEAN, b=True)


def of_operators(size):
    desc = described()
    for _ in range(size):
        operator(desc.blocks[0], "relu", {"X": ["x"]}, {"Out": ["y"]})
    return desc


def of_blocks(size):
    desc = described(size + 1)
    for i in range(1, size + 1):
        operator(desc.blocks[i], "relu", {"X": ["x"]}, {"Out": ["y"]})
        conditional(desc.blocks[0], i)
    return desc


def of_arguments(size):
    desc = described()
    operator(desc.blocks[0], "sum", {"X": ["x"] * size}, {"Out": ["y"]})
    return desc


def of_numbers(size):
    desc = described()
    op = operator(desc.blocks[0], "assign_value", {}, {"Out": ["y"]})
    op.attrs.add(name="shape", type=pb.INTS, ints=[size])
    op.attrs.add(name="dtype", type=pb.INT, i=5)
    op.attrs.add(name="fp32_values", type=pb.FLOATS, floats=[1.5] * size)
    return desc


DOORS = {
    "read": lambda data: Program.parse_from_string(data),
    "verified": lambda data: Program.parse_from_string(data).verify(),
    "printed": lambda data: Program.parse_from_string(data).to_string(True, True),
    "shown": lambda data: printer.program_to_code(Program.parse_from_string(data), True),
    "drawn": lambda data: svg.block_to_svg(Program.parse_from_string(data).global_block()),
    "cloned": lambda data: Program.parse_from_string(data).clone(for_test=True),
    "pruned": lambda data: Program.parse_from_string(data)._prune(["y"]),
    "hashed": lambda data: Program.parse_from_string(data).fingerprint,
    "planned": lambda data: plan(Program.parse_from_string(data), ["x"], ["y"]),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("family", [of_operators, of_blocks, of_arguments, of_numbers])
def test_programs(family, door):
    def work(size):
        data = family(size).SerializeToString()
        return lambda: DOORS[door](data)

    grows_linearly(work, 60)


def test_pairs_of_gradients():
    def work(size):
        desc = of_operators(size)
        for _ in range(size):
            operator(
                desc.blocks[0],
                "relu_grad",
                {"X": ["x"], "Out": ["y"], "Out@GRAD": ["y"]},
                {"X@GRAD": ["y"]},
            )
        items = live_ops(Program.parse_from_string(desc.SerializeToString()).global_block())
        assert len(pairs_of(items)) == size
        return lambda: pairs_of(items)

    grows_linearly(work, 100)


def nested(depth, kind="switch"):
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        x = fluid.data("x", [2, 4])
        out = layers.fill_constant([1], "float32", 0.0)
        total = layers.reduce_sum(x)
        holds = layers.less_than(out, total)

        def inside(rest):
            if not rest:
                layers.assign(layers.reduce_sum(x), out)
            elif kind == "switch":
                with layers.control_flow.Switch() as switch, switch.case(holds):
                    inside(rest - 1)
            else:
                i, end = layers.fill_constant([1], "int64", 0), layers.cast(total, "int64")
                goes_on = layers.less_than(i, end)
                with layers.While(goes_on).block():
                    inside(rest - 1)
                    layers.assign(end, i)
                    layers.less_than(i, end, cond=goes_on)

        def branch(rest):
            if not rest:
                return layers.reduce_sum(x)
            return layers.cond(holds, lambda: branch(rest - 1), lambda: layers.scale(total, 2.0))

        if kind == "cond":
            out = branch(depth)
        else:
            inside(depth)
    return main, out


def counting(monkeypatch):
    """A list that gets the operators that are lowered."""
    counted, count = [], Expansion.count
    monkeypatch.setattr(Expansion, "count", lambda self, op: (counted.append(op.type), count(self, op)))
    return counted


@pytest.mark.usefixtures("interpreted_steps")
@pytest.mark.parametrize("kind", ["switch", "cond", "while"])
def test_blocks_in_blocks(kind, monkeypatch):
    """Each is traced a few times, however deep it lies."""
    counted = counting(monkeypatch)

    def lowered(depth):
        counted.clear()
        main, out = nested(depth, kind)
        feed = {"x": np.ones((2, 4), np.float32)}
        (found,) = fluid.Executor(fluid.CPUPlace()).run(main, feed, [out])
        assert found == 8
        return len(counted)

    assert lowered(12) <= 5 * lowered(3)


@pytest.mark.usefixtures("interpreted_steps")
def test_the_deepest_blocks():
    main, out = nested(nesting.MOST_DEPTH)
    feed = {"x": np.ones((2, 4), np.float32)}
    assert fluid.Executor(fluid.CPUPlace()).run(main, feed, [out])[0] == 8
    with pytest.raises(errors.ProgramError, match="more than 64 blocks: nest fewer"):
        nested(nesting.MOST_DEPTH + 1)


def circle(*names):
    """Blocks of which each has an operator that names the next one."""
    desc = described(max(*names, *(b for a in [names] for b in a)) + 1)
    for i, number in enumerate(names):
        conditional(desc.blocks[i], number)
    return desc


def doubling():
    desc = described(61)
    for i in range(60):
        conditional(desc.blocks[i], i + 1)
        conditional(desc.blocks[i], i + 1)
    return desc


def deep():
    desc = described(80)
    for i in range(79):
        conditional(desc.blocks[i], i + 1)
    return desc


@pytest.mark.parametrize(
    "desc, says",
    [
        (circle(1, 1), "block 1 names an enclosing block"),
        (circle(1, 2, 1), "names an enclosing block"),
        (doubling(), "operators name blocks repeatedly"),
        (deep(), "blocks are nested deeper than 64"),
    ],
)
def test_blocks_that_are_refused(desc, says):
    with pytest.raises(errors.FileFormatError, match=says):
        Program.parse_from_string(desc.SerializeToString())


def test_a_circle_that_a_script_makes():
    main, out = nested(2)
    main.blocks[2].append_op(
        "conditional_block",
        {"Cond": main.global_block().ops[-1].input("Cond"), "Input": []},
        {"Out": []},
        {"sub_block": main.blocks[1], "is_scalar_condition": True},
    )
    for use in (main.verify, lambda: plan(main, ["x"], [out.name])):
        with pytest.raises(errors.ProgramError, match="names an enclosing block"):
            use()


@pytest.mark.usefixtures("interpreted_steps")
def test_loops_that_would_be_written_out(monkeypatch):
    """Loops of four iterations, each in the one before, would be 4 ** 5 bodies of the innermost."""
    counted = counting(monkeypatch)
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        out = layers.fill_constant([1], "float32", 0.0)

        def inside(rest):
            i, end = (layers.fill_constant([1], "int64", n) for n in (0, 4))
            goes_on = layers.less_than(i, end)
            with layers.While(goes_on).block():
                layers.increment(out)
                if rest:
                    inside(rest - 1)
                layers.increment(i)
                layers.less_than(i, end, cond=goes_on)

        inside(4)
    (found,) = fluid.Executor(fluid.CPUPlace()).run(main, fetch_list=[out])
    assert found == sum(4**n for n in range(1, 6))
    assert len(counted) < 1000  # of 9,500


def test_what_becomes_too_much():
    """Where all else fails, the operators of a trace are counted."""
    main, _ = nested(1)
    op, expansion = main.global_block().ops[0], Expansion()
    with pytest.raises(errors.UnsupportedError, match="blocks within blocks become more than 2"):
        for _ in range(30_000):
            expansion.count(op)


def test_gradients_of_gradients():
    assert registry.find("relu" + "_grad" * MOST_GRADIENTS) is not None
    for more in (1, 2, 800):
        assert registry.find("relu" + "_grad" * (MOST_GRADIENTS + more)) is None
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [2])
        x.stop_gradient = False
        y = layers.exp(x)
        with pytest.raises(errors.UnsupportedError, match="up to order 5"):
            for _ in range(MOST_GRADIENTS + 1):
                (y,) = fluid.gradients(y, x)


@pytest.mark.parametrize("piece, size", [(".a", 100), (".fc(1)", 60), ("[0]", 100), (" + fluid.a", 100)])
def test_chains_in_scripts(tmp_path, piece, size):
    def work(count):
        folder = tmp_path / str(count)
        folder.mkdir()
        text = "import paddle.fluid as fluid\nx = fluid.layers" + piece * count + "\n"
        (folder / "a.py").write_text(text)
        return lambda: examine([str(folder)])

    grows_linearly(work, size)


@pytest.mark.parametrize("piece", [".a", ".fc(1)", "[0]"])
def test_scripts_deeper_than_the_parser_goes(tmp_path, piece):
    script = tmp_path / "a.py"
    script.write_text("import paddle.fluid as fluid\nx = fluid.layers" + piece * 20_000 + "\n")
    (found,) = examine([str(script)]).findings
    assert found.code == "too-deep"


@pytest.mark.parametrize("piece", [".a", ".f(1)", "[0]"])
def test_chains_in_scripts_of_python_2(piece):
    text = "print 'x'\nx = f" + piece * 400 + "\n"
    with pytest.raises(errors.DataError, match="s:2: more than 32 names, calls or subscripts"):
        python2.converted(text, "s")
    assert ast.parse(python2.converted("print x" + ".a" * 20 + "\n", "s"))

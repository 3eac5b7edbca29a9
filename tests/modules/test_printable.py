"""Names and texts of others on a terminal, in errors, logs, drawings and metrics: nothing that it obeys."""

import io
import json
import logging
import sys
import warnings

import numpy as np
import pytest
from google.protobuf import text_format

import jfluid as fluid
from jfluid import debugger, errors
from jfluid.command import doctor, inspect
from jfluid.ir import framework_pb2 as pb
from jfluid.ir import graphviz, printer, svg
from jfluid.ir.program import Program
from jfluid.launch.logs import say
from jfluid.printable import printable, printable_json
from jfluid.progress import BarDisplay, LineDisplay

# clears the screen, sets a title, goes back, C1's introducer, DEL, turns text round, a new line, markup
HOSTILE = "\x1b[2J\x1b]0;t\x07a\rb\x08\x9b31m\x7f\u202eevil\u2066\u2028[red]\nfault: none"
OBEYED = set("\x1b\x07\r\x08\x9b\x7f\u202e\u2066\u2028")


def model():
    desc = pb.ProgramDesc()
    block = desc.blocks.add(idx=0, parent_idx=-1)
    for name, kind in (("feed", 9), ("fetch", 10), (HOSTILE, 7), (f"w{HOSTILE}", 7)):
        var = block.vars.add(name=name, persistable=kind != 7 or name[0] == "w")
        var.type.type = kind
        if kind == 7:
            var.type.lod_tensor.tensor.data_type = 5
            var.type.lod_tensor.tensor.dims.extend([-1, 4])
    for type_, ins, outs in (
        ("feed", ["feed"], [HOSTILE]),
        (HOSTILE, [HOSTILE], [HOSTILE]),
        ("fetch", [HOSTILE], ["fetch"]),
    ):
        op = block.ops.add(type=type_)
        op.inputs.add(parameter="X", arguments=ins)
        op.outputs.add(parameter="Out", arguments=outs)
        if type_ == HOSTILE:
            op.attrs.add(name=HOSTILE, type=pb.STRING, s=HOSTILE)
            op.attrs.add(name="op_callstack", type=pb.STRINGS, strings=[HOSTILE])
    return desc.SerializeToString()


def test_messages_stay_what_they_are():
    """The text of a program can be read again."""
    message = pb.ProgramDesc.FromString(model())
    shown = clean(Program.parse_from_string(model()).to_string(True))
    read = text_format.Parse(shown, pb.ProgramDesc())
    assert read.blocks[0].vars == message.blocks[0].vars
    assert read.blocks[0].ops[1] == message.blocks[0].ops[1]


def clean(text, lines=True):
    assert text and not OBEYED & set(text), repr(text)
    if not lines:
        assert "\n" not in text
    return text


def test_texts():
    assert printable("plain text, é, 名\tand\nlines") == "plain text, é, 名\tand\nlines"
    assert printable("\x1b[31m\x9b\u202e\ud800") == "\\x1b[31m\\x9b\\u202e\\ud800"
    assert printable("a\nb", lines=False) == "a\\nb"
    clean(printable(HOSTILE))
    assert json.loads(clean(printable_json(json.dumps([HOSTILE], ensure_ascii=False)))) == [HOSTILE]


PRINTERS = {
    "str": str,
    "details": lambda p: p.to_string(True, True),
    "operators": lambda p: repr(p.global_block().ops[1]),
    "operator": lambda p: str(p.global_block().ops[1]),
    "variable": lambda p: repr(p.global_block().vars[HOSTILE]) + str(p.global_block().vars[HOSTILE]),
    "code": lambda p: printer.program_to_code(p, True),
    "pprint": debugger.pprint_program_codes,
    "repr_op": lambda p: debugger.repr_op(p.global_block().ops[1]),
    "repr_var": lambda p: debugger.repr_var(p.global_block().vars[HOSTILE]),
    "message": lambda p: debugger.repr_var(p.global_block().vars[HOSTILE].to_message()),
    "dot": lambda p: graphviz.block_to_dot(p.global_block()),
    "svg": lambda p: svg.block_to_svg(p.global_block()),
}


@pytest.mark.parametrize("name", PRINTERS)
def test_programs(name):
    clean(PRINTERS[name](Program.parse_from_string(model())))


def test_errors():
    program = Program.parse_from_string(model())
    executor = fluid.Executor(fluid.CPUPlace())
    for use in (
        program.verify,
        lambda: executor.run(program, {HOSTILE: np.ones((1, 4), np.float32)}, [HOSTILE]),
        lambda: program.global_block().var(f"x{HOSTILE}"),
        lambda: program._prune([f"x{HOSTILE}"]),
    ):
        with pytest.raises(errors.JFluidError) as error:
            use()
        clean(str(error.value))
    for kind in errors.JFluidError, errors.NoSuchFileError, errors.DtypeError:
        clean(str(kind(HOSTILE)))
    long = str(errors.DataError("x" * 10**6))
    assert len(long) < 21_000 and "980000 characters" in long


@pytest.mark.parametrize("options", [[], ["--json"], ["--svg"]])
def test_inspect_and_doctor(options, tmp_path, capsys):
    (tmp_path / "__model__").write_bytes(model())
    drawing = [str(tmp_path / "x.svg")] if options == ["--svg"] else []
    inspect.main([str(tmp_path), *options, *drawing])
    shown = capsys.readouterr()
    assert "\nfault: none" not in clean(shown.out + shown.err)
    if drawing:
        clean((tmp_path / "x.svg").read_text())
    else:
        (tmp_path / f"{HOSTILE.replace('/', '')}.py").write_text(
            f"import paddle.fluid as fluid\nfluid.layers.nothing(1)\nfluid.layers.fc(1, 2, act={HOSTILE!r})\n"
        )
        doctor.main([str(tmp_path), *options])
        shown = capsys.readouterr()
        assert "nothing" in clean(shown.out + shown.err)


def test_a_script_of_python_2_as_a_diff(tmp_path, capsys):
    (tmp_path / "a.py").write_text("print 'x'  # \x1b[2J\n")
    doctor.main(["--fix-python2", str(tmp_path)])
    assert "\\x1b[2J" in clean(capsys.readouterr().out)


def test_progress_and_words_of_the_launcher(capsys):
    report = {"description": HOSTILE, "step": 1, "total": 2, "rate": 1.0, "done": True}
    lines, bars = io.StringIO(), io.StringIO()
    LineDisplay(lines).show(report | {"metrics": {HOSTILE: 1.0}})
    clean(lines.getvalue().removesuffix("\n"), lines=False)
    BarDisplay(bars).show(report | {"metrics": {HOSTILE: 1.0}})
    BarDisplay(bars).show(report | {"description": "[red]b", "metrics": {}})
    assert "[red]b" in clean(bars.getvalue())
    say(HOSTILE)
    clean(capsys.readouterr().err)


def test_an_operator_that_prints(capsys):
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = main.global_block().create_var(name=f"x{HOSTILE}", shape=[1], dtype="float32", is_data=True)
        fluid.layers.Print(x, message=HOSTILE)
    fluid.Executor(fluid.CPUPlace()).run(main, feed={x.name: np.ones(1, np.float32)})
    clean(capsys.readouterr().out)


def test_warnings_of_names(tmp_path):
    main, start = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, start), fluid.unique_name.guard():
        fluid.layers.create_parameter([1], "float32", name="w")
    with fluid.scope_guard(fluid.Scope()), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fluid.io.set_program_state(main, {"w": np.ones(1, np.float32), HOSTILE: np.ones(1)})
    assert clean(str(found[0].message), lines=False)


def test_logs_and_metrics_of_servers():
    from jfluid.ps_server.metrics import Counted
    from jfluid.ps_server.server_log import Formatter

    record = logging.LogRecord("x", logging.INFO, __file__, 1, "trainer %s", (HOSTILE,), None)
    clean(Formatter().format(record))
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record.exc_info = sys.exc_info()
    clean(Formatter().format(record))
    counted = Counted("x", "text", "table", [1, 2])
    counted.observe([(HOSTILE, 1)])
    (metric,) = counted.collect()
    assert all(not OBEYED & set(s.labels["table"]) for s in metric.samples)

"""Programs that were read from files or bytes act on nothing: every operator that reaches files,
networks, processes, Python or the terminal is refused, by whatever runs them, unless it is allowed.
"""

import copy
import dis
import json
import os
import socket
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import jfluid as fluid
from jfluid import command, core, distributed, errors, layers
from jfluid.distributed.trainer.communicator import Communicator
from jfluid.doctor import Severity, examine, fluid_api
from jfluid.exports.model import LoadedModel
from jfluid.ir import schema
from jfluid.ir.backward import get_grad_op_desc
from jfluid.ir.operator import Operator
from jfluid.ir.reach import Reach
from jfluid.ops import registry
from jfluid.transpiler.parameter_server.server import copy_op

X = np.ones((2, 3), np.float32)
# An attribute that a file may hold, and that no terminal may see as it is.
HOSTILE = "/tmp/\x1b]0;owned\x07\u202e\nx"
# What operators need to act at all, and which their defaults are not.
NEEDED = {"epmap": ("127.0.0.1:1",), "remote_prefetch": True}


def read(program, **options):
    return fluid.Program.parse_from_string(program.serialize_to_string(), **options)


def run(program, **options):
    return fluid.Executor(fluid.CPUPlace()).run(program, **options)


def raw(block, type_, **attrs):
    """Append an operator as a file may have it: without its slots, unchecked."""
    return block.adopt_op(Operator(block, type_, {}, {}, attrs))


def acting_op(block, type_, **attrs):
    """Append one that acts, with as few attributes as it needs for that."""
    reach = schema.current().reach(type_)
    names = {} if reach is None else dict.fromkeys(sum(reach.only_with, ()))
    needed = {name: NEEDED[name] for name in names if name in NEEDED}
    return raw(block, type_, **needed | attrs)


def refuses(call, *types):
    with pytest.raises(errors.UntrustedOperatorError) as caught:
        call()
    assert [op.type for op in caught.value.operators] == list(types)
    return str(caught.value)


def mul_program():
    """A program without anything that acts: y = 2 x."""
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        y = layers.scale(fluid.data("x", [None, 3]), 2.0)
    return program, y.name


# ---- every operator says what it reaches


def test_every_operator_that_does_not_run_inside_xla_says_whether_it_acts():
    for fields in ({"host": True}, {"absent": "not here"}):
        with pytest.raises(TypeError, match="operator of_a_test .* say whether it acts"):
            registry.op("of_a_test", ins=("X",), outs=("Out",), **fields)
    with pytest.raises(TypeError, match="say whether it acts"):
        registry.declare("of_a_test", ins=("X",))
    kinds = {"files", "network", "process", "python", "terminal"}
    for type_ in schema.current().acting():
        definition = registry.get(type_)
        assert definition.reaches.what in kinds
        named = {*definition.reaches.chosen_by, *sum(definition.reaches.only_with, ())}
        assert named <= set(definition.attrs), type_


def test_the_list():
    """Who adds one thinks about it; who removes one, too."""
    assert {t: registry.get(t).reaches.what for t in schema.current().acting()} == (
        dict.fromkeys(("load", "load_combine", "save", "save_combine"), "files")
        | dict.fromkeys(("print", "print_grad"), "terminal")
        | dict.fromkeys(("py_func", "py_func_grad"), "python")
        | dict.fromkeys(
            (
                *("c_gen_nccl_id", "gen_nccl_id", "checkpoint_notify", "recv_save", "prefetch"),
                *("distributed_lookup_table", "lookup_table", "lookup_table_v2"),
                *("send", "recv", "send_barrier", "fetch_barrier"),
                *("listen_and_serv", "fl_listen_and_serv"),
                *("pull_sparse", "pull_sparse_v2", "pull_box_sparse", "push_dense"),
            ),
            "network",
        )
    )


def test_the_page_names_all_of_them():
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    section = page.split("## Permissions of a model")[1].split("\n## ")[0]
    assert [t for t in schema.current().acting() if f"`{t}`" not in section] == []


# What a function that acts on nothing has no use for, but for the names in HARMLESS.
OUTSIDE = (
    *("os", "socket", "subprocess", "multiprocessing", "shutil", "tempfile", "ctypes", "urllib"),
    *("http", "signal", "importlib", "pickle", "pathlib", "sys", "io", "threading", "asyncio"),
    *(
        "jfluid.files",
        "jfluid.ps_server",
        "jfluid.processes",
        "jfluid.distributed",
        "jfluid.launch",
    ),
    *("jfluid.security", "jfluid.caches.kept_files", "jfluid.ir.callables", "jfluid.scope"),
)
HARMLESS = {"os.cpu_count", "jfluid.processes.count"}
CALLS = ("open", "print", "exec", "eval", "input", "compile", "__import__", "breakpoint")
CALLBACKS = ("pure_callback", "io_callback", "host_callback", "callback")


def codes(code):
    yield code
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from codes(constant)


def functions_of(value, seen):
    """Yield the functions that a value calls, those of this package's operators within them."""
    value = getattr(value, "func", value)
    if id(value) in seen or not hasattr(value, "__code__"):
        return
    seen.add(id(value))
    yield value
    inner = [cell.cell_contents for cell in value.__closure__ or () if _is_set(cell)]
    names = {n for code in codes(value.__code__) for n in code.co_names}
    for other in (*inner, *(value.__globals__.get(n) for n in names), *_wrapped(value)):
        if getattr(other, "__module__", "").startswith("jfluid.") or other in inner:
            yield from functions_of(other, seen)


def _is_set(cell):
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _wrapped(value):
    return [value.__wrapped__] if hasattr(value, "__wrapped__") else []


def reached(function):
    """What a function names that leads out of its computation."""
    for code in codes(function.__code__):
        instructions = list(dis.get_instructions(code))
        for at, after in zip(instructions, [*instructions[1:], None]):
            if at.opname not in ("LOAD_GLOBAL", "IMPORT_NAME", "LOAD_ATTR", "LOAD_METHOD"):
                continue
            name, known = at.argval, at.opname in ("LOAD_GLOBAL", "IMPORT_NAME")
            there = function.__globals__.get(name, sys.modules.get(name)) if known else None
            module = isinstance(there, ModuleType)
            home = there.__name__ if module else getattr(there, "__module__", None) or ""
            used = f"{home}.{after.argval if module else name}"
            if any(home == o or home.startswith(f"{o}.") for o in OUTSIDE):
                if used not in HARMLESS:
                    yield used
            elif (at.opname == "LOAD_GLOBAL" and name in CALLS and there is None) or (name in CALLBACKS):
                yield name


def test_functions_of_operators_that_act_on_nothing_reach_nothing():
    found = {}
    for type_ in registry.registered():
        definition = registry.get(type_)
        if definition.fn is None or not registry.is_built_in(definition):
            continue
        names = {r for f in functions_of(definition.fn, set()) for r in reached(f)}
        if names and definition.reaches is None:
            found[type_] = sorted(names)
        if not definition.absent and definition.reaches and type_[:12] != "lookup_table":
            assert names, f"{type_}: the search does not see what it does"
    assert found == {}


# ---- every one is refused, wherever it stands


@pytest.mark.parametrize("type_", schema.current().acting())
def test_each_is_refused_and_may_be_allowed(type_):
    for nested in (False, True):
        program, _ = mul_program()
        block = program.create_block() if nested else program.global_block()
        acting_op(block, type_)
        said = refuses(lambda made=program: run(read(made), feed={"x": X}), type_)
        where = f"{type_} (block {block.idx}, position {len(block.ops) - 1}) reaches"
        assert where in said and f"allow=({type_!r},)" in said and f"--allow {type_}" in said
        read(program, allow=[type_]).refuse_acting()
        program.refuse_acting()  # it was built here


@pytest.mark.parametrize("type_", ["nce", "hierarchical_sigmoid", "lookup_table", "get_places"])
def test_what_stays_here_is_not_refused(type_):
    """Sampled losses read their own W whatever they say, and look-ups do without servers' names."""
    program = fluid.Program()
    attrs = {"remote_prefetch": True} if type_ == "lookup_table" else dict(NEEDED)
    raw(program.global_block(), type_, **attrs)
    read(program).refuse_acting()


def test_operators_of_this_process_are_none_of_a_file():
    """A function of dygraph mode becomes an operator, which a file must not call by its number."""
    slots = {"ins": ("X*",), "outs": ("Out*",)}
    made = registry.add_local("run_program:test", lambda values: values, **slots)
    program = fluid.Program()
    raw(program.global_block(), "run_program:test")
    refuses(read(program).refuse_acting, "run_program:test")
    assert registry.find("run_program:test") is made  # as long as somebody holds it


def test_gradients_of_what_acts_act():
    registry.op("acts_of_test", ins=("X",), outs=("Out",), reaches=Reach("python"))(lambda x: x)
    try:
        program = fluid.Program()
        raw(program.global_block(), "acts_of_test_grad")
        refuses(read(program).refuse_acting, "acts_of_test_grad")
        read(program, allow=["acts_of_test_grad"]).refuse_acting()
    finally:
        for name in ("acts_of_test", "acts_of_test_grad"):
            registry._OPS.pop(name, None)


def test_all_are_listed_with_what_they_name_as_printable_text():
    program, _ = mul_program()
    raw(program.global_block(), "save", file_path=HOSTILE)
    raw(program.create_block(), "gen_nccl_id", trainers=(HOSTILE,) * 1000, trainer_id=1)
    said = refuses(lambda: run(read(program), feed={"x": X}), "save", "gen_nccl_id")
    assert "save (block 0, position 1) reaches files (file_path='/tmp/\\x1b]0;" in said
    assert "gen_nccl_id (block 1, position 0) reaches network (trainers=('/tmp/\\x1b" in said
    assert all(c.isprintable() or c == "\n" for c in said) and len(said) < 1000
    many = fluid.Program()
    for _ in range(1000):
        raw(many.global_block(), "print")
    with pytest.raises(errors.UntrustedOperatorError, match="and 980 more") as caught:
        read(many).refuse_acting()
    assert len(caught.value.operators) == 1000


def test_names_that_are_allowed_are_checked():
    program, _ = mul_program()
    with pytest.raises(errors.ProgramError, match=r"'sav' is no operator .*\(did you mean save"):
        read(program, allow=["sav"])
    with pytest.raises(errors.ProgramError, match="'relu' is no operator with side effects"):
        read(program, allow=["print", "relu"])
    for wrong in ("save", b"save", [b"save"]):
        with pytest.raises(TypeError, match="expected names of operators"):
            read(program, allow=wrong)


# ---- what is done to a program keeps it one that was read


def with_save(path):
    """(a program that gives y = 2 x and saves it to a path, y's name)"""
    program, y = mul_program()
    program.global_block().append_op("save", {"X": y}, {}, {"file_path": str(path)})
    return program, y


def taught(program):
    """The program with gradients and updates."""
    twin = program.clone()
    with fluid.program_guard(twin, fluid.Program()):
        loss = layers.mean(layers.fc(twin.global_block().var("x"), 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
    return twin


def divided(program, mode):
    """A trainer's program that a transpiler makes of it."""
    twin = taught(program)
    config = fluid.DistributeTranspilerConfig()
    if mode == "servers":
        transpiler = fluid.DistributeTranspiler(config)
        transpiler.transpile(0, program=twin, pservers="127.0.0.1:1", trainers=1)
        return transpiler.get_trainer_program(wait_port=False)
    config.mode = "collective"
    config.collective_mode = "grad_allreduce"
    fluid.DistributeTranspiler(config).transpile(
        0, twin, trainers="127.0.0.1:1,127.0.0.1:2", current_endpoint="127.0.0.1:1"
    )
    return twin


def copied(program):
    """Its operators in another program, as transpilers copy them."""
    twin = fluid.Program()
    for var in program.global_block().vars.values():
        var.clone_into(twin.global_block())
        twin.global_block().vars[var.name] = var
    for op in program.global_block().ops:
        copy_op(op, twin.global_block(), {})
    return twin


def described(program):
    """An operator that takes the description of one that was read."""
    twin, y = mul_program()
    op = twin.global_block().append_op("scale", {"X": y}, {"Out": y})
    op.desc.copy_from(program.global_block().ops[-1].desc)
    return twin


CHANGES = {
    "clone": lambda p: p.clone(),
    "clone for test": lambda p: p.clone(for_test=True),
    "clones of clones": lambda p: p.clone().clone(for_test=True).clone(),
    "deepcopy": copy.deepcopy,
    "prune": lambda p: p._prune([p.global_block().ops[-1]]),
    "inference": lambda p: p._inference_optimize(),
    "saved again": lambda p: read(read(p, allow=["save"])),
    "gradients and updates": taught,
    "servers": lambda p: divided(p, "servers"),
    "collective": lambda p: divided(p, "collective"),
    "copied operators": copied,
    "a description": described,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_made_of_a_program_is_refused_too(change, tmp_path):
    program, _ = with_save(tmp_path / "w")
    refuses(CHANGES[change](read(program)).refuse_acting, "save")
    if change != "saved again":
        CHANGES[change](program).refuse_acting()
        CHANGES[change](read(program, allow=["save"])).refuse_acting()


def test_gradients_of_operators_that_were_read(tmp_path):
    """`py_func_grad` would call by number what `py_func` names."""
    program, _ = mul_program()
    block = program.global_block()
    block.create_var(name="z", shape=[-1, 3], dtype="float32")
    raw(block, "py_func", forward_callable_id=0, backward_callable_id=1)
    block.ops[-1].inputs, block.ops[-1].outputs = {"X": ["x"]}, {"Out": ["z"]}
    again = read(program)
    block = again.global_block()
    block.var("x").stop_gradient = False
    with fluid.program_guard(again, fluid.Program()):
        fluid.gradients([block.var("z")], [block.var("x")])
    (grad,) = [op for op in block.ops if op.type == "py_func_grad"]
    assert grad.claimed is not None
    block.ops = [op for op in block.ops if op.type != "py_func"]
    again._touch()
    refuses(again.refuse_acting, "py_func_grad")
    described, _ = get_grad_op_desc(read(program).global_block().ops[-1].desc, set(), [])
    assert described[0]._op.claimed is not None


def test_what_a_script_adds_is_its_own(capsys, tmp_path):
    """Of a program that was read only what the file had is refused."""
    program, y = mul_program()
    again = read(program)
    with fluid.program_guard(again, fluid.Program()):
        layers.Print(again.global_block().var(y), message="mine")
        again.global_block().append_op("save", {"X": y}, {}, {"file_path": str(tmp_path / "y")})
    (found,) = run(again, feed={"x": X}, fetch_list=[y])
    np.testing.assert_array_equal(found, 2 * X)
    assert "mine" in capsys.readouterr().out and (tmp_path / "y").exists()
    run(again.clone(), feed={"x": X})


def test_attributes_that_a_script_sets_are_its_own(tmp_path):
    program, _ = with_save(tmp_path / "theirs")
    again = read(program)
    again.global_block().ops[-1]._set_attr("overwrite", True)
    refuses(again.refuse_acting, "save")
    again.global_block().ops[-1]._set_attr("file_path", str(tmp_path / "mine"))
    run(again.clone(), feed={"x": X})
    assert os.listdir(tmp_path) == ["mine"]


# ---- every door


def test_a_step_that_is_compiled_already_does_not_let_it_pass(tmp_path):
    """Two programs of the same fingerprint, one of which may act."""
    made, y = with_save(tmp_path / "w")
    program, again = read(made, allow=["save"]), read(made)
    assert again.fingerprint == program.fingerprint
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(program, feed={"x": X}, fetch_list=[y])
    os.remove(tmp_path / "w")
    refuses(lambda: exe.run(again, feed={"x": X}, fetch_list=[y]), "save")
    exe.run(program, feed={"x": X}, fetch_list=[y])
    os.remove(tmp_path / "w")
    refuses(lambda: exe.run(again.clone(), feed={"x": X}, fetch_list=[y]), "save")
    assert not (tmp_path / "w").exists()


def dataset(tmp_path):
    file = tmp_path / "data"
    file.write_text("3 1 1 1\n")
    found = fluid.DatasetFactory().create_dataset("QueueDataset")
    found.set_batch_size(1)
    found.set_filelist([str(file)])
    found.set_use_var([fluid.data("x", [None, 3])])
    return found


@pytest.mark.parametrize("door", ["run", "prune", "compiled", "replicas", "parallel", "dataset", "to_jax"])
def test_whatever_runs_programs_refuses(door, tmp_path):
    program, y = with_save(tmp_path / "w")
    again = read(program)
    exe = fluid.Executor(fluid.CPUPlace())
    given = {"feed": {"x": X}, "fetch_list": [y]}
    if door == "run":
        call = lambda: exe.run(again, **given)  # noqa: E731
    elif door == "prune":
        call = lambda: exe.run(again, use_prune=True, **given)  # noqa: E731
    elif door == "compiled":
        call = lambda: exe.run(fluid.CompiledProgram(again), **given)  # noqa: E731
    elif door == "replicas":
        replicas = fluid.CompiledProgram(again).with_data_parallel(places=fluid.cpu_places(2))
        call = lambda: exe.run(replicas, **given)  # noqa: E731
    elif door == "parallel":
        call = lambda: fluid.ParallelExecutor(False, main_program=again).run([y], {"x": X})  # noqa: E731
    elif door == "dataset":
        call = lambda: exe.train_from_dataset(again, dataset(tmp_path))  # noqa: E731
    else:
        # what the fetches do not need is left out, so that the look-up is what they are
        again = read(remote("127.0.0.1:1"))
        call = lambda: fluid.to_jax(again, ["ids"], ["rows"], fluid.Scope())  # noqa: E731
    refuses(call, "lookup_table" if door == "to_jax" else "save")
    assert not (tmp_path / "w").exists()


def remote(endpoint):
    """A program whose look-up asks a server."""
    program = fluid.Program()
    block = program.global_block()
    block.create_var(name="ids", shape=[-1, 1], dtype="int64", is_data=True)
    block.create_var(name="w", shape=[10, 4], dtype="float32", persistable=True)
    block.append_op(
        "lookup_table",
        {"Ids": "ids", "W": "w"},
        {"Out": block.create_var(name="rows", shape=[-1, 4], dtype="float32")},
        {"remote_prefetch": True, "epmap": [endpoint], "is_sparse": True},
    )
    return program


@pytest.fixture
def listener():
    """(a socket that listens, its address)"""
    with socket.create_server(("127.0.0.1", 0)) as found:
        found.setblocking(False)
        yield found, f"127.0.0.1:{found.getsockname()[1]}"


def nobody_came(listening):
    with pytest.raises(BlockingIOError):
        listening.accept()


def network_programs(endpoint, folder):
    """Programs that would connect to an endpoint, each in another way."""
    for type_, attrs in {
        "gen_nccl_id": {"trainers": ["127.0.0.1:1", endpoint], "trainer_id": 0},
        "c_gen_nccl_id": {"rank": 1, "endpoint": "127.0.0.1:1", "other_endpoints": [endpoint]},
        "checkpoint_notify": {"epmap": [endpoint], "dir": str(folder), "lookup_table": "t"},
        "recv_save": {
            "shape": [2, 3],
            "slice_shapes": ["2,3"],
            "slice_varnames": ["w.0"],
            "remote_varnames": ["w"],
            "endpoints": [endpoint],
            "file_path": str(folder / "w"),
        },
        "send": {"epmap": [endpoint]},
        "recv": {"epmap": [endpoint]},
        "listen_and_serv": {"endpoint": endpoint},
        "prefetch": {"epmap": [endpoint]},
    }.items():
        program = fluid.Program()
        raw(program.global_block(), type_, **attrs)
        yield type_, program
    yield "lookup_table", remote(endpoint)


def test_nobody_is_connected_to(listener, tmp_path, monkeypatch):
    monkeypatch.setenv("JFLUID_JOB_TOKEN", "0123456789-token-of-the-tests")
    listening, endpoint = listener
    for type_, program in network_programs(endpoint, tmp_path):
        said = refuses(lambda made=program: run(read(made)), type_)
        assert endpoint in said
        if type_ in ("send", "recv"):
            for call in (distributed.rounds, lambda p: Communicator(p, 0)):
                refuses(lambda made=program, call=call: call(read(made)), type_)
    nobody_came(listening)
    assert os.listdir(tmp_path) == []


def test_a_function_is_not_called_by_its_number():
    called = []
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = fluid.data("x", [None, 3])
        out = program.global_block().create_var(name="out", shape=[-1, 3], dtype="float32")
        layers.py_func(lambda value: called.append(1) or value, x, out)
    given = {"feed": {"x": X}, "fetch_list": ["out"]}
    refuses(lambda: run(read(program), **given), "py_func")
    assert called == []
    run(read(program, allow=["py_func"]), **given)
    run(program, **given)
    assert called == [1, 1]


# ---- models in folders


def model(folder, *types, endpoint=None, **attrs):
    """Save a model of others: y = x w, and operators that act."""
    with (
        fluid.scope_guard(fluid.Scope()),
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
    ):
        exe = fluid.Executor(fluid.CPUPlace())
        if endpoint is None:
            feed, out = "x", layers.fc(fluid.data("x", [None, 3]), 2)
        else:
            ids = fluid.data("ids", [None, 1], "int64")
            feed, out = "ids", fluid.embedding(ids, [10, 4], is_sparse=True)
        exe.run(fluid.default_startup_program())
        fluid.io.save_inference_model(str(folder), [feed], [out], exe)
    path = folder / "__model__"
    program = fluid.Program.parse_from_string(path.read_bytes())
    for type_ in types:
        op = acting_op(program.global_block(), type_, **attrs)
        program.global_block().ops.insert(0, program.global_block().ops.pop())
        assert op is program.global_block().ops[0]
    for op in program.global_block().ops:
        if endpoint is not None and op.type.startswith("lookup_table"):
            op._set_attr("epmap", [endpoint])
    path.write_bytes(program.serialize_to_string())
    return str(folder)


def load(folder, **options):
    exe = fluid.Executor(fluid.CPUPlace())
    return fluid.io.load_inference_model(folder, exe, **options)[0]


def predictor(folder, *allowed):
    config = core.AnalysisConfig(folder)
    config.allow_operators(*allowed)
    assert core.AnalysisConfig(config).allowed_operators() == allowed
    return fluid.core.create_paddle_predictor(config)


def in_dygraph(folder):
    with fluid.dygraph.guard():
        return fluid.dygraph.StaticModelRunner(folder)


def test_models_are_refused_by_all_that_load_them(tmp_path, capsys):
    mine, there = tmp_path / "mine", tmp_path / "model"
    folder = model(there, "get_places", "print", "load", file_path=str(mine))
    before = sorted(os.listdir(there))
    types = "load", "print"
    refuses(lambda: run(load(folder), feed={"x": X}), *types)
    refuses(lambda: LoadedModel(folder), *types)
    refuses(lambda: predictor(folder), *types)
    refuses(lambda: in_dygraph(folder), *types)
    refuses(lambda: LoadedModel(folder, allow=["print"]), "load")
    refuses(lambda: predictor(folder, "load"), "print")
    with pytest.raises(errors.ProgramError, match="'lod' is no operator"):
        predictor(folder, "lod")
    for arguments in (["serve", folder, "--port", "0"], ["export", folder, "--to", "jax"]):
        assert command.main(arguments) == 1
        said = capsys.readouterr().err
        assert "load (block 0, position 0) reaches files (file_path='" in said
        assert command.main([*arguments, "--allow", "print"]) == 1
        assert "print (block" not in capsys.readouterr().err
        assert command.main([*arguments, "--allow", "prin"]) == 2
        assert "did you mean print" in capsys.readouterr().err
    assert sorted(os.listdir(there)) == before and not mine.exists()


def test_what_is_allowed_runs(tmp_path, capsys):
    folder = model(tmp_path / "model")
    path = tmp_path / "model" / "__model__"
    program = fluid.Program.parse_from_string(path.read_bytes())
    block = program.global_block()
    with fluid.program_guard(program, fluid.Program()):
        layers.Print(block.var("x"), message="seen")
    block.ops.insert(1, block.ops.pop())
    path.write_bytes(program.serialize_to_string())
    refuses(lambda: predictor(folder), "print")
    loaded = LoadedModel(folder, allow=["print"])
    (wanted,) = loaded.run({"x": X})
    assert "seen" in capsys.readouterr().out
    for found in (predictor(folder, "print"), predictor(folder, "print").clone()):
        (tensor,) = found.run([core.PaddleTensor(X)])
        np.testing.assert_allclose(tensor.as_ndarray(), wanted, rtol=1e-6)
        assert "seen" in capsys.readouterr().out


def test_doctor_and_inspect_say_it(tmp_path, capsys):
    folder = model(tmp_path, "save", "gen_nccl_id", "print", file_path=HOSTILE)
    found = {f.subject: f for f in examine([folder]).findings if f.code == "acts"}
    assert set(found) == {"operator print", "operator gen_nccl_id", "operator save"}
    assert all(f.severity is Severity.CHANGE for f in found.values())
    assert "reaches files (file_path='/tmp/\\x1b]0;" in found["operator save"].happens
    assert "allow=('save',)" in found["operator save"].do
    assert command.main(["inspect", folder]) == 1
    assert "operator save (block 0, position 2) reaches files (file_" in capsys.readouterr().out
    assert command.main(["inspect", folder, "--json"]) == 1
    record = json.loads(capsys.readouterr().out)["operators that act"]
    assert [(op["type"], op["what"]) for op in record] == [
        ("print", "terminal"),
        ("gen_nccl_id", "network"),
        ("save", "files"),
    ]
    assert command.main(["inspect", model(tmp_path / "clean")]) == 0


def test_the_doctors_table_is_the_registrys():
    """It knows operators without importing them."""
    known = fluid_api.load().reaches
    assert known == {t: registry.get(t).reaches for t in schema.current().acting()}


def test_only_servers_that_the_caller_names_are_asked(listener, tmp_path, monkeypatch):
    """A model whose look-ups name servers of its own."""
    monkeypatch.setenv("JFLUID_JOB_TOKEN", "0123456789-token-of-the-tests")
    listening, endpoint = listener
    folder = model(tmp_path, endpoint=endpoint)
    ids = {"ids": np.zeros((1, 1), np.int64)}
    refuses(lambda: run(load(folder), feed=ids), "lookup_table_v2")
    refuses(lambda: LoadedModel(folder), "lookup_table_v2")
    fluid.set_flags({"FLAGS_rpc_deadline": 300})
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        mine = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(errors.ServerError, match=mine):
            run(load(folder, pserver_endpoints=[mine]), feed=ids)
    nobody_came(listening)


def test_tables_of_a_folder_with_a_program(tmp_path):
    program, _ = with_save(tmp_path / "w")
    program.global_block().create_var(name="t", shape=[4, 2], dtype="float32", persistable=True)
    with fluid.scope_guard(fluid.Scope()):
        fluid.global_scope().var("t").get_tensor().set(np.ones((4, 2), np.float32))
        exe = fluid.Executor(fluid.CPUPlace())
        fluid.io.save_vars(exe, str(tmp_path), program, vars=[program.global_block().var("t")])
        (tmp_path / "__model__").write_bytes(program.serialize_to_string())
        load_table = fluid.contrib.load_persistables_for_inference
        refuses(load_table(str(tmp_path), exe, None, "t").refuse_acting, "save")
        load_table(str(tmp_path), exe, None, "t", allow=["save"]).refuse_acting()

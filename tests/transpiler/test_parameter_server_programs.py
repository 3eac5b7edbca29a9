"""Programs for parameter servers: their structure against Fluid's
(tests/golden/parameter_server.json), and their results.
"""

import json
import socket
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.ir.operator import OpRole
from jfluid.ir.types import VarType
from jfluid.ops import registry
from jfluid.transpiler.parameter_server.server import copy_op
from jfluid.transpiler.ps_dispatcher import HashName, PSDispatcher
from tests.op_case import check
from tests.parity.parameter_server import (
    CASES,
    ENDPOINTS,
    STRATEGIES,
    _transpile,
    key,
    run,
    structure,
)
from tests.slow_tests import nightly_but

pytestmark = pytest.mark.usefixtures("interpreted_module")

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "parameter_server.json").read_text())
FIRST, SECOND = ENDPOINTS


@pytest.mark.parametrize("case", CASES, ids=key)
def test_programs_are_fluids(case):
    found = run(fluid, case)
    for part, want in GOLDEN[key(case)].items():
        assert found[part] == want, part


def transpile(
    loss=None,
    optimizer=None,
    trainers=2,
    sync_mode=True,
    smallest=4,
    servers=ENDPOINTS,
    trainer_id=0,
    **fields,
):
    """A transpiler of the default programs, for small blocks; `loss` is minimized first if there is
    one.
    """
    if loss is not None:
        (optimizer or fluid.optimizer.SGD(0.1)).minimize(loss)
    config = fluid.DistributeTranspilerConfig()
    config.sync_mode = sync_mode
    for name, value in fields.items():
        setattr(config, name, value)
    transpiler = fluid.DistributeTranspiler(config)
    transpiler.config.min_block_size = smallest
    transpiler.transpile(trainer_id, pservers=",".join(servers), trainers=trainers, sync_mode=sync_mode)
    return transpiler


def net(**attr):
    """The loss of a net with one hidden layer, of x [N, 6] and y [N, 1]."""
    hidden = fluid.layers.fc(fluid.data("x", [None, 6]), 5, act="tanh", param_attr=fluid.ParamAttr(name="w", **attr))
    predicted = fluid.layers.fc(hidden, 1)
    return fluid.layers.mean(fluid.layers.square_error_cost(predicted, fluid.data("y", [None, 1])))


def table_net(**options):
    rows = fluid.layers.embedding(fluid.data("ids", [None, 1], dtype="int64"), [100, 4], param_attr="table", **options)
    return fluid.layers.mean(fluid.layers.fc(rows, 3))


def ops_of(program, type_):
    return [op for block in program.blocks for op in block.ops if op.type == type_]


# What the programs compute, without the wire.
class Server:
    """A server's programs, run by hand."""

    def __init__(self, transpiler, endpoint):
        self.program, startup = transpiler.get_pserver_programs(endpoint)
        self.scope, self.exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
        with fluid.scope_guard(self.scope):
            self.exe.run(startup)
        (self.listen,) = ops_of(self.program, "listen_and_serv")

    def _run(self, index, feed):
        source = self.program.block(index)
        alone = fluid.Program()
        for var in [*self.program.global_block().vars.values(), *source.vars.values()]:
            var.clone_into(alone.global_block())
        for op in source.ops:
            copy_op(op, alone.global_block(), {})
        with fluid.scope_guard(self.scope):
            self.exe.run(alone, feed=feed)

    def round(self, gradients):
        """Update with the gradients of all trainers, by the names under which they were sent."""
        if self.listen.attr("lr_decay_block_id") >= 0:
            self._run(self.listen.attr("lr_decay_block_id"), {})
        for pair in self.listen.attr("grad_to_block_id"):
            index = int(pair.rsplit(":", 1)[1])
            reads = {n for op in self.program.block(index).ops for n in op.input_arg_names}
            self._run(index, {n: v for n, v in gradients.items() if n in reads})

    def value(self, name):
        return np.array(self.scope.find_var(name).get_tensor())


class Trainer:
    """A trainer's program, with its sending and receiving done by hand."""

    def __init__(self, transpiler):
        program = transpiler.get_trainer_program(wait_port=False)
        block = program.global_block()
        self.sends = [(op.input("X"), op.attr("epmap")) for op in block.ops if op.type == "send"]
        self.receives = [(op.output("Out"), op.attr("epmap")) for op in block.ops if op.type == "recv"]
        self.step, self.join = program.clone(), fluid.Program()
        remote = [
            op
            for op in self.step.global_block().ops
            if op.attr("op_role") == OpRole.RPC or (op.type == "concat" and op.attr("op_role") == OpRole.Dist)
        ]
        self.step.global_block().ops = [op for op in self.step.global_block().ops if op not in remote]
        for var in block.vars.values():
            var.clone_into(self.join.global_block())
        for op in block.ops:
            if op.type == "concat" and op.attr("op_role") == OpRole.Dist:
                copy_op(op, self.join.global_block(), {})
        self.scope, self.exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())

    def gradients(self, feed):
        names = [n for given, _ in self.sends for n in given]
        with fluid.scope_guard(self.scope):
            return dict(zip(names, self.exe.run(self.step, feed=feed, fetch_list=names), strict=True))

    def receive(self, servers):
        pieces = {}
        for names, endpoints in self.receives:
            for name, endpoint in zip(names, endpoints, strict=True):
                pieces[name] = servers[endpoint].value(name)
                self.scope.var(name).get_tensor().set(pieces[name], fluid.CPUPlace())
        with fluid.scope_guard(self.scope):
            if self.join.global_block().ops:
                self.exe.run(self.join, feed=pieces)

    def value(self, name):
        return np.array(self.scope.find_var(name).get_tensor())


@pytest.mark.parametrize("suffix", ["", "_again"])
def test_whole_parameters_start_as_in_a_local_run_and_pieces_apart(suffix):
    x = fluid.data("x", [None, 12])
    for name in ("a", "b", "c"):
        x = fluid.layers.fc(x, 12, param_attr=name + suffix, bias_attr=False)
    fluid.default_startup_program().random_seed = 3
    origin = fluid.default_startup_program().clone()
    transpiler = transpile(fluid.layers.mean(x), slice_var_up=False)
    scope = fluid.Scope()
    fluid.Executor(fluid.CPUPlace()).run(origin, scope=scope)
    values = {name: np.array(scope.find_var(name + suffix).get_tensor()) for name in ("a", "b", "c")}
    found = {}
    for server in [Server(transpiler, endpoint) for endpoint in ENDPOINTS]:
        held = [name for name in values if server.scope.find_var(name + suffix) is not None]
        assert 0 < len(held) < 3
        found |= {name: server.value(name + suffix) for name in held}
    assert found.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(found[name], value)


def test_pieces_of_a_parameter_start_apart_whatever_its_name():
    pieces = {}
    for name in ("w", "other"):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            fluid.default_startup_program().random_seed = 3
            x = fluid.data("x", [None, 12])
            loss = fluid.layers.mean(fluid.layers.fc(x, 12, param_attr=name, bias_attr=False))
            transpiler = transpile(loss)
            servers = [Server(transpiler, endpoint) for endpoint in ENDPOINTS]
        pieces[name] = [server.value(f"{name}.block{i}") for i, server in enumerate(servers)]
        assert (pieces[name][0] != pieces[name][1]).any()
    np.testing.assert_array_equal(pieces["w"], pieces["other"])


def train(optimizer, trainers=2, steps=4, servers=ENDPOINTS, **fields):
    """(the parameters after `steps` steps of one process, those after as many with servers)."""
    optimizer().minimize(
        net(initializer=fluid.initializer.NumpyArrayInitializer(np.random.RandomState(1).randn(6, 5).astype("float32")))
    )
    main, startup = fluid.default_main_program(), fluid.default_startup_program()
    main.random_seed = startup.random_seed = 7
    single, start = main.clone(), startup.clone()
    transpilers = []
    for i in range(trainers):
        with fluid.program_guard(single.clone(), start.clone()):
            transpilers.append(transpile(trainer_id=i, trainers=trainers, servers=servers, **fields))
    serving = {e: Server(transpilers[0], e) for e in servers}
    training = [Trainer(t) for t in transpilers]
    scope, exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
    names = [p.name for p in main.all_parameters()]
    for t in training:
        t.receive(serving)
    with fluid.scope_guard(scope):
        exe.run(start)
        for name in names:
            scope.find_var(name).get_tensor().set(training[0].value(name), fluid.CPUPlace())
    random = np.random.RandomState(0)
    for _ in range(steps):
        x, y = (
            random.randn(4 * trainers, 6).astype("float32"),
            random.randn(4 * trainers, 1).astype("float32"),
        )
        with fluid.scope_guard(scope):
            exe.run(single, feed={"x": x, "y": y})
        sent = {}
        for i, t in enumerate(training):
            sent |= t.gradients({"x": x[4 * i : 4 * i + 4], "y": y[4 * i : 4 * i + 4]})
        for server in serving.values():
            server.round(sent)
        for t in training:
            t.receive(serving)
    return (
        {n: np.array(scope.find_var(n).get_tensor()) for n in names},
        {n: training[-1].value(n) for n in names},
    )


def _decayed():
    return fluid.layers.exponential_decay(0.1, decay_steps=2, decay_rate=0.5)


OPTIMIZERS = {
    "sgd": lambda: fluid.optimizer.SGD(_decayed()),
    "momentum": lambda: fluid.optimizer.Momentum(0.1, 0.9, regularization=fluid.regularizer.L2Decay(0.1)),
    "adam": lambda: fluid.optimizer.Adam(_decayed(), regularization=fluid.regularizer.L1Decay(0.01)),
    "adagrad": lambda: fluid.optimizer.Adagrad(fluid.layers.piecewise_decay([2], [0.1, 0.05])),
    "adamax": lambda: fluid.optimizer.Adamax(0.1),
    "lamb": lambda: fluid.optimizer.LambOptimizer(0.1),
    "clip by value": lambda: fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByValue(0.02)),
    "clip by norm": lambda: fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByNorm(0.05)),
}


class Last(PSDispatcher):
    """Everything to the last server."""

    def dispatch(self, varlist):
        assert all(v.name() == v.name for v in varlist)
        return [self.eps[-1] for _ in varlist]


@pytest.mark.parametrize("name", nightly_but(("adam", "lamb", "clip by norm"), OPTIMIZERS))
def test_trainers_with_servers_equal_one_trainer(name):
    want, found = train(OPTIMIZERS[name])
    for param, value in want.items():
        np.testing.assert_allclose(found[param], value, rtol=1e-4, atol=1e-6, err_msg=param)


@pytest.mark.parametrize(
    "case",
    [
        {"slice_var_up": False},
        {"split_method": Last},
        pytest.param({"split_method": HashName}, marks=pytest.mark.nightly),  # the tests below hold where it puts what
        {"trainers": 1},
        {"trainers": 3, "servers": [*ENDPOINTS, "127.0.0.1:6172"]},
    ],
    ids=str,
)
def test_placement_changes_no_result(case):
    want, found = train(OPTIMIZERS["momentum"], **case)
    for param, value in want.items():
        np.testing.assert_allclose(found[param], value, rtol=1e-4, atol=1e-6, err_msg=param)


def test_a_clip_by_the_global_norm_stays_with_the_trainers():
    clip = fluid.clip.GradientClipByGlobalNorm(0.05)
    want, found = train(
        lambda: fluid.optimizer.Adam(0.1, grad_clip=clip, regularization=fluid.regularizer.L2Decay(0.1)),
        trainers=1,
    )
    for param, value in want.items():
        np.testing.assert_allclose(found[param], value, rtol=1e-4, atol=1e-6, err_msg=param)


def test_pieces_on_one_server_have_their_own_state():
    program = transpile(net(), fluid.optimizer.Adam(0.1), split_method=Last).get_pserver_program(SECOND)
    block = program.global_block()
    assert {n for n in block.vars if n.startswith("w_moment1_0")} == {
        "w_moment1_0.block0",
        "w_moment1_0.block1",
    }
    assert block.var("w_moment1_0.block0").shape == block.var("w.block0").shape == (3, 5)


def test_initial_values_given_are_cut():
    value = np.arange(30, dtype="float32").reshape(6, 5)
    transpiler = transpile(net(initializer=fluid.initializer.NumpyArrayInitializer(value)))
    found = [Server(transpiler, e) for e in ENDPOINTS]
    pieces = {n: s.value(n) for s in found for n in ("w.block0", "w.block1") if n in s.program.global_block().vars}
    np.testing.assert_array_equal(np.concatenate([pieces["w.block0"], pieces["w.block1"]]), value)


def test_schedules_count_the_steps_of_all_trainers():
    transpiler = transpile(net(), fluid.optimizer.SGD(_decayed()), sync_mode=False)
    server = Server(transpiler, FIRST)
    counts = [server.value(f"@LR_DECAY_COUNTER@.trainer_{i}") for i in range(2)]
    origin = next(
        op
        for op in transpiler.origin_startup_program.global_block().ops
        if op.output_arg_names == ["@LR_DECAY_COUNTER@"]
    )
    assert sum(counts) == origin.attr("value")


# The programs as such.
@pytest.mark.parametrize("strategy", nightly_but(("sync", "geo", "dc_asgd"), STRATEGIES))
def test_programs_are_printed_and_saved(strategy):
    transpiler, startup = _transpile(fluid, ("digits_mlp", strategy, "cut", 2))
    programs = [
        *transpiler.get_pserver_programs(FIRST),
        transpiler.get_trainer_program(wait_port=False),
        startup,
    ]
    for program in programs:
        assert structure(fluid.Program.parse_from_string(program.serialize_to_string())) == structure(program)
        text = str(program)
        assert all(op.type in text for block in program.blocks for op in block.ops)


def test_programs_may_be_asked_for_in_any_order():
    loss = net()
    transpiler = transpile(loss)
    before = structure(transpiler.get_pserver_program(FIRST))
    trainer = transpiler.get_trainer_program(wait_port=False)
    assert trainer is fluid.default_main_program() and ops_of(trainer, "send") and not ops_of(trainer, "sgd")
    assert ops_of(fluid.default_startup_program(), "recv")
    told = structure(trainer)
    assert structure(transpiler.get_trainer_program(wait_port=False)) == told
    assert structure(transpiler.get_pserver_program(FIRST)) == before
    program, startup = transpiler.get_pserver_programs(FIRST)
    assert structure(program) == before
    assert structure(transpiler.get_startup_program(FIRST, program, fluid.default_startup_program())) == structure(
        startup
    )


def test_a_distributed_table_is_on_every_server_by_ids():
    transpiler = transpile(table_net(is_sparse=True, is_distributed=True), fluid.optimizer.Adagrad(0.1))
    server, startup = transpiler.get_pserver_programs(SECOND)
    for name in ("table", "table_moment_0"):
        var = server.global_block().var(name)
        assert (var.type, var.shape) == (VarType.SELECTED_ROWS, (100, 4))
    (listen,) = ops_of(server, "listen_and_serv")
    assert list(listen.attr("sparse_grad_to_param")) == ["table@GRAD.pserver_1:table"]
    assert [op.attr("shape") for op in startup.global_block().ops if op.output_arg_names == ["table"]] == [(100, 4)]
    trainer = transpiler.get_trainer_program(wait_port=False)
    (look_up,) = ops_of(trainer, "distributed_lookup_table")
    assert (list(look_up.attr("table_names")), list(look_up.attr("height_sections"))) == (
        ["table", "table"],
        [],
    )
    (split,) = ops_of(trainer, "split_ids")
    assert split.output("Out") == [
        "table@GRAD.pserver_0.trainer_0",
        "table@GRAD.pserver_1.trainer_0",
    ]
    assert [list(op.attr("epmap")) for op in ops_of(trainer, "send") if op.input("X") == split.output("Out")] == [
        [*ENDPOINTS]
    ]
    assert "table" not in {n for op in ops_of(trainer, "recv") for n in op.output("Out")}


def test_geo_trainers_update_and_begin_alike():
    loss = table_net(is_sparse=True)
    transpiler = transpile(loss, fluid.optimizer.LambOptimizer(0.1), sync_mode=False, geo_sgd_mode=True)
    before = [op.type for op in fluid.default_main_program().global_block().ops]
    trainer = transpiler.get_trainer_program(wait_port=False)
    assert [op.type for op in trainer.global_block().ops] == [*before, "send"]
    received = [n for op in ops_of(fluid.default_startup_program(), "recv") for n in op.output("Out")]
    assert received == [
        "fc_0.b_0",
        "fc_0.w_0.block0",
        "fc_0.w_0.block1",
        "table.block0",
        "table.block1",
    ]
    assert len(ops_of(fluid.default_startup_program(), "concat")) == 2
    for endpoint in ENDPOINTS:
        server = Server(transpiler, endpoint)
        assert set(server.program.global_block().vars) == {
            n for p in server.listen.attr("grad_to_block_id") for n in (p.rsplit(":", 1)[0], p.split(".delta")[0])
        }
        name = next(n for n in server.program.global_block().vars if n.startswith("fc") and not n.endswith(".delta"))
        old = server.value(name)
        server.round(
            {f"{name}.delta": np.ones_like(old)}
            | {
                f"{n}.delta": np.zeros(v.shape, "float32")
                for n, v in server.program.global_block().vars.items()
                if not n.endswith(".delta") and n != name
            }
        )
        np.testing.assert_allclose(server.value(name), old + 1, rtol=1e-6)


def test_geo_trainers_hold_whole_tables():
    with pytest.warns(RuntimeWarning, match="table table is not distributed: with geo_sgd_mode"):
        transpile(table_net(is_sparse=True, is_distributed=True), sync_mode=False, geo_sgd_mode=True)


def test_a_table_that_others_read_is_received():
    rows = fluid.layers.embedding(
        fluid.data("ids", [None, 1], dtype="int64"), [100, 4], is_sparse=True, param_attr="table"
    )
    whole = fluid.default_main_program().global_block().var("table")
    whole_sum = fluid.layers.reduce_sum(whole)
    whole_sum.stop_gradient = True
    trainer = transpile(fluid.layers.mean(fluid.layers.fc(rows, 3)) * whole_sum).get_trainer_program(wait_port=False)
    assert not ops_of(trainer, "distributed_lookup_table") and ops_of(trainer, "split_selected_rows")
    assert ["table.block0", "table.block1"] in [op.output("Out") for op in ops_of(trainer, "recv")]


def test_look_ups_that_differ_stay_apart():
    ids = fluid.data("ids", [None, 1], dtype="int64")
    parts = [
        fluid.layers.embedding(ids, [100, 4], is_sparse=True, param_attr="table", padding_idx=p) for p in (None, 3, 3)
    ]
    trainer = transpile(fluid.layers.mean(fluid.layers.concat(parts))).get_trainer_program(wait_port=False)
    assert sorted(
        (op.attr("padding_idx"), len(op.input("Ids"))) for op in ops_of(trainer, "distributed_lookup_table")
    ) == [(-1, 1), (3, 2)]


def test_updates_that_need_the_whole_tensor_are_not_cut():
    for optimizer in (fluid.optimizer.LambOptimizer(0.1), fluid.optimizer.LarsMomentum(0.1, 0.9)):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            held = transpile(net(), optimizer)._servers("").placement.held
            assert [len(pieces) for pieces in held.values()] == [1] * 4
    assert len(transpile(net())._servers("").placement.held["w"]) == 2


def test_fields_of_the_config_may_be_given_to_transpile():
    """As Fluid's guides print it."""

    def pieces(**arguments):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            fluid.optimizer.SGD(0.1).minimize(net())
            transpiler = fluid.DistributeTranspiler()
            transpiler.transpile(0, pservers=f"{FIRST},{SECOND}", trainers=2, **arguments)
            return transpiler.config, transpiler._servers("").placement.held

    _, held = pieces(slice_var_up=False, split_method=fluid.HashName)
    assert {len(parts) for parts in held.values()} == {1}
    config, _ = pieces(slice_var_up=True, split_method=fluid.RoundRobin, min_block_size=1 << 20)
    assert (config.slice_var_up, config.split_method, config.min_block_size) == (
        True,
        fluid.RoundRobin,
        1 << 20,
    )
    for wrong, said in (
        ({"min_block_size": 10}, "min_block_size: at least 8192, found 10"),
        ({"split_method": "hash"}, "split_method: expected RoundRobin, HashName"),
        ({"slice_var_up": 1}, "slice_var_up: expected"),
    ):
        with pytest.raises(errors.ProgramError, match=said):
            pieces(**wrong)


def test_a_server_needs_its_startup_program():
    server, _ = transpile(table_net(is_sparse=True)).get_pserver_programs(FIRST)
    exe = fluid.Executor(fluid.CPUPlace())
    with pytest.raises(errors.UninitializedError, match="run the server's startup program first"):
        exe.run(server, scope=fluid.Scope())
    with pytest.raises(errors.FetchError, match="nothing to feed or fetch"):
        exe.run(server, fetch_list=["w"])


def test_split_byref_and_ref_by_trainer_id():
    x = fluid.data("x", [5, 2])
    block = fluid.default_main_program().global_block()
    parts = [block.create_var(name=f"part{i}") for i in range(2)]
    block.append_op("split_byref", {"X": x}, {"Out": parts}, {"sections": [3, 2]})
    pair = [fluid.layers.assign(np.full((2, 2), i, "float32")) for i in range(3)]
    chosen = block.create_var(name="chosen")
    block.append_op(
        "ref_by_trainer_id",
        {"X": pair, "TrainerId": fluid.data("trainer", [1], dtype="int64")},
        {"Out": chosen},
    )
    assert [p.shape for p in parts] == [(3, 2), (2, 2)] and chosen.shape == (2, 2)
    value = np.arange(10, dtype="float32").reshape(5, 2)
    first, second, third = fluid.Executor(fluid.CPUPlace()).run(
        feed={"x": value, "trainer": np.array([2])}, fetch_list=[*parts, chosen]
    )
    np.testing.assert_array_equal(np.concatenate([first, second]), value)
    np.testing.assert_array_equal(third, np.full((2, 2), 2))
    with pytest.raises(errors.ShapeError, match="split_byref: sections"):
        block.append_op("split_byref", {"X": x}, {"Out": parts}, {"sections": [3, 3]})


# Bad input.
@pytest.mark.parametrize(
    ("kind", "inputs", "attrs"),
    [
        ("send", {"X": "x"}, {}),
        ("recv", {}, {}),
        ("send_barrier", {"X": "x"}, {}),
        ("fetch_barrier", {}, {}),
        ("fake_init", {}, {"shape": [1]}),
        ("split_ids", {"Ids": "x"}, {}),
        ("split_selected_rows", {"X": "x"}, {}),
        ("checkpoint_notify", {}, {}),
        ("listen_and_serv", {}, {}),
        ("distributed_lookup_table", {"Ids": "x", "W": "w"}, {}),
    ],
)
def test_operators_of_servers_do_not_run_in_branches(kind, inputs, attrs):
    for name, dtype in {"x": "int64", "w": "float32"}.items():
        fluid.data(name, [1, 1], dtype)
    program = fluid.default_main_program()

    def branch():
        block = program.current_block()
        slots = {s.name: block.create_var(name="made") for s in registry.get(kind).outs}
        block.append_op(kind, inputs, slots, attrs)

    fluid.layers.cond(fluid.layers.fill_constant([1], "bool", True), branch)
    with pytest.raises(
        errors.UnsupportedError,
        match=f"{kind}.*operators of parameter servers run in the global block",
    ):
        fluid.Executor(fluid.CPUPlace()).run(
            program, {"x": np.zeros((1, 1), "int64"), "w": np.zeros((1, 1), "float32")}
        )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"servers": ["somewhere"]}, "pservers: expected the servers' endpoints"),
        ({"servers": [FIRST, FIRST]}, f"{FIRST} stands twice"),
        ({"servers": ["a:99999"]}, "'a:99999' port 99999 is none: ports go from 1 to 65535"),
        ({"trainers": 0}, 'trainers: mode "pserver" needs how many there are'),
        ({"trainers": "a:1,b:1"}, 'trainers: mode "pserver" needs how many there are'),
        ({"trainer_id": 2}, "trainer_id: expected 0 to 1, found 2"),
        (
            {"sync_mode": False, "enable_dc_asgd": True, "completely_not_async": True},
            "enable_dc_asgd: it corrects gradients that come late",
        ),
        ({"enable_dc_asgd": True}, r"enable_dc_asgd: it is for transpile\(sync_mode=False\)"),
        ({"geo_sgd_mode": True}, r"geo_sgd_mode: it is for transpile\(sync_mode=False\)"),
        (
            {"geo_sgd_mode": True, "sync_mode": False, "half_async": True},
            "half_async: with geo_sgd_mode trainers update",
        ),
        (
            {"geo_sgd_mode": True, "sync_mode": False, "geo_sgd_need_push_nums": 0},
            "geo_sgd_need_push_nums: expected after how",
        ),
        ({"half_async": True}, r"half_async: it is for transpile\(sync_mode=False\)"),
    ],
)
def test_wrong_arguments(arguments, said):
    loss = net()
    with pytest.raises(errors.ProgramError, match=said):
        transpile(loss, **arguments)


def test_programs_that_servers_cannot_update():
    with pytest.raises(errors.ProgramError, match="the program updates no parameter"):
        transpile()
    transpiler = transpile(net())
    with pytest.raises(errors.ProgramError, match="endpoint: expected one of .*did you mean 127.0.0.1:617"):
        transpiler.get_pserver_program("127.0.0.1:617")
    with pytest.raises(errors.ProgramError, match="get_trainer_program: call transpile first"):
        fluid.DistributeTranspiler().get_trainer_program()
    config = fluid.DistributeTranspilerConfig()
    config.mode = "nccl2"
    with pytest.raises(errors.ProgramError, match='mode "nccl2" has no parameter servers'):
        fluid.DistributeTranspiler(config).get_pserver_program(FIRST)


def test_sparse_rows_are_not_compensated():
    transpiler = transpile(table_net(is_sparse=True), sync_mode=False, enable_dc_asgd=True)
    with pytest.raises(errors.UnsupportedError, match="enable_dc_asgd: the gradient of table has sparse rows"):
        transpiler.get_pserver_program(FIRST)


def test_updates_that_belong_to_no_parameter_are_refused():
    optimizer = fluid.optimizer.LookaheadOptimizer(fluid.optimizer.SGD(0.1))
    with pytest.raises(errors.UnsupportedError, match="operator increment .* belongs to no parameter"):
        transpile(net(), optimizer)
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        scaled = fluid.contrib.mixed_precision.decorate(fluid.optimizer.SGD(0.1))
        with pytest.raises(errors.UnsupportedError, match="reads a result of several parameters' updates"):
            transpile(net(), scaled)


def test_dispatchers_that_name_no_server():
    class Elsewhere(PSDispatcher):
        def dispatch(self, varlist):
            return ["elsewhere:1" for _ in varlist]

    with pytest.raises(errors.ProgramError, match="Elsewhere.dispatch: expected one of 127.0.0.1:6170"):
        transpile(net(), split_method=Elsewhere)


def test_trainers_wait_until_servers_listen(monkeypatch):
    monkeypatch.setattr("jfluid.flags._values", {"FLAGS_rpc_deadline": 300})
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        transpiler = transpile(net(), servers=[nobody])
        with pytest.raises(TimeoutError, match=rf"do not listen after 0.3 s .*: {nobody} \(Connection refused\)"):
            transpiler.get_trainer_program()
        closed.listen()
        assert transpiler.get_trainer_program() is fluid.default_main_program()
    config = transpiler.config
    config.wait_port = False
    assert transpiler.get_trainer_program() is fluid.default_main_program()


def test_merge_ids():
    def ids(*values):
        return np.array(values, "int64").reshape(-1, 1)

    values = [np.array([[1, 2], [3, 4]], "float32"), np.array([[5, 6], [7, 8]], "float32")]
    first = np.array([[5, 6], [1, 2], [np.nan] * 2], "float32")
    check(
        "merge_ids",
        {"Ids": [ids(1, 2, 9), ids(4, 3, 4)], "Rows": [ids(2, 4), ids(1, 3)], "X": values},
        expect={"Out": [first, np.array([[3, 4], [7, 8], [3, 4]], "float32")]},
    )
    with pytest.raises(errors.ShapeError, match="merge_ids: expected values for each part"):
        check("merge_ids", {"Ids": [ids(1)], "Rows": [], "X": values}, expect={"Out": values[:1]})

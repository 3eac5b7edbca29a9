"""The fleet of jobs with parameter servers, up to the network; as Fluid's by
tests/golden/fleet_parameter_server.json.
"""

import importlib
import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from jfluid.incubate.fleet.base.role_maker import (
    PaddleCloudRoleMaker,
    Role,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)
from jfluid.incubate.fleet.parameter_server.distribute_transpiler import (
    AsyncStrategy,
    DistributedTranspiler,
    GeoStrategy,
    HalfAsyncStrategy,
    SyncStrategy,
    TrainerRuntimeConfig,
    TranspilerOptimizer,
    fleet,
)
from jfluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy import (
    DistributedStrategy,
    ServerRuntimeConfig,
    StrategyFactory,
)
from jfluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy_factory import (
    DistributedStrategyFactory,
)

import jfluid as fluid
from jfluid import errors, flags
from jfluid.transpiler import config as config_module
from tests.parity.fleet import _environment
from tests.parity.fleet_parameter_server import (
    CASES,
    ENDPOINTS,
    FACTORY,
    Communicator,
    _network,
    run,
)

pytestmark = pytest.mark.usefixtures("interpreted_module")

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "fleet_parameter_server.json").read_text())
STRATEGIES = (SyncStrategy, HalfAsyncStrategy, AsyncStrategy, GeoStrategy)
IN_STEP = "synchronous and half-asynchronous trainers send the gradients of each step"


class Recorder:
    """Notes the calls of any method, as (method, arguments, keyword arguments)."""

    def __init__(self, calls):
        self._calls = calls

    def __getattr__(self, name):
        def note(*arguments, **named):
            self._calls.append((name, arguments, named))
            return 7

        return note


@pytest.fixture
def calls(monkeypatch):
    """Calls of the network's side: of checkpoints and of the fleet's executor."""
    noted = []
    module = importlib.import_module("jfluid.fleet.parameter_server.fleet")
    monkeypatch.setattr(module, "Communicator", Communicator)
    monkeypatch.setattr(module, "checkpoint", Recorder(noted))
    monkeypatch.setattr(fleet, "__dict__", DistributedTranspiler().__dict__)
    monkeypatch.setattr(flags, "_values", {})
    return noted


def of_job(role=Role.WORKER, index=0, strategy=None, optimizer=None, wait_port=False, trainers=2):
    """`fleet` in one process of a job, after a loss was minimised; (what minimize returned, the
    loss).
    """
    fleet.init(UserDefinedRoleMaker(index, role, trainers, ENDPOINTS))
    strategy = strategy if strategy is not None else StrategyFactory.create_async_strategy()
    strategy.set_program_config({"wait_port": wait_port})
    loss = _network(fluid)
    found = fleet.distributed_optimizer(optimizer or fluid.optimizer.SGD(0.1), strategy).minimize(loss)
    return found, loss


# ---- as Fluid ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:ServerRuntimeConfig:RuntimeWarning")
@pytest.mark.parametrize("case", CASES)
def test_equals_fluids(case, calls):
    with warnings.catch_warnings():
        if case in ("strategy: sync, communicator", "strategy: half_async, communicator"):
            warnings.filterwarnings("ignore", f".*{IN_STEP}", RuntimeWarning)
        assert run(fluid, case) == GOLDEN[case]


def test_the_factory_has_two_names():
    assert DistributedStrategyFactory is StrategyFactory
    assert [type(getattr(DistributedStrategyFactory, f)()) for f in FACTORY.values()] == list(STRATEGIES)


# ---- configurations ------------------------------------------------------------------------------


def test_how_far_trainers_look_ahead(calls, monkeypatch):
    for make in STRATEGIES:
        told = make().get_trainer_runtime_config().get_communicator_flags()
        assert told.get("communicator_prefetch_depth") == ("1" if make in (AsyncStrategy, HalfAsyncStrategy) else None)
    strategy = AsyncStrategy()
    strategy.set_trainer_runtime_config({"prefetch_depth": 3, "communicator_max_merge_var_num": 20})
    assert strategy.get_trainer_runtime_config().prefetch_depth == 3
    strategy.get_trainer_runtime_config().prefetch_depth = 0
    told = strategy.get_trainer_runtime_config().get_communicator_flags()
    assert told["communicator_prefetch_depth"] == "0" and told["communicator_max_merge_var_num"] == "20"
    monkeypatch.setenv("FLAGS_communicator_prefetch_depth", "2")
    assert TrainerRuntimeConfig().prefetch_depth == 2
    for make in (SyncStrategy, GeoStrategy):
        with pytest.raises(
            errors.ProgramError,
            match=f"prefetch_depth: {make.__name__} does not look rows up ahead.*found 2",
        ):
            make()


def test_fields_begin_with_flags(calls, monkeypatch):
    monkeypatch.setenv("FLAGS_communicator_max_merge_var_num", "6")
    fluid.set_flags({"FLAGS_rpc_deadline": 7000, "FLAGS_communicator_is_sgd_optimizer": False})
    config = TrainerRuntimeConfig()
    found = [
        config.runtime_configs[n]
        for n in (
            "communicator_max_merge_var_num",
            "communicator_is_sgd_optimizer",
            "communicator_send_queue_size",
            "rpc_deadline",
        )
    ]
    assert found == ["6", "0", "1", "7000"]
    config.runtime_configs["rpc_deadline"] = 8000
    strategy = AsyncStrategy()
    strategy.set_trainer_runtime_config(config)
    of_job(strategy=strategy)
    assert flags.get("FLAGS_rpc_deadline") == 8000


def test_steps_are_not_merged_in_step():
    strategy = SyncStrategy()
    strategy.get_trainer_runtime_config().runtime_configs["communicator_send_queue_size"] = 8
    with pytest.warns(
        RuntimeWarning,
        match=f"communicator_send_queue_size: {IN_STEP}, so it is CPU_NUM .1., not 8",
    ):
        told = strategy.get_trainer_runtime_config().get_communicator_flags()
    assert told["communicator_send_queue_size"] == "1"
    assert "communicator_send_queue_size    1" in repr(strategy.get_trainer_runtime_config())


@pytest.mark.parametrize(
    ("method", "value", "error", "said"),
    [
        (
            "set_program_config",
            {"min_blok_size": 9000},
            errors.ProgramError,
            "field min_blok_size.*did you mean min_block_size",
        ),
        (
            "set_program_config",
            {"geo_sgd_mode": 1},
            errors.ProgramError,
            "geo_sgd_mode: expected True or False, found 1",
        ),
        (
            "set_program_config",
            {"geo_sgd_mode": True},
            errors.ProgramError,
            "AsyncStrategy.*geo_sgd_mode is for a different strategy",
        ),
        (
            "set_program_config",
            {"half_async": True},
            errors.ProgramError,
            "AsyncStrategy.*half_async is for a different strategy",
        ),
        (
            "set_program_config",
            {"mode": "nccl2"},
            errors.ProgramError,
            "expected mode \"pserver\", found 'nccl2'",
        ),
        (
            "set_program_config",
            [1],
            TypeError,
            "expected a DistributeTranspilerConfig or a dict of its fields, found list",
        ),
        (
            "set_trainer_runtime_config",
            {"send_queue_size": 3},
            errors.ProgramError,
            "did you mean communicator_send_queue_size",
        ),
        (
            "set_trainer_runtime_config",
            {"rpc_deadline": 0},
            errors.ProgramError,
            "rpc_deadline: expected a whole number, .* 1",
        ),
        (
            "set_trainer_runtime_config",
            {"communicator_is_sgd_optimizer": 2},
            errors.ProgramError,
            "expected 0 or 1, found 2",
        ),
        (
            "set_trainer_runtime_config",
            {"prefetch_depth": -1},
            errors.ProgramError,
            "prefetch_depth: .*at least 0, found -1",
        ),
        (
            "set_trainer_runtime_config",
            None,
            TypeError,
            "expected a TrainerRuntimeConfig or a dict of its fields, found NoneType",
        ),
        (
            "set_server_runtime_config",
            {"_rpc_send_thread_nm": 3},
            errors.ProgramError,
            "did you mean _rpc_send_thread_num",
        ),
        (
            "set_server_runtime_config",
            {"_rpc_send_thread_num": 0},
            errors.ProgramError,
            "a whole number above 0, found 0",
        ),
        (
            "set_build_strategy",
            {"asyn_mode": True},
            errors.ProgramError,
            "no field asyn_mode.*did you mean async_mode",
        ),
        (
            "set_execute_strategy",
            fluid.BuildStrategy(),
            TypeError,
            "expected a ExecutionStrategy or a dict of its fields",
        ),
        (
            "set_debug_opt",
            {"dump_slots": True},
            errors.ProgramError,
            "no field dump_slots.*did you mean dump_slot",
        ),
        ("set_debug_opt", 3, TypeError, "debug_opt: expected a dict, found int"),
    ],
)
def test_configurations_that_cannot_be(method, value, error, said):
    strategy = AsyncStrategy()
    with pytest.raises(error, match=said):
        getattr(strategy, method)(value)


def test_nothing_changes_when_a_field_is_refused():
    strategy = AsyncStrategy()
    with pytest.raises(errors.ProgramError):
        strategy.set_program_config({"min_block_size": 9000, "slice_var_up": 3})
    assert strategy.get_program_config().min_block_size == 8192
    with pytest.raises(errors.ProgramError):
        strategy.set_trainer_runtime_config({"rpc_retry_times": 9, "rpc_deadline": "soon"})
    assert strategy.get_trainer_runtime_config().runtime_configs["rpc_retry_times"] == "3"


def test_wrong_fields_of_configurations(monkeypatch):
    config = TrainerRuntimeConfig()
    with pytest.raises(
        errors.ProgramError,
        match=r"no attribute rpc_deadline: set runtime_configs\['rpc_deadline'\]",
    ):
        config.rpc_deadline = 5
    with pytest.raises(errors.ProgramError, match="rpc_deadline always has a value"):
        del config.runtime_configs["rpc_deadline"]
    with pytest.raises(errors.ProgramError, match="no field rpc_dedline.*did you mean rpc_deadline"):
        config.runtime_configs["rpc_dedline"] = 5
    with pytest.raises(errors.ProgramError, match="no field send_thread_num"):
        ServerRuntimeConfig().send_thread_num = 3
    server = ServerRuntimeConfig()
    server._rpc_get_thread_num = 12  # as it is
    config_module._tell_of_threads.cache_clear()
    with pytest.warns(RuntimeWarning, match="_rpc_get_thread_num: a server has one pool of threads, .* nothing to set"):
        server._rpc_get_thread_num = 7
    assert server._rpc_get_thread_num == 7
    server._rpc_get_thread_num = 8  # told once
    assert repr(ServerRuntimeConfig()).startswith("ServerRuntimeConfig(_rpc_send_thread_num=12, ")
    monkeypatch.setenv("FLAGS_communicator_send_queue_size", "many")
    with pytest.raises(errors.ProgramError, match="FLAGS_communicator_send_queue_size: expected int, found 'many'"):
        TrainerRuntimeConfig()


@pytest.mark.parametrize("frequency", [0, -1, 2.5, True, "9"])
def test_how_often_geo_trainers_push(frequency):
    with pytest.raises(errors.ProgramError, match="update_frequency: expected after how many steps"):
        StrategyFactory.create_geo_strategy(frequency)
    assert GeoStrategy(9).get_program_config().geo_sgd_need_push_nums == 9


@pytest.mark.parametrize(
    "what",
    [
        "program_config",
        "trainer_runtime_config",
        "server_runtime_config",
        "build_strategy",
        "execute_strategy",
    ],
)
def test_what_strategies_have_in_common_is_none(what):
    with pytest.raises(NotImplementedError, match=f"DistributedStrategy.check_{what}: .*StrategyFactory"):
        getattr(DistributedStrategy(), f"check_{what}")()


# ---- the fleet -----------------------------------------------------------------------------------


def test_role_makers_that_do_not_fit(calls):
    with pytest.raises(errors.ProgramError, match="there is no MPI job"):
        fleet.init()
    with pytest.raises(TypeError, match="expected a role maker, found str"):
        fleet.init("worker")
    with pytest.raises(errors.ProgramError, match="the role maker tells of none"):
        fleet.init(UserDefinedCollectiveRoleMaker(0, ["a:1"]))


def test_roles_by_the_environment(calls):
    job = {"PADDLE_PSERVERS_IP_PORT_LIST": ",".join(ENDPOINTS), "PADDLE_TRAINERS_NUM": "3"}
    with _environment(job | {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "2"}):
        fleet.init(PaddleCloudRoleMaker())
    assert fleet.is_worker() and not fleet.is_first_worker() and (fleet.worker_index(), fleet.worker_num()) == (2, 3)
    assert fleet.server_num() == 2 and fleet.server_endpoints(to_string=True) == ",".join(ENDPOINTS)
    assert fleet.split_files(list("abcd")) == ["d"]
    with _environment(job | {"TRAINING_ROLE": "PSERVER", "POD_IP": "127.0.0.1", "PADDLE_PORT": "6002"}):
        fleet.init(PaddleCloudRoleMaker())
    assert fleet.is_server() and fleet.server_index() == 1


def test_a_server(calls, monkeypatch):
    of_job(Role.SERVER, 1, trainers=1)  # its number is larger than any trainer's
    (listen,) = fleet.main_program.global_block().ops
    assert listen.attr("endpoint") == ENDPOINTS[1] and listen.attr("Fanin") == 1
    monkeypatch.setattr(fleet, "_executor", executor := Recorder(calls))
    fleet.init_server()
    fleet.init_server("")  # as PaddleRec's runner does: no model
    fleet.init_server("model")
    fleet.run_server()
    assert calls == [
        ("run", (fleet.startup_program,), {}),
        ("run", (fleet.startup_program,), {}),
        ("run", (fleet.startup_program,), {}),
        ("load", ("model", fleet.main_program, executor, fluid.global_scope()), {}),
        ("run", (fleet.main_program,), {}),
    ]
    for method in (
        fleet.init_worker,
        fleet.stop_worker,
        fleet.barrier_worker,
        fleet.table_rows,
        lambda: fleet.shrink(None, 3),
    ):
        with pytest.raises(
            errors.ProgramError,
            match=r"for a trainer, and this process is a server: ask fleet\.is_server",
        ):
            method()


def test_a_trainer(calls, monkeypatch):
    (updates, pairs), loss = of_job()
    assert [op.type for op in updates] == ["sgd"] * len(pairs) and len(pairs) == 6
    assert fleet.main_program is loss.block.program and fleet.startup_program is fluid.default_startup_program()
    assert "sgd" not in [op.type for op in fleet.main_program.global_block().ops]
    fleet.init_worker()
    with pytest.raises(errors.ProgramError, match="init_worker: the communicator runs already"):
        fleet.init_worker()
    monkeypatch.setattr(fleet, "_communicator", Recorder(calls))
    monkeypatch.setattr(fleet, "_executor", Recorder(calls))
    fleet.stop_worker()
    assert [name for name, _, _ in calls] == ["stop", "close"] and fleet._communicator is None
    for method in (fleet.init_server, fleet.run_server):
        with pytest.raises(errors.ProgramError, match="it is for a server, and this process is a trainer"):
            method()


def test_goodbye_is_said_when_the_communicator_fails(calls, monkeypatch):
    of_job()
    monkeypatch.setattr(fleet, "_executor", Recorder(calls))
    monkeypatch.setattr(fleet, "_communicator", SimpleNamespace(stop=lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        fleet.stop_worker()
    assert [name for name, _, _ in calls] == ["close"]


def test_trainers_wait_for_servers(calls, monkeypatch):
    waits = []
    monkeypatch.setattr("jfluid.transpiler.parameter_server.job.wait_until_listening", waits.append)
    of_job(wait_port=True)
    assert waits == [ENDPOINTS]
    of_job(Role.SERVER, wait_port=True)
    assert waits == [ENDPOINTS]


def test_replicas_of_a_trainer(calls):
    strategy = AsyncStrategy()
    _, loss = of_job(strategy=strategy)
    compiled = fluid.CompiledProgram(fleet.main_program).with_data_parallel(
        loss_name=loss.name,
        build_strategy=strategy.get_build_strategy(),
        exec_strategy=strategy.get_execute_strategy(),
    )
    assert compiled._program is fleet.main_program
    with pytest.raises(errors.UnsupportedError, match="async_mode"):
        fluid.CompiledProgram(fleet._origin_program).with_data_parallel(build_strategy=strategy.get_build_strategy())


class Step:
    """In the place of what runs a trainer's program: notes the feeds, and gives zeros."""

    def __init__(self):
        self.feeds = []

    def run(self, feed, fetches, scope):
        self.feeds.append(feed)
        return [np.zeros(1, "float32") for _ in fetches]


def test_saving(calls):
    _, loss = of_job()
    exe, other = fluid.Executor(fluid.CPUPlace()), fluid.Program()
    fleet.save_persistables(exe, "model")
    fleet.save_persistables(exe, "model", other)
    for program in (None, fleet.main_program, other):
        fleet.save_inference_model(exe, "served", ["dense"], [loss], program, export_for_deployment=False)
    assert fleet.shrink(None, 3) == 7
    fleet.save_one_table("shared", "folder")
    fleet.load_one_table("shared", "folder")
    trainer, own = fleet.main_program, fleet._executor
    assert calls[:2] == [
        ("save_persistables", (exe, "model", trainer), {}),
        ("save_persistables", (exe, "model", other), {}),
    ]
    assert [named["origin_program"] for _, _, named in calls[2:5]] == [fleet._origin_program] * 2 + [other]
    assert calls[2] == (
        "save_inference_model",
        (exe, "served", ["dense"], [loss]),
        {
            "main_program": trainer,
            "origin_program": fleet._origin_program,
            "export_for_deployment": False,
        },
    )
    assert calls[5:] == [
        ("shrink", (own, None, 3, trainer), {}),
        ("save_one_table", (own, "shared", "folder", trainer), {}),
        ("load_one_table", (own, "shared", "folder", trainer), {}),
    ]
    types = [op.type for op in fleet._origin_program.global_block().ops]
    assert types.count("lookup_table") == 3 and "send" not in types
    with pytest.raises(TypeError, match="save_persistables, executor: expected an Executor, found NoneType"):
        fleet.save_persistables(None, "model")
    with pytest.raises(
        TypeError,
        match="save_inference_model, main_program: expected a Program, found CompiledProgram",
    ):
        fleet.save_inference_model(exe, "served", ["dense"], [loss], fluid.CompiledProgram(fleet.main_program))


def test_out_of_turn(calls):
    optimizer = fluid.optimizer.SGD(0.1)
    with pytest.raises(errors.ProgramError, match=r"call fleet\.init\(role_maker\) first"):
        fleet.distributed_optimizer(optimizer)
    fleet.init(UserDefinedRoleMaker(0, Role.WORKER, 2, ENDPOINTS))
    executor = fluid.Executor(fluid.CPUPlace())
    for method in (
        fleet.init_worker,
        fleet.stop_worker,
        lambda: fleet.save_persistables(executor, "model"),
    ):
        with pytest.raises(errors.ProgramError, match="minimize a loss with fleet.distributed_optimizer first"):
            method()
    with pytest.raises(TypeError, match="optimizer: expected an Optimizer, found OptimizerWithMixedPrecision"):
        fleet.distributed_optimizer(fluid.contrib.mixed_precision.decorate(optimizer))
    for strategy in ({"sync_mode": False}, "sync", DistributedStrategy(), fluid.BuildStrategy()):
        with pytest.raises(TypeError, match="strategy: expected a strategy of StrategyFactory"):
            fleet.distributed_optimizer(optimizer, strategy)
    assert isinstance(TranspilerOptimizer(optimizer)._strategy, SyncStrategy)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"loss": []}, TypeError, "loss: expected one Variable, found list"),
        ({"startup_program": []}, TypeError, "startup_program: expected one Program, found list"),
        ({"scopes": []}, errors.UnsupportedError, "scopes: programs run in the scope"),
    ],
)
def test_what_cannot_be_minimised(arguments, error, said, calls):
    fleet.init(UserDefinedRoleMaker(0, Role.WORKER, 2, ENDPOINTS))
    loss = _network(fluid)
    before = len(loss.block.ops)
    with pytest.raises(error, match=said):
        fleet.distributed_optimizer(fluid.optimizer.SGD(0.1)).minimize(**{"loss": loss, **arguments})
    assert len(loss.block.ops) == before and fleet.main_program is None


def test_a_config_decides_the_strategy(calls):
    for fields, kind in (
        ({}, SyncStrategy),
        ({"sync_mode": False, "completely_not_async": True}, SyncStrategy),
        ({"sync_mode": False, "geo_sgd_mode": True}, GeoStrategy),
    ):
        config = fluid.DistributeTranspilerConfig()
        for name, value in fields.items():
            setattr(config, name, value)
        assert type(TranspilerOptimizer(fluid.optimizer.SGD(0.1), config)._strategy) is kind


def test_values_that_would_be_dumped_are_not():
    strategy = AsyncStrategy()
    with pytest.warns(RuntimeWarning, match="debug_opt, dump_fields: no effect"):
        strategy.set_debug_opt({"dump_fields": ["x"], "dump_file_num": 4})
    assert strategy.get_debug_opt()["dump_fields"] == ["x"]

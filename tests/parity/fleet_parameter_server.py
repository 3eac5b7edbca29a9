"""The fleet of jobs with parameter servers, for any engine that offers the Fluid API.

`run` tells what a case gives, or that it raises. `communicator` is put in the place of the engine's
own; see `Communicator`. Python 3.7 syntax.
"""

import importlib
import os
import re

from tests.parity.fleet import SERVERS, _environment, _seen
from tests.parity.parameter_server import INSERTED, structure

ENDPOINTS = SERVERS.split(",")
TRAINERS = "127.0.0.1:6170,127.0.0.1:6171"
PATH = "incubate.fleet.parameter_server.distribute_transpiler"
FACTORY = {
    "sync": "create_sync_strategy",
    "half_async": "create_half_async_strategy",
    "async": "create_async_strategy",
    "geo": "create_geo_strategy",
}
CONFIG = (
    "slice_var_up",
    "min_block_size",
    "enable_dc_asgd",
    "wait_port",
    "runtime_split_send_recv",
    "sync_mode",
    "half_async",
    "completely_not_async",
    "geo_sgd_mode",
    "geo_sgd_need_push_nums",
)
THREADS = ("_rpc_send_thread_num", "_rpc_get_thread_num", "_rpc_prefetch_thread_num")
OURS = "communicator_prefetch_depth"  # which Fluid does not have
VARIABLES = {
    "nothing": {},
    "replicas": {"CPU_NUM": "4"},
    "communicator": {
        "FLAGS_communicator_max_merge_var_num": "7",
        "FLAGS_communicator_send_queue_size": "8",
        "FLAGS_communicator_independent_recv_thread": "0",
        "FLAGS_communicator_is_sgd_optimizer": "0",
        "FLAGS_communicator_min_send_grad_num_before_recv": "6",
        "FLAGS_communicator_thread_pool_size": "9",
        "FLAGS_communicator_send_wait_times": "2",
        "FLAGS_rpc_deadline": "5000",
        "FLAGS_rpc_retry_times": "4",
        "FLAGS_rpc_send_thread_num": "5",
        "FLAGS_rpc_get_thread_num": "6",
        "CPU_NUM": "2",
    },
}
# What a strategy is given, by the method that takes it.
GIVEN = {
    "fields": {
        "set_program_config": {
            "min_block_size": 9000,
            "geo_sgd_need_push_nums": 3,
            "half_async": False,
        },
        "set_trainer_runtime_config": {"communicator_send_wait_times": 1, "rpc_retry_times": "8"},
        "set_server_runtime_config": {"_rpc_get_thread_num": 7},
        "set_build_strategy": {"async_mode": False, "memory_optimize": True},
        "set_execute_strategy": {"num_threads": 3, "use_thread_barrier": False},
        "set_debug_opt": {"dump_file_num": 2},
    },
    "program config": {"set_program_config": {"min_block": 3}},
    "sync_mode": {"set_program_config": {"sync_mode": True}},
    "program config text": {"set_program_config": "x"},
    "trainer": {"set_trainer_runtime_config": {"max_merge_var_num": 3}},
    "server": {"set_server_runtime_config": {"rpc_get_thread_num": 7}},
    "build": {"set_build_strategy": {"asynchronous": True}},
    "execute": {"set_execute_strategy": 3},
}
CONFIGS = {
    "defaults": {},
    "half_async": {"sync_mode": False},
    "async": {"sync_mode": False, "runtime_split_send_recv": True},
    "communicator_half_async": {
        "sync_mode": False,
        "runtime_split_send_recv": True,
        "half_async": True,
    },
    "geo": {
        "sync_mode": False,
        "runtime_split_send_recv": True,
        "geo_sgd_mode": True,
        "geo_sgd_need_push_nums": 5,
    },
}
_JOB = {"PADDLE_PSERVERS_IP_PORT_LIST": SERVERS, "PADDLE_TRAINER_ENDPOINTS": TRAINERS}
ROLES = {
    "trainer": dict(_JOB, TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="1", PADDLE_TRAINERS_NUM="2"),
    "trainer without a count": dict(_JOB, TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="0"),
    "numbered server": dict(_JOB, TRAINING_ROLE="PSERVER", PADDLE_PSERVER_ID="1"),
    "server": dict(
        _JOB,
        TRAINING_ROLE="PSERVER",
        POD_IP="127.0.0.1",
        PADDLE_PORT="6002",
        PADDLE_TRAINERS_NUM="2",
    ),
    "server by its endpoint": dict(
        _JOB,
        TRAINING_ROLE="PSERVER",
        PADDLE_CURRENT_ENDPOINT="127.0.0.1:6002",
        PADDLE_TRAINERS_NUM="2",
    ),
    "server elsewhere": dict(
        _JOB,
        TRAINING_ROLE="PSERVER",
        POD_IP="127.0.0.1",
        PADDLE_PORT="6009",
        PADDLE_TRAINERS_NUM="2",
    ),
    "other role": dict(_JOB, TRAINING_ROLE="X", PADDLE_TRAINER_ID="1", PADDLE_TRAINERS_NUM="2"),
    "nothing": {},
}
CASES = (
    ["strategy: %s, %s" % (s, v) for s in FACTORY for v in VARIABLES]
    + ["given: %s, %s" % (s, g) for s in FACTORY for g in GIVEN]
    + ["whole: %s" % s for s in FACTORY]
    + ["config: %s" % c for c in CONFIGS]
    + ["programs: %s, %s" % (s, o) for s in FACTORY for o in ("sgd", "adam")]
    + ["general: %s" % r for r in ROLES]
    + ["cloud: %s" % r for r in ROLES]
)


MADE = []  # what each Communicator was made with: (program, mode, arguments, flags)


class Communicator:
    """Notes what it is made with."""

    def __init__(self, program, mode, kwargs=None, envs=None):
        MADE.append((program, mode, kwargs, dict(envs)))

    def is_running(self):
        """It never runs."""
        return False

    def start(self):
        """Nothing to start."""

    def stop(self):
        """Nothing to stop."""


def _module(fluid, path=PATH):
    return importlib.import_module("%s.%s" % (fluid.__name__, path))


def _made(fluid, strategy):
    return getattr(_module(fluid, PATH + ".distributed_strategy").StrategyFactory, FACTORY[strategy])()


def _flags(config):
    return {name: str(value) for name, value in config.items() if name != OURS}


def _config(config):
    return {name: getattr(config, name) for name in CONFIG}


def _told(strategy):
    """All of a strategy's configurations."""
    build, execute = strategy.get_build_strategy(), strategy.get_execute_strategy()
    trainer = strategy.get_trainer_runtime_config()
    return {
        "program": _config(strategy.get_program_config()),
        "flags": _flags(trainer.get_communicator_flags()),
        "fields": _flags(trainer.runtime_configs),
        "mode": trainer.mode,
        "server": [int(getattr(strategy.get_server_runtime_config(), name)) for name in THREADS],
        "build": [
            build.async_mode,
            str(build.reduce_strategy).split(".")[-1],
            build.memory_optimize,
        ],
        "execute": [execute.num_threads, execute.use_thread_barrier],
        "debug": strategy.get_debug_opt(),
    }


def _whole(fluid, strategy):
    """A strategy that is given new objects."""
    module, given = _module(fluid), _made(fluid, strategy)
    config = fluid.DistributeTranspilerConfig()
    config.min_block_size = 9999
    trainer = module.TrainerRuntimeConfig()
    fresh = _flags(trainer.get_communicator_flags())
    server = _module(fluid, PATH + ".distributed_strategy").ServerRuntimeConfig()
    build, execute = fluid.BuildStrategy(), fluid.ExecutionStrategy()
    execute.num_threads = 9
    for name, value in (
        ("program_config", config),
        ("trainer_runtime_config", trainer),
        ("server_runtime_config", server),
        ("build_strategy", build),
        ("execute_strategy", execute),
    ):
        getattr(given, "set_" + name)(value)
    same = [
        given.get_program_config() is config,
        given.get_trainer_runtime_config() is trainer,
        given.get_server_runtime_config() is server,
        given.get_build_strategy() is build,
    ]
    return {"fresh": fresh, "same": same, "told": _told(given)}


def _network(fluid):
    """The loss of a small click model: two slots of one sparse table that is cut, one of another,
    dense numbers.
    """
    slots = [fluid.layers.data(name="C%d" % i, shape=[1], dtype="int64", lod_level=1) for i in range(3)]
    shared = fluid.ParamAttr(name="shared")
    rows = [fluid.layers.embedding(s, size=[3000, 8], is_sparse=True, param_attr=shared) for s in slots[:2]]
    rows.append(fluid.layers.embedding(slots[2], size=[50, 8], is_sparse=True, param_attr=fluid.ParamAttr(name="own")))
    parts = [fluid.layers.sequence_pool(r, "sum") for r in rows] + [fluid.layers.data("dense", [13])]
    hidden = fluid.layers.fc(fluid.layers.concat(parts, axis=1), 500, act="relu")
    label = fluid.layers.data("label", [1], dtype="int64")
    return fluid.layers.mean(fluid.layers.cross_entropy(fluid.layers.fc(hidden, 2, act="softmax"), label))


def _fleet(fluid, index, server, strategy, optimizer):
    """The fleet of one process, and the startup program that the loss had."""
    makers, fleet = _module(fluid, "incubate.fleet.base.role_maker"), _module(fluid).fleet
    fleet.__dict__.clear()
    fleet.__init__()
    fleet.init(makers.UserDefinedRoleMaker(index, makers.Role.SERVER if server else makers.Role.WORKER, 2, ENDPOINTS))
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        fleet.distributed_optimizer(optimizer, strategy).minimize(_network(fluid))
    return fleet


def _optimizer(fluid, name):
    return {"sgd": fluid.optimizer.SGD, "adam": fluid.optimizer.Adam}[name](0.1)


def _programs(fluid, strategy, optimizer):
    told = {}
    for index, endpoint in enumerate(ENDPOINTS):
        fleet = _fleet(fluid, index, True, _made(fluid, strategy), _optimizer(fluid, optimizer))
        told[endpoint], told[endpoint + " startup"] = (
            structure(fleet.main_program),
            structure(fleet.startup_program),
        )
        if strategy == "geo":  # where Fluid numbers no server
            lines = told[endpoint]["operators"]
            told[endpoint]["operators"] = [re.sub('"pserver_id": -?[0-9]+, ', "", line) for line in lines]
        else:
            (listen,) = [op for op in fleet.main_program.global_block().ops if op.type == "listen_and_serv"]
            told[endpoint]["threads"] = [listen.attr(name[1:]) for name in THREADS]
    given = _made(fluid, strategy)
    given.set_program_config({"wait_port": False})
    fleet = _fleet(fluid, 1, False, given, _optimizer(fluid, optimizer))
    told["types"] = _types(fleet.main_program)
    told["origin"] = fleet._origin_program.global_block().ops[-1].type
    told["worker"] = _worker(fleet)
    if strategy != "geo":  # of which tests.parity.parameter_server tells more
        told["trainer"], told["startup"] = (
            structure(fleet.main_program, INSERTED),
            structure(fleet.startup_program),
        )
        # Fluid does not tell a `send` which trainer it is for.
        told["trainer"]["operators"] = [
            re.sub('"trainer_id": [0-9]+, ', "", line) if " send " in line else line
            for line in told["trainer"]["operators"]
        ]
    return told


def _types(program):
    types = " ".join(op.type for op in program.global_block().ops)
    # Fluid's name breaks its own rule
    return types.replace("cross_entropy_grad2", "cross_entropy2_grad")


def _worker(fleet):
    """What the communicator is made with."""
    del MADE[:]
    fleet.init_worker()
    fleet.stop_worker()
    ((program, mode, arguments, flags),) = MADE
    if arguments and "push_vars" in arguments:
        arguments = dict(arguments, push_vars={n: dict(v) for n, v in arguments["push_vars"].items()})
    return {
        "same": program is fleet.main_program,
        "mode": mode,
        "arguments": arguments,
        "flags": _flags(flags),
    }


def _of_config(fluid, name):
    config = fluid.DistributeTranspilerConfig()
    for field, value in CONFIGS[name].items():
        setattr(config, field, value)
    config.wait_port = False
    fleet = _fleet(fluid, 0, False, config, fluid.optimizer.SGD(0.1))
    return {
        "types": _types(fleet.main_program),
        "worker": _worker(fleet),
        "config": _config(config),
    }


def _role(fluid, kind, role):
    makers = _module(fluid, "incubate.fleet.base.role_maker")
    with _environment(ROLES[role]):
        if kind == "cloud":
            return _seen(makers.PaddleCloudRoleMaker())
        maker = makers.GeneralRoleMaker(path="")
        return dict(_seen(maker), endpoint=maker.get_local_endpoint(), servers_num=maker.server_num())


def _with(variables, tell):
    before = dict(os.environ)
    for name in list(os.environ):
        if name.startswith(("FLAGS_communicator", "FLAGS_rpc", "CPU_NUM")):
            del os.environ[name]
    os.environ.update(variables)
    try:
        return tell()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _given(fluid, strategy, name):
    given = _made(fluid, strategy)
    for method, value in GIVEN[name].items():
        getattr(given, method)(value)
    return _told(given)


def run(fluid, case):
    """What the case gives."""
    kind, _, name = case.partition(": ")
    first, _, second = name.partition(", ")
    tell = {
        "strategy": lambda: _told(_made(fluid, first)),
        "given": lambda: _given(fluid, first, second),
        "whole": lambda: _whole(fluid, first),
        "config": lambda: _of_config(fluid, first),
        "programs": lambda: _programs(fluid, first, second),
        "general": lambda: _role(fluid, kind, first),
        "cloud": lambda: _role(fluid, kind, first),
    }[kind]
    try:
        return _with(VARIABLES[second] if kind == "strategy" else {}, tell)
    except (AssertionError, KeyError, TypeError, ValueError):
        return "raises"

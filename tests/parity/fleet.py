"""Role makers, and the fleet of collective jobs, for any engine that offers the Fluid API.

`run` tells what a case gives, or that it raises.
"""

import contextlib
import importlib
import os

from tests.parity.collective import OPTIMIZERS, _programs, _told

TRAINERS = "127.0.0.1:6170,127.0.0.1:6171,127.0.0.1:6172"
SERVERS = "127.0.0.1:6001,127.0.0.1:6002"
OF_SERVERS = {"PADDLE_PSERVERS_IP_PORT_LIST": SERVERS, "PADDLE_TRAINERS_NUM": "3"}
ENVIRONMENTS = {
    "collective": (True, {"PADDLE_TRAINER_ENDPOINTS": TRAINERS, "PADDLE_TRAINER_ID": "2"}),
    "collective without a number": (True, {"PADDLE_TRAINER_ENDPOINTS": TRAINERS}),
    "collective without endpoints": (True, {"PADDLE_TRAINER_ID": "0"}),
    "collective server": (
        True,
        {"PADDLE_TRAINER_ENDPOINTS": TRAINERS, "PADDLE_TRAINING_ROLE": "PSERVER"},
    ),
    "trainer": (False, dict(OF_SERVERS, TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="1")),
    "first trainer": (False, dict(OF_SERVERS, TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="0")),
    "trainer without a number": (False, dict(OF_SERVERS, TRAINING_ROLE="TRAINER")),
    "server": (
        False,
        dict(OF_SERVERS, TRAINING_ROLE="PSERVER", POD_IP="127.0.0.1", PADDLE_PORT="6002"),
    ),
    "server elsewhere": (
        False,
        dict(OF_SERVERS, TRAINING_ROLE="PSERVER", POD_IP="127.0.0.1", PADDLE_PORT="6003"),
    ),
    "other role": (False, dict(OF_SERVERS, TRAINING_ROLE="MASTER")),
    "no trainers": (False, {"PADDLE_PSERVERS_IP_PORT_LIST": SERVERS, "TRAINING_ROLE": "TRAINER"}),
}
STRATEGIES = {
    "grad_allreduce": {"mode": "collective", "collective_mode": "grad_allreduce"},
    "local_sgd": {"use_local_sgd": True, "nccl_comm_num": 2},
    "nccl2": {},
}
CHECKPOINTS = ("keep", "drop", "empty")
CASES = (
    [f"environment: {name}" for name in ENVIRONMENTS]
    + [f"strategy: {name}" for name in STRATEGIES]
    + [f"checkpoints: {name}" for name in CHECKPOINTS]
    + ["user", "user server", "user collective", "defaults", "status"]
)


def _module(fluid, path):
    return importlib.import_module(f"{fluid.__name__}.incubate.fleet.{path}")


@contextlib.contextmanager
def _environment(variables):
    before = dict(os.environ)
    for name in list(os.environ):
        if name.startswith(("PADDLE_", "POD_", "TRAINING_ROLE")):
            del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _seen(maker, collective=False):
    maker.generate_role()
    told = {
        "num": maker.worker_num(),
        "index": maker.worker_index(),
        "trainers": maker.get_trainer_endpoints(),
        "servers": maker.get_pserver_endpoints(),
    }
    if not collective:  # Fluid has no role there
        told.update(
            worker=maker.is_worker(),
            server=maker.is_server(),
            first=maker.is_first_worker(),
            server_index=maker.server_index(),
            text=maker.to_string(),
        )
    return told


def _minimized(fluid, fields):
    """The programs of the second of three processes."""
    module, makers = _module(fluid, "collective"), _module(fluid, "base.role_maker")
    module.fleet.init(makers.UserDefinedCollectiveRoleMaker(1, TRAINERS.split(",")))
    strategy = module.DistributedStrategy()
    for name, value in fields.items():
        setattr(strategy, name, value)

    def optimizer(fluid):
        return module.fleet.distributed_optimizer(OPTIMIZERS["momentum"](fluid), strategy)

    main, startup = _programs(fluid, optimizer)
    compiled = not isinstance(module.fleet.main_program, fluid.Program)
    return {
        "main": _told(main),
        "startup": _told(startup),
        "origin": _told(module.fleet._origin_program),
        "compiled": compiled,
        "strategy": [strategy.num_trainers, strategy.trainer_id, list(strategy.trainers_endpoints)]
        if compiled
        else None,
    }


def _text(path):
    with open(path) as f:
        return f.read()


def _checkpoints(fluid, name, folder):
    module = _module(fluid, "collective")
    fleet, status = module.Collective(), module.TrainStatus
    main, startup = _programs(fluid, OPTIMIZERS["sgd"])
    executor = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        executor.run(startup)
        if name != "empty":
            for epoch in range(3):
                fleet.save_check_point(
                    executor,
                    folder,
                    status(epoch),
                    main_program=main,
                    remain_all_checkpoint=name == "keep",
                )
            fleet.clean_redundant_check_points(folder, checkpoint_num=2)
        found = fleet.load_check_point(executor, folder, trainer_id=0, main_program=main)
    files = sorted(os.path.relpath(os.path.join(at, f), folder) for at, _, found in os.walk(folder) for f in found)
    texts = [_text(os.path.join(folder, f)) for f in files if f.endswith("fleet_train_status")]
    return {"files": files, "texts": texts, "next": None if found is None else found.next()}


def _defaults(fluid):
    strategy = _module(fluid, "collective").DistributedStrategy()
    left_out = ("GradientScaleStrategy", "ReduceStrategy", "exec_strategy", "collective")
    return {
        n: str(getattr(strategy, n)).split(".")[-1]
        for n in sorted(dir(strategy))
        if not n.startswith("_") and n not in left_out
    }


def _status(fluid):
    status = _module(fluid, "collective").TrainStatus
    return [status().next(), status(4).next(), status(4) == status(4), status(4) != status(5)]


def run(fluid, case, folder):
    """What the case gives; `folder` is an empty one to write to."""
    makers = _module(fluid, "base.role_maker")
    kind, _, name = case.partition(": ")
    try:
        if kind == "environment":
            collective, variables = ENVIRONMENTS[name]
            with _environment(variables):
                return _seen(makers.PaddleCloudRoleMaker(is_collective=collective), collective)
        if kind == "strategy":
            return _minimized(fluid, STRATEGIES[name])
        if kind == "checkpoints":
            return _checkpoints(fluid, name, str(folder))
        if kind == "user":
            return _seen(makers.UserDefinedRoleMaker(1, makers.Role.WORKER, 2, SERVERS.split(",")))
        if kind == "user server":
            return _seen(makers.UserDefinedRoleMaker(1, makers.Role.SERVER, 2, SERVERS.split(",")))
        if kind == "user collective":
            return _seen(makers.UserDefinedCollectiveRoleMaker(0, TRAINERS.split(",")), collective=True)
        return {"defaults": _defaults, "status": _status}[kind](fluid)
    except (AssertionError, KeyError, ValueError):
        return "raises"

import paddle.fluid as fluid
import paddle.fluid.incubate.fleet.base.role_maker as role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy import (
    StrategyFactory,
)


def train(cost, dataset):
    fleet.init(role_maker.PaddleCloudRoleMaker())
    strategy = StrategyFactory.create_async_strategy()
    optimizer = fleet.distributed_optimizer(fluid.optimizer.Adam(1e-3), strategy)
    optimizer.minimize(cost)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    elif fleet.is_worker():
        fleet.init_worker()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fleet.startup_program)
        exe.train_from_dataset(
            program=fleet.main_program, dataset=dataset, fetch_list=[cost], print_period=10
        )
        if fleet.is_first_worker():
            fleet.save_persistables(executor=exe, dirname="model")
        fleet.stop_worker()

import paddle.fluid as fluid
from network import click_network
from paddle.fluid.incubate.fleet.base.role_maker import PaddleCloudRoleMaker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy import (
    StrategyFactory,
)
from reader import batches

ids, click, chance, loss = click_network(is_sparse=True)
fleet.init(PaddleCloudRoleMaker())
optimizer = fluid.optimizer.Adam(learning_rate=0.01)
fleet.distributed_optimizer(optimizer, StrategyFactory.create_sync_strategy()).minimize(loss)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = fluid.Executor(fluid.CPUPlace())
    fleet.init_worker()
    exe.run(fleet.startup_program)
    feeder = fluid.DataFeeder([*ids, click], fluid.CPUPlace())
    for step, batch in enumerate(batches(256, 300, seed=fleet.worker_index())):
        (value,) = exe.run(fleet.main_program, feed=feeder.feed(batch), fetch_list=[loss])
        if step % 50 == 0 or step == 299:
            print(f"step {step}: loss {float(value):.6f}")
    if fleet.is_first_worker():
        fleet.save_inference_model(exe, "served", [i.name for i in ids], [chance])
    fleet.stop_worker()

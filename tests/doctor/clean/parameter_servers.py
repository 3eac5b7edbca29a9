import os

import paddle.fluid as fluid

x = fluid.data(name="x", shape=[None, 13], dtype="float32")
y = fluid.data(name="y", shape=[None, 1], dtype="float32")
cost = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, 1), y))
fluid.optimizer.SGD(learning_rate=0.001).minimize(cost)
role = os.environ.get("TRAINING_ROLE", "TRAINER")
config = fluid.DistributeTranspilerConfig()
config.slice_var_up = False
config.min_block_size = 8192
t = fluid.DistributeTranspiler(config=config)
t.transpile(
    trainer_id=int(os.getenv("PADDLE_TRAINER_ID", "0")),
    pservers="127.0.0.1:6174,127.0.0.1:6175",
    trainers=2,
    sync_mode=True,
)
exe = fluid.Executor(fluid.CPUPlace())
if role == "PSERVER":
    program = t.get_pserver_program("127.0.0.1:6174")
    startup = t.get_startup_program("127.0.0.1:6174", program)
    exe.run(startup)
    exe.run(program)
else:
    program = t.get_trainer_program(wait_port=False)

"""The order of published scripts for images: the startup program runs, and then the program is
transpiled for several processes.

jfluid-launch --cpus 2 tests/guides/nccl2_after_startup.py OUT
"""

import os
import sys

import numpy as np

import jfluid as fluid

x = fluid.data(name="x", shape=[None, 13])
predicted = fluid.layers.fc(x, size=1, param_attr=fluid.initializer.Constant(0.1), bias_attr=False)
loss = fluid.layers.mean(fluid.layers.square_error_cost(predicted, x[:, :1]))
fluid.optimizer.SGD(learning_rate=0.01).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())

trainers, trainer_id = int(os.environ["PADDLE_TRAINERS_NUM"]), int(os.environ["PADDLE_TRAINER_ID"])
build = fluid.BuildStrategy()
build.num_trainers, build.trainer_id = trainers, trainer_id
config, meets = fluid.DistributeTranspilerConfig(), fluid.Program()
config.mode = "nccl2"
fluid.DistributeTranspiler(config).transpile(
    trainer_id,
    trainers=os.environ["PADDLE_TRAINER_ENDPOINTS"],
    current_endpoint=os.environ["PADDLE_CURRENT_ENDPOINT"],
    startup_program=meets,
    program=fluid.default_main_program(),
)
exe.run(meets)
program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name, build)
features = np.full([4, 13], trainer_id + 1, "float32")
losses = [exe.run(program, feed={"x": features}, fetch_list=[loss])[0][0] for _ in range(3)]
parameter = np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
np.savez(f"{sys.argv[1]}/{trainer_id}.npz", losses=losses, parameter=parameter)

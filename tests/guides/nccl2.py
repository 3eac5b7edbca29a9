"""The guide on training without servers: a ParallelExecutor right after `transpile`.

jfluid-launch --cpus 2 tests/guides/nccl2.py OUT
"""

import os
import sys

import numpy as np

import jfluid as fluid

trainers = os.getenv("PADDLE_TRAINER_ENDPOINTS")
trainer_id = int(os.getenv("PADDLE_TRAINER_ID"))
current_endpoint = os.environ.pop("PADDLE_CURRENT_ENDPOINT")
del os.environ["PADDLE_TRAINER_ENDPOINTS"]  # what transpile is given must do

x = fluid.layers.data(name="x", shape=[13], dtype="float32")
y = fluid.layers.data(name="y", shape=[1], dtype="float32")
y_predict = fluid.layers.fc(input=x, size=1, param_attr=fluid.initializer.Constant(0.1), bias_attr=False)
loss = fluid.layers.mean(fluid.layers.square_error_cost(input=y_predict, label=y))
fluid.optimizer.SGD(learning_rate=0.01).minimize(loss)

config = fluid.DistributeTranspilerConfig()
config.mode = "nccl2"
t = fluid.DistributeTranspiler(config=config)
t.transpile(trainer_id, trainers=trainers, current_endpoint=current_endpoint)
exe = fluid.ParallelExecutor(
    use_cuda=False,
    loss_name=loss.name,
    num_trainers=int(os.environ["PADDLE_NUM_TRAINERS"]),
    trainer_id=trainer_id,
)
fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
features = np.full([4, 13], trainer_id + 1, "float32")
losses = []
for _ in range(3):
    (found,) = exe.run([loss.name], feed={"x": features, "y": features[:, :1]})
    losses.append(float(found[0]))
parameter = np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
np.savez(f"{sys.argv[1]}/{trainer_id}.npz", losses=losses, parameter=parameter)

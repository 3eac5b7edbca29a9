"""The guide that begins with parameter servers: one script for servers and trainers.

jfluid-launch --servers 2 --trainers 2 tests/guides/quick_start.py OUT
"""

import os
import sys

import numpy as np
import paddle
import paddle.fluid as fluid

x = fluid.layers.data(name="x", shape=[13], dtype="float32")
y_predict = fluid.layers.fc(input=x, size=1, act=None)
y = fluid.layers.data(name="y", shape=[1], dtype="float32")
cost = fluid.layers.square_error_cost(input=y_predict, label=y)
avg_cost = fluid.layers.mean(cost)
sgd_optimizer = fluid.optimizer.SGD(learning_rate=0.1)
sgd_optimizer.minimize(avg_cost)

BATCH_SIZE = 20
PASS_NUM = 10


def samples():
    random = np.random.RandomState(0)
    for _ in range(200):
        features = random.randn(13).astype("float32")
        yield features, features[:1] * 2 + 1


train_reader = paddle.batch(paddle.reader.shuffle(samples, buf_size=500), batch_size=BATCH_SIZE)
place = fluid.CPUPlace()
exe = fluid.Executor(place)
# Fetching distributed training environment setting
training_role = os.getenv("TRAINING_ROLE", None)
pserver_endpoints = os.getenv("PADDLE_PSERVERS_IP_PORT_LIST", "")
trainers = int(os.getenv("PADDLE_TRAINERS_NUM"))
assert trainers == int(os.getenv("PADDLE_NUM_TRAINERS"))
current_endpoint = os.getenv("POD_IP", "") + ":" + os.getenv("PADDLE_PORT", "")
trainer_id = int(os.getenv("PADDLE_TRAINER_ID", "0"))

config = fluid.DistributeTranspilerConfig()
config.slice_var_up = False
t = fluid.DistributeTranspiler(config=config)
t.transpile(
    trainer_id,
    pservers=pserver_endpoints,
    trainers=trainers,
    split_method=fluid.RoundRobin,
    slice_var_up=False,
)
if training_role == "PSERVER":
    pserver_prog = t.get_pserver_program(current_endpoint)
    startup_prog = t.get_startup_program(current_endpoint, pserver_prog)
    exe.run(startup_prog)
    exe.run(pserver_prog)
elif training_role == "TRAINER":
    trainer_prog = t.get_trainer_program()
    feeder = fluid.DataFeeder(place=place, feed_list=[x, y])
    exe.run(fluid.default_startup_program())
    for _ in range(PASS_NUM):
        for data in train_reader():
            (avg_loss_value,) = exe.run(trainer_prog, feed=feeder.feed(data), fetch_list=[avg_cost])
    weight = np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
    np.savez(f"{sys.argv[1]}/{trainer_id}.npz", loss=float(avg_loss_value[0]), weight=weight)
    # release the parameter servers
    exe.close()
else:
    raise AssertionError("environment var TRAINING_ROLE should be TRAINER or PSERVER")

import argparse

import paddle.fluid as fluid
from network import click_network
from reader import batches

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--init", help="a folder of parameters to begin with")
parser.add_argument("--save-init", help="where to save those that were drawn")
args = parser.parse_args()

ids, click, chance, loss = click_network()
fluid.optimizer.Adam(learning_rate=0.01).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
if args.save_init:
    fluid.io.save_persistables(exe, args.save_init)
if args.init:
    fluid.io.load_persistables(exe, args.init)

feeder = fluid.DataFeeder(ids + [click], fluid.CPUPlace())
for step, batch in enumerate(batches(256, args.steps)):
    value, = exe.run(feed=feeder.feed(batch), fetch_list=[loss])
    if step % 50 == 0 or step == args.steps - 1:
        print "step %d: loss %.6f" % (step, value)
fluid.io.save_inference_model("model", [i.name for i in ids], [chance], exe)

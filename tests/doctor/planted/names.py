"""Names: missing here, never there, through aliases, stars and strings."""
import importlib

import paddle
import paddle.fluid as F
import paddle.fluid.contrib as C
from paddle.fluid import contrib as contrib_again
from paddle.fluid.contrib import *
from paddle.fluid.layers import fc as dense, no_such_layer  # expect: unknown-name
from paddle.fluid.optimizer import Adamm  # expect: unknown-name
import paddle.fluid.no_such_module  # expect: unknown-name

fluid = importlib.import_module("paddle.fluid")
boxes = scores = image = None
a = F.contrib.Compressor(boxes, scores)  # expect: missing
b = C.Compressor(image, boxes)  # expect: missing
c = contrib_again.Compressor(image, scores)  # expect: missing
d = Compressor(image, scores)  # expect: missing
e = paddle.fluid.contrib.Compressor(image, image)  # expect: missing
f = fluid.layers.roi_alignn(image, boxes)  # expect: unknown-name
g = getattr(F.contrib, "Compressor")  # expect: missing
h = getattr(F.layers, "relu")(image)
name = input()
i = getattr(F.layers, name)(image)  # expect: computed-name
alias = F
j = alias.contrib.Compressor()  # expect: missing
k = alias.layers.bilinear_resize(image)  # expect: unknown-name
compressor = C.Compressor  # expect: missing


def build(contrib=C):
    return fluid.contrib.Compressor(boxes, boxes)  # expect: missing


class Model:
    def __init__(self):
        self.optimizer = F.optimizer.Momentum(0.1, 0.9)
        self.contrib = F.contrib

    def train(self, loss):
        self.optimizer.minimise(loss)  # expect: unknown-name
        return self.contrib.Compressor(loss, loss)  # expect: missing


F.io.save_model("x")  # expect: unknown-name
exe = F.Executor(F.CPUPlace())
exe.start()  # expect: unknown-name
F.incubate.fleet.utils.fleet_util.FleetUtil()

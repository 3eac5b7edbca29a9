"""Names: missing here, never there, through aliases, stars and strings."""
import importlib

import paddle
import paddle.fluid as F
import paddle.fluid.layers as L
from paddle.fluid import layers as layers_again
from paddle.fluid.layers import *
from paddle.fluid.layers import fc as dense, no_such_layer  # expect: unknown-name
from paddle.fluid.optimizer import Adamm  # expect: unknown-name
import paddle.fluid.no_such_module  # expect: unknown-name

fluid = importlib.import_module("paddle.fluid")
boxes = scores = image = None
a = F.layers.multiclass_nms(boxes, scores, 0.1, 10, 10)  # expect: missing
b = L.yolov3_loss(image, boxes, scores, [1], [0], 2, 0.5, 32)  # expect: missing
c = layers_again.ssd_loss(image, scores, boxes, boxes, boxes)  # expect: missing
d = warpctc(image, scores)  # expect: missing
e = paddle.fluid.layers.prior_box(image, image, [1.0])  # expect: missing
f = fluid.layers.roi_alignn(image, boxes)  # expect: unknown-name
g = getattr(F.layers, "generate_proposals")  # expect: missing
h = getattr(F.layers, "relu")(image)
name = input()
i = getattr(F.layers, name)(image)  # expect: computed-name
alias = F
j = alias.contrib.QuantizeTranspiler()  # expect: missing
k = alias.layers.bilinear(image)  # expect: unknown-name
nms = L.multiclass_nms  # expect: missing


def build(layers=L):
    return fluid.layers.detection_output(boxes, boxes, boxes, boxes)  # expect: missing


class Model:
    def __init__(self):
        self.optimizer = F.optimizer.Momentum(0.1, 0.9)
        self.layers = F.layers

    def train(self, loss):
        self.optimizer.minimise(loss)  # expect: unknown-name
        return self.layers.psroi_pool(loss, loss, 1, 1.0, 1, 1)  # expect: missing


F.io.save_model("x")  # expect: unknown-name
exe = F.Executor(F.CPUPlace())
exe.start()  # expect: unknown-name
F.DistMultiTrainer()  # expect: missing

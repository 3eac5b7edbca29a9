from __future__ import absolute_import, division, print_function

import math

import paddle.fluid as fluid
from paddle.fluid.param_attr import ParamAttr


class ResNet(object):
    def __init__(self, depth=18):
        self.blocks = {18: [2, 2, 2, 2], 34: [3, 4, 6, 3]}[depth]

    def conv_bn(self, input, num_filters, filter_size, stride=1, act=None, name=None):
        conv = fluid.layers.conv2d(
            input=input,
            num_filters=num_filters,
            filter_size=filter_size,
            stride=stride,
            padding=(filter_size - 1) // 2,
            groups=1,
            act=None,
            param_attr=ParamAttr(name=name + "_weights"),
            bias_attr=False,
        )
        return fluid.layers.batch_norm(
            input=conv,
            act=act,
            param_attr=ParamAttr(name=name + "_scale"),
            bias_attr=ParamAttr(name + "_offset"),
            moving_mean_name=name + "_mean",
            moving_variance_name=name + "_variance",
        )

    def net(self, input, classes=10):
        out = self.conv_bn(input, 8, 7, 2, "relu", "conv1")
        out = fluid.layers.pool2d(out, pool_size=3, pool_stride=2, pool_padding=1, pool_type="max")
        for stage, count in enumerate(self.blocks):
            for i in range(count):
                name = "res{}_{}".format(stage, i)
                stride = 2 if i == 0 and stage else 1
                branch = self.conv_bn(out, 8 << stage, 3, stride, "relu", name + "a")
                branch = self.conv_bn(branch, 8 << stage, 3, 1, None, name + "b")
                short = self.conv_bn(out, 8 << stage, 1, stride, None, name + "s")
                out = fluid.layers.elementwise_add(x=short, y=branch, act="relu")
        pool = fluid.layers.pool2d(input=out, pool_type="avg", global_pooling=True)
        bound = 1.0 / math.sqrt(pool.shape[1])
        weight = fluid.param_attr.ParamAttr(initializer=fluid.initializer.Uniform(-bound, bound))
        return fluid.layers.fc(input=pool, size=classes, param_attr=weight)


image = fluid.data(name="image", shape=[None, 3, 32, 32], dtype="float32")
label = fluid.data(name="label", shape=[None, 1], dtype="int64")
logits = ResNet().net(image)
smooth = fluid.layers.label_smooth(fluid.layers.one_hot(label, depth=10), epsilon=0.1)
loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(logits, smooth, soft_label=True))
rate = fluid.layers.piecewise_decay(boundaries=[100, 200], values=[0.1, 0.01, 0.001])
fluid.optimizer.Momentum(
    learning_rate=rate, momentum=0.9, regularization=fluid.regularizer.L2Decay(1e-4)
).minimize(loss)

# -*- coding: gbk -*-
import paddle.fluid as fluid

name = "中文"
fluid.layers.no_such(name)  # expect: unknown-name

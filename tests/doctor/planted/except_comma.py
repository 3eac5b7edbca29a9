import paddle.fluid as fluid

try:
    fluid.layers.fc(None, 2)
except Exception, e:  # expect: python-2
    pass

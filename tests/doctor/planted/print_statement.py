import paddle.fluid as fluid

loss = fluid.layers.mean(fluid.data("x", [1]))
print "loss", loss  # expect: python-2

import paddle.fluid as fluid

x = fluid.data("x", [1]  # expect: syntax
y = 2

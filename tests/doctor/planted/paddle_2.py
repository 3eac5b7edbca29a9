"""Names of Paddle 2."""
import paddle
import paddle.fluid as fluid

paddle.enable_static()  # expect: unknown-name
layer = paddle.nn.Linear(3, 4)  # expect: paddle-2
x = paddle.static.data("x", [1])  # expect: paddle-2

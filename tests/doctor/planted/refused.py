"""What is there and refuses to be used."""
import paddle.fluid as fluid

fluid.load_op_library("libops.so")  # expect: refused
fluid.load_op_library("own_operators.py")

"""Chinese in GBK, without a declaration."""
import paddle.fluid as fluid

name = "жпнд"  # expect: encoding
fluid.layers.no_such(name)  # expect: unknown-name

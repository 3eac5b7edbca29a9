import paddle.fluid as fluid


class Batches(object):
    def __init__(self, sizes):
        self.sizes = sizes

    def iteritems(self):
        return iter(self.sizes.items())


for name, size in Batches({"x": 4}).iteritems():
    fluid.data(name=name, shape=[None, size], dtype="float32")

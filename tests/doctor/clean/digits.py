import paddle.fluid as fluid
import paddle.fluid.layers as layers
import paddle.fluid.nets as nets


def network(image, label):
    conv = nets.simple_img_conv_pool(image, 20, 5, pool_size=2, pool_stride=2, act="relu")
    conv = layers.batch_norm(conv, is_test=False)
    predict = layers.fc(conv, size=10, act="softmax")
    cost = layers.mean(layers.cross_entropy(input=predict, label=label))
    return cost, layers.accuracy(input=predict, label=label, k=1)


def main(use_cuda=False):
    image = fluid.layers.data("image", shape=[1, 28, 28], dtype="float32")
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    cost, accuracy = network(image, label)
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adam(learning_rate=0.001).minimize(cost)
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    return exe, test, accuracy


if __name__ == "__main__":
    main()

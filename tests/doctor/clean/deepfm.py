import argparse

import paddle.fluid as fluid


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fields", type=int, default=6)
    return parser.parse_args([])


def model(fields, size=100, factors=4):
    ids = fluid.data(name="ids", shape=[None, fields], dtype="int64")
    label = fluid.data(name="label", shape=[None, 1], dtype="int64")
    normal = fluid.initializer.TruncatedNormalInitializer(loc=0.0, scale=0.01)
    first = fluid.embedding(ids, size=[size, 1], param_attr=fluid.ParamAttr(initializer=normal))
    second = fluid.embedding(ids, size=[size, factors], param_attr="second", is_sparse=True)
    linear = fluid.layers.reduce_sum(first, dim=1)
    summed = fluid.layers.square(fluid.layers.reduce_sum(second, dim=1))
    squared = fluid.layers.reduce_sum(fluid.layers.square(second), dim=1)
    crossed = 0.5 * fluid.layers.reduce_sum(summed - squared, dim=1, keep_dim=True)
    deep = fluid.layers.reshape(second, [-1, fields * factors])
    for width in (16, 16):
        deep = fluid.layers.fc(deep, width, act="relu")
    logit = linear + crossed + fluid.layers.fc(deep, 1)
    predict = fluid.layers.sigmoid(logit)
    cost = fluid.layers.log_loss(input=predict, label=fluid.layers.cast(label, "float32"))
    both = fluid.layers.concat([1.0 - predict, predict], 1)
    auc, batch_auc, states = fluid.layers.auc(
        input=both, label=label, num_thresholds=2**12, slide_steps=20
    )
    return fluid.layers.reduce_sum(cost), auc


args = parse_args()
loss, auc_var = model(args.fields)
optimizer = fluid.optimizer.Adam(
    learning_rate=1e-3, lazy_mode=True, grad_clip=fluid.clip.GradientClipByGlobalNorm(5.0)
)
optimizer.minimize(loss)

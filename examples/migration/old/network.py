import paddle.fluid as fluid
from reader import ARTICLES, HOURS, USERS


def click_network(is_sparse=False):
    names = ["user", "article", "hour"]
    ids = [fluid.data(name, [None, 1], "int64") for name in names]
    click = fluid.data("click", [None, 1], "int64")
    width = 16 / 2
    rows = [
        fluid.embedding(i, size=[n, width], is_sparse=is_sparse)
        for i, n in zip(ids, [USERS, ARTICLES, HOURS])
    ]
    hidden = fluid.layers.concat([fluid.layers.reshape(r, shape=[-1, width]) for r in rows], axis=1)
    hidden = fluid.layers.fc(hidden, size=32, act="relu")
    chance = fluid.layers.fc(hidden, size=2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(chance, click))
    return ids, click, chance, loss

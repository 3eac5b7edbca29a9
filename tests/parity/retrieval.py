"""A tree-based retrieval model (TDM), written once for any engine that offers the Fluid API (Python
3.7 syntax): trained on samples of each layer, then searched from the root with a beam.
"""

import numpy as np

from tests.parity.programs import new_scope, set_parameters

STEPS, WIDTH, BEAM = 5, 6, 2
SIZES = [2, 4, 8]  # of the layers of a binary tree: nodes are numbered from 1, layer by layer


def tree():
    """(TreeInfo, the ways to the leaves, the nodes of all layers)."""
    info = np.zeros((15, 5), "int64")
    for node in range(1, 15):
        info[node, 1:3] = (node + 1).bit_length() - 2, max((node - 1) // 2, 0)
        if node < 7:
            info[node, 3:] = 2 * node + 1, 2 * node + 2
        else:
            info[node, 0] = node - 6
    ways = np.array([[(leaf - 3) // 4, (leaf - 1) // 2, leaf] for leaf in range(7, 15)], "int32")
    return info, ways, np.arange(1, 15, dtype="int32").reshape(-1, 1)


def logits(fluid, user, nodes, layer):
    """Whether a user, [batch, WIDTH], wants what is below nodes [batch, count, 1]: [batch, count, 2]."""
    count = nodes.shape[1]
    attr = fluid.ParamAttr(name="nodes_w")
    rows = fluid.layers.embedding(nodes, size=[15, WIDTH], dtype="float32", param_attr=attr)
    user = fluid.layers.expand(fluid.layers.unsqueeze(user, [1]), [1, count, 1])
    both = fluid.layers.concat([user, rows, fluid.layers.elementwise_mul(user, rows)], axis=2)
    return fluid.layers.fc(
        both,
        2,
        num_flatten_dims=2,
        param_attr=fluid.ParamAttr(name="layer%d_w" % layer),
        bias_attr=fluid.ParamAttr(name="layer%d_b" % layer),
    )


def trained(fluid):
    """The loss. All other nodes of a layer are its negatives, so that their order alone is random."""
    user = fluid.data(name="user", shape=[None, WIDTH], dtype="float32")
    item = fluid.data(name="item", shape=[None, 1], dtype="int64")
    samples, labels, masks = fluid.contrib.layers.tdm_sampler(
        item,
        [size - 1 for size in SIZES],
        SIZES,
        SIZES[-1],
        tree_travel_attr=fluid.ParamAttr(name="ways"),
        tree_layer_attr=fluid.ParamAttr(name="layers"),
        dtype="int64",
    )
    sums, counts = [], []
    for layer, (nodes, label, mask) in enumerate(zip(samples, labels, masks)):
        found = logits(fluid, user, nodes, layer)
        cost = fluid.layers.softmax_with_cross_entropy(found, label)
        mask = fluid.layers.cast(mask, "float32")
        sums.append(fluid.layers.reduce_sum(cost * mask))
        counts.append(fluid.layers.reduce_sum(mask))
    return fluid.layers.elementwise_div(fluid.layers.sums(sums), fluid.layers.sums(counts))


def searched(fluid):
    """The leaves that a beam from the first layer ends at, [batch, BEAM], their scores, and whether
    the nodes of the last layer are items.
    """
    user = fluid.data(name="user", shape=[None, WIDTH], dtype="float32")
    nodes = fluid.data(name="first", shape=[None, SIZES[0], 1], dtype="int64")
    leaf = None
    for layer in range(len(SIZES)):
        if layer:
            child, leaf = fluid.contrib.layers.tdm_child(
                nodes, 15, 2, param_attr=fluid.ParamAttr(name="tree"), dtype="int64"
            )
            nodes = fluid.layers.reshape(child, [-1, 2 * BEAM, 1])
        count = nodes.shape[1]
        found = fluid.layers.softmax(logits(fluid, user, nodes, layer))
        wanted = fluid.layers.slice(found, axes=[2], starts=[1], ends=[2])
        score, place = fluid.layers.topk(fluid.layers.reshape(wanted, [-1, count]), BEAM)
        chosen = fluid.one_hot(place, count)
        every = fluid.layers.reshape(fluid.layers.cast(nodes, "float32"), [-1, 1, count])
        nodes = fluid.layers.reduce_sum(fluid.layers.elementwise_mul(chosen, every), dim=2)
        nodes = fluid.layers.cast(nodes, "int64")
    return nodes, score, leaf


def run(fluid):
    """Losses, and what a beam finds afterwards: nodes, scores, and whether nodes are items."""
    main, startup, search, scope = (
        fluid.Program(),
        fluid.Program(),
        fluid.Program(),
        new_scope(fluid),
    )
    with fluid.scope_guard(scope), fluid.unique_name.guard():
        with fluid.program_guard(main, startup):
            loss = trained(fluid)
            fluid.optimizer.Adam(0.02).minimize(loss)
        with fluid.program_guard(search, startup):
            targets = searched(fluid)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        set_parameters(fluid, main, scope)
        info, ways, nodes = tree()
        for name, value in (("tree", info), ("ways", ways), ("layers", nodes)):
            scope.find_var(name).get_tensor().set(value, fluid.CPUPlace())
        rng = np.random.RandomState(0)
        losses = []
        for _ in range(STEPS):
            feed = {
                "user": rng.randn(16, WIDTH).astype("float32"),
                "item": rng.randint(0, 8, (16, 1)).astype("int64"),
            }
            losses.append(float(np.ravel(exe.run(main, feed=feed, fetch_list=[loss])[0])[0]))
        feed = {"user": feed["user"], "first": np.tile(np.array([[[1], [2]]]), (16, 1, 1))}
        found = exe.run(search, feed=feed, fetch_list=list(targets))
    return {"losses": losses, "found": [np.array(f).tolist() for f in found]}

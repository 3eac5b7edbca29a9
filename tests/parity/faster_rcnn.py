"""A small Faster R-CNN with a feature pyramid, for any engine that offers the Fluid API (Python 3.7
syntax). Nothing is drawn at random.
"""

import numpy as np

from tests.parity.programs import new_scope, set_parameters

CLASSES, SIZE, CHANNELS, STEPS = 3, 64, 6, 5
STRIDES = (4, 8)  # of the levels 2 and 3
RATIOS = [0.5, 1.0, 2.0]


def batch(fluid, rng):
    """Two images, and the boxes, classes and crowd flags of two to four objects in each."""
    counts = [int(n) for n in rng.randint(2, 5, 2)]
    corner, size = rng.rand(sum(counts), 2) * 30, 8 + rng.rand(sum(counts), 2) * 24
    place = fluid.CPUPlace()

    def rows(values, dtype):
        return fluid.create_lod_tensor(values.astype(dtype), [counts], place)

    return {
        "image": rng.rand(2, 3, SIZE, SIZE).astype("float32"),
        "info": np.array([[SIZE, SIZE, 1], [SIZE, SIZE, 1]], "float32"),
        "box": rows(np.concatenate([corner, corner + size], 1), "float32"),
        "label": rows(rng.randint(1, CLASSES, (sum(counts), 1)), "int32"),
        "crowd": rows(np.arange(sum(counts))[:, None] == 1, "int32"),
    }


def pyramid(fluid, image):
    """The maps of the levels 2 and 3."""
    layers = fluid.layers
    x, maps = image, []
    for _ in range(3):
        x = layers.conv2d(x, CHANNELS, 3, stride=2, padding=1, act="relu")
        maps.append(layers.conv2d(x, CHANNELS, 1))
    low, high = maps[1:]
    low = low + layers.conv2d_transpose(high, CHANNELS, filter_size=2, stride=2)
    return [layers.conv2d(m, CHANNELS, 3, padding=1) for m in (low, high)]


def region_proposals(fluid, maps, info):
    """Of each level: scores, deltas, anchors, variances; and the proposals of all levels."""
    layers = fluid.layers
    found, rois, chances = [], [], []
    for stride, x in zip(STRIDES, maps):
        x = layers.conv2d(x, CHANNELS, 3, padding=1, act="relu", param_attr="rpn_w", bias_attr="rpn_b")
        scores = layers.conv2d(x, len(RATIOS), 1, param_attr="score_w", bias_attr="score_b")
        deltas = layers.conv2d(x, 4 * len(RATIOS), 1, param_attr="delta_w", bias_attr="delta_b")
        anchors, variances = layers.anchor_generator(
            x,
            anchor_sizes=[3.0 * stride],
            aspect_ratios=RATIOS,
            variance=[1.0, 1.0, 1.0, 1.0],
            stride=[float(stride), float(stride)],
        )
        proposed, chance = layers.generate_proposals(
            layers.sigmoid(scores),
            deltas,
            info,
            anchors,
            variances,
            pre_nms_top_n=60,
            post_nms_top_n=20,
            nms_thresh=0.7,
            min_size=2.0,
        )
        rois.append(proposed)
        chances.append(chance)
        found.append(
            [
                layers.reshape(layers.transpose(scores, [0, 2, 3, 1]), [0, -1, 1]),
                layers.reshape(layers.transpose(deltas, [0, 2, 3, 1]), [0, -1, 4]),
                layers.reshape(anchors, [-1, 4]),
                layers.reshape(variances, [-1, 4]),
            ]
        )
    return found, layers.collect_fpn_proposals(rois, chances, 2, 3, 30)


def region_loss(fluid, found, box, crowd, info):
    layers = fluid.layers
    scores, deltas = (layers.concat([level[i] for level in found], axis=1) for i in (0, 1))
    anchors, variances = (layers.concat([level[i] for level in found], axis=0) for i in (2, 3))
    score, delta, label, target, weight = layers.rpn_target_assign(
        deltas,
        scores,
        anchors,
        variances,
        box,
        crowd,
        info,
        rpn_batch_size_per_im=32,
        rpn_straddle_thresh=0.0,
        rpn_fg_fraction=0.5,
        rpn_positive_overlap=0.6,
        rpn_negative_overlap=0.3,
        use_random=False,
    )
    label = layers.cast(label, "float32")
    label.stop_gradient = True
    of_scores = layers.reduce_mean(layers.sigmoid_cross_entropy_with_logits(score, label))
    of_deltas = layers.smooth_l1(delta, target, sigma=3.0, inside_weight=weight, outside_weight=weight)
    number = layers.reduce_prod(layers.cast(layers.shape(label), "float32"))
    number.stop_gradient = True
    return of_scores + layers.reduce_sum(of_deltas) / number


def box_loss(fluid, maps, proposals, label, crowd, box, info):
    layers = fluid.layers
    rois, label, target, inside, outside = layers.generate_proposal_labels(
        proposals,
        label,
        crowd,
        box,
        info,
        batch_size_per_im=16,
        fg_fraction=0.25,
        fg_thresh=0.5,
        bg_thresh_hi=0.5,
        bg_thresh_lo=0.0,
        class_nums=CLASSES,
        use_random=False,
    )
    by_level, restore = layers.distribute_fpn_proposals(rois, 2, 3, 3, 24)
    pooled = [
        layers.roi_align(x, r, 3, 3, 1.0 / stride, sampling_ratio=2) for x, r, stride in zip(maps, by_level, STRIDES)
    ]
    pooled = layers.gather(layers.concat(pooled, axis=0), restore)
    hidden = layers.fc(pooled, 12, act="relu")
    scores, deltas = layers.fc(hidden, CLASSES), layers.fc(hidden, 4 * CLASSES)
    label = layers.cast(label, "int64")
    label.stop_gradient = True
    of_scores = layers.reduce_mean(layers.softmax_with_cross_entropy(scores, label))
    of_boxes = layers.smooth_l1(deltas, target, sigma=1.0, inside_weight=inside, outside_weight=outside)
    return of_scores + layers.reduce_mean(of_boxes), rois


def detector(fluid):
    """(loss of the proposals, loss of the boxes, drawn proposals) of a program that trains."""
    image = fluid.data(name="image", shape=[None, 3, SIZE, SIZE], dtype="float32")
    info = fluid.data(name="info", shape=[None, 3], dtype="float32")
    box = fluid.data(name="box", shape=[None, 4], dtype="float32", lod_level=1)
    label = fluid.data(name="label", shape=[None, 1], dtype="int32", lod_level=1)
    crowd = fluid.data(name="crowd", shape=[None, 1], dtype="int32", lod_level=1)
    maps = pyramid(fluid, image)
    found, proposals = region_proposals(fluid, maps, info)
    first = region_loss(fluid, found, box, crowd, info)
    second, rois = box_loss(fluid, maps, proposals, label, crowd, box, info)
    fluid.optimizer.Momentum(learning_rate=0.02, momentum=0.9).minimize(first + second)
    return first, second, rois


def train(fluid, exe=None):
    """Losses of STEPS steps from parameters that depend on their names alone, the lod of the drawn
    proposals of each, and the norms of the parameters then.
    """
    scope, rng = new_scope(fluid), np.random.RandomState(0)
    exe = exe or fluid.Executor(fluid.CPUPlace())
    main, startup = fluid.Program(), fluid.Program()
    losses, lods = [], []
    with fluid.scope_guard(scope), fluid.program_guard(main, startup), fluid.unique_name.guard():
        fetches = detector(fluid)
        exe.run(startup)
        set_parameters(fluid, main, scope)
        for _ in range(STEPS):
            first, second, rois = exe.run(main, feed=batch(fluid, rng), fetch_list=list(fetches), return_numpy=False)
            losses.append([float(np.ravel(np.array(v))[0]) for v in (first, second)])
            lods.append(rois.lod())
        norms = {
            p.name: float(np.linalg.norm(np.array(scope.find_var(p.name).get_tensor()))) for p in main.all_parameters()
        }
    return {"losses": losses, "lods": lods, "norms": norms}
